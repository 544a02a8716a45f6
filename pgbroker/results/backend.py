"""Celery's result backend: results in the schema of the broker, and waiters that are woken by NOTIFY."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from celery import states
from celery.backends.asynchronous import AsyncBackendMixin
from celery.exceptions import BackendStoreError, TaskRevokedError, TimeoutError, WorkerLostError
from celery.result import result_from_tuple
from kombu.utils.encoding import bytes_to_str, ensure_bytes

from pgbroker import errors
from pgbroker.options import Options, sanitize
from pgbroker.results.chord_store import ChordStore, HeldJob, TaskEnd
from pgbroker.results.chords import ChordBackend
from pgbroker.results.consumer import ResultConsumer
from pgbroker.results.store import ResultStore, StoredResult
from pgbroker.results.waiting import WaitingRoom, room_for

#: Without its leading ``pgbroker+``, which Celery takes off before it hands the URL on.
_SHORTENED = ("postgresql://", "embedded://")

#: Fields of ``Options`` that decide whether broker and results can share their sessions.
_CONNECTION_FIELDS = ("libpq", "embedded_dir", "schema", "auto_migrate")


class PgBackend(ChordBackend, AsyncBackendMixin):
    """Result backend for ``pgbroker://``, ``pgbroker+postgresql://`` and ``pgbroker+embedded://`` URLs.

    Celery makes one instance for each thread, so an instance holds neither connections nor waits: these belong to
    the process.

    Args:
        app: The Celery application.
        url: Backend URL; its options may also stand in ``result_backend_transport_options``.

    Raises:
        OptionError: The URL or an option is wrong.
    """

    ResultConsumer = ResultConsumer

    # of Celery's base class, whose stubs leave them out
    accept: Any
    _cache: Any
    _pending_messages: Any
    _pending_results: Any
    _get_result_meta: Any

    supports_native_join = True
    supports_autoexpire = False
    supports_result_compression = True
    supports_failure_expires = True
    persistent = True

    def __init__(self, app: Any, url: str | None = None, **kwargs: Any) -> None:
        super().__init__(app, url=url, **kwargs)
        if url and url.startswith(_SHORTENED):
            url = f"pgbroker+{url}"
        self.url = url or ""
        conf = self.app.conf
        broker_urls = _broker_urls(conf)
        # one place, one way to it: TLS that the broker was told of holds for results behind the same URL
        ssl = conf.broker_use_ssl if self.url in broker_urls else None
        self.options = Options.from_url(self.url, conf.result_backend_transport_options, ssl=ssl or None)
        shared = _shared_options(conf, broker_urls, self.options)
        self.store = ResultStore(shared[0] if shared else self.options)
        self.chords = ChordStore(self.store.options)
        #: Whether every job that a worker of this application runs lies in the database of the results.
        self.has_the_jobs = len(shared) == len(set(broker_urls)) > 0
        failure_expires = conf.get("result_failure_expires")
        self.failure_expires = self.expires if failure_expires is None else self.prepare_expires(failure_expires)
        self.result_consumer = self.ResultConsumer(
            self, self.app, self.accept, self._pending_results, self._pending_messages
        )

    @property
    def room(self) -> WaitingRoom:
        """Where this process waits for results; never kept, a forked child has its own."""
        return room_for(self.options, self.store)

    def as_uri(self, include_password: bool = False) -> str:
        """The URL, its password masked unless asked for."""
        return self.url if include_password else sanitize(self.url)

    def __reduce__(self, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        return super().__reduce__(args, {**(kwargs or {}), "url": self.url, "expires": self.expires})  # type: ignore[call-arg]

    def exception_safe_to_retry(self, exc: Exception) -> bool:
        """Whether ``result_backend_always_retry`` may try again: yes while the server cannot be reached."""
        return isinstance(exc, errors.DatabaseUnreachable)

    # -- single results -----------------------------------------------------------------------------

    def mark_as_done(
        self, task_id: Any, result: Any, request: Any = None, store_result: bool = True, state: str = states.SUCCESS
    ) -> None:
        """See Celery's. The result, the end of the job, and what it means for a chord are one transaction."""
        stores = store_result and not (request is not None and request.ignore_result)
        job = self._held_job(task_id, request)
        is_member = request is not None and request.chord and request.group
        if not is_member and not (stores and job):
            super().mark_as_done(task_id, result, request, store_result, state)
            return
        end = TaskEnd(state, job=job)
        if stores:
            meta = self._encoded_meta(_key(task_id), self.encode_result(result, state), state, None, request)
            end = TaskEnd(state, meta, self.expires, job)
        retry = partial(
            self._ensure_retryable,
            fallback_exc=partial(BackendStoreError, task_id=task_id, state=state),  # type: ignore[call-arg]
            fallback_msg="failed to store result on the backend",
        )
        if is_member:
            retry(self.return_part, request, state, result, end)
        else:
            retry(self.store.end_task, _key(task_id), end, ends_job=True)

    def _held_job(self, task_id: Any, request: Any) -> HeldJob | None:
        """The job that runs the task of this request, if it lies in the database of the results."""
        info = getattr(request, "delivery_info", None)
        if not self.has_the_jobs or not info or info.get("claim") is None or request.id != task_id:
            return None
        return HeldJob(info["job_id"], info["claim"])

    def _store_result(
        self,
        task_id: Any,
        result: Any,
        state: str,
        traceback: str | None = None,
        request: Any = None,
        **_: Any,
    ) -> Any:
        key = _key(task_id)
        meta = self._encoded_meta(key, result, state, traceback, request)
        keep_seconds = self.failure_expires if state == states.FAILURE else self.expires
        job = self._held_job(task_id, request) if state in states.READY_STATES else None
        if job is not None:
            self.store.end_task(key, TaskEnd(state, meta, keep_seconds, job), ends_job=False)
        else:
            self.store.store(key, state, meta, keep_seconds=keep_seconds)
        return result

    def _encoded_meta(self, key: str, result: Any, state: str, traceback: str | None, request: Any) -> bytes:
        meta = self._get_result_meta(result=result, state=state, traceback=traceback, request=request)
        meta["task_id"] = key
        return ensure_bytes(self.encode(meta))

    def _get_task_meta_for(self, task_id: Any) -> dict[str, Any]:
        rows = self.store.get([_key(task_id)])
        return self.decode_row(rows[0]) if rows else {"status": states.PENDING, "result": None}

    def stored_status(self, task_id: Any) -> str | None:
        """The status that was stored, if any; an end of the broker's that is still to be delivered does not count."""
        return self.store.stored_status(_key(task_id))

    def task_result_exists(self, task_id: Any) -> bool:
        """Whether anything is stored for the task, be it ``PENDING``."""
        return bool(self._ensure_retryable(self.store.get, [_key(task_id)]))

    def _forget(self, task_id: Any) -> None:
        self.store.forget(_key(task_id))

    def decode_row(self, row: StoredResult) -> dict[str, Any]:
        """The result as Celery describes it."""
        if row.meta is None:
            return _undelivered(row)
        meta: dict[str, Any] = self.decode_result(row.meta)
        meta["task_id"] = row.task_id  # of an alias it is the live job's result, under the id that was asked for
        return meta

    def remember(self, task_id: str, meta: dict[str, Any]) -> None:
        """Keep an ended task's result in this instance's cache."""
        self._cache[task_id] = meta

    def drop_unclaimed(self, task_id: str) -> None:
        """Drop the copy that Celery keeps of a result nobody waits for: it would never be asked for."""
        buffered = self._pending_messages.pop(task_id, None)
        if buffered is not None:
            self._pending_messages.total -= len(buffered)

    # -- several results ----------------------------------------------------------------------------

    def get_many(
        self,
        task_ids: Iterable[Any],
        timeout: float | None = None,
        interval: float | None = 0.5,
        no_ack: bool = True,
        on_message: Callable[[dict[str, Any]], Any] | None = None,
        on_interval: Callable[[], Any] | None = None,
        max_iterations: int | None = None,
        READY_STATES: frozenset[str] = states.READY_STATES,
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the results of several tasks as they become ready, all that are ready in one query.

        Args:
            task_ids: The tasks.
            timeout: In seconds; ``None``: for ever.
            interval: Seconds between two calls of ``on_interval``.
            no_ack: Without meaning here.
            on_message: Called with each result.
            on_interval: Called while results are missing.
            max_iterations: End after so many intervals, whatever is missing; 1 only looks.
            READY_STATES: The states that are waited for.

        Raises:
            TimeoutError: Celery's, after ``timeout``.
        """
        missing = {_key(task_id) for task_id in task_ids}
        for key in list(missing):
            cached = self._cache.get(key)
            if cached is not None and cached["status"] in READY_STATES:
                missing.discard(key)
                yield key, cached
        if not missing:
            return
        deadline = None if timeout is None else time.monotonic() + timeout
        seconds, iterations = 0.0, 0
        with self.room.enter(missing, every_state=READY_STATES != states.READY_STATES) as wait:
            while True:
                for row in wait.take(seconds):
                    if row.status not in READY_STATES or row.task_id not in missing:
                        continue
                    missing.discard(row.task_id)
                    meta = self.decode_row(row)
                    self.remember(row.task_id, meta)
                    if on_message is not None:
                        on_message(meta)
                    yield row.task_id, meta
                iterations += 1
                if not missing or iterations == max_iterations:
                    return
                seconds = 0.5 if interval is None else max(interval, 0.01)
                if deadline is not None:
                    seconds = min(seconds, deadline - time.monotonic())
                if seconds <= 0:
                    raise TimeoutError(f"Operation timed out ({timeout})")
                if on_interval is not None:
                    on_interval()

    def iter_native(self, result: Any, no_ack: bool = True, **kwargs: Any) -> Iterator[tuple[str, Any]]:
        """See Celery's; an empty set has no results instead of an error."""
        return super().iter_native(result, no_ack=no_ack, **kwargs) if result.results else iter(())

    # -- groups -------------------------------------------------------------------------------------

    def _save_group(self, group_id: Any, result: Any) -> Any:
        meta = ensure_bytes(self.encode({"result": result.as_tuple()}))
        self.store.put_group(_key(group_id), meta, keep_seconds=self.expires)
        return result

    def _restore_group(self, group_id: Any) -> dict[str, Any] | None:
        stored = self.store.get_group(_key(group_id))
        if stored is None:
            return None
        meta: dict[str, Any] = self.decode(stored)
        meta["result"] = result_from_tuple(meta["result"], self.app)
        return meta

    def _delete_group(self, group_id: Any) -> None:
        self.store.forget_group(_key(group_id))

    def cleanup(self) -> None:
        """Delete what has expired; Celery's beat calls it once a day (``celery.backend_cleanup``)."""
        self.store.expire()


def _undelivered(row: StoredResult) -> dict[str, Any]:
    """The result of a task that the broker has ended, before a worker has told Celery so."""
    kind = TaskRevokedError if row.status == states.REVOKED else WorkerLostError
    return {
        "task_id": row.task_id,
        "status": row.status,
        "result": kind(row.detail),
        "traceback": None,
        "children": [],
    }


def _key(task_id: Any) -> str:
    return str(bytes_to_str(task_id))


def _broker_urls(conf: Any) -> list[str]:
    """The broker URLs of the application, alternatives of a failover list included."""
    urls: list[str] = []
    for setting in (conf.broker_write_url, conf.broker_read_url, conf.broker_url):
        given = setting.split(";") if isinstance(setting, str) else list(setting or ())
        urls += [url.strip() for url in given if isinstance(url, str)]
    return urls


def _shared_options(conf: Any, broker_urls: Iterable[str], options: Options) -> list[Options]:
    """The options of those brokers that lead to the same sessions, so that broker and results share one pool.

    They may well differ in what concerns only jobs (``lease_seconds`` ...).
    """
    shared = []
    for url in dict.fromkeys(broker_urls):
        if not url.startswith("pgbroker"):
            continue
        try:
            broker = Options.from_url(url, conf.broker_transport_options, ssl=conf.broker_use_ssl or None)
        except errors.OptionError:
            continue  # the broker will say so itself
        if all(getattr(broker, name) == getattr(options, name) for name in _CONNECTION_FIELDS):
            shared.append(broker)
    return shared
