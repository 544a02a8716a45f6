"""Lets a thread or greenlet interrupt another one's wait for its sockets."""

from __future__ import annotations

import socket
import threading


class Waker:
    """A socket pair; its reading end lies among the sockets that the owner waits for."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._is_pending = False
        self._owner = threading.get_ident()

    def fileno(self) -> int:
        """The end to wait for."""
        return self._reader.fileno()

    def own(self) -> None:
        """The calling thread (or greenlet) is the one that waits; its own signals need no byte."""
        self._owner = threading.get_ident()

    def signal(self) -> None:
        """Interrupt the owner's wait, unless the owner itself calls or a signal is under way."""
        if threading.get_ident() != self._owner:
            self.poke()

    def poke(self) -> None:
        """Let the owner's next wait end at once, whoever calls."""
        if self._is_pending:
            return
        self._is_pending = True
        try:
            self._writer.send(b"x")
        except OSError:
            pass  # full (then the owner will wake) or closed (then nobody waits)

    def drain(self) -> None:
        """Take the signal in."""
        try:
            while self._reader.recv(64):
                pass
        except OSError:
            pass
        # last: a signal in between would be eaten above, and with the flag still set no other would be sent
        self._is_pending = False

    def close(self) -> None:
        """Close both ends."""
        self._reader.close()
        self._writer.close()
