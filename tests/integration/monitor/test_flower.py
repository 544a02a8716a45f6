"""``celery -A APP pgbroker flower``: Flower with a Broker page that tells the truth, and all its own options."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from flower_site import SECRET, Flower, FlowerSite, broker_table, wait_until

from pgbroker import JobQueue
from pgbroker.options import Options

if TYPE_CHECKING:
    from pathlib import Path

    from ...conftest import Database
    from .conftest import Desk

PAGES = ("/", "/workers?json=1", "/worker/{worker}", "/tasks", "/task/{task}", "/broker", "/metrics", "/nothing")
API = ("/api/workers?refresh=1", "/api/workers?workername={worker}", "/api/queues/length", "/api/tasks")


@pytest.fixture
def site(database: Database, tmp_path: Path) -> Iterator[FlowerSite]:
    """A database of the test's own."""
    site = FlowerSite(database, tmp_path)
    yield site
    site.close()


@pytest.fixture(scope="module")
def shop(module_database: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlowerSite]:
    """A database with a worker on ``celery`` and ``mail``, shared by tests that need only look."""
    site = FlowerSite(module_database, tmp_path_factory.mktemp("shop"))
    site.worker("-Q", "celery,mail", "-c", "1", "-E")
    yield site
    site.close()


@pytest.fixture(scope="module")
def flower(shop: FlowerSite) -> Flower:
    """Flower on it."""
    flower = shop.flower()
    flower.wait_for_worker("w1@shop")
    return flower


def row(name: str, messages: int, unacked: int, ready: int, consumers: int) -> dict[str, Any]:
    return {
        "name": name,
        "messages": messages,
        "messages_unacknowledged": unacked,
        "messages_ready": ready,
        "consumers": consumers,
    }


def test_shows_what_is_in_each_queue(site: FlowerSite) -> None:
    for number in range(2):
        site.send("add", number, 1, queue="orphan")
    site.send("add", 1, 1, queue="orphan", countdown=600)
    site.worker("-Q", "celery", "-P", "solo", "--prefetch-multiplier", "1")
    for number in range(3):
        site.send("ship", number)
    flower = site.flower()
    expected = [row("celery", 3, 1, 2, 1), row("orphan", 3, 0, 2, 0)]
    wait_until(lambda: list(flower.lengths().values()) == expected, what=flower.output)
    page = flower.ask("/broker")
    assert page.status == 200
    heads = ("Queue", "Messages", "Unacked", "Ready", "Consumers", "Idle since")
    cells = [("celery", "3", "1", "2", "1", "—"), ("orphan", "3", "0", "2", "0", "—")]
    assert broker_table(page.text) == [dict(zip(heads, line, strict=True)) for line in cells]
    assert flower.stop() == 0


def test_leaves_out_queues_that_hold_nothing(shop: FlowerSite, flower: Flower) -> None:
    """Neither dead letters nor queues of replies and events are messages that somebody should consume."""
    with closing(JobQueue(Options.from_url(shop.url))) as jobs:
        dead = jobs.enqueue("shop.add", {}, queue="buried", max_attempts=1)
        jobs.claim("w", queues=("buried",))
        assert dead is not None
        assert jobs.fail(dead, "w", "no") == "DEAD"
    assert shop.run("select count(*) from pgbroker.transient_queues")[0][0] > 0
    assert flower.lengths() == {"celery": row("celery", 0, 0, 0, 1), "mail": row("mail", 0, 0, 0, 1)}


def test_works_before_there_is_a_worker_or_a_schema(site: FlowerSite) -> None:
    flower = site.flower()
    assert flower.lengths() == {"celery": row("celery", 0, 0, 0, 0)}
    assert "Failed to capture events" not in flower.output()


def test_shows_no_password(shop: FlowerSite, flower: Flower) -> None:
    if not shop.has_secret:
        pytest.skip("the server asks for a password, which may be any word")
    flower.wait_for_events("w1@shop")
    task = shop.send("add", 2, 3)
    flower.wait_for_task(task, "SUCCESS")
    secrets = (SECRET, quote(SECRET, safe=""))
    assert secrets[1] in shop.url
    for path in (*PAGES, *API):
        answer = flower.ask(path.format(worker="w1@shop", task=task))
        assert answer.status == (404 if path == "/nothing" else 200), path
        assert [secret for secret in secrets if secret in answer.text] == [], path
    for log in shop.logs:
        assert [secret for secret in secrets if secret in log.read_text(errors="replace")] == [], log
    assert ":**@" in flower.ask("/broker").text


def test_no_other_page_waits_for_the_database(shop: FlowerSite, flower: Flower) -> None:
    """The counts are read in a thread, Flower's event loop goes on."""
    answers: list[int] = []
    with closing(shop.database.connect(autocommit=False)) as connection, connection.cursor() as cursor:
        cursor.execute("lock table pgbroker.jobs_live in access exclusive mode")
        asking = threading.Thread(target=lambda: answers.append(flower.ask("/api/queues/length").status))
        asking.start()
        waits = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        wait_until(lambda: shop.run(waits)[0][0])
        assert flower.ask("/healthcheck").text == "OK"
        assert flower.ask("/tasks").status == 200
        assert answers == []
        connection.rollback()
    asking.join(20)
    assert answers == [200]


def test_an_outage_is_told_and_survived(site: FlowerSite) -> None:
    flower = site.flower()
    assert flower.lengths()
    name = site.database.name
    with closing(site.database.server.admin()) as admin, admin.cursor() as cursor:
        cursor.execute(f'alter database "{name}" allow_connections false')
        cursor.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", (name,))
        answer = flower.ask("/api/queues/length")
        assert (answer.status, answer.text) == (503, "Broker or result backend unavailable")
        page = flower.ask("/broker")
        assert (page.status, broker_table(page.text)) == (200, [])
        assert "No queue data is available." in page.text
        cursor.execute(f'alter database "{name}" allow_connections true')
    wait_until(lambda: flower.ask("/api/queues/length").status == 200, what=flower.output)
    flower.wait_for_events(site.worker("-P", "solo", "-E"), 40)
    flower.wait_for_task(site.send("add", 1, 1), "SUCCESS")
    assert quote(SECRET, safe="") not in flower.output()


# -- Flower's options -------------------------------------------------------------------------------


def test_authentication_guards_the_broker_page(shop: FlowerSite) -> None:
    flower = shop.flower("--basic-auth=ann:sesame", has_api=False)
    for path in ("/broker", "/api/queues/length", "/"):
        assert flower.ask(path).status == 401
        assert flower.ask(path, user="ann:guess").status == 401
        assert flower.ask(path, user="ann:sesame").status == 200


def test_the_api_is_closed_unless_somebody_opens_it(shop: FlowerSite) -> None:
    flower = shop.flower(has_api=False)
    assert flower.ask("/api/queues/length").status == 401
    assert flower.ask("/broker").status == 200


def test_pages_lie_below_the_prefix(shop: FlowerSite) -> None:
    flower = shop.flower("--url-prefix=/office/flower/", prefix="/office/flower")
    page = flower.ask("/broker")
    assert {line["Queue"] for line in broker_table(page.text)} >= {"celery", "mail"}
    assert 'href="/office/flower/broker"' in page.text
    assert {"celery", "mail"} <= flower.lengths().keys()
    flower.prefix = ""
    assert flower.ask("/broker").status == 404


def test_options_come_from_the_environment_and_a_file(site: FlowerSite) -> None:
    (site.folder / "own.py").write_text("basic_auth = ['ann:sesame']\ntasks_columns = 'name,state,args'\n")
    flower = site.flower("--conf=own.py", environment={"FLOWER_PORT": "PORT", "FLOWER_READ_ONLY": "true"})
    assert flower.ask("/tasks").status == 401
    page = flower.ask("/tasks", user="ann:sesame")
    assert page.status == 200
    assert "Runtime" not in page.text
    refused = flower.ask("/api/worker/shutdown/w1@shop", "POST", user="ann:sesame")
    assert (refused.status, refused.text) == (403, "Read only mode is enabled")


def test_what_it_saw_is_kept(site: FlowerSite) -> None:
    worker = site.worker("-P", "solo", "-E")
    words = ("--persistent=True", "--db=seen")
    flower = site.flower(*words)
    flower.wait_for_events(worker)
    task = site.send("add", 1, 1)
    flower.wait_for_task(task, "SUCCESS")
    assert flower.stop() == 0
    assert site.flower(*words).ask(f"/task/{task}").status == 200


# -- without it -------------------------------------------------------------------------------------


def test_plain_flower_works_but_for_the_broker_page(shop: FlowerSite) -> None:
    flower = shop.flower(command=("flower",))
    flower.wait_for_worker("w1@shop")
    for path in ("/broker", "/api/queues/length"):
        answer = flower.ask(path)
        assert (answer.status, "broker is not supported" in answer.text) == (404, True)
    flower.wait_for_events("w1@shop")
    flower.wait_for_task(shop.send("add", 2, 3), "SUCCESS")
    assert [line for line in flower.output().splitlines() if line.startswith("[E")] == []


def test_says_what_to_install(desk: Desk) -> None:
    script = "import sys; sys.modules['flower'] = None; from celery.__main__ import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", script, "-A", "shop", "pgbroker", "flower"],
        cwd=desk.directory,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "Flower is not installed" in done.stderr
    assert "pip install 'pgbroker[flower]'" in done.stderr


def test_refuses_a_flower_without_the_seam(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("flower.views.BaseHandler.get_broker")
    refused = desk.call("flower")
    assert (refused.exit_code, "this Flower is too old" in refused.stderr) == (2, True)


def test_a_broker_of_another_kind_is_left_to_flower(site: FlowerSite) -> None:
    flower = site.flower(environment={"SHOP_URL": "memory://"})
    assert flower.ask("/broker").status == 404
