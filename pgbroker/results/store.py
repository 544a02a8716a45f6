"""Typed calls of the SQL functions that keep results. What each does is written at the head of its ``.sql`` file.

Every call may be repeated when the connection broke and nobody knows whether it took effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from pgbroker.options import Options
from pgbroker.postgres.pool import pool_for
from pgbroker.postgres.sql_files import in_statement
from pgbroker.queue.store import Call
from pgbroker.results.chord_store import TaskEnd

#: Results that :meth:`ResultStore.expire` deletes in one transaction.
EXPIRY_BATCH = 1000


class StoredResult(NamedTuple):
    """A task's state. ``meta`` is encoded by the application's result serializer.

    Without ``meta`` it is an end that the broker made and no worker has told Celery of yet; ``detail`` says why.
    """

    task_id: str
    status: str
    meta: bytes | None
    detail: str | None = None

    @property
    def is_ready(self) -> bool:
        """Whether the task has ended. Source: ``celery.states.READY_STATES``."""
        return self.status in ("SUCCESS", "FAILURE", "REVOKED")


class ResultCalls:
    """Statements and arguments for one schema. Use :func:`calls_for`."""

    def __init__(self, schema: str) -> None:
        self._prefix = in_statement(schema) + "."

    def get(self, task_ids: Iterable[str]) -> Call:
        """The stored states. Rows: :class:`StoredResult`, read by :func:`read_rows`."""
        return f"select task_id, status, meta, detail from {self._prefix}get_results(%s::text[])", (list(task_ids),)

    def stored_status(self, task_id: str) -> Call:
        """Rows: the status that was stored, whatever the broker has to say beyond; none if nothing was."""
        valid = "expires_at is null or expires_at > statement_timestamp()"
        return f"select status from {self._prefix}results where task_id = %s and ({valid})", (task_id,)

    def await_results(self, wanted: Mapping[str, bool], channel: str, seconds: float) -> Call:
        """Register for results, and what is there already. One row of arrays, read by :func:`read_arrays`.

        Args:
            wanted: Task ids, and whether states on the way are wanted too.
            channel: NOTIFY channel that is listened to.
            seconds: How long the registration holds.
        """
        return (
            f"call {self._prefix}await_results(%s::text[], %s::boolean[], %s, %s, null, null, null, null)",
            (list(wanted), list(wanted.values()), channel, seconds),
        )

    def call(self, name: str, *args: Any) -> Call:
        """A function that returns one value."""
        return f"select {self._prefix}{name}({', '.join(['%s'] * len(args))})", args

    def expire_aliases(self, limit: int) -> Call:
        """Row: how many aliases were looked at, and how many of these led to nothing any more and are gone."""
        return f"select looked_at, deleted from {self._prefix}expire_aliases(%s)", (limit,)

    def store(self, task_id: str, status: str, meta: bytes, keep_seconds: float | None) -> Call:
        """Write a state and wake who waits for it. No row."""
        return f"call {self._prefix}store_result(%s, %s, %s, %s)", (task_id, status, meta, keep_seconds)

    def end_task(self, task_id: str, end: TaskEnd, *, ends_job: bool) -> Call:
        """Write the end of a task that a job runs, end the job with it or not, and wake who waits. No row."""
        job_id, claim = end.job or (None, None)
        return (
            f"call {self._prefix}end_task(%s, %s, %s, %s, %s, %s, %s)",
            (task_id, end.status, end.meta, end.keep_seconds, job_id, claim, ends_job),
        )


@lru_cache(maxsize=32)
def calls_for(schema: str) -> ResultCalls:
    """The calls for that schema."""
    return ResultCalls(schema)


def read_rows(rows: Iterable[Sequence[Any]]) -> list[StoredResult]:
    """Rows of the driver as stored results."""
    return [
        StoredResult(task_id, status, None if meta is None else bytes(meta), detail)
        for task_id, status, meta, detail in rows
    ]


def read_arrays(rows: Sequence[Sequence[Any]]) -> list[StoredResult]:
    """The one row of four arrays that ``await_results`` gives back."""
    ids, *others = rows[0]
    return read_rows(zip(ids, *others, strict=True)) if ids else []


class ResultStore:
    """Results in the schema of ``options``, through the sessions that the process shares.

    Raises (every method):
        DatabaseUnreachable: No connection, not at the second attempt either.
        DatabaseError: The server refused the statement.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self._calls = calls_for(options.schema)

    def store(self, task_id: str, status: str, meta: bytes, *, keep_seconds: float | None) -> None:
        """Write a task's state, unless it has succeeded already, and wake those who wait for it.

        Args:
            task_id: The task.
            status: Celery's state.
            meta: The result as Celery describes it, encoded.
            keep_seconds: How long to keep it; ``None`` or 0: for ever.
        """
        self._run(self._calls.store(task_id, status, meta, keep_seconds))

    def end_task(self, task_id: str, end: TaskEnd, *, ends_job: bool) -> None:
        """The same for the end of a task, by the claim on the job that runs it.

        Args:
            task_id: The task.
            end: Its end, with the job. A claim that was lost overwrites no other end.
            ends_job: End the job in the same transaction.
        """
        self._run(self._calls.end_task(task_id, end, ends_job=ends_job))

    def get(self, task_ids: Iterable[str]) -> list[StoredResult]:
        """What is stored of these tasks, in no order."""
        return read_rows(self._run(self._calls.get(task_ids)))

    def stored_status(self, task_id: str) -> str | None:
        """The status that was stored, if any; an end that is not delivered yet does not count here."""
        rows = self._run(self._calls.stored_status(task_id))
        return rows[0][0] if rows else None

    def forget(self, task_id: str) -> None:
        """Remove a task's state."""
        self._run(self._calls.call("forget_result", task_id))

    def put_group(self, group_id: str, meta: bytes, *, keep_seconds: float | None) -> None:
        """Remember a group; units as in :meth:`store`."""
        self._run(self._calls.call("put_result_group", group_id, meta, keep_seconds))

    def get_group(self, group_id: str) -> bytes | None:
        """A remembered group, encoded."""
        meta = self._run(self._calls.call("get_result_group", group_id))[0][0]
        return None if meta is None else bytes(meta)

    def forget_group(self, group_id: str) -> None:
        """Forget a group, not the results in it."""
        self._run(self._calls.call("forget_result_group", group_id))

    def expire(self) -> int:
        """Delete what has expired, batch by batch.

        Returns:
            How many results, groups, chords and aliases went away.
        """
        total = 0
        for function in ("expire_results", "expire_chords"):
            while count := int(self._run(self._calls.call(function, EXPIRY_BATCH))[0][0]):
                total += count
        while True:
            looked_at, deleted = self._run(self._calls.expire_aliases(EXPIRY_BATCH))[0]
            total += int(deleted)
            if looked_at < EXPIRY_BATCH:
                return total

    def _run(self, call: Call) -> list[tuple[Any, ...]]:
        return pool_for(self.options).repeat(lambda session: session.query(*call))
