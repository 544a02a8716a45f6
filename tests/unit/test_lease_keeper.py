"""The lease thread: one of them, whoever starts it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from pgbroker.options import Options
from pgbroker.postgres import native
from pgbroker.queue.leases import LeaseKeeper
from pgbroker.queue.ledger import Ledger
from pgbroker.queue.store import store_for


class Hesitant(LeaseKeeper):
    """Whoever looks whether the thread runs waits for another one who looks, too."""

    meeting = threading.Barrier(2)

    @property
    def _run_token(self) -> object | None:  # type: ignore[override]
        token = self._token
        try:
            self.meeting.wait(0.2)
        except threading.BrokenBarrierError:
            pass
        return token

    @_run_token.setter
    def _run_token(self, token: object | None) -> None:
        self._token = token


def test_two_who_start_it_at_once_start_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    monkeypatch.setattr(native, "start_thread", lambda *args: started.append(args))
    options = Options.from_url("pgbroker://nobody@localhost/none")
    keeper = Hesitant(options, Ledger(store_for(options.schema)))
    threads = [threading.Thread(target=keeper.start) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(started) == 1
    keeper.stop()
    keeper.start()
    assert len(started) == 2
