"""Names that no other run uses."""

from __future__ import annotations

import secrets


def new_run() -> int:
    """A number for a run, 32 bits."""
    return secrets.randbits(32)


def queue_name(run: int, purpose: str) -> str:
    """The name of a queue of a run."""
    return f"pgbroker-bench-{run:08x}-{purpose}"
