"""What Celery calls a result consumer: it brings stored results to the result objects that wait for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from celery.backends.asynchronous import BaseResultConsumer, Drainer
from celery.exceptions import TimeoutError
from celery.result import AsyncResult, ResultSet

from pgbroker.results.sources import TURN_SECONDS
from pgbroker.results.store import StoredResult

if TYPE_CHECKING:
    from pgbroker.results.backend import PgBackend


class ResultConsumer(BaseResultConsumer):
    """Waits in the process's :class:`~pgbroker.results.waiting.WaitingRoom` on behalf of one backend.

    A result is waited for only while somebody is in ``get()`` or a relative of it. Publishing tasks and groups, which
    announces results too (:meth:`consume_from`), costs nothing, and neither do results that nobody ever asks for;
    callbacks of ``then()`` run when their result is waited for or looked at in this process.
    """

    backend: PgBackend
    buckets: Any
    drainer: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Also under gevent: our waits yield to other greenlets by themselves, and Celery's draining greenlet would
        # live for ever, one for each greenlet that ever asked for a result.
        self.drainer = Drainer(self)

    def consume_from(self, task_id: str) -> None:
        """Somebody may wait for this result later; nothing to do until then."""

    def cancel_for(self, task_id: str) -> None:
        """Nobody holds this result any more; nothing to do. Runs in finalizers, so it must never block."""

    def drain_events(self, timeout: float | None = None) -> None:
        """Nothing arrives outside of a wait; passes the time."""
        time.sleep(TURN_SECONDS if timeout is None else timeout)

    def _wait_for_pending(
        self,
        result: Any,
        timeout: float | None = None,
        on_interval: Callable[[], Any] | None = None,
        on_message: Callable[[dict[str, Any]], Any] | None = None,
        **_: Any,
    ) -> Iterator[None]:
        """Wait until ``result`` is ready; yields whenever something has arrived, and at least every second.

        Args:
            result: A result, or a set of them.
            timeout: In seconds; ``None``: for ever.
            on_interval: Called after each yield.
            on_message: Called with each state, also those on the way; of states in quick succession the last.

        Raises:
            TimeoutError: Celery's, after ``timeout``.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        leaves: dict[str, list[Any]] = {}
        for leaf in _unresolved(result):
            leaves.setdefault(str(leaf.id), []).append(leaf)
        seen: dict[str, bytes] = {}
        with self.backend.room.enter(leaves, every_state=on_message is not None) as wait:
            seconds = 0.0
            while True:
                for row in wait.take(seconds):
                    meta = row.meta or b""
                    if seen.get(row.task_id) != meta:
                        seen[row.task_id] = b"" if row.is_ready else meta
                        self._deliver(row, leaves[row.task_id], on_message)
                if seconds:
                    yield
                    if on_interval:
                        on_interval()
                if result.on_ready.ready:
                    return
                seconds = TURN_SECONDS if deadline is None else min(TURN_SECONDS, deadline - time.monotonic())
                if seconds <= 0:
                    raise TimeoutError("The operation timed out.")

    def _deliver(self, row: StoredResult, leaves: list[Any], on_message: Callable[..., Any] | None) -> None:
        meta = self.backend.decode_row(row)
        if on_message is not None:
            on_message(meta)
        if not row.is_ready:
            return
        self.backend.remember(row.task_id, meta)
        self.on_state_change(meta, None)
        self.backend.drop_unclaimed(row.task_id)
        for leaf in leaves:
            if not leaf._cache:  # it had been taken off the list of those who wait, by forget() for instance
                leaf._maybe_set_cache(meta)
                bucket = self.buckets.pop(leaf, None)
                if bucket is not None:
                    bucket.append(leaf)


def _unresolved(result: Any) -> Iterator[AsyncResult[Any]]:
    """The single results in a result or a (nested) set that are not known yet."""
    if isinstance(result, ResultSet):
        for member in result.results or ():
            yield from _unresolved(member)
    elif not result._cache:
        yield result
