"""Remote control reaches workers that are busy: their mailbox is looked after whatever the job queues do."""

from __future__ import annotations

import signal
import time

import pytest
from worker_site import PREFORK_FIRST, Site, wait_until


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
