"""The judge of the chaos test sees what it is there to see."""

from __future__ import annotations

from typing import Any

import pytest
from audit import Audit
from kills import EARLY, LATE, STRICT, Mode, Story
from load import Published
from victims import Kill

MAIN, CHILD, OTHER_CHILD = 100, 101, 201


def audit(
    mode: Mode = EARLY,
    status: str | None = "DONE",
    *,
    result: str = "SUCCESS",
    last_error: str | None = None,
    kills: tuple[Kill, ...] = (),
    runs: tuple[tuple[int, float, float | None], ...] = ((CHILD, 1.0, 2.0),),
) -> Audit:
    """Judge a run of one task: ``runs`` are (pid, start, end)."""
    lines: list[dict[str, Any]] = []
    for number, (pid, start, end) in enumerate(runs):
        about = {"task_id": "t", "run": str(number), "pid": pid, "parent": pid // 100 * 100}
        lines.append({"event": "start", "at": start, **about})
        if end is not None:
            lines.append({"event": "end", "at": end, **about})
    worker = f"host:{MAIN}:abc"
    row = {"task_id": "t", "status": status, "last_error": last_error, "worker": worker, "at": 9.0}
    return Audit(
        Story(
            mode=mode,
            kills=list(kills),
            published=[Published("t", mode.tasks[0], None, 0.5)],
            duplicates=0,
            lines=sorted(lines, key=lambda line: line["at"]),
            rows=[row] if status else [],
            events=[],
            results={"t": result},
            gave_up=[],
            troubles=[],
        )
    )


def kill(at: float, what: str = "main") -> Kill:
    return Kill(at, what, MAIN, (MAIN if what == "main" else CHILD,), "prefork", is_namesake=False)


BROKEN_OFF = ((CHILD, 1.0, None),)
AGAIN = ((CHILD, 1.0, None), (OTHER_CHILD, 5.0, 6.0))
DEAD: dict[str, Any] = {"status": "DEAD", "result": "FAILURE", "runs": BROKEN_OFF}
LOST: dict[str, Any] = {**DEAD, "last_error": "worker lost after start: lease of host:100:abc ran out"}


@pytest.mark.parametrize(
    "what",
    [
        {},
        {"runs": AGAIN, "kills": (kill(1.2),)},
        {"runs": AGAIN, "kills": (kill(1.2, "children"),)},
        {"runs": AGAIN, "kills": (kill(4.0),), "mode": LATE},
        {**LOST, "kills": (kill(1.5),)},
        {**LOST, "kills": (kill(1.5),), "mode": STRICT},
        {**LOST, "kills": (kill(2.1),), "runs": ((CHILD, 1.0, 2.0),)},
        {**DEAD, "kills": (kill(1.5),), "mode": LATE, "last_error": "WorkerLostError: signal 9; loss 5 of 5"},
    ],
)
def test_accepts_what_is_allowed(what: dict[str, Any]) -> None:
    assert audit(**what).faults == []


@pytest.mark.parametrize(
    ("what", "fault"),
    [
        ({"status": None}, "is not where it should be"),
        ({"status": "RUNNING"}, "is not where it should be"),
        ({"runs": ()}, "is DONE, and never ended"),
        ({"runs": BROKEN_OFF}, "is DONE, and never ended"),
        ({"result": "PENDING"}, "is DONE, its result PENDING"),
        ({"runs": AGAIN}, "nobody killed its first run"),
        ({"runs": AGAIN, "kills": (kill(5.5),)}, "nobody killed its first run"),
        ({"runs": AGAIN, "kills": (kill(4.0),)}, "killed long after its start"),
        ({"runs": AGAIN, "kills": (kill(1.2),), "mode": STRICT}, "ran twice under strict_start"),
        ({"runs": ((CHILD, 1.0, 5.5), AGAIN[1]), "kills": (kill(1.2),)}, "ran twice at the same time"),
        (LOST, "nobody hurt its worker"),
        ({**LOST, "kills": (kill(1.5),), "result": "PENDING"}, "is DEAD, its result PENDING"),
        ({**LOST, "kills": (kill(1.5),), "result": "SUCCESS"}, "is DEAD, its result SUCCESS"),
        ({**LOST, "kills": (kill(1.5),), "mode": LATE}, "is DEAD for no good reason"),
        (
            {**DEAD, "kills": (kill(1.5),), "mode": LATE, "last_error": "WorkerLostError: signal 9; loss 1 of 5"},
            "is DEAD for no good reason",
        ),
    ],
)
def test_finds(what: dict[str, Any], fault: str) -> None:
    (found,) = audit(**what).faults
    assert fault in found
