"""``pgbroker.aio.JobQueue`` on a real server."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pgbroker import DuplicateJob, aio


def run(database: Any, body: Callable[[aio.JobQueue], Awaitable[None]]) -> None:
    async def main() -> None:
        async with aio.JobQueue(database.url) as queue:
            await body(queue)

    asyncio.run(main())


def test_a_job_goes_through_its_life(database: Any) -> None:
    async def body(queue: aio.JobQueue) -> None:
        job_id = await queue.enqueue("proj.add", {"x": 1}, queue="q", dedupe_key="k")
        assert job_id is not None
        assert await queue.enqueue("proj.add", {"x": 1}, queue="q", dedupe_key="k") is None
        active = await queue.find_active("k")
        assert active is not None
        assert active.job_id == job_id
        job = await queue.claim("w", queues=("q",))
        assert (job.job_id, job.payload) == (job_id, {"x": 1})
        assert await queue.renew("w", 30) == 1
        assert await queue.complete(job_id, "w", {"y": 2}, claim=job.claim)
        done = await queue.get(job_id)
        assert done is not None
        assert (done.status, done.result) == ("DONE", {"y": 2})

    run(database, body)


def test_a_job_that_fails_for_good_can_be_requeued(database: Any) -> None:
    async def body(queue: aio.JobQueue) -> None:
        job_id = await queue.enqueue("t", {}, queue="q", max_attempts=1, dedupe_key="k")
        assert job_id is not None
        await queue.claim("w", queues=("q",))
        assert await queue.fail(job_id, "w", ValueError("no")) == "DEAD"
        other = await queue.enqueue("t", {}, queue="q", dedupe_key="k")
        with pytest.raises(DuplicateJob):
            await queue.requeue(job_id)
        assert other is not None
        assert await queue.cancel(other) == other
        assert await queue.requeue(job_id) == job_id
        assert (await queue.stats())["q"].ready == 1
        assert await queue.reap() == []

    run(database, body)


def test_concurrent_claims_never_share_a_job(database: Any) -> None:
    async def body(queue: aio.JobQueue) -> None:
        await asyncio.gather(*(queue.enqueue("t", {"n": n}, queue="q") for n in range(40)))
        claims = await asyncio.gather(*(queue.claim(f"w{n}", queues=("q",), limit=3) for n in range(20)))
        ids = [job.job_id for jobs in claims for job in jobs]
        assert len(ids) == len(set(ids)) == 40

    run(database, body)


def test_sleepers_do_not_keep_others_from_working(database: Any) -> None:
    async def body(queue: aio.JobQueue) -> None:
        await queue.enqueue("t", {}, queue="other")
        sleepers = [asyncio.create_task(queue.listen(["q"], 20)) for _ in range(aio.WORKING_THREADS + 4)]
        assert await asyncio.wait_for(queue.claim("w", queues=("other",)), 10) is not None
        assert not any(sleeper.done() for sleeper in sleepers)
        woken = asyncio.gather(*sleepers)
        while not woken.done():  # one publish wakes one sleeper, or all who look at the same moment
            await queue.enqueue("t", {}, queue="q")
            await asyncio.wait([woken], timeout=0.2)
        assert all(woken.result())

    run(database, body)


def test_the_loop_goes_on_while_the_server_is_asked(database: Any) -> None:
    async def body(queue: aio.JobQueue) -> None:
        sleeper = asyncio.create_task(queue.listen(["q"], 1))
        ticks = 0
        while not sleeper.done():
            await asyncio.sleep(0.01)
            ticks += 1
        assert sleeper.result() is False
        assert ticks > 20

    run(database, body)
