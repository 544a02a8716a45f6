"""docs/reference/state-table.md names tests that exist, and every test that proves a line is named."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
POOLS = ("prefork", "threads", "solo", "gevent")

COLLECT = """
import sys, pytest

class Printer:
    def pytest_collection_finish(self, session):
        for item in session.items:
            print("slow" if item.get_closest_marker("slow") else "yes", item.nodeid)

sys.exit(pytest.main(["--collect-only", "-p", "no:terminal", "-o", "addopts=", *sys.argv[1:]], plugins=[Printer()]))
"""


class Line(NamedTuple):
    """A line of a table: a test, and for each pool ``yes``, ``slow`` or the letter of a reason."""

    file: str
    event: str
    modes: list[str]
    test: str
    pools: dict[str, str]

    def nodes(self, pool: str) -> list[str]:
        return [f"{self.file}::{self.test.format(pool=pool, mode=mode)}" for mode in self.modes]


def document() -> str:
    return (ROOT / "docs/reference/state-table.md").read_text("utf-8")


def rows(text: str) -> Iterator[dict[str, str]]:
    """The rows of the tables in a text, by their heads."""
    for table in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
        heads, _, *body = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
        for cells in body:
            assert len(cells) == len(heads), cells
            yield dict(zip(heads, cells, strict=True))


def lines() -> list[Line]:
    return [
        Line(
            file,
            row["event"],
            row["ack"].split(", "),
            row["test"].strip("`"),
            {pool: row[pool] for pool in POOLS},
        )
        for file, section in re.findall(r"^`(tests/\S+\.py)`(.*?)(?=^## |\Z)", document(), re.MULTILINE | re.DOTALL)
        for row in rows(section)
    ]


@pytest.fixture(scope="module")
def collected() -> dict[str, str]:
    """Each test of the files that the document names, and in which run it is."""
    files = sorted({line.file for line in lines()})
    done = subprocess.run(
        [sys.executable, "-c", COLLECT, *files], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    return {node: run for run, _, node in (line.partition(" ") for line in done.stdout.splitlines())}


def test_every_named_test_exists_and_is_run_where_it_says(collected: dict[str, str]) -> None:
    found = lines()
    assert len(found) > 40
    for line in found:
        for pool, run in line.pools.items():
            if run in ("yes", "slow"):
                assert {node: collected.get(node) for node in line.nodes(pool)} == dict.fromkeys(line.nodes(pool), run)


def test_every_test_is_named(collected: dict[str, str]) -> None:
    named = {node for line in lines() for pool in POOLS for node in line.nodes(pool)}
    assert set(collected) <= named


def test_every_line_is_in_the_default_run_for_prefork_and_another_pool_if_they_have_it() -> None:
    for line in lines():
        having = {pool: run for pool, run in line.pools.items() if run in ("yes", "slow")}
        assert having, line
        assert having.pop("prefork", "yes") == "yes", line
        assert "yes" in having.values() or not having, line


def test_every_missing_pool_has_a_reason() -> None:
    reasons = {row["letter"] for row in rows(document()) if "letter" in row}
    used = {run for line in lines() for run in line.pools.values()} - {"yes", "slow"}
    assert used == reasons
