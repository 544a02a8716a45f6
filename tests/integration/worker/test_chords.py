"""Chords on real workers: what the body gets, how often it runs, and what becomes of chords whose members fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import chain, chord, group
from celery.exceptions import ChordError
from chord_tasks import register
from ends_site import LEASE, REDIS, redis_answers
from worker_site import PREFORK_FIRST, Site, wait_until


class Chords:
    """The tasks of these tests, and the chords that are made of them."""

    def __init__(self, site: Site, **conf: Any) -> None:
        self.site, self.conf = site, conf
        self.app = register(site.make_app(**conf))

    def worker(self, pool: str = "threads", concurrency: int = 2, **conf: Any) -> Any:
        return self.site.worker(pool, concurrency, **{"imports": ["chord_tasks"], **self.conf, **conf})

    def s(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return self.app.tasks[f"chords.{name}"].s(*args, **kwargs)

    def numbers(self, count: int) -> list[Any]:
        return [self.s("number", number) for number in range(count)]

    def bodies(self, **fields: Any) -> list[Any]:
        return [event["values"] for event in self.site.record.events("body", **fields)]

    def errors(self) -> list[str]:
        return [event["error"] for event in self.site.record.events("errback")]

    def fails(self, header: list[Any], seconds: float = 15) -> tuple[str, list[str]]:
        """The error of a chord over these and two that succeed, and what its errback was told."""
        body = self.s("total").on_error(self.s("on_error"))
        result = chord([self.s("number", 1), *header, self.s("number", 2)])(body)
        with pytest.raises(ChordError) as caught:
            result.get(timeout=seconds, follow_parents=False)
        wait_until(self.errors, 5, self.site.describe)
        return str(caught.value), self.errors()

    def rows(self, sql: str) -> list[Any]:
        return [row[0] for row in self.site.rows(sql)]

    def describe(self) -> str:
        """Where unfinished chords stand, what waits or runs, and the workers' last words."""
        left = self.site.rows(
            "select group_id, size, added, returned, array(select (task_id, position)::text from pgbroker.chord_parts p"
            " where p.group_id = c.group_id) from pgbroker.chords c where finished_at is null"
        )
        jobs = self.site.rows(
            "select job_id, task_id, task_name, status::text, ack_mode::text, worker, run_after::text, last_error"
            " from pgbroker.jobs"
        )
        return f"chords {left}\njobs {jobs}\n{self.site.record.events('dies')[-2:]}\n{self.site.describe()}"

    def close(self) -> None:
        backend: Any = self.app.backend
        if hasattr(backend, "connparams"):
            backend.result_consumer.stop()
            backend.result_consumer._pubsub = None
            backend.client.connection_pool.disconnect()
        self.app.close()


@pytest.fixture
def chords(site: Site) -> Iterator[Chords]:
    chords = Chords(site)
    yield chords
    chords.close()


@pytest.fixture(params=["other schema", "redis"])
def elsewhere(request: pytest.FixtureRequest, site: Site) -> Iterator[Chords]:
    """Results lie in another place than the jobs."""
    backend = REDIS
    if request.param == "redis":
        if not redis_answers():
            pytest.skip("no Redis at 127.0.0.1:6379")
    else:
        backend = site.database.server.url(site.database.name, schema="results_elsewhere")
    chords = Chords(site, result_backend=backend)
    yield chords
    chords.close()


def shapes(c: Chords) -> dict[str, tuple[Any, Any]]:
    """Canvases and what they give."""
    n, total = (lambda *values: [c.s("number", value) for value in values]), (lambda: c.s("total"))
    return {
        "chord": (chord(n(3, 1, 2), total()), [3, 1, 2]),
        "of one": (chord(n(7), total()), [7]),
        "of none": (chord([], total()), []),
        "a generator": (chord((c.s("number", value) for value in range(5)), total()), [0, 1, 2, 3, 4]),
        "of chords": (chord([chord(n(1, 2), total()), chord(n(3), total())], total()), [[1, 2], [3]]),
        "in a chain": (chain(c.s("number", 1), group(c.s("total"), c.s("total")), total(), total()), [1, 1]),
        "of chains": (chord([chain(c.s("number", 1), total()), c.s("number", 5)], total()), [1, 5]),
        "group as body": (chord(n(1, 2), group(total(), total())), [[1, 2], [1, 2]]),
        "chord as body": (chord(n(1, 2), chord([total(), total()], total())), [[1, 2], [1, 2]]),
        "chain as body": (chord(n(1, 2), chain(total(), total())), [1, 2]),
        # Celery flattens it from its end
        "a nested group": (chord([group(n(1, 2)), c.s("number", 3)], total()), [2, 1, 3]),
        "a chord with a group as body": (
            chord([c.s("number", 0), chord(n(1, 2), group(total(), total()))], total()),
            [0, [[1, 2], [1, 2]]],
        ),
        "ignored members": (chord([c.s("ignored", 4), c.s("ignored", 5)], total()), [4, 5]),
        "retried members": (chord([c.s("again", 4), c.s("number", 5)], total()), [4, 5]),
        "replaced members": (chord([c.s("replaced", 4), c.s("number", 5)], total()), [40, 5]),
        "members replaced by groups": (
            chord([c.s("replaced", 4, many=True), c.s("number", 9)], total()),
            [[4, 5, 6], 9],
        ),
        "members that join": (chord([c.s("adding", 4), c.s("number", 9)], total()), [4, 5, 9]),
        "odd values": (chord(n(None, {"a": [1, "ä\x00\U0001f600"]}), total()), [None, {"a": [1, "ä\x00\U0001f600"]}]),
    }


@pytest.mark.parametrize("pool", PREFORK_FIRST)
def test_the_body_gets_what_the_header_returned_as_it_is_nested(chords: Chords, pool: str) -> None:
    chords.worker(pool, 1 if pool == "solo" else 4)
    results = {name: (signature.apply_async(), wanted) for name, (signature, wanted) in shapes(chords).items()}
    got = {name: result.get(timeout=15) for name, (result, _) in results.items()}
    assert got == {name: wanted for name, (_, wanted) in results.items()}
    assert chords.rows("select count(*) from pgbroker.chord_parts") == [0]
    # the last one is told a size that nothing follows: Celery numbers the members of its body by the outer chord
    left = "select size from pgbroker.chords where finished_at is null and (returned > 0 or size <> 2)"
    assert chords.rows(left) == []
    assert chords.rows("select count(*) from pgbroker.job_log where task_name = 'celery.chord_unlock'") == [0]


def test_chords_work_where_results_lie_elsewhere(elsewhere: Chords) -> None:
    elsewhere.worker("threads", 4)
    names = ("chord", "of chords", "group as body", "retried members", "replaced members", "a nested group")
    results = {name: (shapes(elsewhere)[name][0].apply_async(), shapes(elsewhere)[name][1]) for name in names}
    assert {name: result.get(timeout=15) for name, (result, _) in results.items()} == {
        name: wanted for name, (_, wanted) in results.items()
    }
    text, told = elsewhere.fails([elsewhere.s("fail", 1)])
    assert "meant to fail 1" in text
    assert len(told) == 1


@pytest.mark.parametrize(
    ("name", "wanted"), [("fail", "ValueError('meant to fail 1')"), ("reject", "not wanted")], ids=["fails", "rejected"]
)
def test_a_chord_fails_with_its_member(chords: Chords, name: str, wanted: str) -> None:
    chords.worker("threads", 2)
    text, told = chords.fails([chords.s(name, 1) if name == "fail" else chords.s(name)])
    assert text.startswith("Dependency ")
    assert wanted in text
    assert told == [f"ChordError: {text}"]
    assert chords.bodies() == []


def test_a_chord_fails_with_a_member_that_no_worker_knows(chords: Chords) -> None:
    chords.worker("threads", 2)
    text, told = chords.fails([chords.app.signature("chords.unknown")])
    assert "'chords.unknown' never registered" in text
    assert told == [f"ChordError: {text}"]


@pytest.mark.parametrize("how", ["revoked", "purged", "cancelled", "expired"])
def test_a_chord_fails_with_a_member_that_never_ran(chords: Chords, how: str) -> None:
    chords.worker("threads", 2)
    waiting = chords.s("number", 1).set(queue="nobody", expires=1 if how == "expired" else None)
    body = chords.s("total").on_error(chords.s("on_error"))
    result = chord([chords.s("number", 1), waiting])(body)
    member = result.parent.results[1].id
    if how == "revoked":
        chords.app.control.revoke(member)
    elif how == "purged":
        with chords.app.connection_for_write() as connection:
            connection.default_channel.queue_purge("nobody")
    elif how == "cancelled":
        chords.site.rows(
            "select pgbroker.cancel(job_id, 'REVOKED', 'by an operator') from pgbroker.jobs where task_id = %s", member
        )
    else:
        wait_until(lambda: chords.site.rows("select pgbroker.prune_expired()")[0][0], 5)
    with pytest.raises(ChordError, match="TaskRevokedError"):
        result.get(timeout=10, follow_parents=False)
    wait_until(chords.errors, 5)
    assert len(chords.errors()) == 1
    assert chords.bodies() == []


def test_a_member_that_was_lost_fails_the_chord_or_runs_again(chords: Chords) -> None:
    """Early and late acknowledgement: nothing hangs, and nothing counts twice."""
    lost = chords.worker("prefork", 2, options=LEASE)
    body = chords.s("total").on_error(chords.s("on_error"))
    early = chord([chords.s("number", 1), chords.s("early", 2, 60)])(body)
    late = chord([chords.s("number", 1), chords.s("number", 2, 2)])(chords.s("total", tag="late"))
    wait_until(lambda: chords.rows("select count(*) from pgbroker.jobs where started_at is not null") == [2], 10)
    lost.kill()
    chords.worker("threads", 2, options=LEASE)
    assert late.get(timeout=20) == [1, 2]
    with pytest.raises(ChordError, match="worker lost after start"):
        early.get(timeout=10, follow_parents=False)
    assert chords.bodies() == [[1, 2]]


def test_the_body_runs_once_with_a_thousand_members(chords: Chords) -> None:
    chords.worker("prefork", 2, worker_prefetch_multiplier=16)
    result = chord(chords.numbers(1000))(chords.s("total"))
    assert result.get(timeout=60) == list(range(1000))
    assert len(chords.bodies()) == 1


@pytest.mark.slow
def test_the_body_runs_once_with_ten_thousand_members(chords: Chords) -> None:
    chords.worker("prefork", 2, worker_prefetch_multiplier=64)
    result = chord(chords.numbers(10_000))(chords.s("total"))
    assert result.get(timeout=100) == list(range(10_000))
    assert len(chords.bodies()) == 1


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("rounds", [3, pytest.param(100, marks=pytest.mark.slow)])
def test_the_body_runs_once_though_a_worker_dies_after_any_statement(
    chords: Chords, tmp_path: Path, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "rounds"
    folder.mkdir()
    monkeypatch.setenv("PGB_CHORD_ROUNDS", str(folder))
    options = {**LEASE, "lease_seconds": 2}
    workers = [chords.worker("prefork", 2, options=options) for _ in range(2)]
    died = 0
    for number in range(rounds):
        (folder / f"{number}").touch()
        result = chord(chords.numbers(6))(chords.s("total", tag=number))
        wait_until(result.ready, 40, chords.describe)
        assert result.get() == list(range(6))
        (folder / f"{number}").unlink(missing_ok=True)
        for worker in [w for w in workers if w.process.poll() is not None]:
            died += 1
            workers.remove(worker)
            workers.append(chords.worker("prefork", 2, options=options))
    assert died >= rounds // 2
    wait_until(lambda: chords.rows("select count(*) from pgbroker.jobs_live") == [0], 20)
    runs: dict[Any, set[str]] = {}
    for event in chords.site.record.events("body"):
        assert event["values"] == list(range(6))
        runs.setdefault(event["tag"], set()).add(event["task_id"])
    jobs = chords.rows(
        "select count(*) from pgbroker.job_log where task_name = 'chords.total' group by task_id having count(*) > 1"
    )
    assert sorted(runs) == list(range(rounds))
    assert jobs == []
