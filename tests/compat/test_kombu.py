"""kombu's own integration tests, from the source of the installed kombu: ``make compat-kombu``."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from fetch import place_of
from kombu import Connection

from pgbroker.postgres import pool
from pgbroker.transport.process import all_processes

MIXINS = place_of("kombu") / "t" / "integration" / "common.py"
if not MIXINS.exists():
    pytest.skip("the source of kombu has not been fetched; `make compat-kombu` does", allow_module_level=True)


def load_mixins() -> ModuleType:
    """Import kombu's mixins by their path: with the source on ``sys.path``, its kombu would hide the installed one."""
    spec = importlib.util.spec_from_file_location("kombu_integration_common", MIXINS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


common = load_mixins()
pytestmark = pytest.mark.compat

#: Nobody listens there.
DEAD_URL = "pgbroker://nobody@/nowhere?host=/nonexistent"


@pytest.fixture(autouse=True)
def shared_state_is_dropped() -> Iterator[None]:
    yield
    for process in all_processes():
        process.keeper.stop()
    pool.close_all()


@pytest.fixture
def connection(module_database: Any) -> Connection:
    return Connection(module_database.url)


@pytest.fixture
def invalid_connection() -> Connection:
    return Connection(DEAD_URL)


@pytest.fixture
def failover_connection(module_database: Any) -> Connection:
    """A dead server, then a live one. kombu fills in ``port``, by which it tells the two apart, only when it switches.

    The URL of a socket names no port, hence the explicit one.
    """
    dsn = module_database.dsn
    words = {"host": dsn.get("host", ""), "port": dsn.get("port", "5432")}
    user = dsn.get("user", "")
    live = f"pgbroker://{user}@{words['host']}:{words['port']}/{module_database.name}"
    if words["host"].startswith("/"):
        live = f"pgbroker://{user}@:{words['port']}/{module_database.name}?host={words['host']}"
    return Connection(f"{DEAD_URL};{live}")


class TestBasicFunctionality(common.BasicFunctionality):
    pass


class TestExchangeTypes(common.BaseExchangeTypes):
    pass


class TestTimeToLive(common.BaseTimeToLive):
    pass


class TestPriority(common.BasePriority):
    pass


class TestMessage(common.BaseMessage):
    pass


class TestEventLoop(common.BaseEventLoop):
    pass


class TestFailover(common.BaseFailover):
    pass


def test_every_mixin_of_this_version_is_run() -> None:
    mixins = {one for _, one in inspect.getmembers(common, inspect.isclass) if one.__module__ == common.__name__}
    run = {base for one in globals().values() if inspect.isclass(one) for base in one.__mro__}
    assert mixins
    assert mixins <= run
