"""Fetching other projects' tests: what is said when that does not work."""

from __future__ import annotations

from pathlib import Path

import fetch
import pytest


def test_says_what_is_missing_when_pip_cannot_fetch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "CACHE", tmp_path / "cache")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(fetch.FetchError, match=r"cannot fetch the source of kombu==[\d.]+, which holds the tests"):
        fetch.fetch("kombu")
    assert list((tmp_path / "cache").iterdir()) == []


def test_fetches_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "CACHE", tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    place = fetch.place_of("kombu")
    place.mkdir()
    assert fetch.fetch("kombu") == place
