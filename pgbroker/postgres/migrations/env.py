"""Alembic's environment: one transaction around lock, tables and functions, run now or written out as SQL."""

from alembic import context

from pgbroker.postgres import installer
from pgbroker.postgres.revisions import VERSION_TABLE


def _run() -> None:
    attributes = context.config.attributes
    schema: str = attributes["schema"]
    if context.is_offline_mode():
        context.configure(
            dialect_name="postgresql",
            dialect_opts={"paramstyle": "named"},
            literal_binds=True,
            version_table=VERSION_TABLE,
            version_table_schema=schema,
        )
    else:
        context.configure(connection=attributes["connection"], version_table=VERSION_TABLE, version_table_schema=schema)
    with context.begin_transaction():
        if context.is_offline_mode():
            installer.execute(installer.prelude(schema))
        installer.execute(installer.create_schema(schema))
        context.run_migrations()
        installer.execute(installer.install_functions(schema))


_run()
