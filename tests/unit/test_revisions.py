"""The schema's files: revisions, functions, and what may be imported for a look at them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from alembic.script import ScriptDirectory

import pgbroker.postgres
from pgbroker.postgres import sql_files
from pgbroker.postgres.revisions import HEAD, REVISIONS

MIGRATIONS = Path(pgbroker.postgres.__file__).parent / "migrations"

# Which function files go with which revision.
FUNCTIONS_OF = {
    "0001": "64f1185f9e32e0f2d245957d27c11cc018a564100fb272f7b89d2ddc7514bd9c",
}


def test_the_list_of_revisions_is_that_of_the_files() -> None:
    scripts = ScriptDirectory(str(MIGRATIONS))
    assert [script.revision for script in scripts.walk_revisions()][::-1] == list(REVISIONS)


def test_a_change_of_a_function_comes_with_a_revision() -> None:
    assert FUNCTIONS_OF.get(HEAD) == sql_files.functions_digest(), (
        f"A file in sql/functions changed. Databases at revision {HEAD} keep the functions they have: unless {HEAD} "
        "has not been released yet, add a revision (an empty upgrade() will do). Then write the new digest for the "
        f"newest revision into FUNCTIONS_OF: {sql_files.functions_digest()}"
    )


def test_each_function_file_holds_the_function_of_its_name() -> None:
    assert sql_files.function_names()
    for path in (MIGRATIONS / "sql" / "functions").iterdir():
        created = re.findall(
            r"^create or replace (?:function|procedure) ([\w.]+)", path.read_text("utf-8"), re.MULTILINE
        )
        assert created == [f"pgbroker.{path.stem}"], path


@pytest.mark.parametrize("name", ["order", "x" * 63])
def test_the_schema_name_takes_the_place_of_the_prefix(name: str) -> None:
    text = "select nextval('pgbroker.s'), format('pgbroker.t_%s', 1), not_pgbroker.x, \"pgbroker\" from pgbroker.t"
    expected = (
        f'select nextval(\'"{name}".s\'), format(\'"{name}".t_%s\', 1), not_pgbroker.x, "pgbroker" from "{name}".t'
    )
    assert sql_files.render(text, name) == expected


@pytest.mark.parametrize("module", ["pgbroker.cli.main", "pgbroker.postgres.migrate"])
def test_import_is_cheap(module: str) -> None:
    code = f"import sys, {module}; print(*sorted({{'alembic', 'sqlalchemy'}} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []
