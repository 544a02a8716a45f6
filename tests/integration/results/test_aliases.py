"""The id of a call that was a duplicate leads to the live job's result, and who waits for it is woken."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from celery import group, states
from celery.exceptions import TaskRevokedError, TimeoutError, WorkerLostError
from celery.result import GroupResult

if TYPE_CHECKING:
    from .conftest import Calls, MakeApp, Run, WaitUntil


# -- what is found under an alias -----------------------------------------------------------------------


def test_a_plain_duplicate_has_the_live_jobs_result(plain: Calls) -> None:
    live, twin = plain.call(), plain.call()
    assert twin.id != live.id
    assert plain.jobs() == [live.id]
    assert plain.aliases() == [(twin.id, live.id)]
    assert (twin.state, twin.result, twin.ready()) == (states.PENDING, None, False)
    with pytest.raises(TimeoutError):
        twin.get(timeout=0.1)
    plain.finish(live, {"done": 1}, "PROGRESS")
    assert (twin.state, twin.info) == ("PROGRESS", {"done": 1})
    plain.finish(live, [1, 2])
    assert twin.get(timeout=5) == [1, 2]
    assert (twin.state, twin.result, twin.successful()) == (states.SUCCESS, [1, 2], True)
    assert plain.app.backend.get_task_meta(twin.id)["task_id"] == twin.id
    assert live.get(timeout=5) == [1, 2]


def test_a_failure_comes_with_its_traceback(plain: Calls) -> None:
    live, twin = plain.call(), plain.call()
    plain.app.backend.mark_as_failure(live.id, KeyError("k"), traceback="Traceback: here")
    with pytest.raises(KeyError, match="k"):
        twin.get(timeout=5)
    assert (twin.failed(), twin.traceback) == (True, "Traceback: here")


def test_a_result_that_is_there_takes_one_statement(plain: Calls, statements: list[str], run: Run) -> None:
    live, twin = plain.call(), plain.call()
    plain.finish(live)
    del statements[:]
    assert twin.get(timeout=5) == "done"
    assert len(statements) == 1
    assert run("select 1 from pgbroker.waiters where payload = %s", twin.id) == []


def test_without_notify(make_app: MakeApp, url: str, calls_of: Callable[[Any], Calls]) -> None:
    calls = calls_of(make_app(broker=url, result_backend_transport_options={"notify": False}))
    live, twin = calls.call(), calls.call()
    timer = threading.Timer(0.2, calls.finish, (live,))
    timer.start()
    assert twin.get(timeout=10) == "done"
    timer.join()


def test_an_id_too_long_to_travel(plain: Calls, wait_for: Any, run: Run) -> None:
    live = plain.call()
    long_id = "é" * 110 + plain.key
    twin = plain.call(task_id=long_id)
    assert plain.aliases() == [(long_id, live.id)]
    begun = threading.Thread(target=lambda: twin.get(timeout=10))
    begun.start()
    while not run("select 1 from pgbroker.waiters where task_id = %s and payload = ''", live.id):
        time.sleep(0.01)
    plain.finish(live)
    begun.join(3)
    assert not begun.is_alive()


# -- who waits is woken ---------------------------------------------------------------------------------


def test_who_waits_is_woken(plain: Calls, wait_for: Any, statements: list[str], run: Run) -> None:
    live, twin = plain.call(), plain.call()
    del statements[:]
    got = wait_for(twin)
    registered = [sql for sql in statements if "await_results" in sql]
    plain.finish(live)
    assert got() == "done"
    looked = [sql for sql in statements if "results(" in sql and "store_result" not in sql]
    assert (len(registered), len(looked)) == (1, 3), "a first look, the registration, and the look after the wake-up"


def test_two_ids_of_one_job_in_one_process(plain: Calls, wait_for: Any) -> None:
    live, *twins = (plain.call() for _ in range(3))
    waits = [wait_for(result) for result in (*twins, live)]
    plain.finish(live)
    assert [got() for got in waits] == ["done"] * 3


def test_states_on_the_way(plain: Calls, run: Run, wait_until: WaitUntil) -> None:
    live, twin = plain.call(), plain.call()
    seen: list[tuple[str, str]] = []
    thread = threading.Thread(target=lambda: twin.get(timeout=10, on_message=lambda m: seen.append(m["status"])))
    thread.start()
    wait_until(lambda: run("select 1 from pgbroker.waiters where payload = %s and every_state", twin.id))
    plain.finish(live, None, states.STARTED)
    wait_until(lambda: seen == [states.STARTED])
    plain.finish(live)
    thread.join(10)
    assert seen == [states.STARTED, states.SUCCESS]


@pytest.mark.parametrize("is_stored", [False, True])
def test_who_waited_before_the_call_was_a_duplicate(plain: Calls, wait_for: Any, is_stored: bool) -> None:
    """The id is known beforehand; the result may be there before its alias is."""
    live = plain.call()
    chosen = f"chosen-{plain.key}"
    got = wait_for(plain.app.AsyncResult(chosen))
    if is_stored:
        plain.finish(live)
    plain.call(task_id=chosen)
    if not is_stored:
        plain.finish(live)
    began = time.monotonic()
    assert got() == "done"
    assert time.monotonic() - began < 5


def test_then(plain: Calls, wait_for: Any) -> None:
    live, twin = plain.call(), plain.call()
    called: list[tuple[str, Any]] = []
    twin.then(lambda result: called.append((result.id, result.result)))
    got = wait_for(twin)
    plain.finish(live)
    got()
    assert called == [(twin.id, "done")]


def test_get_many(plain: Calls) -> None:
    live, *twins = (plain.call() for _ in range(3))
    other = plain.call(dedupe_key=None)
    plain.finish(live)
    plain.finish(other, "other")
    ids = [result.id for result in (live, *twins, other)]
    found = {key: (meta["task_id"], meta["result"]) for key, meta in plain.app.backend.get_many(ids, timeout=5)}
    assert found == {**{key: (key, "done") for key in ids[:3]}, other.id: (other.id, "other")}


# -- groups ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["get", "join", "iter_native"])
def test_members_of_a_group(ours: Calls, wait_for: Any, ending: str) -> None:
    whole = group([ours.member(), ours.member(), ours.task.si().set(queue=ours.key)])()
    live, twin, other = whole.results
    assert ours.jobs() == [live.id, other.id]
    assert ours.aliases() == [(twin.id, live.id)]
    ours.finish(other, "other")
    assert (whole.ready(), whole.completed_count()) == (False, 1)
    got = wait_for(whole, live.id, twin.id)
    ours.finish(live)
    whole = ours.app.GroupResult(whole.id, [ours.app.AsyncResult(each.id) for each in whole.results])
    if ending == "get":
        assert got() == ["done", "done", "other"]
    elif ending == "join":
        assert whole.join(timeout=10) == ["done", "done", "other"]
    else:
        assert {key: meta["result"] for key, meta in whole.iter_native(timeout=10)} == {
            live.id: "done",
            twin.id: "done",
            other.id: "other",
        }
    assert whole.successful()


def test_a_restored_group(ours: Calls) -> None:
    held = ours.call()
    whole = group([ours.member(), ours.member()])()
    whole.save(backend=ours.app.backend)
    ours.finish(held)
    restored = GroupResult.restore(whole.id, app=ours.app, backend=ours.app.backend)
    assert restored.get(timeout=5) == ["done", "done"]


# -- ends that the broker makes -------------------------------------------------------------------------


def cancel(calls: Calls, result: Any) -> None:
    calls.cancel(result)


def revoke(calls: Calls, result: Any) -> None:
    calls.app.control.revoke(result.id)


def expire(calls: Calls, result: Any) -> None:
    """The next call with the key ends it."""
    calls.run("update pgbroker.jobs_live set expires_at = clock_timestamp() where task_id = %s", result.id)
    assert calls.call().id == calls.jobs()[-1]


def lose(calls: Calls, result: Any) -> None:
    calls.run("select from pgbroker.claim('w', array[%s], 1, 0)", calls.key)
    calls.run("update pgbroker.jobs_live set ack_mode = 'EARLY', started_at = now() where task_id = %s", result.id)
    calls.run("select pgbroker.reap()")


@pytest.mark.parametrize(
    ("end", "error", "text"),
    [
        (cancel, TaskRevokedError, "purged"),
        (revoke, TaskRevokedError, "revoked"),
        (expire, TaskRevokedError, "expired"),
        (lose, WorkerLostError, "worker lost after start"),
    ],
)
def test_an_end_without_celery(plain: Calls, wait_for: Any, end: Any, error: type[Exception], text: str) -> None:
    live, twin = plain.call(), plain.call()
    got = wait_for(twin)
    end(plain, live)
    began = time.monotonic()
    raised = got()
    assert time.monotonic() - began < 5
    assert isinstance(raised, error)
    assert text in str(raised)
    assert plain.aliases() == [(twin.id, live.id)]
    again = plain.app.AsyncResult(twin.id)
    assert again.state == (states.FAILURE if end is lose else states.REVOKED)
