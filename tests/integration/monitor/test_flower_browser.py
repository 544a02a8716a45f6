"""Flower's pages in a real browser: that they show what is so, that their buttons work, and how they look.

Needs Chromium (``PGBROKER_TEST_CHROMIUM``, or on the PATH) and the extra ``browser``. Screenshots go into the folder
that ``PGBROKER_TEST_SCREENSHOTS`` names, for the documents.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from flower_site import Flower, FlowerSite, wait_until

if TYPE_CHECKING:
    from ...conftest import Database

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

WORKER = "web@shop"
SCREENSHOT_MAX_BYTES = 150_000
TABS = ("pool", "broker", "queues", "tasks", "limits", "config", "system")


class Window:
    """A window of the browser that holds Flower's pages to having no errors."""

    def __init__(self, page: Any, flower: Flower) -> None:
        self.page, self.flower = page, flower
        self.errors: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda said: said.type == "error" and self.errors.append(said.text))
        page.on("requestfailed", self._failed)

    def open(self, path: str) -> None:
        """Load a page with all that its scripts fetch."""
        self.page.goto(f"{self.flower.url}{path}", wait_until="networkidle")
        assert self.errors == []

    def _failed(self, request: Any) -> None:
        if request.failure != "net::ERR_ABORTED":  # a page that is left ends what it has asked for
            self.errors.append(f"{request.url} {request.failure}")

    def text(self, selector: str) -> str:
        return str(self.page.inner_text(selector))

    def rows(self, table: str) -> list[list[str]]:
        """The cells of a table's body, as they are seen."""
        rows = self.page.query_selector_all(f"{table} tbody tr")
        return [[cell.inner_text().strip() for cell in row.query_selector_all("td")] for row in rows]

    def expect(self, message: str) -> None:
        """Wait for the notice that answers a button."""
        notice = self.page.locator(".toast-body", has_text=message)
        notice.first.wait_for(timeout=20_000)
        assert "text-bg-success" in self.page.locator(".toast", has=notice).first.get_attribute("class")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium."""
    named = os.environ.get("PGBROKER_TEST_CHROMIUM")
    path = named or next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("no Chromium: install Debian's package chromium, or name one in PGBROKER_TEST_CHROMIUM")
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install '.[browser]'")
    with playwright.sync_playwright() as driver:
        # its sandbox does not work for root
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"] if os.geteuid() == 0 else [])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def site(browser: Any, module_database: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlowerSite]:
    """A worker that is busy, and jobs that wait."""
    site = FlowerSite(module_database, tmp_path_factory.mktemp("shop"), has_plain_url=True)
    site.worker("-Q", "celery,mail", "-c", "2", "-E", "--prefetch-multiplier", "1", name="web")
    yield site
    site.close()


@pytest.fixture(scope="module")
def flower(site: FlowerSite) -> Flower:
    """Flower behind a password and below a prefix."""
    flower = site.flower("--basic-auth=ann:sesame", "--url-prefix=flower", prefix="/flower", has_api=False)
    flower.user = "ann:sesame"
    flower.wait_for_worker(WORKER)
    flower.wait_for_events(WORKER)
    return flower


@pytest.fixture(scope="module")
def tasks(site: FlowerSite, flower: Flower) -> dict[str, str]:
    """One task for each end, by its state."""
    done = [site.send("add", number, 5) for number in range(3)]
    failed = site.send("charge", "A-17")
    for task in done:
        flower.wait_for_task(task, "SUCCESS")
    flower.wait_for_task(failed, "FAILURE")
    running = site.send("ship", "A-18", 300)
    flower.wait_for_task(running, "STARTED")
    for number in range(4):
        site.send("add", number, 1, queue="reports")
    site.send("add", 1, 1, queue="mail", countdown=3600)
    return {"SUCCESS": done[-1], "FAILURE": failed, "STARTED": running}


@pytest.fixture
def window(browser: Any, flower: Flower) -> Iterator[Window]:
    """A new window, logged in."""
    name, _, password = flower.user.partition(":")
    context = browser.new_context(
        viewport={"width": 1200, "height": 720},
        locale="en-US",
        timezone_id="UTC",
        http_credentials={"username": name, "password": password},
    )
    window = Window(context.new_page(), flower)
    window.open("/")  # where a browser is asked for a password, there and below it sends that unasked
    yield window
    context.close()
    assert window.errors == []


@pytest.fixture
def screenshot(window: Window, tmp_path: Path) -> Any:
    """Take a picture of the window."""
    named = os.environ.get("PGBROKER_TEST_SCREENSHOTS")
    folder = Path(named) if named else tmp_path

    def take(name: str) -> None:
        path = folder / f"flower-{name}.png"
        window.page.screenshot(path=path)
        assert 5_000 < path.stat().st_size < SCREENSHOT_MAX_BYTES

    return take


def test_the_workers_page(window: Window, tasks: dict[str, str], screenshot: Any) -> None:
    window.open("/")
    wait_until(lambda: window.text("#workers-active") == "1", 30, lambda: window.rows("#workers-table"))
    wait_until(lambda: window.text("#workers-succeeded") == "3", 30)
    (row,) = window.rows("#workers-table")
    assert row[:6] == [WORKER, "Online", "1", "5", "1", "3"]
    screenshot("workers")


def test_the_tasks_page(window: Window, tasks: dict[str, str], screenshot: Any) -> None:
    window.open("/tasks")
    found = {row[1]: row for row in window.rows("#tasks-table")}
    assert {state: found[task][2] for state, task in tasks.items()} == {state: state for state in tasks}
    assert found[tasks["FAILURE"]][0] == "shop.charge"
    screenshot("tasks")


def test_the_page_of_a_task(window: Window, tasks: dict[str, str], screenshot: Any) -> None:
    window.open("/tasks")
    window.page.click(f"a[href$='/task/{tasks['FAILURE']}']")
    window.page.wait_for_selector("#task-page")
    shown = window.text("#task-page")
    for text in ("shop.charge", tasks["FAILURE"], "FAILURE", "('A-17',)", "no card on file for A-17", WORKER):
        assert text in shown
    screenshot("task")


def test_the_broker_page(window: Window, tasks: dict[str, str], screenshot: Any) -> None:
    window.open("/broker")
    assert re.fullmatch(r"pgbroker://[^:]*:\*\*@/", window.text(".broker-url"))
    assert window.rows("#queue-table") == [
        ["celery", "1", "1", "0", "1", "—"],
        ["mail", "1", "0", "0", "1", "—"],
        ["reports", "4", "0", "4", "0", "—"],
    ]
    screenshot("broker")


def test_the_buttons_of_a_worker(window: Window, tasks: dict[str, str]) -> None:
    window.open(f"/worker/{WORKER}")
    for tab in TABS:
        window.page.click(f"#worker-tab-{tab}")
        window.page.wait_for_selector(f"#tab-{tab}.active.show")
        assert len(window.text(f"#tab-{tab}")) > 50
    window.page.click("#worker-tab-pool")
    window.page.click("#worker-pool-grow")
    window.expect(f"Growing '{WORKER}' worker's pool by 1")
    window.page.click("#worker-pool-shrink")
    window.expect(f"Shrinking '{WORKER}' worker's pool by 1")
    window.page.click("#worker-tab-queues")
    window.page.fill("#add-consumer-name", "extra")
    window.page.click("#worker-add-consumer")
    window.expect("add consumer extra")
    window.page.click("#worker-tab-limits")
    window.page.fill("input[aria-label='Rate limit for shop.add']", "100")
    window.page.click("[id='task-rate-limit-shop.add']")
    window.expect("new rate limit set successfully")
    window.page.fill("input[aria-label='Timeout for shop.add']", "100")
    window.page.click("[id='task-timeout-soft-shop.add']")
    window.expect("time limits set successfully")
    # the page shows what Flower knows, and asks the worker for the next time
    wait_until(lambda: window.open(f"/worker/{WORKER}") or window.page.query_selector("#worker-cancel-consumer-extra"))
    window.page.click("#worker-tab-queues")
    window.page.click("#worker-cancel-consumer-extra")
    window.expect("no longer consuming from extra")


def test_a_task_is_terminated(window: Window, flower: Flower, tasks: dict[str, str]) -> None:
    window.open(f"/task/{tasks['STARTED']}")
    window.page.click("#task-terminate")
    window.expect(f"Revoked '{tasks['STARTED']}'")
    flower.wait_for_task(tasks["STARTED"], "REVOKED")
    window.open(f"/task/{tasks['STARTED']}")
    assert "REVOKED" in window.text("#task-page")
