"""The application of the workers here, and of processes that are killed; what its tasks do is written to a file.

As a program: ``shop_app.py LIBRARY DSN N before|after`` writes order ``N`` and publishes its task in one transaction,
prints the task's id, and kills itself right before or right after the commit.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

import psycopg2
from celery import Celery, signals

import pgbroker

app = Celery("shop_app", broker=os.environ["SHOP_URL"], backend=os.environ["SHOP_URL"], task_cls="pgbroker:Task")
app.conf.update(worker_redirect_stdouts=False, broker_connection_retry_on_startup=True)


def record(event: str, **fields: Any) -> None:
    """Append one line to the record."""
    descriptor = os.open(os.environ["SHOP_RECORD"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(descriptor, (json.dumps({"event": event, "at": time.time(), **fields}) + "\n").encode())
    os.close(descriptor)


@signals.worker_ready.connect
def ready(**_: Any) -> None:
    record("ready")


def count_orders(n: int) -> int:
    """How many rows of that number can be seen from here."""
    connection = psycopg2.connect(os.environ["SHOP_DSN"])
    cursor = connection.cursor()
    cursor.execute("select count(*) from public.orders where n = %s", (n,))
    (found,) = cursor.fetchone() or (0,)
    connection.close()
    return int(found)


@app.task(bind=True)
def pack(self: Any, n: int) -> None:
    """Look for the row that the task is about."""
    record("pack", task_id=self.request.id, n=n, rows=count_orders(n))


@app.task
def noop(sent_at: float) -> None:
    """Say how long it took to get here."""
    record("noop", seconds=time.time() - sent_at)


@app.task(bind=True, max_retries=1)
def retry_inside(self: Any, n: int) -> str:
    """Retry, or be replaced at the second run, inside a transaction that the exception rolls back."""
    record("retry", task_id=self.request.id, retries=self.request.retries)
    connection = psycopg2.connect(os.environ["SHOP_DSN"])
    try:
        with connection, pgbroker.transaction(connection):
            connection.cursor().execute("insert into public.orders values (%s)", (n,))
            pack.delay(n)
            if self.request.retries == 0:
                raise self.retry(countdown=0)
            self.replace(pack.si(n) | pack.si(n + 1))
    finally:
        connection.close()
    return "not reached"


def main(library: str, n: int, moment: str) -> None:
    """Write, publish, die."""
    insert = f"insert into public.orders values ({n})"
    if library == "psycopg2":
        connection: Any = psycopg2.connect(os.environ["SHOP_DSN"])
        connection.cursor().execute(insert)
    elif library == "psycopg":
        import psycopg

        connection = psycopg.connect(os.environ["SHOP_DSN"])
        connection.execute(insert)
    else:
        import sqlalchemy
        from sqlalchemy.orm import Session

        url = os.environ["SHOP_DSN"]
        connection = Session(sqlalchemy.create_engine("postgresql+psycopg2://", creator=lambda: psycopg2.connect(url)))
        connection.execute(sqlalchemy.text(insert))
    with pgbroker.transaction(connection):
        print(pack.delay(n).id, flush=True)
    if moment == "after":
        connection.commit()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
