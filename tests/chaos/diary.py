"""What happened, kept where no broker touches it: a file of JSON lines, each written by one append.

The processes that are killed write to it, so a line must be whole or absent: one ``write`` to an O_APPEND descriptor.
What was appended before a process died stays, since it is the kernel that holds it by then.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def write(path: str | Path, event: str, **fields: Any) -> None:
    """Append one line: the event, who writes (and whose child it is), and when."""
    who = {"pid": os.getpid(), "parent": os.getppid()}
    line = json.dumps({"event": event, "at": time.time(), **who, **fields}) + "\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def read(path: Path) -> Iterator[dict[str, Any]]:
    """All lines, in the order in which they were appended."""
    with path.open() as lines:
        yield from map(json.loads, lines)
