"""``JobQueue`` for asyncio: the same methods, awaitable.

Each call runs in a thread of its own small pool, so the event loop never waits for the server; psycopg2 gives up
the interpreter lock while it waits. A cancelled ``await`` stops waiting; the statement itself runs to its end, so
whether it took effect is then not known (a claim that nobody learns of runs out with its lease). ``listen`` has
threads of its own, so that those who sleep do not keep others from working.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from pgbroker.model import Job, QueueStats
from pgbroker.options import Options
from pgbroker.queue import job_queue

P = ParamSpec("P")
R = TypeVar("R")

#: Statements that may run side by side; each needs a connection for its time.
WORKING_THREADS = 4

#: Calls of ``listen`` that may sleep side by side.
LISTENING_THREADS = 32


class JobQueue:
    """The asyncio form of :class:`pgbroker.JobQueue`; see there for arguments, results and errors.

    Args:
        url: A broker URL, or ``Options``.
        **options: pgbroker's options by name; they win over those in the URL.
    """

    def __init__(self, url: str | Options, **options: Any) -> None:
        self._queue = job_queue.JobQueue(url, **options)
        self._working = ThreadPoolExecutor(WORKING_THREADS, "pgbroker-aio")
        self._listening = ThreadPoolExecutor(LISTENING_THREADS, "pgbroker-aio-listen")

    @property
    def options(self) -> Options:
        """The options in force."""
        return self._queue.options

    async def enqueue(self, task: str, payload: dict[str, Any], **how: Any) -> int | None:
        """Put a job into a queue: its id, or ``None`` for a duplicate."""
        return await self._run(self._queue.enqueue, task, payload, **how)

    async def claim(self, worker: str, **how: Any) -> Any:
        """Claim what is ready: a :class:`Job` or ``None`` for ``limit=1`` (the default), else a list."""
        claim: Callable[..., Job | list[Job] | None] = self._queue.claim
        return await self._run(claim, worker, **how)

    async def complete(self, job_id: int, worker: str, result: Any = None, *, claim: int | None = None) -> bool:
        """End a job well: whether ``worker`` (and ``claim``, if given) held it."""
        return await self._run(self._queue.complete, job_id, worker, result, claim=claim)

    async def fail(self, job_id: int, worker: str, error: str | BaseException, **how: Any) -> str | None:
        """Record a failed attempt: the new status, or ``None`` unless the job was held."""
        fail: Callable[..., str | None] = self._queue.fail
        return await self._run(fail, job_id, worker, error, **how)

    async def renew(self, worker: str, lease_seconds: float) -> int:
        """Extend a worker's leases: how many they are."""
        return await self._run(self._queue.renew, worker, lease_seconds)

    async def reap(self) -> list[int]:
        """Take back what lies under leases that ran out: the ids."""
        return await self._run(self._queue.reap)

    async def requeue(self, job_id: int) -> int | None:
        """Give a dead job another life: its id, or ``None`` if there is no such dead job."""
        return await self._run(self._queue.requeue, job_id)

    async def cancel(self, job_id: int) -> int | None:
        """End a job that waits: its id, or ``None`` if it does not wait."""
        return await self._run(self._queue.cancel, job_id)

    async def get(self, job_id: int) -> Job | None:
        """The job, or ``None``."""
        return await self._run(self._queue.get, job_id)

    async def find_active(self, dedupe_key: str, *, queue: str | None = None) -> Job | None:
        """The live job that holds a dedupe key, or ``None``."""
        return await self._run(self._queue.find_active, dedupe_key, queue=queue)

    async def listen(self, queues: Any, timeout: float) -> bool:
        """Sleep until a job of these queues is ready: ``True``, or ``False`` at the time-out (in seconds)."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._listening, self._queue.listen, queues, timeout)

    async def stats(self) -> dict[str, QueueStats]:
        """Counts for each queue, by its name."""
        return await self._run(self._queue.stats)

    async def close(self) -> None:
        """Close the connections; waits in ``listen`` end."""
        await asyncio.to_thread(self._queue.close)
        self._working.shutdown(wait=False)
        self._listening.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<aio.{repr(self._queue)[1:]}"

    async def _run(self, method: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._working, functools.partial(method, *args, **kwargs))
