"""Chords at the result backend itself: what counts, once; sizes that come late; what is kept, and for how long."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from celery.app.task import Context
from celery.exceptions import ChordError

from pgbroker.results.chord_store import ChordStore

if TYPE_CHECKING:
    from .conftest import MakeApp, Run


class Header:
    """A chord of this test whose members are told to have ended."""

    def __init__(self, app: Celery, group_id: str) -> None:
        self.app, self.backend, self.group_id = app, app.backend, group_id

        @app.task(name="c.body", shared=False)
        def body(values: list[Any]) -> None: ...

        self.body = body.s().set(queue=group_id, task_id=f"{group_id}-body")

    def open(self) -> None:
        result = self.app.AsyncResult
        self.backend.apply_chord((self.group_id, [result(f"{self.group_id}-{n}") for n in range(2)]), self.body)

    def request(self, number: int, **more: Any) -> Context:
        return Context(
            id=f"{self.group_id}-{number}", group=self.group_id, group_index=number, chord=dict(self.body), **more
        )

    def ends(self, number: int, value: Any = None, **more: Any) -> None:
        request = self.request(number, **more)
        self.backend.mark_as_done(request.id, number if value is None else value, request)


@pytest.fixture
def header(make_app: MakeApp, url: str, task_id: str) -> Header:
    return Header(make_app(broker=url), task_id)


@pytest.fixture
def published(run: Run, task_id: str) -> Callable[[], list[Any]]:
    """Give the values that each body was published with."""

    def read() -> list[Any]:
        rows = run("select body from pgbroker.jobs_live where queue = %s order by job_id", task_id)
        return [json.loads(bytes(body))[0][0] for (body,) in rows]

    return read


def test_a_member_that_runs_twice_counts_once(header: Header, published: Any) -> None:
    header.open()
    header.backend.set_chord_size(header.group_id, 2)
    header.ends(1)
    header.ends(1, "another result")
    assert published() == []
    header.ends(0)
    assert published() == [[0, 1]]
    header.ends(0)
    header.ends(1)
    assert published() == [[0, 1]]


def test_the_size_may_come_last(header: Header, published: Any) -> None:
    header.open()
    header.ends(0)
    header.ends(1)
    assert published() == []
    header.backend.set_chord_size(header.group_id, 2)
    assert published() == [[0, 1]]


def test_a_member_that_joins_is_waited_for(header: Header, published: Any) -> None:
    header.open()
    header.backend.set_chord_size(header.group_id, 2)
    header.ends(0)
    header.backend.add_to_chord(header.group_id, header.app.AsyncResult("more"))
    header.ends(1)
    assert published() == []
    header.ends(2)
    assert published() == [[0, 1, 2]]


def test_a_frozen_chord_may_be_applied_again(header: Header, published: Any) -> None:
    for _ in range(2):
        header.open()
        header.ends(1)  # before the size is known
        header.backend.set_chord_size(header.group_id, 2)
        header.ends(0)
    assert published() == [[0, 1], [0, 1]]


def test_the_last_result_is_stored_with_the_body_or_not_at_all(
    header: Header, published: Any, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    header.open()
    header.backend.set_chord_size(header.group_id, 2)
    header.ends(0)
    finish = ChordStore._finish

    def breaks(self: ChordStore, session: Any, *args: Any) -> bool:
        query = session.query

        def until_commit(sql: str, *more: Any) -> Any:
            if sql == "commit":
                raise KeyboardInterrupt
            return query(sql, *more)

        with monkeypatch.context() as patch:
            patch.setattr(session, "query", until_commit)
            return finish(self, session, *args)

    with monkeypatch.context() as patch:
        patch.setattr(ChordStore, "_finish", breaks)
        with pytest.raises(KeyboardInterrupt):
            header.ends(1)
    stored = "select task_id from pgbroker.results where task_id like %s"
    assert published() == []
    assert run(stored, f"{header.group_id}%") == [(f"{header.group_id}-0",)]
    header.ends(1)
    assert published() == [[0, 1]]
    assert len(run(stored, f"{header.group_id}%")) == 2


def test_a_body_that_cannot_be_published_fails(header: Header, run: Run) -> None:
    header.body = header.app.signature("c.body", options={"exchange": "nowhere", "routing_key": "k"})
    header.body.set(task_id=f"{header.group_id}-body", exchange="amq.direct", routing_key="not bound")
    header.open()
    header.backend.set_chord_size(header.group_id, 1)
    header.ends(0)
    result = header.app.AsyncResult(f"{header.group_id}-body")
    with pytest.raises(Exception, match=r"Callback error: .*not bound"):
        result.get(timeout=5)
    assert run("select finished_at is not null from pgbroker.chords where group_id = %s", header.group_id) == [(True,)]
    assert header.app.AsyncResult(f"{header.group_id}-0").get(timeout=5) == 0


@pytest.mark.parametrize("finished", [True, False])
def test_chords_go_away(header: Header, run: Run, finished: bool) -> None:
    header.open()
    header.backend.set_chord_size(header.group_id, 1 if finished else 2)
    header.ends(0)
    kept = "select extract(epoch from expires_at - now())::int from pgbroker.chords where group_id = %s"
    ((seconds,),) = run(kept, header.group_id)
    assert seconds == pytest.approx(3600 if finished else 86400, abs=60)
    run("update pgbroker.chords set expires_at = now() where group_id = %s", header.group_id)
    header.backend.cleanup()
    assert run(kept, header.group_id) == []
    assert run("select 1 from pgbroker.chord_parts where group_id = %s", header.group_id) == []


def test_a_chord_keeps_its_own_time(make_app: MakeApp, url: str, task_id: str, run: Run) -> None:
    app = make_app(broker=url, result_chord_expires=50, result_expires=None)
    header = Header(app, task_id)
    header.open()
    ((seconds,),) = run(
        "select extract(epoch from expires_at - now()) from pgbroker.chords where group_id = %s", task_id
    )
    assert 40 < seconds <= 50
    app.conf.result_chord_expires = 0
    header.open()
    assert run("select expires_at from pgbroker.chords where group_id = %s", task_id) == [(None,)]


@pytest.mark.parametrize("conf", [{}, {"result_serializer": "pickle"}, {"result_compression": "gzip"}], ids=str)
def test_any_value_passes_through_the_parts(
    make_app: MakeApp, url: str, task_id: str, published: Any, conf: dict[str, Any]
) -> None:
    header = Header(make_app(broker=url, accept_content=["json", "pickle"], **conf), task_id)
    odd = {"nul": "a\x00b", "surrogate": "\ud800", "wide": "\U0001f600", "nested": [None, 1.5, True, {"": []}]}
    large = "x" * 2_000_000
    header.open()
    header.backend.set_chord_size(header.group_id, 2)
    header.ends(1, odd)
    header.ends(0, large)
    assert published() == [[large, odd]]


class OddError(Exception):
    """Cannot be made anew from its arguments."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")
        self.lock = threading.Lock()


@pytest.mark.parametrize("serializer", ["json", "pickle"])
def test_any_exception_fails_the_chord(make_app: MakeApp, url: str, task_id: str, serializer: str, run: Run) -> None:
    header = Header(make_app(broker=url, accept_content=["json", "pickle"], result_serializer=serializer), task_id)
    header.open()
    header.backend.set_chord_size(header.group_id, 2)
    request = header.request(0)
    header.backend.mark_as_failure(request.id, OddError(1, 2), request=request)
    header.ends(1)
    with pytest.raises(ChordError, match="1 and 2"):
        header.app.AsyncResult(f"{task_id}-body").get(timeout=5)
    assert run("select finished_at is not null from pgbroker.chords where group_id = %s", task_id) == [(True,)]


# -- a task's end and its job's --------------------------------------------------------------------


class Held:
    """A job that is held by a worker of the test's own, and the task that it runs."""

    def __init__(self, app: Celery, queue: str, run: Run) -> None:
        self.app, self.queue, self.run, self.id = app, queue, run, f"{queue}-task"
        app.send_task("c.held", task_id=self.id, queue=queue)
        self.claim()

    def claim(self) -> None:
        sql = "select job_id, claim from pgbroker.claim('w', array[%s], 1, 60)"
        ((self.job_id, self.claim_number),) = self.run(sql, self.queue)

    def request(self, **more: Any) -> Context:
        info = {"job_id": self.job_id, "claim": self.claim_number}
        return Context(id=self.id, delivery_info=info, called_directly=False, **more)

    def give_back(self) -> None:
        self.run("select pgbroker.put_back(%s, %s, 0, 'again')", self.job_id, self.claim_number)

    def log(self) -> tuple[Any, ...]:
        sql = "select status::text, result_state from pgbroker.job_log where task_id = %s"
        return self.run(sql, self.id)[0]


@pytest.fixture
def held(make_app: MakeApp, url: str, task_id: str, run: Run) -> Held:
    return Held(make_app(broker=url), task_id, run)


def test_storing_the_result_ends_the_job(held: Held) -> None:
    held.app.backend.mark_as_done(held.id, 7, held.request())
    assert held.log() == ("DONE", "SUCCESS")
    assert held.app.AsyncResult(held.id).get(timeout=5) == 7


def test_an_ignored_result_ends_no_job_and_takes_no_statement(held: Held, statements: list[str]) -> None:
    held.app.backend.mark_as_done(held.id, 7, held.request(ignore_result=True))
    assert statements == []
    assert held.log() == ("RUNNING", None)


def test_a_state_that_a_task_sets_by_itself_ends_no_job(held: Held) -> None:
    held.app.backend.store_result(held.id, 7, "SUCCESS", request=held.request())
    assert held.log() == ("RUNNING", None)


@pytest.mark.parametrize("state", ["SUCCESS", "FAILURE"])
def test_a_claim_that_was_lost_overwrites_no_end(held: Held, state: str) -> None:
    backend, stale = held.app.backend, held.request()
    held.give_back()
    held.claim()
    backend.mark_as_failure(held.id, ValueError("the newer one"), request=held.request())
    if state == "SUCCESS":
        backend.mark_as_done(held.id, "stale", stale)
    else:
        backend.mark_as_failure(held.id, ValueError("stale"), request=stale)
    assert held.log() == ("RUNNING", None)
    assert str(held.app.AsyncResult(held.id).result) == "the newer one"


def test_a_failure_may_be_overwritten_by_the_run_that_follows(held: Held) -> None:
    held.app.backend.mark_as_failure(held.id, ValueError("first"), request=held.request())
    held.give_back()
    held.claim()
    held.app.backend.mark_as_done(held.id, "second", held.request())
    assert held.app.AsyncResult(held.id).get(timeout=5) == "second"


def test_jobs_elsewhere_are_not_ended(make_app: MakeApp, url: str, task_id: str, run: Run) -> None:
    held = Held(make_app(f"{url}{'&' if '?' in url else '?'}schema=elsewhere", broker=url), task_id, run)
    held.app.backend.mark_as_done(held.id, 7, held.request())
    assert held.log() == ("RUNNING", None)
    assert held.app.AsyncResult(held.id).get(timeout=5) == 7
