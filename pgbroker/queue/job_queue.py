"""``JobQueue``: the queue itself, without Celery."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Literal, Self, overload

from pgbroker import errors
from pgbroker.model import Job, QueueStats
from pgbroker.options import Options
from pgbroker.postgres.pool import SessionPool, pool_for
from pgbroker.queue import job_arguments as check
from pgbroker.queue import joined, task_message
from pgbroker.queue.declaring import declare_once
from pgbroker.queue.job_calls import finished_job, job_calls_for, queue_stats, stored_job
from pgbroker.queue.store import Published, store_for
from pgbroker.queue.waiting import Waiters


class JobQueue:
    """Puts jobs into queues, claims them under a lease, and settles them. Safe to use from several threads.

    A job is held by exactly one worker at a time, from ``claim`` until it is settled or its lease runs out. Jobs are
    task messages as Celery writes them: a Celery worker runs what ``enqueue`` puts in, and ``claim`` reads what Celery
    published.

    Every method may raise :exc:`~pgbroker.errors.DatabaseUnreachable` and other errors of
    :exc:`~pgbroker.errors.PgBrokerError`, and raises ``TypeError`` or ``ValueError`` for a wrong argument before
    anything is sent.

    Args:
        url: A broker URL, or ``Options``.
        **options: pgbroker's options by name; they win over those in the URL.

    Raises:
        OptionError: The URL or an option is wrong.
    """

    def __init__(self, url: str | Options, **options: Any) -> None:
        if isinstance(url, Options):
            try:
                self.options = dataclasses.replace(url, **options)
            except TypeError as exc:
                raise errors.OptionError(f"unknown option: {exc}") from None
        elif isinstance(url, str):
            self.options = Options.from_url(url, options)
        else:
            raise TypeError(f"url must be a broker URL or Options, not {type(url).__name__}")
        self._store = store_for(self.options.schema)
        self._calls = job_calls_for(self.options.schema)
        self._waiters = Waiters(self.options)
        self._is_closed = False

    def enqueue(
        self,
        task: str,
        payload: dict[str, Any],
        *,
        queue: str = "celery",
        priority: int = 0,
        run_after: dt.datetime | dt.timedelta | float | None = None,
        expires: dt.datetime | dt.timedelta | float | None = None,
        dedupe_key: str | None = None,
        max_attempts: int | None = None,
    ) -> int | None:
        """Put a job into a queue; a queue that is unknown is made.

        In a block of ``pgbroker.transaction()`` the job joins that transaction.

        Args:
            task: Name of the task.
            payload: Its keyword arguments, of JSON's types.
            queue: Name of the queue, at most 255 bytes.
            priority: 0 to 9, higher first; others are clamped.
            run_after: Not before this time: a datetime (a naive one means UTC), or seconds or a timedelta from now by
                the server's clock.
            expires: Not to be claimed from this time on; given as ``run_after``.
            dedupe_key: Store nothing while a live job of the queue holds this key; at most 2000 bytes.
            max_attempts: Losses and failures after which the job is dead, 1 to 32767; by default the option's (5).

        Returns:
            The job's id, or ``None`` for a duplicate (``find_active`` tells which job holds the key).

        Raises:
            TypeError: ``payload`` is not a dict with str keys or holds what JSON has not, or the type of another
                argument is wrong.
            ValueError: An argument is out of bounds, or the queue is transient and holds no jobs.
            StatementTimeout: An open transaction held the key for longer than ``dedupe_wait_seconds``; nothing was
                stored.
        """
        name = check.check_text("queue", queue, check.QUEUE_MAX_BYTES)
        attempts = self.options.max_attempts if max_attempts is None else max_attempts
        message = task_message.build(
            check.check_text("task", task, check.TASK_MAX_BYTES),
            check.check_payload(payload),
            queue=name,
            priority=check.check_priority(priority),
            run_after=check.check_moment("run_after", run_after),
            expires=check.check_moment("expires", expires),
            dedupe_key=None if dedupe_key is None else check.check_key(dedupe_key),
            max_attempts=check.check_integer("max_attempts", attempts, 1, check.ATTEMPTS_MAX),
        )
        declare_once(self._pool, name)
        block = joined.current()
        transaction = None if block is None else block.transaction(self._pool)
        call = self._store.publish(
            message, is_joined=transaction is not None, wait_seconds=self.options.dedupe_wait_seconds
        )
        rows = self._pool.query(*call) if transaction is None else transaction.query(call)
        return Published(*rows[0]).job_id

    @overload
    def claim(  # type: ignore[overload-overlap]
        self,
        worker: str,
        *,
        queues: str | Iterable[str] = ("celery",),
        limit: Literal[1] = 1,
        lease_seconds: float | None = None,
    ) -> Job | None: ...

    @overload
    def claim(
        self,
        worker: str,
        *,
        queues: str | Iterable[str] = ("celery",),
        limit: int,
        lease_seconds: float | None = None,
    ) -> list[Job]: ...

    def claim(
        self,
        worker: str,
        *,
        queues: str | Iterable[str] = ("celery",),
        limit: int = 1,
        lease_seconds: float | None = None,
    ) -> Job | list[Job] | None:
        """Claim jobs that are ready: highest priority first, within one in the order in which they became due.

        Args:
            worker: Names the claimant; leases are renewed and jobs settled under it. One name for each process start.
            queues: Queues, in the order in which they are looked at.
            limit: How many jobs at most, 1 to 100000.
            lease_seconds: How long the claims hold without renewal; by default the option's (60 s).

        Returns:
            For ``limit=1`` the job, or ``None`` if none is ready; for more a list, which may be empty.
        """
        most = check.check_integer("limit", limit, 1, check.LIMIT_MAX)
        call = self._calls.claim(
            check.check_worker(worker),
            check.check_queues(queues),
            most,
            check.check_lease(self.options.lease_seconds if lease_seconds is None else lease_seconds),
            low_first=self.options.priority_order == "low_first",
        )
        jobs = [stored_job(row) for row in self._pool.query(*call)]
        if most == 1:
            return jobs[0] if jobs else None
        return jobs

    def complete(self, job_id: int, worker: str, result: Any = None, *, claim: int | None = None) -> bool:
        """End a job well.

        Args:
            job_id: The job.
            worker: Who holds it.
            result: Of JSON's types; ``get`` returns it while history lasts.
            claim: The job's ``claim``, to make sure that it is still the same one.

        Returns:
            Whether ``worker`` (and ``claim``, if given) held the job.
        """
        text = None if result is None else task_message.dump_json(result)
        call = self._calls.complete(
            check.check_id("job_id", job_id), check.check_worker(worker), text, check.check_claim(claim)
        )
        return bool(self._pool.value(*call))

    def fail(
        self,
        job_id: int,
        worker: str,
        error: str | BaseException,
        *,
        backoff_seconds: float | None = None,
        claim: int | None = None,
    ) -> Literal["PENDING", "DEAD"] | None:
        """Record a failed attempt: back to the queue, or to the dead letters when `max_attempts` were lost or failed.

        Args:
            job_id: The job.
            worker: Who holds it.
            error: What happened, for ``last_error``; an exception becomes ``type: text``.
            backoff_seconds: Wait before the next attempt; by default :func:`~pgbroker.compute_backoff` of the attempts
                so far.
            claim: The job's ``claim``, to make sure that it is still the same one.

        Returns:
            The new status, ``PENDING`` or ``DEAD``; ``None`` unless ``worker`` (and ``claim``, if given) held the job.
        """
        wait = None if backoff_seconds is None else check.check_seconds("backoff_seconds", backoff_seconds, least=0)
        call = self._calls.fail(
            check.check_id("job_id", job_id),
            check.check_worker(worker),
            check.error_text(error),
            wait,
            check.check_claim(claim),
        )
        status: Literal["PENDING", "DEAD"] | None = self._pool.value(*call)
        return status

    def renew(self, worker: str, lease_seconds: float) -> int:
        """Extend the leases of all jobs that a worker holds to so many seconds from now; how many they are."""
        return int(self._pool.value(*self._store.renew(check.check_worker(worker), check.check_lease(lease_seconds))))

    def reap(self) -> list[int]:
        """Take back the jobs whose leases ran out, at most 1000.

        Returns:
            Ids of the jobs that were given back to their queues, or buried because they were lost too often. Empty
            while another process is reaping.
        """
        return [row[0] for row in self._pool.query(*self._store.reap())]

    def requeue(self, job_id: int) -> int | None:
        """Give a dead job another life, with no attempt counted.

        Returns:
            The id, or ``None`` if there is no such dead job.

        Raises:
            DuplicateJob: Its dedupe key is held by a live job, which the error names; the dead job stays as it is.
        """
        call = self._calls.requeue(check.check_id("job_id", job_id))
        outcome, holder_job_id, holder_task_id = self._pool.query(*call)[0]
        if outcome == "taken":
            raise errors.DuplicateJob(holder_job_id, holder_task_id)
        return int(job_id) if outcome == "requeued" else None

    def cancel(self, job_id: int) -> int | None:
        """End a job that waits, as ``CANCELLED``; Celery learns of it as revoked.

        Returns:
            The id, or ``None`` if it does not wait.
        """
        call = self._calls.cancel(check.check_id("job_id", job_id), "REVOKED", "cancelled")
        cancelled: int | None = self._pool.value(*call)
        return cancelled

    def get(self, job_id: int) -> Job | None:
        """The job, live, dead or (while ``history_seconds`` last, without its payload) finished; else ``None``."""
        number = check.check_id("job_id", job_id)
        # one after the other: a job leaves for history only, so the second look finds what the first one just missed
        rows = self._pool.query(*self._calls.find(number))
        if rows:
            return stored_job(rows[0])
        rows = self._pool.query(*self._calls.find_finished(number))
        return finished_job(rows[0]) if rows else None

    def find_active(self, dedupe_key: str, *, queue: str | None = None) -> Job | None:
        """The live job that holds a dedupe key, or ``None`` if the key is free.

        Args:
            dedupe_key: The key.
            queue: Only there; by default in any queue (keys are per queue), the oldest job first.
        """
        name = None if queue is None else check.check_text("queue", queue, check.QUEUE_MAX_BYTES)
        rows = self._pool.query(*self._calls.find_active(check.check_key(dedupe_key), name))
        return stored_job(rows[0]) if rows else None

    def listen(self, queues: str | Iterable[str], timeout: float) -> bool:
        """Sleep until a job of these queues is ready.

        Args:
            queues: Names of queues.
            timeout: Longest wait in seconds; 0 only looks.

        Returns:
            ``True`` as soon as a job is ready (at once if one is, and when a scheduled one becomes due), ``False`` at
            the time-out, or when this object is closed meanwhile. Others may be faster: ``claim`` decides.

        Raises:
            DatabaseUnreachable: There was no connection at the time-out; until then a lost one is made again.
        """
        names = check.check_queues(queues)
        seconds = check.check_seconds("timeout", timeout, least=0)
        self._require_open()
        return self._waiters.wait(names, seconds)

    def stats(self) -> dict[str, QueueStats]:
        """Counts for each queue that is declared or holds jobs, by the queue's name.

        Jobs that have expired before they were claimed are not counted.
        """
        found = [queue_stats(row) for row in self._pool.query(*self._calls.stats())]
        return {stats.queue: stats for stats in found}

    def close(self) -> None:
        """Close the connections; waits in ``listen`` end. Nothing may be called afterwards but ``close``."""
        if not self._is_closed:
            self._is_closed = True
            self._waiters.close()
            pool_for(self.options).close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<JobQueue {self.options.safe_url}>"

    @property
    def _pool(self) -> SessionPool:
        self._require_open()
        return pool_for(self.options)

    def _require_open(self) -> None:
        if self._is_closed:
            raise errors.PgBrokerError(f"{self!r} is closed; make a new one")
