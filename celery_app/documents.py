"""Finds the Markdown documents of a folder and reads them, with a clear word on each that cannot be read."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from celery_app.entries import Entry, Fingerprint, new_entry

#: Larger files are no documents that anybody reads, and would keep a worker busy for minutes.
MAX_BYTES = 2 * 1024 * 1024

_SUFFIXES = (".md", ".markdown")
_SKIPPED_FOLDERS = frozenset({"node_modules", "__pycache__"})
#: Errors that trying again cannot mend. Others (EIO, EMFILE, ESTALE ...) may pass, so they are raised as they are.
_LASTING = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO}
)


class FolderError(Exception):
    """The folder to examine does not exist or is not a folder."""


class DocumentError(Exception):
    """The file cannot be read as a Markdown document, and trying again would not help."""


class FileStillChanging(OSError):
    """The file was written to while it was read; worth another try a little later."""


@dataclass(frozen=True)
class FoundDocument:
    """A document below the folder under examination: path with ``/``, and size in bytes."""

    name: str
    size_bytes: int


@dataclass(frozen=True)
class Document:
    """The text of a document and the fingerprint of the file it was read from."""

    text: str
    fingerprint: Fingerprint


def find_documents(folder: Path) -> tuple[list[FoundDocument], list[Entry]]:
    """List the Markdown files below a folder; hidden folders, virtual environments and node_modules are left out.

    Args:
        folder: the folder to examine, as an absolute path; symbolic links to folders inside it are not followed.

    Returns:
        The documents in the order of their names, and an entry with an error for everything that cannot be listed.

    Raises:
        FolderError: the folder is missing, not a folder, or cannot be listed.
    """
    root = str(folder)
    if not os.path.exists(folder):
        raise FolderError(f"there is no folder {root!r}")
    if not os.path.isdir(folder):
        raise FolderError(f"{root!r} is not a folder")
    if not _is_utf8(root):
        raise FolderError(f"the name of the folder {root!r} is not UTF-8")
    found: list[FoundDocument] = []
    problems: list[Entry] = []

    def note(error: OSError) -> None:
        if error.filename == root:
            raise FolderError(f"cannot list {root!r}: {error.strerror}") from error
        problems.append(new_entry(root, _relative(error.filename, root), error=f"cannot be listed: {error.strerror}"))

    for parent, folders, files in os.walk(root, onerror=note):
        folders[:] = sorted(name for name in folders if not _is_skipped(parent, name))
        for path in (os.path.join(parent, file) for file in files if file.lower().endswith(_SUFFIXES)):
            try:
                found.append(_look_at(path, root))
            except DocumentError as error:
                problems.append(new_entry(root, _relative(path, root), error=str(error)))
    return sorted(found, key=lambda document: document.name), problems


def read_document(path: Path) -> Document:
    """Read a Markdown file.

    Raises:
        DocumentError: missing, not a regular file, not readable, too large, binary, or not UTF-8.
        FileStillChanging: somebody is writing to the file.
        OSError: a disturbance that may pass.
    """
    try:
        content = _read_stable(path)
    except OSError as error:
        if error.errno not in _LASTING:
            raise
        raise DocumentError(f"cannot be read: {error.strerror}") from error
    except ValueError as error:  # a NUL in the path
        raise DocumentError(f"cannot be read: {error}") from error
    if b"\0" in content:
        raise DocumentError("not a text file: it contains NUL bytes")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DocumentError(f"not UTF-8: {error.reason} at byte {error.start}") from error
    return Document(text, {"size_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()})


def document_path(root: str, name: str) -> Path:
    """Return where the document ``name`` of the folder ``root`` lies."""
    return Path(root) / name


def _read_stable(path: Path) -> bytes:
    # O_NONBLOCK: opening a pipe that nobody writes to would wait for ever.
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
        before = os.fstat(file.fileno())
        if not stat.S_ISREG(before.st_mode):
            raise DocumentError("not a regular file")
        if before.st_size > MAX_BYTES:
            raise DocumentError(f"too large: {before.st_size:,} bytes, the limit is {MAX_BYTES:,}")
        content = file.read(MAX_BYTES + 1)
        after = os.fstat(file.fileno())
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns) or len(content) != after.st_size:
        raise FileStillChanging(errno.EAGAIN, "is being written to", str(path))
    return content


def _look_at(path: str, root: str) -> FoundDocument:
    if not _is_utf8(path):
        raise DocumentError("the file's name is not UTF-8")
    try:
        status = os.stat(path)
    except OSError as error:  # gone since, or a symbolic link to nowhere
        raise DocumentError(f"cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        raise DocumentError("not a regular file")
    return FoundDocument(_relative(path, root), status.st_size)


def _is_skipped(parent: str, name: str) -> bool:
    is_virtual_environment = os.path.exists(os.path.join(parent, name, "pyvenv.cfg"))
    return name.startswith(".") or name in _SKIPPED_FOLDERS or is_virtual_environment


def _is_utf8(path: str) -> bool:
    """Tell whether a path can travel as JSON: names in other encodings hold surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in path)


def _relative(path: str, root: str) -> str:
    """Return the path below the root with ``/``, and a replacement character for every byte that is not UTF-8."""
    return os.fsencode(os.path.relpath(path, root)).decode("utf-8", "replace").replace(os.sep, "/")
