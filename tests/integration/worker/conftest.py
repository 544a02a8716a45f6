"""A database with workers on it, for each test or for a module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ends_site import BACKENDS, Ends
from worker_site import Site, Worker


@pytest.fixture
def site(database: Any, tmp_path: Path) -> Iterator[Site]:
    """A site of its own for one test."""
    site = Site(database, tmp_path)
    yield site
    site.close()


@pytest.fixture
def worker(site: Site) -> Callable[..., Worker]:
    """Start workers on the test's database."""
    return site.worker


@pytest.fixture(params=BACKENDS)
def ends(request: pytest.FixtureRequest, site: Site) -> Iterator[Ends]:
    """The tasks that end in every way, on each result backend."""
    ends = Ends(site, request.param)
    yield ends
    ends.close()


@pytest.fixture
def own(site: Site) -> Iterator[Ends]:
    """The same on our own result backend."""
    ends = Ends(site)
    yield ends
    ends.close()
