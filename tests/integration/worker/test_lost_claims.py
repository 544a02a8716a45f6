"""A connection that breaks may swallow the answer to a claim: the jobs go back as soon as the server answers again."""

from __future__ import annotations

import select
import socket
import socketserver
import threading
from typing import Any

import psycopg2
import pytest
from worker_site import Site, wait_until

from pgbroker.options import Options
from pgbroker.transport.process import process_for


def test_gives_back_what_it_does_not_know_of(site: Site) -> None:
    add = site.app.tasks["app.add"]
    add.delay(0, 0)
    options = Options.from_url(site.database.url)
    process = process_for(options)
    site.rows("select * from pgbroker.claim(%s, '{celery}', 1, 60, true)", process.ledger.worker)
    known = site.rows("select claim from pgbroker.jobs_live")[0][0]
    add.delay(1, 1)
    site.rows("select * from pgbroker.claim(%s, '{celery}', 1, 60, true)", process.ledger.worker)
    assert site.rows(*_call(process.store.release_lost(process.ledger.worker, [known]))) == [(1,)]
    rows = "select status::text, attempts, claim is null from pgbroker.jobs_live order by job_id"
    assert site.rows(rows) == [("RUNNING", 1, False), ("PENDING", 0, True)]


def _call(call: tuple[str, tuple[Any, ...]]) -> tuple[Any, ...]:
    return call[0], *call[1]


def test_looks_only_while_no_claim_is_on_its_way(site: Site) -> None:
    claiming = process_for(Options.from_url(site.database.url)).claiming
    assert claiming.look() is None
    assert claiming.begin()
    assert claiming.begin()
    claiming.end(is_lost=True)
    assert claiming.look() is None
    claiming.end()
    assert claiming.look() is not None
    assert not claiming.begin()
    assert claiming.look() is None
    claiming.looked(is_done=False)
    assert claiming.look() is not None
    claiming.looked(is_done=True)
    assert claiming.look() is None
    assert claiming.begin()


class Swallowing(socketserver.ThreadingTCPServer):
    """A proxy that cuts a connection instead of passing on the answer to a claim that brought a job."""

    daemon_threads = True

    def __init__(self, target: tuple[str, int] | str) -> None:
        self.target = target
        self.swallowed = 0
        self.may_swallow = False
        super().__init__(("127.0.0.1", 0), PassOn)
        threading.Thread(target=self.serve_forever, daemon=True).start()


class PassOn(socketserver.BaseRequestHandler):
    server: Swallowing

    def handle(self) -> None:
        is_path = isinstance(self.server.target, str)
        with socket.socket(socket.AF_UNIX if is_path else socket.AF_INET) as postgres:
            postgres.connect(self.server.target)
            ends = {self.request: postgres, postgres: self.request}
            while True:
                readable, _, _ = select.select(list(ends), [], [])
                for source in readable:
                    try:
                        data = source.recv(1 << 16)
                    except OSError:
                        return
                    if source is postgres and self.server.may_swallow and b"app.late_sleep" in data:
                        self.server.may_swallow = False
                        self.server.swallowed += 1
                        return
                    if not data:
                        return
                    ends[source].sendall(data)


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_runs_what_was_claimed_when_the_connection_broke(pool: str, site: Site) -> None:
    dsn = site.database.dsn
    port = int(dsn.get("port", 5432))
    host = dsn["host"]
    proxy = Swallowing(f"{host}/.s.PGSQL.{port}" if host.startswith("/") else (host, port))
    try:
        address = f"{dsn['user']}@127.0.0.1:{proxy.server_address[1]}/{site.database.name}"
        try:
            psycopg2.connect(f"postgresql://{address}").close()
        except psycopg2.OperationalError as exc:
            pytest.skip(f"this server wants more than a name: {exc}")
        worker = site.worker(pool, 1, url=f"pgbroker://{address}", options={"lease_seconds": 60})
        proxy.may_swallow = True
        result = site.app.tasks["app.late_sleep"].delay(0.01)
        wait_until(lambda: proxy.swallowed == 1, what=worker.output)
        site.wait_for(result.id, "DONE", 10)
        assert site.record.runs() == {result.id: 1}
        assert site.job(result.id)["attempts"] == 1
    finally:
        proxy.shutdown()
        proxy.server_close()
