"""What Celery acknowledges or rejects before it has taken the task up must not pass for done."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery.exceptions import InvalidTaskError, NotRegistered
from ends_site import Ends
from kombu.exceptions import ContentDisallowed, DecodeError
from worker_site import PREFORK_FIRST, Site, wait_until


@pytest.fixture(scope="module", params=PREFORK_FIRST)
def ends(request: pytest.FixtureRequest, module_database: Any, tmp_path_factory: Any) -> Iterator[Ends]:
    name = request.param
    site = Site(module_database, tmp_path_factory.mktemp(name))
    ends = Ends(site)
    ends.app.conf.task_default_queue = f"on {name}"
    site.worker(name, 1, queues=f"on {name}", imports=["ends_tasks"])
    yield ends
    ends.close()
    site.close()


def publish(ends: Ends, task_id: str, body: Any, headers: dict[str, Any] | None = None, **options: Any) -> str:
    """Publish as a task what is not quite one."""
    headers = {"task": "ends.number", "id": task_id, "lang": "py", **(headers or {})}
    with ends.app.producer_or_acquire() as producer:
        producer.publish(
            body, routing_key=ends.app.conf.task_default_queue, headers=headers, correlation_id=task_id, **options
        )
    return task_id


def test_buries_a_task_that_nobody_knows(ends: Ends) -> None:
    result = ends.app.send_task("ends.misspelt", (1,), dedupe_key="k")
    error = ends.site.wait_for(result.id, "DEAD", 5)["last_error"]
    assert error.startswith("NotRegistered: worker ")
    assert "knows no task 'ends.misspelt'" in error
    with pytest.raises(NotRegistered):
        result.get(timeout=5)
    assert ends.keys() == []


def test_buries_what_cannot_be_decoded(ends: Ends) -> None:
    broken = publish(ends, f"broken {id(ends)}", b"[[1], {", content_type="application/json", content_encoding="utf-8")
    error = ends.site.wait_for(broken, "DEAD", 5)["last_error"]
    assert error.startswith("the message cannot be decoded: DecodeError: ")
    with pytest.raises(DecodeError):
        ends.result(broken).get(timeout=5)


def test_buries_what_it_must_not_decode(ends: Ends) -> None:
    pickled = publish(ends, f"pickled {id(ends)}", [[1], {}, {}], serializer="pickle")
    error = ends.site.wait_for(pickled, "DEAD", 5)["last_error"]
    assert error.startswith("ContentDisallowed: ")
    with pytest.raises(ContentDisallowed):
        ends.result(pickled).get(timeout=5)


def test_buries_what_is_no_call(ends: Ends) -> None:
    """Protocol 1: everything stands in the body."""
    odd = f"odd {id(ends)}"
    with ends.app.producer_or_acquire() as producer:
        body = {"task": "ends.number", "id": odd, "args": [1], "kwargs": 5}
        producer.publish(body, routing_key=ends.app.conf.task_default_queue, correlation_id=odd)
    error = ends.site.wait_for(odd, "DEAD", 5)["last_error"]
    assert error == "InvalidTaskError: Task keyword arguments must be a mapping"
    with pytest.raises(InvalidTaskError):
        ends.result(odd).get(timeout=5)


def test_stores_no_result_that_nobody_wants(ends: Ends) -> None:
    headers = {"ignore_result": True}
    pickled = publish(ends, f"unwanted {id(ends)}", [[1], {}, {}], headers, serializer="pickle")
    ends.site.wait_for(pickled, "DEAD", 5)
    assert ends.result(pickled).state == "PENDING"


def test_buries_what_names_no_task(ends: Ends) -> None:
    queue = ends.app.conf.task_default_queue
    with ends.app.producer_or_acquire() as producer:
        producer.publish({"hello": 1}, routing_key=queue)
    sql = "select last_error from pgbroker.jobs_dead where queue = %s and task_id is null"
    wait_until(lambda: ends.site.rows(sql, queue), 5, ends.site.describe)
    reasons = {row[0] for row in ends.site.rows(sql, queue)}
    assert "the message names no task" in reasons


def test_goes_on_with_the_next_task(ends: Ends) -> None:
    assert ends.tasks["ends.number"].delay(4).get(timeout=5) == 4
