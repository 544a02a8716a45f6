"""Remote control reaches workers that are busy: their mailbox is looked after whatever the job queues do."""

from __future__ import annotations

import signal
import time

import pytest
from worker_site import PREFORK_FIRST, Site, Worker, wait_until


def ping(site: Site, seconds: float = 5) -> float:
    """Seconds until the one worker has answered."""
    before = time.monotonic()
    answers = site.app.control.inspect(timeout=seconds, limit=1).ping()
    assert answers, site.describe()
    assert len(answers) == 1
    return time.monotonic() - before


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_answers_while_the_prefetch_window_is_full(pool: str, site: Site) -> None:
    tasks = [site.app.tasks["app.sleep"].delay(4) for _ in range(3)]
    site.worker(pool, 1, worker_prefetch_multiplier=1)
    wait_until(lambda: site.record.count("start") == 1, what=site.describe)
    assert [ping(site) < 1 for _ in range(3)] == [True] * 3
    assert site.record.count("end") == 0
    site.app.control.purge()
    assert len(tasks) == 3


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "solo"])
def test_answers_while_there_is_always_work(pool: str, site: Site) -> None:
    """Longer than a sleeper's registration holds, without one idle moment."""
    with site.app.pool.acquire(block=True) as connection:
        producer = site.app.amqp.Producer(connection)
        for _ in range(1500):
            site.app.tasks["app.sleep"].apply_async((0.01,), producer=producer)
    site.worker(pool, 1, options={"poll_interval": 1})
    wait_until(lambda: site.record.count("start"), what=site.describe)
    since = time.monotonic()
    wait_until(lambda: time.monotonic() > since + 4, 6)
    assert [ping(site) < 1 for _ in range(3)] == [True] * 3
    assert site.statuses()["PENDING"] > 0
    site.app.control.purge()


@pytest.mark.parametrize("pool", PREFORK_FIRST)
def test_answers_again_after_it_was_suspended_for_long(pool: str, site: Site) -> None:
    worker = site.worker(pool, 1, options={"lease_seconds": 2})
    ping(site)
    worker.process.send_signal(signal.SIGSTOP)
    # what another worker does once this one has been silent for attend_seconds
    site.rows("update pgbroker.transient_queues set lives_until = now() - interval '1 second'")
    site.rows("update pgbroker.consumers set lives_until = now() - interval '1 second'")
    assert site.rows("select pgbroker.sweep_transient() > 0") == [(True,)]
    worker.process.send_signal(signal.SIGCONT)
    wait_until(lambda: site.app.control.inspect(timeout=0.5, limit=1).ping(), 8, site.describe)
    assert site.rows("select queue from pgbroker.consumers where queue = 'celery'") == [("celery",)]


@pytest.mark.parametrize("pool", PREFORK_FIRST)
def test_lets_a_worker_be_shut_down(pool: str, site: Site) -> None:
    worker = site.worker(pool, 1)
    site.app.control.shutdown()
    assert worker.wait(15) == 0


@pytest.mark.slow
def test_twenty_workers_answer_within_a_second(site: Site) -> None:
    """Every command of remote control, with Celery's own time-out."""
    workers = [site.worker("solo", 1, wait=False) for _ in range(20)]
    for worker in workers:
        worker.wait_ready(100)
    names = {worker.name for worker in workers}
    inspect, control = site.app.control.inspect, site.app.control

    def of_all(answers: dict[str, object] | None) -> bool:
        return {full.partition("@")[0] for full in answers or {}} == names

    wait_until(lambda: of_all(inspect().ping()), 20, site.describe)
    for command in (
        "ping",
        "stats",
        "active",
        "reserved",
        "scheduled",
        "revoked",
        "registered",
        "conf",
        "active_queues",
    ):
        assert of_all(getattr(inspect(), command)()), command
    limits = [
        control.rate_limit("app.add", "100/s", reply=True),
        control.time_limit("app.add", soft=50, hard=60, reply=True),
        control.add_consumer("extra", reply=True),
        control.cancel_consumer("extra", reply=True),
    ]
    for answers in limits:
        assert of_all({name: said for answer in answers for name, said in answer.items()}), answers
        assert all("ok" in said for answer in answers for said in answer.values()), answers
    control.shutdown()
    assert [worker.wait(30) for worker in workers] == [0] * 20


@pytest.mark.slow
def test_resizes_and_restarts_pools(site: Site) -> None:
    """A pool that scales itself refuses to be resized by hand, and another one to scale: that is Celery's own rule."""
    fixed = site.worker("prefork", 2, worker_pool_restarts=True)
    scaled = site.worker("prefork", 1, "--autoscale=3,1")

    def size(worker: Worker) -> int:
        stats = site.app.control.inspect(timeout=2, pattern=f"{worker.name}@*", limit=1).stats()
        return len(next(iter(stats.values()))["pool"]["processes"]) if stats else 0

    def tell(worker: Worker, command: str, **arguments: object) -> str:
        answers = site.app.control.broadcast(
            command, arguments, pattern=f"{worker.name}@*", matcher="glob", reply=True, timeout=5, limit=1
        )
        return str(next(iter(answers[0].values())))

    assert "pool will grow" in tell(fixed, "pool_grow", n=2)
    wait_until(lambda: size(fixed) == 4, what=site.describe)
    assert "pool will shrink" in tell(fixed, "pool_shrink", n=1)
    wait_until(lambda: size(fixed) == 3, what=site.describe)
    assert "reload" in tell(fixed, "pool_restart", reload=False)
    assert "Autoscale not enabled" in tell(fixed, "autoscale", max=4, min=1)
    assert "autoscale" in tell(scaled, "pool_grow", n=1)
    assert "autoscale now max=5 min=2" in tell(scaled, "autoscale", max=5, min=2)
    wait_until(lambda: size(scaled) >= 2, what=site.describe)
    assert site.app.tasks["app.add"].delay(1, 2).get(timeout=15) == 3
