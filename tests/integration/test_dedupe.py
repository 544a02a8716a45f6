"""Dedupe keys on Celery calls, seen from the publisher: nothing runs here, the rows tell."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import psycopg2
import pytest
from celery import Celery, chain, chord, group, signals, signature

from pgbroker import DedupeNotSupported, DuplicateJob, JobQueue
from pgbroker.errors import ConnectionLost
from pgbroker.queue.store import Message, store_for
from pgbroker.transport.publishing import PublishingChannel


@pytest.fixture
def app(database: Any) -> Celery:
    app = Celery("dedupe", broker=database.url, backend=database.url, task_cls="pgbroker:Task", set_as_current=False)

    @app.task(name="d.plain", shared=False)
    def plain(*args: Any) -> None: ...

    @app.task(name="d.formatted", shared=False, dedupe_key="place:{place_id}:{deep}")
    def formatted(place_id: int, deep: bool = False) -> None: ...

    @app.task(name="d.same", shared=False, dedupe_key=True)
    def same(*args: Any, **kwargs: Any) -> None: ...

    @app.task(name="d.called", shared=False, dedupe_key=lambda args, kwargs: f"c{args[0]}" if args[0] else None)
    def called(n: int) -> None: ...

    return app


JOBS = "select task_name, dedupe_key, status from pgbroker.jobs order by job_id"


def rows(database: Any, sql: str = JOBS) -> list[tuple[Any, ...]]:
    connection = database.connect()
    try:
        cursor = connection.cursor()
        cursor.execute(sql)
        found: list[tuple[Any, ...]] = cursor.fetchall()
        return found
    finally:
        connection.close()


def test_a_key_given_to_a_call(app: Celery, database: Any) -> None:
    plain = app.tasks["d.plain"]
    first = plain.apply_async((1,), dedupe_key="k")
    second = plain.apply_async((2,), dedupe_key="k")
    assert (first.duplicate, second.duplicate, second.id) == (False, True, first.id)
    assert plain.apply_async((3,), dedupe_key="other").duplicate is False
    assert plain.apply_async((3,)).duplicate is False
    assert [row[1] for row in rows(database)] == ["k", "other", None]
    with pytest.raises(DuplicateJob) as caught:
        plain.apply_async((4,), dedupe_key="k", on_duplicate="raise")
    assert caught.value.task_id == first.id
    assert len(rows(database)) == 3


def test_a_publish_whose_answer_was_lost_is_no_duplicate_of_itself(
    app: Celery, database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = app.tasks["d.plain"]
    plain.delay()
    publish, lost = PublishingChannel.publish_job, []

    def publish_and_lose(self: PublishingChannel, *args: Any) -> Any:
        published = publish(self, *args)
        if not lost:
            lost.append(published)
            raise ConnectionLost("after the commit")
        return published

    monkeypatch.setattr(PublishingChannel, "publish_job", publish_and_lose)
    result = plain.apply_async(dedupe_key="k", on_duplicate="raise")
    assert len(lost) == 1
    assert result.duplicate is False
    assert len(rows(database)) == 2
    assert plain.apply_async(dedupe_key="k").id == result.id


def test_what_a_signal_handler_publishes_is_another_call(app: Celery, database: Any) -> None:
    plain = app.tasks["d.plain"]
    held = plain.apply_async(dedupe_key="held")
    announced: list[Any] = []

    def announce(sender: str, headers: dict[str, Any], **_: Any) -> None:
        if not announced:
            announced.append(headers["id"])
            announced.append(app.send_task("d.announce", dedupe_key="held").id)

    signals.before_task_publish.connect(announce)
    try:
        result = plain.apply_async(dedupe_key="k", on_duplicate="raise")
    finally:
        signals.before_task_publish.disconnect(announce)
    assert (result.id, result.duplicate) == (announced[0], False)
    aliases = "select task_id, leads_to from pgbroker.aliases"
    assert rows(database, aliases) == [(announced[1], held.id)]


def test_a_key_holds_in_its_own_queue(app: Celery, database: Any) -> None:
    plain = app.tasks["d.plain"]
    assert plain.apply_async(dedupe_key="k", queue="a").duplicate is False
    assert plain.apply_async(dedupe_key="k", queue="b").duplicate is False
    assert plain.apply_async(dedupe_key="k", queue="a").duplicate is True


def test_keys_of_tasks(app: Celery, database: Any) -> None:
    formatted, same, called = (app.tasks[f"d.{name}"] for name in ("formatted", "same", "called"))
    assert formatted.delay(7).duplicate is False
    assert formatted.delay(place_id=7).duplicate is True
    assert formatted.delay(7, deep=True).duplicate is False
    assert same.delay(1, a=2).duplicate is False
    assert same.delay(1, a=2).duplicate is True
    assert same.delay(1, a=3).duplicate is False
    assert [called.delay(n).duplicate for n in (0, 0, 1, 1)] == [False, False, False, True]
    # what is given to the call wins
    assert formatted.apply_async((7,), dedupe_key="mine").duplicate is False
    assert [row[1] for row in rows(database)][:2] == ["place:7:False", "place:7:True"]


def test_a_format_string_that_does_not_fit(app: Celery, database: Any) -> None:
    @app.task(name="d.wrong", shared=False, dedupe_key="x:{nothing}")
    def wrong(a: int) -> None: ...

    with pytest.raises(ValueError, match=r"dedupe_key 'x:\{nothing\}' of task d.wrong"):
        wrong.delay(1)


@pytest.mark.parametrize(
    ("key", "error", "text"), [("", ValueError, "empty"), ("x" * 2001, ValueError, "2000"), (5, TypeError, "str")]
)
def test_a_key_that_cannot_be_stored(app: Celery, database: Any, key: Any, error: type[Exception], text: str) -> None:
    app.tasks["d.plain"].delay()
    with pytest.raises(error, match=text):
        app.tasks["d.plain"].apply_async(dedupe_key=key)
    assert len(rows(database)) == 1


def test_the_key_is_free_when_the_job_has_ended(app: Celery, database: Any) -> None:
    plain = app.tasks["d.plain"]
    with JobQueue(database.url) as queue:
        for end in ("complete", "dead", "cancel"):
            assert plain.apply_async(dedupe_key="k").duplicate is False
            active = queue.find_active("k")
            assert active is not None
            if end == "cancel":
                queue.cancel(active.job_id)
                continue
            job = queue.claim("w")
            assert job is not None
            assert plain.apply_async(dedupe_key="k").duplicate is True
            if end == "complete":
                queue.complete(job.job_id, "w")
            else:
                for _ in range(5):
                    status = queue.fail(job.job_id, "w", "no", backoff_seconds=0)
                    queue.claim("w")
                assert status == "DEAD"


def test_an_expired_holder_does_not_count(app: Celery, database: Any) -> None:
    plain = app.tasks["d.plain"]
    first = plain.apply_async(dedupe_key="k", expires=0.05)
    connection = database.connect()
    cursor = connection.cursor()
    cursor.execute("select pg_sleep(0.1)")
    connection.close()
    second = plain.apply_async(dedupe_key="k")
    assert (second.duplicate, second.id != first.id) == (False, True)
    assert [row[2] for row in rows(database)] == ["PENDING"]


@pytest.mark.parametrize("make", [group, chain])
def test_a_key_on_a_whole_canvas_is_refused(app: Celery, database: Any, make: Any) -> None:
    plain = app.tasks["d.plain"]
    plain.delay()
    whole = make([plain.si(1), plain.si(2)]) if make is group else make(plain.si(1), plain.si(2))
    with pytest.raises(DedupeNotSupported, match="whole"):
        whole.apply_async(dedupe_key="k")
    with pytest.raises(DedupeNotSupported, match="whole"):
        whole.clone().set(dedupe_key="k").apply_async()
    assert len(rows(database)) == 1


def test_members_of_a_group_may_be_duplicates(app: Celery, database: Any) -> None:
    plain = app.tasks["d.plain"]
    whole = group([plain.si(1).set(dedupe_key="k"), plain.si(2).set(dedupe_key="k"), plain.si(3)]).apply_async()
    assert [row[1] for row in rows(database)] == ["k", None]
    first, second, _ = whole.results
    assert rows(database, "select task_id, leads_to from pgbroker.aliases") == [(second.id, first.id)]


def test_a_duplicate_in_a_chord_is_refused_before_anything_is_stored(app: Celery, database: Any) -> None:
    plain, formatted = app.tasks["d.plain"], app.tasks["d.formatted"]
    plain.apply_async(dedupe_key="k")
    for header in ([formatted.si(1), formatted.si(1)], [plain.si(1), plain.si(2).set(dedupe_key="k")]):
        with pytest.raises(DedupeNotSupported, match="chord member"):
            chord(header, plain.si()).apply_async()
    with pytest.raises(DedupeNotSupported, match="whole chord"):
        chord([plain.si(1)], plain.si()).apply_async(dedupe_key="x")
    assert len(rows(database)) == 1


def test_a_chord_of_a_task_that_is_known_by_its_name_alone(app: Celery, database: Any) -> None:
    """As without our check: Celery publishes what it does not know, for a worker that does."""
    elsewhere = app.signature("d.elsewhere", immutable=True)
    chord([elsewhere, app.signature("d.elsewhere", immutable=True)], elsewhere.clone()).apply_async()
    assert [row[0] for row in rows(database)] == ["d.elsewhere", "d.elsewhere"]


def keyed(plain: Any, *numbers: int) -> list[Any]:
    return [plain.si(number).set(dedupe_key="k") for number in numbers]


def pair(plain: Any) -> Any:
    """A chord whose second member is a duplicate of the first."""
    return chord(keyed(plain, 1, 2), plain.si(3))


#: A key on a whole canvas, or duplicates among the members of a chord, somewhere inside.
NESTED: dict[str, Any] = {
    "whole group": lambda p: group(p.si(0), group(p.si(1), p.si(2)).set(dedupe_key="k")),
    "whole chain": lambda p: group(p.si(0), chain(p.si(1), p.si(2)).set(dedupe_key="k")),
    "whole chord": lambda p: group(p.si(0), chord([p.si(1)], p.si(2)).set(dedupe_key="k")),
    "in a group": lambda p: group(p.si(0), pair(p)),
    "in another chord": lambda p: chord([p.si(0), pair(p)], p.si(4)),
    "first in a chain": lambda p: chain(pair(p), p.si(4), group(p.si(5), p.si(6))),
    "later in a chain": lambda p: chain(p.si(0), pair(p)),
    "a group that becomes a chord": lambda p: chain(p.si(0), group(keyed(p, 1, 2)), p.si(4)),
    "a generator": lambda p: chord((member for member in keyed(p, 1, 2)), p.si(3)),
    "later in its members": lambda p: chord([chain(p.si(0), member) for member in keyed(p, 1, 2)], p.si(4)),
    "as in a message": lambda p: json.loads(json.dumps(pair(p))),
}


@pytest.mark.parametrize("where", NESTED)
def test_what_lies_deeper_is_refused_before_anything_is_stored(app: Celery, database: Any, where: str) -> None:
    plain = app.tasks["d.plain"]
    plain.delay()
    whole = signature(NESTED[where](plain), app=app)
    with pytest.raises(DedupeNotSupported, match=where if "whole" in where else "chord member"):
        whole.apply_async()
    assert len(rows(database)) == 1


def test_a_key_of_arguments_that_are_not_there_yet_is_no_obstacle(app: Celery, database: Any) -> None:
    plain, formatted = app.tasks["d.plain"], app.tasks["d.formatted"]
    chord([chain(plain.s(n), formatted.s()) for n in range(2)], plain.s()).apply_async()
    chain(plain.s(), chord([formatted.s(), formatted.s(deep=True)], plain.s())).apply_async()
    chord([formatted.s(), formatted.s(deep=True)], plain.s()).apply_async((7,))
    keys = [row[1] for row in rows(database) if row[0] == "d.formatted"]
    assert keys == ["place:7:False", "place:7:True"]


def test_a_lazy_group_stays_lazy(app: Celery, database: Any) -> None:
    plain = app.tasks["d.plain"]
    plain.delay()
    stored: list[int] = []

    def members() -> Iterator[Any]:
        for number in range(10):
            stored.append(len(rows(database)))
            yield plain.si(number)

    group(members()).apply_async()
    assert stored[-1] > 5


def test_a_publish_waits_for_an_open_transaction_and_then_decides(app: Celery, database: Any) -> None:
    plain = app.tasks["d.plain"]
    plain.delay()
    store = store_for("pgbroker")
    for ending, expected in (("commit", True), ("rollback", False)):
        connection = psycopg2.connect(**database.dsn)
        cursor = connection.cursor()
        cursor.execute(*store.publish(Message(queue="celery", dedupe_key=ending, body=b"[]"), is_joined=True))
        results: list[Any] = []

        def publish(key: str = ending, found: list[Any] = results) -> None:
            found.append(plain.apply_async(dedupe_key=key))

        thread = threading.Thread(target=publish)
        thread.start()
        thread.join(0.3)
        assert thread.is_alive(), "it did not wait for the open transaction"
        getattr(connection, ending)()
        thread.join(10)
        connection.close()
        assert [result.duplicate for result in results] == [expected]
        assert [row[1] for row in rows(database)].count(ending) == 1


def test_a_wait_for_an_open_transaction_has_an_end(app: Celery, database: Any) -> None:
    app.conf.broker_transport_options = {"dedupe_wait_seconds": 0.2}
    plain = app.tasks["d.plain"]
    plain.delay()
    connection = psycopg2.connect(**database.dsn)
    cursor = connection.cursor()
    cursor.execute(*store_for("pgbroker").publish(Message(queue="celery", dedupe_key="k", body=b"[]"), is_joined=True))
    with pytest.raises(Exception, match="lock timeout"):
        plain.apply_async(dedupe_key="k", retry=False)
    connection.rollback()
    connection.close()
    assert plain.apply_async(dedupe_key="k").duplicate is False
