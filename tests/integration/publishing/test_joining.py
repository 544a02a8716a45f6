"""What joins a transaction and what does not, which connections are refused, and how workers are woken."""

from __future__ import annotations

import contextvars
import json
import subprocess
import sys
import time
from contextlib import closing
from typing import Any

import psycopg
import psycopg2
import pytest
import sqlalchemy
from django.db import transaction as django_transaction
from kinds_of_connection import Opened, django_database, open_psycopg2
from kombu import Exchange, Queue
from shop import Shop
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

import pgbroker
from pgbroker import errors

# -- refused connections ----------------------------------------------------------------------------


def autocommit_connections(shop: Shop) -> Any:
    """Each kind of connection that commits each statement by itself."""
    yield shop.database.connect()
    with psycopg.connect(**shop.database.dsn, autocommit=True) as connection:
        yield connection
    engine = sqlalchemy.create_engine("postgresql+psycopg2://", connect_args=shop.database.dsn)
    autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
    with autocommit.connect() as connection, Session(autocommit) as session:
        yield connection
        yield session
    engine.dispose()
    with django_database(shop.database.dsn):
        yield "default"


def test_autocommit_is_refused_at_once(shop: Shop) -> None:
    refused = 0
    for conn in autocommit_connections(shop):
        with pytest.raises(errors.NotInTransaction, match=r"in no transaction"), pgbroker.transaction(conn):
            pytest.fail("not refused")
        refused += 1
        if isinstance(conn, psycopg2.extensions.connection):
            conn.close()
    assert refused == 5


def test_a_transaction_that_was_begun_in_autocommit_mode(shop: Shop) -> None:
    with closing(shop.database.connect()) as connection:
        connection.cursor().execute("begin")
        with pgbroker.transaction(connection):
            shop.pack.delay(1)
        connection.cursor().execute("rollback")
    with psycopg.connect(**shop.database.dsn, autocommit=True) as connection:
        with connection.transaction(), pgbroker.transaction(connection):
            kept = shop.pack.delay(2)
        with connection.transaction(force_rollback=True), pgbroker.transaction(connection):
            shop.pack.delay(3)
    assert shop.jobs() == [kept.id]


def test_a_transaction_that_ends_in_the_block(shop: Shop) -> None:
    with django_database(shop.database.dsn):
        with django_transaction.atomic():
            block = pgbroker.transaction("default")
            block.__enter__()
            inside = shop.pack.delay(1)
        with pytest.raises(errors.NotInTransaction, match="atomic"):
            shop.pack.delay(2)
        block.__exit__(None, None, None)
    assert shop.jobs() == [inside.id]


def test_what_is_no_connection(shop: Shop, database: Any) -> None:
    sqlite = sqlalchemy.create_engine("sqlite://")
    engine = create_async_engine("postgresql+psycopg://", connect_args=database.dsn)
    with sqlite.connect() as connection:
        for conn, said in (
            (object(), "expected a SQLAlchemy Session"),
            (None, "expected a SQLAlchemy Session"),
            (connection, "sqlite3"),
            (AsyncSession(engine), "run_sync"),
            (engine, "Engine"),
        ):
            with pytest.raises(TypeError, match=said), pgbroker.transaction(conn):
                pytest.fail("not refused")
    sqlite.dispose()


def test_an_alias_without_django() -> None:
    code = (
        "import pgbroker, sys\n"
        "try:\n    with pgbroker.transaction('default'): pass\n"
        "except TypeError as exc: print(exc)\n"
        "print(sorted({'django', 'psycopg', 'celery', 'kombu.connection', 'sqlalchemy'} & set(sys.modules)))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "alias of Django" in said
    assert said.splitlines()[-1] == "[]"


def test_a_role_that_may_not_publish(shop: Shop) -> None:
    role = f"clerk_{shop.number}"
    shop.sql(f"create role {role}")
    shop.sql(f"grant insert on public.{shop.table} to {role}")
    with open_psycopg2(shop.database.dsn) as opened:
        opened.execute(f"set role {role}")
        shop.insert(opened, 1)
        with pytest.raises(errors.PermissionDenied, match="pgbroker check"), pgbroker.transaction(opened.conn):
            shop.pack.delay(1)
        opened.commit()
    assert (shop.jobs(), shop.orders()) == ([], [1])
    shop.sql(f"drop owned by {role}")
    shop.sql(f"drop role {role}")


# -- what joins -------------------------------------------------------------------------------------


def test_other_forms_of_the_same_connection(shop: Shop) -> None:
    engine = sqlalchemy.create_engine("postgresql+psycopg2://", connect_args=shop.database.dsn)
    sessions = scoped_session(sessionmaker(engine))
    with pgbroker.transaction(sessions):
        first = shop.pack.delay(1)
    sessions.commit()
    sessions.remove()
    engine.dispose()
    named = django_database(shop.database.dsn, "other")
    with named as wrapper, django_transaction.atomic(using="other"), pgbroker.transaction(wrapper):
        second = shop.pack.delay(2)
    with django_database(shop.database.dsn), django_transaction.atomic():
        from django.db import connection

        with pgbroker.transaction(connection):
            third = shop.pack.delay(3)
    assert shop.jobs() == [first.id, second.id, third.id]


def test_django_on_psycopg2(shop: Shop) -> None:
    script = """
import json, sys
sys.modules["psycopg"] = None
dsn, url, queue = json.loads(sys.argv[1])
import django
from django.conf import settings
words = {"NAME": dsn.pop("dbname"), "USER": dsn.pop("user", ""), "PASSWORD": dsn.pop("password", "")}
words.update(HOST=dsn.pop("host", ""), PORT=dsn.pop("port", ""), OPTIONS=dsn)
settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", **words}})
django.setup()
from celery import Celery
from django.db import connection, transaction
import pgbroker
app = Celery(broker=url)
app.conf.task_default_queue = queue
with transaction.atomic(), pgbroker.transaction("default"):
    kept = app.send_task("pack")
    assert type(connection.connection).__module__ == "psycopg2.extensions"
try:
    with transaction.atomic(), pgbroker.transaction("default"):
        app.send_task("pack")
        raise KeyError
except KeyError:
    print(kept.id)
"""
    told = json.dumps([shop.database.dsn, shop.database.url, shop.queue])
    ran = subprocess.run([sys.executable, "-c", script, told], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert shop.jobs() == [ran.stdout.strip()]


def test_the_inner_block_counts_and_the_outer_one_after_it(shop: Shop, opened: Opened) -> None:
    with open_psycopg2(shop.database.dsn) as inner:
        with pgbroker.transaction(opened.conn):
            shop.pack.delay(1)
            with pgbroker.transaction(inner.conn):
                kept = shop.pack.delay(2)
            shop.pack.delay(3)
        inner.commit()
    opened.rollback()
    assert shop.jobs() == [kept.id]


def test_a_copied_context_joins_only_while_the_block_lasts(shop: Shop, opened: Opened) -> None:
    with pgbroker.transaction(opened.conn):
        copied = contextvars.copy_context()
        copied.run(shop.pack.delay, 1)
    outside = copied.run(shop.pack.delay, 2)
    opened.rollback()
    assert shop.jobs() == [outside.id]


def test_an_unknown_queue_is_made_by_itself(shop: Shop, opened: Opened) -> None:
    queue = f"{shop.queue}-new"
    with (
        shop.app.connection_for_write() as connection,
        connection.channel() as channel,
        pgbroker.transaction(opened.conn),
    ):
        message = channel.prepare_message(b"[]", content_type="application/json", headers={"task": "pack", "id": queue})
        channel.basic_publish(message, exchange="", routing_key=queue)
        assert shop.sql("select 1 from pgbroker.queues where name = %s", queue) == [(1,)]
        assert shop.sql("select task_id from pgbroker.jobs where queue = %s", queue) == []
    opened.commit()
    assert shop.sql("select task_id from pgbroker.jobs where queue = %s", queue) == [(queue,)]


def test_jobs_through_exchanges_join(shop: Shop, opened: Opened) -> None:
    """Tasks, and plain messages that lead to a job queue; the binding is made by itself."""
    topic = Exchange(f"{shop.queue}-topic", "topic")
    queue = Queue(shop.queue, topic, routing_key="order.#")
    with shop.app.connection_for_write() as connection, connection.Producer() as producer:
        with pgbroker.transaction(opened.conn):
            producer.publish({}, exchange=topic, routing_key="order.plain", correlation_id="plain", declare=[queue])
            task = shop.pack.apply_async((1,), exchange=topic.name, routing_key="order.new")
            with pytest.raises(errors.Unroutable):
                shop.pack.apply_async((1,), exchange=topic.name, routing_key="nowhere")
        assert shop.jobs() == []
        bound = shop.sql("select routing_key from pgbroker.bindings where queue = %s", shop.queue)
        assert ("order.#",) in bound
    opened.commit()
    assert shop.jobs() == ["plain", task.id]


def test_remote_control_and_transient_messages_do_not_wait_for_the_commit(shop: Shop, opened: Opened) -> None:
    inbox = Queue(f"{shop.queue}-mail", Exchange(f"{shop.queue}-fanout", "fanout"), auto_delete=True)
    waiting = shop.pack.delay("revoked")
    with shop.app.connection_for_write() as connection, connection.Producer() as producer:
        inbox(connection.channel()).declare()
        with pgbroker.transaction(opened.conn):
            shop.pack.delay(1)
            producer.publish({"n": 1}, exchange=inbox.exchange)
            producer.publish({"n": 2}, exchange="", routing_key=inbox.name)
            shop.app.control.revoke(waiting.id)
        mail = shop.sql("select count(*) from pgbroker.mailbox where queue = %s", inbox.name)
    assert mail == [(2,)]
    assert shop.jobs() == []
    opened.rollback()


def test_eager_tasks_run_at_once(shop: Shop, opened: Opened) -> None:
    app = shop.make_app(task_always_eager=True)
    with pgbroker.transaction(opened.conn):
        result = app.tasks["pack"].delay(1)
    assert (result.get(), result.state) == ("packed", "SUCCESS")
    opened.commit()
    assert shop.jobs() == []
    app.close()


def test_groups_and_chains_join(shop: Shop, opened: Opened) -> None:
    from celery import chain, group

    with pgbroker.transaction(opened.conn):
        result = group(shop.pack.si(1), shop.pack.si(2), app=shop.app)()
        first = chain(shop.pack.si(3), shop.pack.si(4), app=shop.app)().parent
    assert shop.jobs() == []
    opened.commit()
    assert shop.jobs() == [*(member.id for member in result), first.id]


# -- nothing of the caller's changes ----------------------------------------------------------------


def test_settings_of_the_transaction_stay(shop: Shop, opened: Opened) -> None:
    before = opened.execute("select name, setting from pg_settings where name not like 'plpgsql.%' order by 1")
    with pgbroker.transaction(opened.conn):
        shop.pack.apply_async(dedupe_key="k")
        shop.pack.apply_async(dedupe_key="k")
    assert opened.execute("select name, setting from pg_settings where name not like 'plpgsql.%' order by 1") == before
    opened.rollback()


# -- waking -----------------------------------------------------------------------------------------


def test_one_notification_for_a_queue_at_the_commit(shop: Shop, opened: Opened) -> None:
    shop.sql(
        "insert into pgbroker.sleepers (queue, channel, until) values (%s, 'sleeper', now() + interval '1 h')",
        shop.queue,
    )
    with closing(shop.database.connect()) as listener:
        listener.cursor().execute("listen sleeper")
        listener.cursor().execute(f'listen "{shop.sql("select pgbroker.queue_channel(%s)", shop.queue)[0][0]}"')
        with pgbroker.transaction(opened.conn):
            for n in range(3):
                shop.pack.delay(n)
        listener.cursor().execute("select 1")
        assert listener.notifies == []
        assert shop.sql("select channel from pgbroker.sleepers where queue = %s", shop.queue) == [("sleeper",)]
        opened.commit()
        deadline = time.monotonic() + 5
        while not listener.notifies and time.monotonic() < deadline:
            listener.poll()
        assert [n.channel.startswith("pgbq_") for n in listener.notifies] == [True]
        assert shop.sql("select channel from pgbroker.sleepers where queue = %s", shop.queue) == [("sleeper",)]


# -- keys -------------------------------------------------------------------------------------------


def test_an_own_publish_waits_only_so_long_for_a_key(shop: Shop, opened: Opened) -> None:
    with pgbroker.transaction(opened.conn):
        shop.pack.apply_async(dedupe_key="k")
    began = time.monotonic()
    with pytest.raises(errors.StatementTimeout):
        shop.pack.apply_async(dedupe_key="k")
    assert 0.9 < time.monotonic() - began < 3  # dedupe_wait_seconds is 1 here
    opened.rollback()
    assert shop.pack.apply_async(dedupe_key="k").duplicate is False


def test_the_id_of_a_duplicate_leads_to_the_live_job(shop: Shop, opened: Opened) -> None:
    live = shop.pack.apply_async(dedupe_key="k")
    with pgbroker.transaction(opened.conn):
        shop.pack.apply_async(task_id=f"mine-{shop.number}", dedupe_key="k")
    opened.commit()
    aliases = shop.sql("select leads_to from pgbroker.aliases where task_id = %s", f"mine-{shop.number}")
    assert aliases == [(live.id,)]
