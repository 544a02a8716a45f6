"""Celery's result backend: what is stored, and what comes back."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery, chord, group, states
from celery.app.task import Context
from celery.contrib.testing.worker import start_worker
from celery.exceptions import ImproperlyConfigured, TimeoutError
from celery.result import AsyncResult, GroupResult

from pgbroker import errors
from pgbroker.postgres.pool import pool_for
from pgbroker.results import store
from pgbroker.results.backend import PgBackend

MakeApp = Callable[..., Celery]
Run = Callable[..., list[tuple[Any, ...]]]


# -- states ---------------------------------------------------------------------------------------


def test_success_is_never_overwritten(app: Celery, task_id: str) -> None:
    app.backend.store_result(task_id, 1, states.SUCCESS)
    app.backend.store_result(task_id, ValueError("late"), states.FAILURE)
    app.backend.store_result(task_id, None, states.STARTED)
    app.backend.store_result(task_id, 2, states.SUCCESS)
    result = app.AsyncResult(task_id)
    assert (result.state, result.result) == (states.SUCCESS, 1)


@pytest.mark.parametrize("before", [states.STARTED, states.RETRY, states.FAILURE, states.REVOKED, "PROGRESS"])
def test_every_other_state_gives_way(app: Celery, task_id: str, run: Run, before: str) -> None:
    app.backend.store_result(task_id, ValueError("x") if before in states.EXCEPTION_STATES else {"done": 3}, before)
    assert app.AsyncResult(task_id).state == before
    app.backend.store_result(task_id, "end", states.SUCCESS)
    assert app.AsyncResult(task_id).get(timeout=5) == "end"
    assert run("select status from pgbroker.results where task_id = %s", task_id) == [(states.SUCCESS,)]


def test_an_unknown_task_is_pending(app: Celery, task_id: str) -> None:
    result = app.AsyncResult(task_id)
    assert (result.state, result.result, result.exists()) == (states.PENDING, None, False)
    app.backend.store_result(task_id, None, states.PENDING)
    assert result.exists()


def test_positional_arguments(app: Celery, task_id: str) -> None:
    app.backend._store_result(task_id, 5, states.SUCCESS, "trace", Context({"id": task_id, "group": "g"}))
    meta = app.backend.get_task_meta(task_id)
    assert (meta["result"], meta["traceback"], meta["group_id"], meta["task_id"]) == (5, "trace", "g", task_id)


@pytest.mark.parametrize(
    "value", ["nul \0 and \ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"), "%s'\\"]
)
def test_any_text_survives(app: Celery, task_id: str, value: str) -> None:
    app.backend.store_result(task_id, value, states.SUCCESS)
    assert app.AsyncResult(task_id).get(timeout=5) == value


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_any_bytes_survive(make_app: MakeApp, task_id: str, compression: str | None) -> None:
    app = make_app(result_serializer="pickle", accept_content=["pickle"], result_compression=compression)
    value = bytes(range(256)) * 200
    app.backend.store_result(task_id, value, states.SUCCESS)
    assert app.AsyncResult(task_id).get(timeout=5) == value


def test_extended_result(make_app: MakeApp, task_id: str) -> None:
    app = make_app(result_extended=True)
    request = Context(
        {"id": task_id, "task": "t.add", "args": [1, "\0"], "kwargs": {"k": None}, "hostname": "w@h", "retries": 2,
         "delivery_info": {"routing_key": "fast"}}
    )  # fmt: skip
    app.backend.mark_as_done(task_id, 3, request)
    result = app.AsyncResult(task_id)
    assert (result.name, result.args, result.kwargs) == ("t.add", [1, "\0"], {"k": None})
    assert (result.worker, result.retries, result.queue) == ("w@h", 2, "fast")
    assert result.date_done is not None


def test_children_and_traceback(app: Celery, task_id: str) -> None:
    children = [app.AsyncResult("child"), app.GroupResult("g", [app.AsyncResult("member")])]
    request = Context({"id": task_id})
    request.children.extend(children)
    app.backend.mark_as_done(task_id, 1, request)
    assert app.AsyncResult(task_id).children == children
    app.backend.mark_as_failure(task_id + "f", KeyError("k"), traceback="Traceback: here")
    assert app.AsyncResult(task_id + "f").traceback == "Traceback: here"


class Unpicklable(Exception):
    def __init__(self, first: object, second: object) -> None:
        super().__init__(first, second, lambda: None)


class OddArguments(Exception):
    """Cannot be made again from its ``args``."""

    def __init__(self, one: int, *, two: int) -> None:
        super().__init__(f"{one} and {two}")


@pytest.mark.parametrize("serializer", ["json", "pickle"])
@pytest.mark.parametrize(
    ("exc", "text"),
    [
        (KeyError("k"), "k"),
        (ValueError(b"\0\xff", object()), "object"),
        (Unpicklable(1, open), "1"),
        (OddArguments(1, two=2), "1 and 2"),
        (errors.DuplicateJob(7, "t"), "7"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_exceptions(make_app: MakeApp, task_id: str, serializer: str, exc: Exception, text: str) -> None:
    app = make_app(result_serializer=serializer, accept_content=["json", "pickle"])
    app.backend.mark_as_failure(task_id, exc)
    found = app.AsyncResult(task_id).get(timeout=5, propagate=False)
    assert isinstance(found, Exception)
    assert text in repr(found) + str(found)
    with pytest.raises(Exception, match=re.escape(text)) as raised:
        app.AsyncResult(task_id).get(timeout=5)
    assert type(raised.value).__name__ == type(found).__name__


def test_forget(app: Celery, task_id: str, run: Run) -> None:
    app.backend.store_result(task_id, 1, states.SUCCESS)
    result = app.AsyncResult(task_id)
    assert result.get(timeout=5) == 1
    result.forget()
    assert run("select 1 from pgbroker.results where task_id = %s", task_id) == []
    assert app.AsyncResult(task_id).state == states.PENDING


# -- expiry ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expires", "seconds"), [(timedelta(hours=2), 7200), (90, 90), (1.5, 1.5), (None, None), (0, None)]
)
def test_result_expires(make_app: MakeApp, task_id: str, run: Run, expires: Any, seconds: float | None) -> None:
    app = make_app(result_expires=expires)
    app.backend.store_result(task_id, 1, states.SUCCESS)
    app.GroupResult(task_id, [app.AsyncResult("x")]).save(backend=app.backend)
    kept = run(
        "select extract(epoch from expires_at - stored_at)::float from pgbroker.results where task_id = %s", task_id
    )
    assert kept == [(seconds,)]
    group_kept = run("select expires_at is null from pgbroker.result_groups where group_id = %s", task_id)
    assert group_kept == [(seconds is None,)]


def test_failures_may_be_kept_for_another_time(make_app: MakeApp, task_id: str, run: Run) -> None:
    app = make_app(result_expires=10, result_failure_expires=1000)
    app.backend.store_result(task_id, ValueError(), states.FAILURE)
    sql = "select extract(epoch from expires_at - stored_at)::float from pgbroker.results where task_id = %s"
    assert run(sql, task_id) == [(1000,)]


def test_an_expired_result_is_gone_before_it_is_deleted(app: Celery, task_id: str, run: Run) -> None:
    app.backend.store_result(task_id, 1, states.SUCCESS)
    app.GroupResult(task_id, [app.AsyncResult("x")]).save(backend=app.backend)
    run("update pgbroker.results set expires_at = clock_timestamp() where task_id = %s", task_id)
    run("update pgbroker.result_groups set expires_at = clock_timestamp() where group_id = %s", task_id)
    assert app.AsyncResult(task_id).state == states.PENDING
    assert app.backend.restore_group(task_id) is None
    with pytest.raises(TimeoutError):
        app.AsyncResult(task_id).get(timeout=0.05)
    app.backend.store_result(task_id, "again", states.STARTED)
    assert app.AsyncResult(task_id).state == states.STARTED


def test_cleanup_deletes_what_has_expired_in_batches(
    app: Celery, task_id: str, run: Run, statements: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "EXPIRY_BATCH", 4)
    for n in range(10):
        app.backend.store_result(f"{task_id}-{n}", n, states.SUCCESS)
    run("update pgbroker.results set expires_at = clock_timestamp() where task_id like %s", f"{task_id}-_")
    app.backend.store_result(task_id, "stays", states.SUCCESS)
    app.GroupResult(task_id, [app.AsyncResult("x")]).save(backend=app.backend)
    run("update pgbroker.result_groups set expires_at = clock_timestamp() where group_id = %s", task_id)
    del statements[:]
    app.backend.cleanup()
    assert len([sql for sql in statements if "expire_results" in sql]) >= 4
    assert run("select task_id from pgbroker.results where task_id like %s", f"{task_id}%") == [(task_id,)]
    assert run("select 1 from pgbroker.result_groups where group_id = %s", task_id) == []


# -- several results ------------------------------------------------------------------------------


def test_get_many_asks_once(make_app: MakeApp, task_id: str, statements: list[str]) -> None:
    app = make_app(result_cache_max=100)
    ids = [f"{task_id}-{n}" for n in range(50)]
    for n, each in enumerate(ids):
        app.backend.store_result(each, n, states.SUCCESS)
    del statements[:]
    found = dict(app.backend.get_many(ids, timeout=5))
    assert {each: meta["result"] for each, meta in found.items()} == {each: n for n, each in enumerate(ids)}
    assert len(statements) == 1
    assert dict(app.backend.get_many(ids[:3], timeout=5)).keys() == set(ids[:3])
    assert len(statements) == 1, "from the cache"


def test_get_many_ends(app: Celery, task_id: str) -> None:
    app.backend.store_result(task_id, 1, states.SUCCESS)
    calls: list[int] = []
    assert [key for key, _ in app.backend.get_many([task_id, "missing"], max_iterations=1)] == [task_id]
    with pytest.raises(TimeoutError):
        list(app.backend.get_many(["missing"], timeout=0.05, interval=0.02, on_interval=lambda: calls.append(1)))
    assert calls
    assert [m["status"] for _, m in app.backend.get_many([task_id], timeout=0)] == [states.SUCCESS]


def test_groups(app: Celery, task_id: str) -> None:
    members = [app.AsyncResult(f"{task_id}-{n}") for n in range(3)]
    saved = app.GroupResult(task_id, [*members, app.GroupResult("inner", [app.AsyncResult("i")])])
    saved.save(backend=app.backend)
    restored = GroupResult.restore(task_id, backend=app.backend)
    assert restored == saved
    saved.delete(backend=app.backend)
    assert GroupResult.restore(task_id, backend=app.backend) is None


def test_an_empty_group_has_no_results(app: Celery) -> None:
    assert list(app.backend.iter_native(app.GroupResult("g", []))) == []


# -- the instance ---------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["pgbroker", "pgbroker+postgresql"])
def test_a_pickled_backend_works(make_app: MakeApp, module_database: Any, task_id: str, scheme: str) -> None:
    app = make_app(module_database.url.replace("pgbroker://", f"{scheme}://"))
    app.set_current()
    app.backend.store_result(task_id, 1, states.SUCCESS)
    copy = pickle.loads(pickle.dumps(app.backend))
    assert isinstance(copy, PgBackend)
    assert (copy.url, copy.options, copy.expires) == (app.backend.url, app.backend.options, app.backend.expires)
    assert copy.get_result(task_id) == 1
    assert pickle.loads(pickle.dumps(app.AsyncResult(task_id))).get(timeout=5) == 1


@pytest.mark.parametrize("scheme", ["pgbroker", "pgbroker+postgresql"])
def test_no_uri_shows_the_password(scheme: str) -> None:
    app = Celery(backend=f"{scheme}://me:s%40cret@db.example/x?schema=s", set_as_current=False)
    assert app.backend.as_uri() == f"{scheme}://me:**@db.example/x?schema=s"
    assert "s%40cret" in app.backend.as_uri(include_password=True)
    assert "cret" not in repr(app.backend) + repr(app.backend.options)


def test_an_embedded_url_keeps_its_folder() -> None:
    backend = Celery(backend="pgbroker+embedded:///srv/pg", set_as_current=False).backend
    assert str(backend.options.embedded_dir) == "/srv/pg"


def test_bad_options_are_named() -> None:
    app = Celery(backend="pgbroker://h/d", set_as_current=False)
    app.conf.result_backend_transport_options = {"notfy": False}
    with pytest.raises(errors.OptionError, match="notify"):
        _ = app.backend
    with pytest.raises(errors.OptionError, match="poll_interval"):
        _ = Celery(backend="pgbroker://h/d?poll_interval=soon", set_as_current=False).backend


def test_options_beside_the_url(make_app: MakeApp, task_id: str, run: Run) -> None:
    app = make_app(result_backend_transport_options={"schema": "elsewhere", "retry_policy": {"timeout": 5}})
    app.backend.store_result(task_id, 1, states.SUCCESS)
    assert app.AsyncResult(task_id).get(timeout=5) == 1
    assert run("select 1 from elsewhere.results where task_id = %s", task_id) == [(1,)]


def test_broker_and_results_share_sessions() -> None:
    url = "pgbroker://me@h/d"
    app = Celery(broker=url, backend=url, set_as_current=False)
    app.conf.broker_transport_options = {"lease_seconds": 30, "max_retries": 3}
    app.conf.broker_use_ssl = True
    from pgbroker.options import Options

    broker = Options.from_url(url, app.conf.broker_transport_options, ssl=True)
    assert pool_for(app.backend.store.options) is pool_for(broker)
    other = Celery(broker=url, backend="pgbroker://me@other/d", set_as_current=False)
    assert other.backend.store.options == other.backend.options != broker


def test_publishing_announces_results_for_nothing(app: Celery, task_id: str, statements: list[str]) -> None:
    backend = app.backend
    backend.on_task_call(None, task_id)
    backend.process_cleanup()
    result = app.AsyncResult(task_id)
    result.then(lambda _: None, weak=True)
    backend.result_consumer.cancel_for(task_id)
    members = app.GroupResult(task_id, [app.AsyncResult(f"{task_id}-{n}") for n in range(100)])
    del result, members
    assert statements == []


def test_only_lost_connections_are_safe_to_retry(app: Celery) -> None:
    assert app.backend.exception_safe_to_retry(errors.ConnectionLost("x"))
    assert app.backend.exception_safe_to_retry(errors.DatabaseUnreachable("x"))
    assert not app.backend.exception_safe_to_retry(errors.DatabaseError("x"))


def test_a_store_survives_its_dropped_connection(app: Celery, task_id: str, run: Run) -> None:
    app.backend.store_result(task_id, 1, states.STARTED)
    terminate = "select count(pg_terminate_backend(pid, 2000)) from pg_stat_activity where application_name = %s"
    assert run(terminate, "pgbroker client")[0][0] >= 1
    app.backend.store_result(task_id, 2, states.SUCCESS)
    assert run(terminate, "pgbroker client")[0][0] >= 1
    assert app.AsyncResult(task_id).get(timeout=5) == 2


def test_no_server_is_reported() -> None:
    app = Celery(broker="memory://", backend="pgbroker://nobody@127.0.0.1:1/none", set_as_current=False)
    for ask in (lambda: app.backend.store_result("t", 1, "SUCCESS"), lambda: app.AsyncResult("t").get(timeout=5)):
        with pytest.raises(errors.DatabaseUnreachable):
            ask()


def test_result_compression_is_checked(make_app: MakeApp) -> None:
    with pytest.raises(ImproperlyConfigured, match="no-such"):
        _ = make_app(result_compression="no-such").backend


# -- a worker -------------------------------------------------------------------------------------


def test_tasks_in_a_worker(make_app: MakeApp) -> None:
    app = make_app(task_track_started=True, result_extended=True)
    app.conf.broker_transport_options = {"polling_interval": 0.02}

    @app.task(name="add")
    def add(a: int, b: int) -> int:
        return a + b

    @app.task(name="total")
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    @app.task(name="fail")
    def fail() -> None:
        raise LookupError("nothing here")

    @app.task(name="silent", ignore_result=True)
    def silent() -> int:
        return 1

    @app.task(name="parent", bind=True)
    def parent(self: Any) -> str:
        return str(add.delay(1, 1).id)

    with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=20):
        assert add.delay(1, 2).get(timeout=10) == 3
        assert group(add.s(n, n) for n in range(5))().get(timeout=10) == [0, 2, 4, 6, 8]
        failed = fail.delay()
        with pytest.raises(LookupError, match="nothing here"):
            failed.get(timeout=10)
        assert "LookupError" in str(failed.traceback)
        quiet = silent.delay()
        assert quiet.get(timeout=10) is None
        assert (add.s(1, 2) | add.s(3)).delay().get(timeout=10) == 6
        family = parent.delay()
        child = family.get(timeout=10)
        assert [each.id for each in family.children] == [child]
        assert AsyncResult(child, app=app).get(timeout=10) == 2
        assert chord((add.s(n, 1) for n in range(4)), total.s())().get(timeout=20) == 10
    assert app.backend.get_state(quiet.id) == states.PENDING
