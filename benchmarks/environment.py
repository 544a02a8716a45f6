"""What the benchmark tells the processes it starts, carried in environment variables."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

_VARIABLE = "PGBROKER_BENCH_PROCESS"


@dataclass(frozen=True)
class Environment:
    """Settings of one worker or publisher process.

    The broker URL travels here and not on the command line, where a password would be seen by everybody.
    """

    broker_url: str = "null://"
    transport_options: dict[str, Any] = field(default_factory=dict)
    #: Queues the process declares; all durable, each with a direct exchange of its own name.
    queues: tuple[str, ...] = ()
    #: File that the tasks append their records to; empty: they keep none.
    records: str = ""
    #: File descriptor the worker reads its commands from; -1: it takes none.
    command_fd: int = -1

    def as_variables(self) -> dict[str, str]:
        """The environment of a child process: that of this process plus these settings."""
        return {**os.environ, _VARIABLE: json.dumps(asdict(self)), "PYTHONUNBUFFERED": "1"}

    @classmethod
    def from_variables(cls, variables: Mapping[str, str]) -> Environment:
        """Read the settings back; the defaults where nothing was set."""
        values = json.loads(variables.get(_VARIABLE, "{}"))
        values["queues"] = tuple(values.get("queues", ()))
        return cls(**values)
