"""Workers are killed at random moments: no task is lost, none runs twice without an excuse, no key is left behind.

A few rounds by default; ``make chaos ROUNDS=200`` takes longer, and says what it saw.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from audit import Audit
from figures import Figures
from kills import EARLY, LATE, STRICT, Killing, Mode

from pgbroker.postgres import pool

ROUNDS = int(os.environ.get("PGBROKER_CHAOS_ROUNDS", "5"))
#: With this one the first five rounds hit main processes and children alike.
SEED = int(os.environ.get("PGBROKER_CHAOS_SEED", "29"))


@pytest.mark.slow
@pytest.mark.timeout(480 + 4 * ROUNDS)
@pytest.mark.skipif(sys.platform != "linux", reason="children die with their parent on Linux only")
@pytest.mark.parametrize("mode", [EARLY, STRICT, LATE], ids=["early", "strict", "late"])
def test_killed_workers_lose_nothing(mode: Mode, database: Any, tmp_path: Path, capsys: Any) -> None:
    try:
        audit = Audit(Killing(mode, database, tmp_path, ROUNDS, SEED).run())
    finally:
        pool.close_all()
    (tmp_path / "faults").write_text("\n".join(audit.faults))
    with capsys.disabled():
        print(f"\n{Figures(audit).report()}\nseed: {SEED}, diary and logs: {tmp_path}")
    assert audit.faults == []
    assert audit.counts["DONE"] > ROUNDS
