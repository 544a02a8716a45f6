"""What the tests of the schema share: a way to ask the database, and a picture of a schema to compare."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, Protocol
from uuid import uuid4

import pytest

from pgbroker.options import Options
from pgbroker.postgres import migrate
from pgbroker.postgres.connection import Session

Run = Callable[..., list[tuple[Any, ...]]]
Ensure = Callable[[Options], None]
Picture = Callable[[str], list[str]]
WaitUntil = Callable[[Callable[[], object]], None]


class OptionsFor(Protocol):
    def __call__(self, *, user: str | None = None, **words: Any) -> Options: ...


@pytest.fixture(autouse=True)
def _ask_again() -> Iterator[None]:
    migrate.forget()
    yield
    migrate.forget()


@pytest.fixture
def run(database: Any) -> Iterator[Run]:
    """Run statements as the database's owner."""
    with closing(database.connect()) as connection, connection.cursor() as cursor:

        def execute(sql: str, *args: Any) -> list[tuple[Any, ...]]:
            cursor.execute(sql, args or None)
            return cursor.fetchall() if cursor.description else []

        yield execute


@pytest.fixture
def role(run: Run) -> Iterator[str]:
    """A role that owns nothing and was granted nothing."""
    name = f"pgb_role_{uuid4().hex[:10]}"
    run(f"create role {name} login")
    yield name
    run(f"drop owned by {name} cascade")
    run(f"drop role {name}")


@pytest.fixture
def options(database: Any) -> OptionsFor:
    """Make options for the test's database: for another role, or with options of pgbroker's."""

    def make(*, user: str | None = None, **words: Any) -> Options:
        url = database.server.url(database.name, **({"user": user} if user else {}))
        return Options.from_url(url, words)

    return make


@pytest.fixture
def ensure() -> Ensure:
    """Do what the first connect of a process does."""

    def connect(given: Options) -> None:
        with closing(Session(given)) as session:
            migrate.ensure_schema(session)

    return connect


@pytest.fixture
def picture(run: Run) -> Picture:
    """All that the catalog says about a schema, one line for each thing."""
    return lambda name: sorted(line for query in _PICTURE for (line,) in run(query.replace("$schema", name)))


@pytest.fixture
def wait_until() -> WaitUntil:
    """Wait until a condition is true."""

    def wait(condition: Callable[[], object], seconds: float = 20) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "the condition never came true"
            time.sleep(0.02)

    return wait


_PICTURE = (
    """select concat_ws(' ', 'relation', c.relname, c.relkind, c.relpersistence, c.reloptions::text,
              pg_get_expr(c.relpartbound, c.oid), pg_get_partkeydef(c.oid), obj_description(c.oid, 'pg_class'))
         from pg_class c where c.relnamespace = to_regnamespace('$schema')""",
    """select concat_ws(' ', 'column', c.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod),
              a.attnotnull, a.attidentity, a.attstorage, pg_get_expr(d.adbin, d.adrelid))
         from pg_attribute a join pg_class c on c.oid = a.attrelid
         left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
        where c.relnamespace = to_regnamespace('$schema') and a.attnum > 0 and not a.attisdropped""",
    """select concat_ws(' ', 'constraint', conrelid::regclass, conname, pg_get_constraintdef(oid))
         from pg_constraint where connamespace = to_regnamespace('$schema')""",
    """select 'index ' || pg_get_indexdef(indexrelid) from pg_index join pg_class c on c.oid = indexrelid
        where c.relnamespace = to_regnamespace('$schema')""",
    """select 'function ' || pg_get_functiondef(oid) || coalesce(obj_description(oid, 'pg_proc'), '') from pg_proc
        where pronamespace = to_regnamespace('$schema')""",
    """select 'view ' || pg_get_viewdef(oid) from pg_class
        where relnamespace = to_regnamespace('$schema') and relkind = 'v'""",
    """select concat_ws(' ', 'sequence', s.seqrelid::regclass, s.seqtypid::regtype, s.seqcache, s.seqmax)
         from pg_sequence s join pg_class c on c.oid = s.seqrelid where c.relnamespace = to_regnamespace('$schema')""",
    """select concat_ws(' ', 'label', t.typname, e.enumsortorder, e.enumlabel) from pg_enum e
         join pg_type t on t.oid = e.enumtypid where t.typnamespace = to_regnamespace('$schema')""",
    "select concat_ws(' ', 'setting', name, value) from $schema.settings",
    "select 'revision ' || version_num from $schema.alembic_version",
)
