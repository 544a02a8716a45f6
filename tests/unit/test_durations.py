"""Lengths of time in words."""

import datetime as dt

import pytest

from pgbroker.monitor.durations import in_words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (0.04, "0 s"),
        (0.44, "0.4 s"),
        (3, "3 s"),
        (59.4, "59 s"),
        (60, "1 min"),
        (100, "1.7 min"),
        (-720, "12 min"),
        (3600, "1 h"),
        (86400, "1 d"),
        (2592000, "30 d"),
        (dt.timedelta(hours=36), "1.5 d"),
    ],
)
def test_in_words(seconds: float | dt.timedelta, words: str) -> None:
    assert in_words(seconds) == words
