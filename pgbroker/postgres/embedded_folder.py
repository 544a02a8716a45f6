"""The folder of an embedded server: who uses it, whether its server lives, how that server is stopped.

Four lock files answer all of this. They are ``flock`` locks, which the kernel drops when the last
holder is gone, whatever killed it; so there are no process ids that could be stale or recycled.

* ``folder.lock``: held for moments by whoever changes something (start, stop, join, leave).
* ``users.lock``: shared; each process that uses the server holds it for as long as it lives.
* ``server.lock``: held by the server itself, which inherits the descriptor from its starter, and by
  each of its backends. Free means: no process of the server is left.
* ``watchdog.lock``: held by the watchdog.

Run as a script, this file is the watchdog: it stops the server once nobody has used it for the grace
time, which matters only where the last user could not do so itself (``kill -9``, ``os._exit``), and it
ends with its server. It therefore uses nothing outside the standard library, not even pgbroker.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

SOCKET_FOLDER_PREFIX = "pgbroker-"
WATCH_INTERVAL_SECONDS = 2.0

# Descriptors that a forked child must not keep: a copy of a lock's descriptor keeps the lock.
_open_fds: set[int] = set()


def _close_in_child() -> None:
    for fd in _open_fds:
        with contextlib.suppress(OSError):
            os.close(fd)
    _open_fds.clear()


os.register_at_fork(after_in_child=_close_in_child)


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    """Ask again every 10 ms until the condition holds; ``False`` when it does not within ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def try_lock(fd: int, kind: int) -> bool:
    """Take a lock (``fcntl.LOCK_SH`` or ``LOCK_EX``) without waiting; ``False`` when somebody holds it."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def opened(path: Path) -> Iterator[int]:
    """Open a lock file, creating it if need be, for the length of a block."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    _open_fds.add(fd)
    try:
        yield fd
    finally:
        _open_fds.discard(fd)
        os.close(fd)


def _is_held(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        is_held = not try_lock(fd, fcntl.LOCK_SH)  # Shared, so that those who ask do not see each other.
        fcntl.flock(fd, fcntl.LOCK_UN)  # A child forked just now may keep the descriptor, but not a lock.
        return is_held
    finally:
        os.close(fd)


class Postmaster(NamedTuple):
    """What ``postmaster.pid`` says of a living server (PostgreSQL docs, "Database File Layout")."""

    pid: int
    socket_folder: str
    port: str
    is_ready: bool


class ServerFolder:
    """The folder that holds an embedded server: ``data/``, the lock files, ``server.log`` and the socket."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = path / "data"
        self.log = path / "server.log"
        self.users_lock = path / "users.lock"
        self.server_lock = path / "server.lock"
        self.watchdog_lock = path / "watchdog.lock"

    @contextlib.contextmanager
    def locked(self, seconds: float) -> Iterator[None]:
        """Keep everybody else from starting, stopping, joining or leaving during the block.

        Args:
            seconds: how long to wait for others.

        Raises:
            TimeoutError: somebody else holds the folder for longer than that.
        """
        with opened(self.path / "folder.lock") as fd:
            if not wait_for(lambda: try_lock(fd, fcntl.LOCK_EX), seconds):
                raise TimeoutError(f"{self.path} is locked by another process for more than {seconds:g} s")
            try:
                yield
            finally:
                # Closing would not do: a child that was forked meanwhile may have a copy of the descriptor.
                fcntl.flock(fd, fcntl.LOCK_UN)

    def is_used(self) -> bool:
        """Tell whether any process uses the server; call it with the folder locked."""
        with opened(self.users_lock) as fd:
            return not try_lock(fd, fcntl.LOCK_EX)

    def is_server_left(self) -> bool:
        """Tell whether any process of the server lives, be it only a backend that outlived a crash."""
        return _is_held(self.server_lock)

    def is_watched(self) -> bool:
        """Tell whether the watchdog runs."""
        return _is_held(self.watchdog_lock)

    def postmaster(self) -> Postmaster | None:
        """Return the living server, ready or not, or ``None``. Costs no more than a few system calls."""
        if not self.is_server_left():
            return None
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
            os.kill(int(lines[0]), 0)
        except (FileNotFoundError, ProcessLookupError, ValueError, IndexError):
            return None
        lines += [""] * (8 - len(lines))
        return Postmaster(int(lines[0]), lines[4], lines[3], lines[7].strip() == "ready")

    def ready(self) -> Postmaster | None:
        """Return the server if it lives and takes connections."""
        server = self.postmaster()
        return server if server is not None and server.is_ready else None

    def stop(self) -> None:
        """Stop the server and wait for its end; call it with the folder locked.

        Raises:
            TimeoutError: the server is still there after 20 seconds.
        """
        socket_folder = ""
        for signal_number, seconds in ((signal.SIGINT, 15.0), (signal.SIGQUIT, 5.0)):  # "fast", "immediate"
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                server = self.postmaster()
                if server is not None:
                    socket_folder = server.socket_folder
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(server.pid, signal_number)  # Again each second: a repetition does no harm.
                if wait_for(lambda: not self.is_server_left(), 1):
                    self.remove_socket_folder(socket_folder)
                    return
        raise TimeoutError(f"the embedded server in {self.path} does not stop; see {self.log}")

    def log_tail(self) -> str:
        """Return the last ten lines of the server's log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-10:])

    def remove_socket_folder(self, folder: str) -> None:
        """Remove the folder that a former server had its socket in, if it is one of ours."""
        if os.path.basename(folder).startswith(SOCKET_FOLDER_PREFIX):
            shutil.rmtree(folder, ignore_errors=True)


def watch(folder: ServerFolder, grace_seconds: float) -> None:
    """Stop the server when nobody has used it for the grace time; return when no server is left."""
    idle_since: float | None = None
    with opened(folder.watchdog_lock) as lock:
        if not try_lock(lock, fcntl.LOCK_EX):
            return
        while True:
            time.sleep(min(WATCH_INTERVAL_SECONDS, grace_seconds))
            with contextlib.suppress(TimeoutError), folder.locked(0):
                if not folder.is_server_left():
                    fcntl.flock(lock, fcntl.LOCK_UN)  # With the folder locked, so that no starter relies on us.
                    return
                if folder.is_used():
                    idle_since = None
                elif idle_since is None:
                    idle_since = time.monotonic()
                elif time.monotonic() - idle_since >= grace_seconds:
                    folder.stop()


def _main() -> None:
    folder, grace_seconds = sys.argv[1:]
    if os.fork():  # The starter waits for this process, and must not have to wait for the watchdog.
        os._exit(0)
    os.setsid()
    with contextlib.suppress(FileNotFoundError):  # The folder was removed. The server notices by itself, in a minute.
        watch(ServerFolder(Path(folder)), float(grace_seconds))


if __name__ == "__main__":
    _main()
