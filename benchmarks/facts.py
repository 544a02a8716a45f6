"""What the figures were taken on: the machine and the servers, as they are."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import kombu
import psycopg2
from psycopg2.extensions import make_dsn

from pgbroker.postgres import embedded

_CONNECT_SECONDS = 3


def machine() -> dict[str, str]:
    """Facts about the machine and the libraries, by name."""
    return {
        "cores": f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} ({_cpu_model()})",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "celery": version("celery"),
        "kombu": version("kombu"),
    }


def load() -> float:
    """How many processes wanted a core in the last minute, on average."""
    return os.getloadavg()[0]


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown model")


def postgres(url: str) -> str:
    """The server of a ``pgbroker://`` URL and its durability."""
    connection = psycopg2.connect(_dsn(url), connect_timeout=_CONNECT_SECONDS)
    try:
        with connection.cursor() as cursor:
            names = ("server_version", "fsync", "synchronous_commit", "wal_sync_method", "shared_buffers")
            values = {}
            for name in names:
                cursor.execute("select current_setting(%s)", (name,))
                values[name] = cursor.fetchone()[0]  # type: ignore[index]
    finally:
        connection.close()
    server = values.pop("server_version").split()[0]
    return f"PostgreSQL {server}, " + ", ".join(f"{name}={value}" for name, value in values.items())


def _dsn(url: str) -> str:
    """The libpq form of a broker URL, without the options that are ours."""
    parts = urlsplit(url)
    if parts.scheme == "pgbroker+embedded":
        folder = Path(parts.path) if parts.path else Path.cwd() / ".pgbroker"
        return make_dsn(**embedded.ensure_running(folder))
    return urlunsplit(("postgresql", parts.netloc, parts.path, "", ""))


def rabbitmq(url: str) -> str:
    """The server of an AMQP URL."""
    with kombu.Connection(url, connect_timeout=_CONNECT_SECONDS) as connection:
        properties = connection.connection.server_properties
    return f"{properties.get('product')} {properties.get('version')}, durable classic queues, persistent messages"


def redis(url: str) -> str:
    """The server of a Redis URL and its durability."""
    with kombu.Connection(url, socket_timeout=_CONNECT_SECONDS) as connection:
        channel: Any = connection.default_channel
        client = channel.client
        server = client.info("server")["redis_version"]
        settings = {name: client.config_get(name)[name] for name in ("appendonly", "appendfsync", "save")}
    kept = f"appendfsync={settings['appendfsync']}" if settings["appendonly"] == "yes" else "nothing synced to disk"
    return f"Redis {server}, appendonly={settings['appendonly']}, save={settings['save'] or 'never'}: {kept}"
