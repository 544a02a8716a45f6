"""A way to the server that can be made slow, silent, or be taken away."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg2
import pytest


class Proxy:
    """Passes on connections to 127.0.0.1 to a server.

    Attributes:
        delay_seconds: How long each answer of the server is kept back.
    """

    def __init__(self, dsn: dict[str, str]) -> None:
        host, number = dsn.get("host", "127.0.0.1"), int(dsn.get("port", "5432"))
        self._target: Any = f"{host}/.s.PGSQL.{number}" if host.startswith("/") else (host, number)
        self.delay_seconds = 0.0
        self.port = 0
        self._listener: socket.socket | None = None
        self._open: list[socket.socket] = []
        self.start()

    def start(self) -> None:
        """Take connections, on the same port as before."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def stop(self) -> None:
        """Refuse connections, and cut those that are there."""
        if self._listener is not None:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        for end in self._open:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._open.clear()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX if isinstance(self._target, str) else socket.AF_INET)
            server.connect(self._target)
            self._open += [client, server]
            threading.Thread(target=self._pass_on, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._pass_on, args=(server, client, True), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if is_answer:
                    time.sleep(self.delay_seconds)
                target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def proxied(database: Any) -> Iterator[tuple[Proxy, str]]:
    """A proxy to the database's server, and the broker URL that leads through it."""
    proxy = Proxy(database.dsn)
    address = f"{database.dsn['user']}@127.0.0.1:{proxy.port}/{database.name}"
    try:
        try:
            psycopg2.connect(f"postgresql://{address}").close()
        except psycopg2.OperationalError as exc:
            pytest.skip(f"this server wants more than a name: {exc}")
        yield proxy, f"pgbroker://{address}"
    finally:
        proxy.stop()
