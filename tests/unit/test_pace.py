"""How many jobs a worker fetches ahead of its prefetch window."""

import pytest

from pgbroker.transport import pace
from pgbroker.transport.pace import Pace


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(pace.time, "monotonic", lambda: now[0])
    return now


def work(subject: Pace, clock: list[float], jobs: int, seconds: float) -> int:
    for _ in range(jobs):
        subject.handed_out()
    clock[0] += seconds
    return subject.ahead()


def test_fetches_nothing_ahead_before_it_knows_the_pace(clock: list[float]) -> None:
    assert Pace().ahead() == 0


@pytest.mark.parametrize(("jobs", "seconds", "ahead"), [(100, 0.1, 20), (1, 1.0, 0), (40, 1.0, 0), (10_000, 1.0, 64)])
def test_fetches_twenty_milliseconds_of_work(clock: list[float], jobs: int, seconds: float, ahead: int) -> None:
    assert work(Pace(), clock, jobs, seconds) == ahead


def test_forgets_a_fast_past_as_soon_as_tasks_take_longer(clock: list[float]) -> None:
    subject = Pace()
    assert work(subject, clock, 200, 0.1) == 40
    assert work(subject, clock, 0, 2 * pace.SPAN_SECONDS) == 0
