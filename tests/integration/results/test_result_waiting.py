"""Waiting for results: who is woken, when, and at what cost."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from celery import Celery, states
from celery.exceptions import TimeoutError

from pgbroker import errors
from pgbroker.options import Options
from pgbroker.results import waiting

MakeApp = Callable[..., Celery]
Run = Callable[..., list[tuple[Any, ...]]]
WaitUntil = Callable[[Callable[[], object]], None]

LISTENERS = "select pid from pg_stat_activity where application_name = 'pgbroker results'"


@pytest.fixture
def registered(run: Run, wait_until: WaitUntil) -> Callable[..., None]:
    """Wait until somebody waits for all these tasks."""

    def wait(*task_ids: str) -> None:
        sql = "select count(distinct task_id) from pgbroker.waiters where task_id = any(%s)"
        wait_until(lambda: run(sql, list(task_ids))[0][0] == len(set(task_ids)))

    return wait


@pytest.fixture
def prepared(app: Celery) -> Celery:
    """An application whose schema is there."""
    app.backend.get_state("none")
    return app


def later(function: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=function)
    thread.start()
    return thread


def test_a_ready_result_takes_one_statement(prepared: Celery, task_id: str, statements: list[str], run: Run) -> None:
    prepared.backend.store_result(task_id, 1, states.SUCCESS)
    del statements[:]
    assert prepared.AsyncResult(task_id).get(timeout=5) == 1
    assert len(statements) == 1
    assert run("select 1 from pgbroker.waiters where task_id = %s", task_id) == []


def test_a_waiter_is_woken_and_does_not_poll(
    prepared: Celery, task_id: str, statements: list[str], registered: Callable[..., None], run: Run
) -> None:
    stored_at = []

    def store() -> None:
        registered(task_id)
        time.sleep(1.2)  # long enough for a poll to show
        stored_at.append(time.monotonic())
        prepared.backend.store_result(task_id, 1, states.SUCCESS)

    thread = later(store)
    assert prepared.AsyncResult(task_id).get(timeout=10) == 1
    woken_after = time.monotonic() - stored_at[0]
    thread.join()
    assert woken_after < 0.5
    of_waiter = [sql for sql in statements if "store_result" not in sql and "listen" not in sql]
    assert len(of_waiter) == 3, "a first look, the registration, and the look after the wake-up"
    assert run("select 1 from pgbroker.waiters where task_id = %s", task_id) == []


def test_only_who_waits_is_notified(prepared: Celery, module_database: Any, task_id: str, run: Run) -> None:
    with closing(module_database.connect()) as listener, listener.cursor() as cursor:
        cursor.execute("listen pgbw_test")

        def notified() -> list[str]:
            cursor.execute("select 1")  # delivers what was committed before
            payloads = [notify.payload for notify in listener.notifies]
            listener.notifies.clear()
            return payloads

        register = "select pgbroker.register_waiters(array[%s], array[%s], 'pgbw_test', %s)"
        run(register, task_id, False, 60)
        run(register, "é" * 100, False, 60)
        run(register, "every" + task_id, True, 60)
        run(register, "late" + task_id, False, -1)
        prepared.backend.store_result("other" + task_id, 1, states.SUCCESS)
        prepared.backend.store_result("late" + task_id, 1, states.SUCCESS)
        prepared.backend.store_result(task_id, None, states.STARTED)
        assert notified() == []
        prepared.backend.store_result("every" + task_id, None, states.STARTED)
        assert notified() == ["every" + task_id]
        prepared.backend.store_result(task_id, 1, states.SUCCESS)
        assert notified() == [task_id]
        prepared.backend.store_result(task_id, 1, states.SUCCESS)
        assert notified() == [], "the registration is over"
        prepared.backend.store_result("é" * 100, 1, states.SUCCESS)
        assert notified() == [""], "a long id does not travel"


def test_a_long_id_is_waited_for(prepared: Celery, task_id: str, registered: Callable[..., None]) -> None:
    long_id = task_id + "é" * 150
    thread = later(lambda: (registered(long_id), prepared.backend.store_result(long_id, 1, states.SUCCESS)))
    assert prepared.AsyncResult(long_id).get(timeout=3) == 1
    thread.join()


@pytest.mark.parametrize("timeout", [0, 0.2, 1.2])
def test_time_out(prepared: Celery, task_id: str, timeout: float) -> None:
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        prepared.AsyncResult(task_id).get(timeout=timeout)
    assert timeout <= time.monotonic() - began < timeout + 0.6
    prepared.backend.store_result(task_id, 1, states.SUCCESS)
    assert prepared.AsyncResult(task_id).get(timeout=0) == 1


def test_get_again_after_a_time_out(prepared: Celery, task_id: str, registered: Callable[..., None]) -> None:
    result = prepared.AsyncResult(task_id)
    with pytest.raises(TimeoutError):
        result.get(timeout=0.1)
    thread = later(lambda: (time.sleep(0.2), prepared.backend.store_result(task_id, 1, states.SUCCESS)))
    assert result.get(timeout=5) == 1
    thread.join()


def test_on_message_gets_the_states_on_the_way(
    prepared: Celery, task_id: str, registered: Callable[..., None], wait_until: WaitUntil
) -> None:
    seen: list[tuple[str, Any]] = []

    def run_task() -> None:
        registered(task_id)
        for n, (state, value) in enumerate(
            [(states.STARTED, {"pid": 1}), ("PROGRESS", 1), ("PROGRESS", 2), (states.SUCCESS, 3)]
        ):
            prepared.backend.store_result(task_id, value, state)
            wait_until(lambda wanted=n + 1: len(seen) == wanted)

    thread = later(run_task)
    result = prepared.AsyncResult(task_id)
    assert result.get(timeout=10, on_message=lambda meta: seen.append((meta["status"], meta["result"]))) == 3
    thread.join()
    assert seen == [("STARTED", {"pid": 1}), ("PROGRESS", 1), ("PROGRESS", 2), ("SUCCESS", 3)]


def test_an_error_in_on_message_reaches_the_caller(prepared: Celery, task_id: str) -> None:
    prepared.backend.store_result(task_id, 1, states.SUCCESS)

    def fail(meta: dict[str, Any]) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        prepared.AsyncResult(task_id).get(timeout=5, on_message=fail)
    assert prepared.AsyncResult(task_id).get(timeout=5) == 1


def test_failures(prepared: Celery, task_id: str, registered: Callable[..., None]) -> None:
    thread = later(lambda: (registered(task_id), prepared.backend.mark_as_failure(task_id, LookupError("gone"))))
    with pytest.raises(LookupError, match="gone"):
        prepared.AsyncResult(task_id).get(timeout=5)
    thread.join()
    assert isinstance(prepared.AsyncResult(task_id).get(timeout=5, propagate=False), LookupError)


def test_groups(prepared: Celery, task_id: str, registered: Callable[..., None], statements: list[str]) -> None:
    ids = [f"{task_id}-{n}" for n in range(40)]
    inner = prepared.GroupResult(task_id + "i", [prepared.AsyncResult(ids[38]), prepared.AsyncResult(ids[39])])
    members = prepared.GroupResult(task_id, [*map(prepared.AsyncResult, ids[:38]), inner])
    for n in range(20):
        prepared.backend.store_result(ids[n], n, states.SUCCESS)

    def finish() -> None:
        registered(*ids[20:])
        for n in reversed(range(20, 40)):
            prepared.backend.store_result(ids[n], n, states.SUCCESS)

    called: list[Any] = []
    members.then(called.append)
    del statements[:]
    thread = later(finish)
    assert members.get(timeout=10) == [*range(38), [38, 39]]
    thread.join()
    assert len(called) == 1
    assert len([sql for sql in statements if "await_results" in sql]) == 1, "one registration for all"
    pairs = dict(prepared.GroupResult("g", [prepared.AsyncResult(each) for each in ids[:5]]).iter_native(timeout=5))
    assert [pairs[each]["result"] for each in ids[:5]] == [0, 1, 2, 3, 4]


def test_a_group_times_out(prepared: Celery, task_id: str) -> None:
    prepared.backend.store_result(task_id, 1, states.SUCCESS)
    members = prepared.GroupResult("g", [prepared.AsyncResult(task_id), prepared.AsyncResult("never" + task_id)])
    with pytest.raises(TimeoutError):
        members.get(timeout=0.2)
    assert members.results[0].get(timeout=0) == 1


def test_a_parent_that_fails_ends_the_wait(prepared: Celery, task_id: str) -> None:
    parent = prepared.AsyncResult(task_id + "p")
    child = prepared.AsyncResult(task_id, parent=parent)
    thread = later(lambda: (time.sleep(0.2), prepared.backend.mark_as_failure(parent.id, LookupError("above"))))
    with pytest.raises(LookupError, match="above"):
        child.get(timeout=10)
    thread.join()


# -- many threads -----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_shared", [False, True], ids=["instance-per-thread", "one-instance"])
def test_twenty_threads_wait_with_one_listener(
    make_app: MakeApp, task_id: str, registered: Callable[..., None], run: Run, is_shared: bool
) -> None:
    app = make_app(result_backend_thread_safe=is_shared)
    ids = [f"{task_id}-{n}" for n in range(20)]
    with ThreadPoolExecutor(20) as pool:
        waits = [pool.submit(lambda each=each: app.AsyncResult(each).get(timeout=20)) for each in ids]
        registered(*ids)
        assert len(run(LISTENERS)) == 1
        began = time.monotonic()
        for n in reversed(range(20)):
            app.backend.store_result(ids[n], n, states.SUCCESS)
        assert [each.result(timeout=10) for each in waits] == list(range(20))
        assert time.monotonic() - began < 2, "nobody waited for a time-out to be handed the reader's place"


@pytest.mark.parametrize("is_shared", [False, True], ids=["instance-per-thread", "one-instance"])
def test_several_threads_wait_for_one_task(
    make_app: MakeApp, task_id: str, registered: Callable[..., None], is_shared: bool
) -> None:
    app = make_app(result_backend_thread_safe=is_shared)
    with ThreadPoolExecutor(5) as pool:
        began = time.monotonic()
        waits = [pool.submit(lambda: app.AsyncResult(task_id).get(timeout=20)) for _ in range(5)]
        registered(task_id)
        app.backend.store_result(task_id, 1, states.SUCCESS)
        assert [each.result(timeout=10) for each in waits] == [1] * 5
        assert time.monotonic() - began < 2


def test_no_wake_up_is_lost_in_a_race(prepared: Celery, task_id: str) -> None:
    barrier = threading.Barrier(2)
    slowest = 0.0

    def store() -> None:
        for n in range(300):
            barrier.wait()
            time.sleep(n % 7 * 0.0004)
            prepared.backend.store_result(f"{task_id}-{n}", n, states.SUCCESS)

    thread = later(store)
    for n in range(300):
        barrier.wait()
        began = time.monotonic()
        assert prepared.AsyncResult(f"{task_id}-{n}").get(timeout=20) == n
        slowest = max(slowest, time.monotonic() - began)
    thread.join()
    assert slowest < 0.9, "by NOTIFY or the look after the registration, neither by the fallback nor a second's turn"


def test_an_interrupted_wait_leaves_the_others_alone(
    prepared: Celery, task_id: str, registered: Callable[..., None]
) -> None:
    class Interrupted(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupted

    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        with ThreadPoolExecutor(1) as pool:
            for n in range(5):
                signal.setitimer(signal.ITIMER_REAL, 0.1)
                with pytest.raises(Interrupted):
                    prepared.AsyncResult(f"{task_id}-never").get(timeout=10)
                other = pool.submit(lambda n=n: prepared.AsyncResult(f"{task_id}-{n}").get(timeout=10))
                registered(f"{task_id}-{n}")
                prepared.backend.store_result(f"{task_id}-{n}", n, states.SUCCESS)
                assert other.result(timeout=3) == n
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


# -- what may go wrong ------------------------------------------------------------------------------


def test_a_wait_survives_dropped_connections(
    prepared: Celery, task_id: str, registered: Callable[..., None], run: Run, wait_until: WaitUntil
) -> None:
    def disturb() -> None:
        for _ in range(3):
            registered(task_id)
            run("delete from pgbroker.waiters where task_id = %s", task_id)
            run("select pg_terminate_backend(pid, 2000) from pg_stat_activity where application_name like 'pgbroker %'")
        registered(task_id)
        prepared.backend.store_result(task_id, 1, states.SUCCESS)

    thread = later(disturb)
    assert prepared.AsyncResult(task_id).get(timeout=15) == 1
    thread.join()


def test_what_was_stored_while_the_connection_was_down_is_found(
    make_app: MakeApp, module_database: Any, task_id: str, registered: Callable[..., None], run: Run
) -> None:
    app = make_app()
    name = module_database.name
    meta = app.backend.encode({"status": "SUCCESS", "result": 7, "task_id": task_id}).encode()

    def outage() -> None:
        registered(task_id)
        with closing(module_database.server.admin()) as admin, admin.cursor() as cursor:
            cursor.execute(f'alter database "{name}" allow_connections false')
            try:
                run(f"select pg_terminate_backend(pid, 2000) from ({LISTENERS}) listeners")
                time.sleep(0.3)  # several vain attempts
                run("select pgbroker.put_result(%s, 'SUCCESS', %s, null)", task_id, meta)  # tells nobody
            finally:
                cursor.execute(f'alter database "{name}" allow_connections true')

    thread = later(outage)
    began = time.monotonic()
    assert app.AsyncResult(task_id).get(timeout=15) == 7
    assert time.monotonic() - began < 4, "by the look after the reconnect, not by the fallback"
    thread.join()


def test_a_lost_wake_up_is_made_good(
    make_app: MakeApp, module_database: Any, task_id: str, registered: Callable[..., None], run: Run
) -> None:
    app = make_app(result_backend_transport_options={"poll_interval": 0.4})

    def store() -> None:
        registered(task_id)
        meta = app.backend.encode({"status": "SUCCESS", "result": 1, "task_id": task_id}).encode()
        run("select pgbroker.put_result(%s, 'SUCCESS', %s, null)", task_id, meta)  # tells nobody

    thread = later(store)
    began = time.monotonic()
    assert app.AsyncResult(task_id).get(timeout=10) == 1
    thread.join()
    assert time.monotonic() - began < 3


def test_without_notify(make_app: MakeApp, task_id: str, statements: list[str]) -> None:
    app = make_app(result_backend_transport_options={"notify": False})
    app.backend.get_state(task_id)
    stored_at = []

    def store() -> None:
        time.sleep(0.6)
        app.backend.store_result(task_id, 1, states.SUCCESS)
        stored_at.append(time.monotonic())

    del statements[:]
    thread = later(store)
    with ThreadPoolExecutor(3) as pool:
        waits = [pool.submit(lambda: app.AsyncResult(task_id).get(timeout=10)) for _ in range(3)]
        assert [each.result() for each in waits] == [1] * 3
    found_at = time.monotonic()
    thread.join()
    assert found_at - stored_at[0] < 1.5
    assert not [sql for sql in statements if "listen" in sql or "await_results" in sql]
    assert len(statements) < 30, "the pause between two looks grows"


def test_listen_url(
    make_app: MakeApp, module_database: Any, task_id: str, registered: Callable[..., None], run: Run
) -> None:
    direct = module_database.server.url(module_database.name, application_name="direct")
    app = make_app(result_backend_transport_options={"listen_url": direct})
    found = []

    def store() -> None:
        registered(task_id)
        found.extend(run("select query from pg_stat_activity where application_name = 'direct'"))
        app.backend.store_result(task_id, 1, states.SUCCESS)

    thread = later(store)
    assert app.AsyncResult(task_id).get(timeout=5) == 1
    thread.join()
    assert len(found) == 1


def test_waiters_of_the_dead_are_swept(prepared: Celery, task_id: str, run: Run) -> None:
    run("insert into pgbroker.waiters values (%s, 'pgbw_dead', now() - interval '1 s')", task_id)
    run("insert into pgbroker.waiters values (%s, 'pgbw_alive', now() + interval '1 min')", task_id)
    run("select pgbroker.sweep_transient()")
    assert run("select channel from pgbroker.waiters where task_id = %s", task_id) == [("pgbw_alive",)]


def test_an_idle_listener_is_closed(
    make_app: MakeApp, task_id: str, run: Run, wait_until: WaitUntil, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "IDLE_SECONDS", 0.2)
    app = make_app(result_backend_transport_options={"poll_interval": 4.5})  # a waiting room of its own
    before = set(run(LISTENERS))
    for _ in range(2):
        with pytest.raises(TimeoutError):
            app.AsyncResult(task_id).get(timeout=0.5)
        assert set(run(LISTENERS)) - before, "not closed while somebody waits"
        wait_until(lambda: not set(run(LISTENERS)) - before)


def test_the_first_contact_must_succeed(task_id: str) -> None:
    options = Options.from_url("pgbroker://nobody@127.0.0.1:1/none")
    room = waiting.room_for(options, waiting.ResultStore(options))
    with pytest.raises(errors.DatabaseUnreachable), room.enter([task_id]):
        pass


def test_latency(prepared: Celery, task_id: str, registered: Callable[..., None]) -> None:
    latencies = []
    stored_at = [0.0]

    def store() -> None:
        for n in range(30):
            registered(f"{task_id}-{n}")
            stored_at[0] = time.monotonic()
            prepared.backend.store_result(f"{task_id}-{n}", n, states.SUCCESS)

    thread = later(store)
    for n in range(30):
        assert prepared.AsyncResult(f"{task_id}-{n}").get(timeout=10) == n
        latencies.append(time.monotonic() - stored_at[0])
    thread.join()
    assert sorted(latencies)[15] < 0.1
