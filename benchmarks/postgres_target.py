"""Which Postgres pgbroker is measured on."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path

import psycopg2
from psycopg2 import sql

from pgbroker.postgres import embedded

DATABASE = "pgb_bench"
_SERVER = "postgres@127.0.0.1:5432"


def resolve(explicit: str | None, cleanup: ExitStack) -> str:
    """The URL to measure.

    In this order: the one given, ``PGBROKER_BENCH_URL``, a database on a local server that lets ``postgres`` in, an
    embedded server in a temporary folder.

    Args:
        explicit: What the command line says.
        cleanup: Takes what has to be removed at the end.
    """
    if url := explicit or os.environ.get("PGBROKER_BENCH_URL"):
        return url
    if _make_local_database():
        return f"pgbroker://{_SERVER}/{DATABASE}"
    folder = Path(tempfile.mkdtemp(prefix="pgbroker-bench-"))
    cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
    cleanup.callback(embedded.stop, folder / "data")
    return f"pgbroker+embedded://{folder / 'data'}"


def _make_local_database() -> bool:
    """Make the database on the local server if it is missing; says whether it is there now."""
    try:
        connection = psycopg2.connect(f"postgresql://{_SERVER}/postgres", connect_timeout=2)
    except psycopg2.OperationalError:
        return False
    try:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute("select 1 from pg_database where datname = %s", (DATABASE,))
            if cursor.fetchone() is None:
                cursor.execute(sql.SQL("create database {}").format(sql.Identifier(DATABASE)))
    except psycopg2.Error:
        return False
    finally:
        connection.close()
    return True
