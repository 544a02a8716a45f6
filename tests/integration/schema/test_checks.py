"""What `check` finds."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from pgbroker.postgres import checks

if TYPE_CHECKING:
    from .conftest import Ensure, OptionsFor, Run


def test_check_without_a_schema(options: OptionsFor) -> None:
    assert {finding.name for finding in checks.check(options()) if not finding.ok} == {"schema"}


def test_check_warns_of_old_transactions(
    database: Any, monkeypatch: pytest.MonkeyPatch, options: OptionsFor, ensure: Ensure
) -> None:
    ensure(options())
    monkeypatch.setattr(checks, "OLD_TRANSACTION_SECONDS", 0)
    with closing(database.connect(autocommit=False, application_name="sleepy")) as other, other.cursor() as cursor:
        cursor.execute("select pg_backend_pid()")
        pid = cursor.fetchone()[0]
        found = [finding for finding in checks.check(options()) if finding.level == "warning"]
        assert any(f"pid {pid} " in finding.text and "sleepy" in finding.text for finding in found)
        assert all(finding.ok for finding in found)


def test_check_misses_a_history_partition(run: Run, options: OptionsFor, ensure: Ensure) -> None:
    ensure(options())
    run("drop table pgbroker.job_history_05")
    assert [finding.name for finding in checks.check(options()) if not finding.ok] == ["history"]
