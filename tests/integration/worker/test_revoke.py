"""A revoke lasts: with no worker up, for what is published later, for what runs and is retried."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from celery import group
from celery.exceptions import TaskRevokedError
from ends_site import Ends
from worker_site import wait_until

from pgbroker.monitor import admin
from pgbroker.options import Options


def cancelled(ends: Ends, task_id: str) -> bool:
    job = ends.site.job(task_id)
    return (job.get("status"), job.get("result_state")) == ("CANCELLED", "REVOKED")


def queue_count(ends: Ends) -> int:
    with ends.app.connection_for_write() as connection:
        return int(connection.default_channel.queue_declare("celery", passive=True).message_count)


# -- with no worker up ----------------------------------------------------------------------------------


def test_cancels_what_waits_at_once(own: Ends) -> None:
    results = [own.tasks["ends.number"].apply_async((n,), dedupe_key=f"k{n}") for n in range(3)]
    later = own.tasks["ends.number"].apply_async((9,), countdown=600, dedupe_key="later")
    assert queue_count(own) == 3
    results[0].revoke()
    own.app.control.revoke([results[1].id, later.id])
    assert queue_count(own) == 1
    assert own.keys() == ["k2"]
    for result in (results[0], results[1], later):
        assert cancelled(own, result.id)
        assert result.state == "REVOKED"
        with pytest.raises(TaskRevokedError, match="revoked"):
            result.get(timeout=5)
    assert results[2].state == "PENDING"
    assert own.site.rows("select kind from pgbroker.job_events") == [("revoked",)] * 3


def test_wakes_who_waits_for_the_result(own: Ends) -> None:
    result = own.tasks["ends.number"].apply_async((1,), countdown=600)
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            own.app.AsyncResult(result.id).get(timeout=10)
        except TaskRevokedError as exc:
            errors.append(exc)

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: own.site.rows("select 1 from pgbroker.waiters"), 5)
    began = time.monotonic()
    result.revoke()
    thread.join(5)
    assert time.monotonic() - began < 2
    assert len(errors) == 1


def test_cancels_what_is_published_later(own: Ends) -> None:
    own.app.control.revoke("chosen-before")
    result = own.tasks["ends.number"].apply_async((1,), task_id="chosen-before", dedupe_key="k")
    assert cancelled(own, result.id)
    assert result.state == "REVOKED"
    assert (own.keys(), queue_count(own)) == ([], 0)
    assert own.outbox() == [("REVOKED", "chosen-before")]


def test_forgets_a_revoke_in_time(own: Ends) -> None:
    own.app.control.revoke("once")
    ((seconds,),) = own.site.rows("select extract(epoch from until - now())::float8 from pgbroker.revoked")
    assert seconds == pytest.approx(10800, abs=60)
    own.site.rows("update pgbroker.revoked set until = now()")
    result = own.tasks["ends.number"].apply_async((1,), task_id="once")
    assert own.site.job(result.id)["status"] == "PENDING"
    assert own.site.rows("select pgbroker.prune_revoked()") == [(1,)]
    assert own.site.rows("select 1 from pgbroker.revoked") == []


def test_understands_every_way_to_say_it(own: Ends) -> None:
    app = own.site.make_app(control_exchange="our.own")
    results = [own.tasks["ends.number"].delay(n) for n in range(5)]
    app.control.revoke(results[0].id)
    app.control.terminate(results[1].id)
    app.control.broadcast("revoke", arguments={"task_id": [results[2].id]}, reply=True, timeout=0.1)
    own.app.control.revoke(results[3].id, destination=["only@here"])
    assert own.site.statuses() == {"CANCELLED": 3, "PENDING": 2}
    assert not cancelled(own, results[3].id)
    app.close()


def stamped(ends: Ends, name: str, argument: Any, options: dict[str, Any] | None = None, **stamps: Any) -> Any:
    signature = ends.tasks[name].s(argument)
    signature.stamp(**stamps)
    return signature.apply_async(**(options or {}))


def test_revokes_by_stamped_headers(own: Ends) -> None:
    by_text, by_list = (stamped(own, "ends.number", 1, batch=value) for value in ("a%\"'", ["b", "c"]))
    other = stamped(own, "ends.number", 3, batch="d")
    another_name = stamped(own, "ends.number", 4, label="a%\"'")
    plain = own.tasks["ends.number"].delay(5)
    own.app.control.revoke_by_stamped_headers({"batch": ["a%\"'", "c"]})
    assert [cancelled(own, r.id) for r in (by_text, by_list)] == [True, True]
    assert own.site.statuses([other.id, another_name.id, plain.id]) == {"PENDING": 3}
    own.app.control.broadcast("revoke_by_stamped_headers", arguments={"headers": ["batch=d"]})
    assert cancelled(own, other.id)


def test_a_revoke_by_stamped_headers_lasts(own: Ends) -> None:
    held = stamped(own, "ends.number", 0, batch="b")
    own.site.rows("select 1 from pgbroker.claim('gone', array['celery'], 1, 60, true)")
    own.app.control.revoke_by_stamped_headers({"batch": ["a", "b"]})
    ((seconds,),) = own.site.rows(
        "select distinct extract(epoch from until - now())::float8 from pgbroker.revoked_stamps"
    )
    assert seconds == pytest.approx(10800, abs=60)
    published = [stamped(own, "ends.number", 1, batch=value) for value in ("a", ["c", "b"])]
    assert all(cancelled(own, result.id) and result.state == "REVOKED" for result in published)
    others = [stamped(own, "ends.number", 2, batch="c"), stamped(own, "ends.number", 3, label="a")]
    assert own.site.statuses([result.id for result in others]) == {"PENDING": 2}
    # what was in a worker's hands and comes back
    assert own.site.job(held.id)["status"] == "RUNNING"
    own.site.rows("select pgbroker.release(array_agg(job_id), array_agg(claim)) from pgbroker.jobs_live")
    own.worker()
    wait_until(lambda: own.site.statuses([r.id for r in others]) == {"DONE": 2}, what=own.site.describe)
    assert cancelled(own, held.id)
    # and it is over in time
    own.site.rows("update pgbroker.revoked_stamps set until = now()")
    assert stamped(own, "ends.number", 4, batch="a").get(timeout=10) == 4
    assert own.site.rows("select pgbroker.prune_revoked()") == [(2,)]
    assert own.site.rows("select 1 from pgbroker.revoked_stamps") == []


def test_a_revoked_stamp_reaches_retries(own: Ends) -> None:
    own.worker("threads", 2)
    result = stamped(own, "ends.again", 1, {"dedupe_key": "k"}, batch="b")
    wait_until(lambda: own.site.record.count("start") == 1, what=own.site.describe)
    own.app.control.revoke_by_stamped_headers({"batch": "b"})
    wait_until(lambda: cancelled(own, result.id), 10, own.site.describe)
    assert own.site.job(result.id)["last_error"] == "revoked"  # and not by the worker, which was told as well
    assert own.site.record.count("start") == 1
    assert own.keys() == []


# -- with workers ---------------------------------------------------------------------------------------


def test_chord_and_errback_learn_of_it(ends: Ends) -> None:
    single = ends.with_errback("ends.early", 1).apply_async(countdown=600)
    waiting = ends.tasks["ends.early"].si(1).set(countdown=600)
    chord = ends.chord_of(waiting).delay()
    member = chord.parent.results[0]
    ends.app.control.revoke([single.id, member.id])
    ends.worker("threads", 2)
    ends.wait_state(single, "REVOKED")
    ends.wait_state(member, "REVOKED")
    assert ends.wait_error(single.id) == "TaskRevokedError: revoked"
    ends.wait_state(chord, "FAILURE")
    assert ends.wait_error(chord.id).startswith("ChordError")
    # told to a worker that is up: through its own revoke as well as through the outbox
    second = ends.with_errback("ends.early", 1).apply_async(countdown=600)
    second.revoke()
    ends.wait_state(second, "REVOKED", 3)
    assert ends.wait_error(second.id) == "TaskRevokedError: revoked"
    wait_until(lambda: ends.outbox() == [], 5, ends.site.describe)
    assert ends.site.record.count("start") == 0


def test_a_task_that_runs_and_is_retried_does_not_run_again(own: Ends) -> None:
    own.worker("threads", 2)
    result = own.tasks["ends.again"].apply_async((1,), dedupe_key="k")
    wait_until(lambda: own.site.record.count("start") == 1, what=own.site.describe)
    result.revoke()
    wait_until(lambda: cancelled(own, result.id), 10, own.site.describe)
    wait_until(lambda: own.site.rows("select status from pgbroker.results") == [("REVOKED",)], 5, own.site.describe)
    assert own.site.record.count("start") == 1
    assert own.keys() == []
    assert own.site.rows("select result_state from pgbroker.job_history order by job_id") == [("RETRY",), ("REVOKED",)]


def test_a_worker_that_comes_later_does_not_get_what_another_gave_back(own: Ends) -> None:
    """The revoke came while the task was in a worker's hands, where a broadcast reaches it; then that worker went."""
    result = own.tasks["ends.number"].delay(1)
    own.site.rows("select 1 from pgbroker.claim('gone', array['celery'], 1, 60, true)")
    result.revoke()
    assert own.site.job(result.id)["status"] == "RUNNING"
    own.site.rows("select pgbroker.release(array_agg(job_id), array_agg(claim)) from pgbroker.jobs_live")
    own.worker()
    wait_until(lambda: cancelled(own, result.id), 5, own.site.describe)
    own.wait_state(result, "REVOKED")
    assert own.site.record.count("number") == 0


def test_revokes_what_a_worker_holds_and_has_not_begun(own: Ends) -> None:
    """On prefork: Celery's other pools have taken the task by then, and run it on every broker."""
    own.worker("prefork", 1)
    running = own.tasks["ends.early"].delay(1.5)
    wait_until(lambda: own.site.record.count("start") == 1, what=own.site.describe)
    held = own.tasks["ends.early"].apply_async((0,), dedupe_key="k")
    wait_until(lambda: own.site.job(held.id)["status"] == "RUNNING", 5, own.site.describe)
    held.revoke()
    wait_until(lambda: cancelled(own, held.id), 10, own.site.describe)
    own.wait_state(held, "REVOKED")
    own.site.wait_for(running.id, "DONE")
    assert own.site.record.count("start") == 1
    assert own.site.job(held.id)["started_at"] is None
    assert own.keys() == []


def dead_letter(ends: Ends, **stamps: Any) -> Any:
    """A task that has failed for good: in a worker, or as one would have left it."""
    result = stamped(ends, "app.fail", "broken", **stamps)
    if not ends.site.workers:
        ends.site.rows("select 1 from pgbroker.claim('gone', array['celery'], 1, 60, true)")
        ends.site.rows("select pgbroker.bury(array_agg(job_id), array_agg(claim), '{broken}') from pgbroker.jobs_live")
    ends.site.wait_for(result.id, "DEAD")
    return result


def requeue(ends: Ends, task_id: str) -> str:
    options = Options.from_url(ends.site.database.url)
    (requeued,) = admin.requeue(options, admin.dead_ids(options, task_id))
    return requeued.outcome


def test_who_requeues_wins_over_a_revoke_of_before(own: Ends) -> None:
    result = dead_letter(own)
    own.app.control.revoke([result.id, "another"])
    assert requeue(own, result.id) == "requeued"
    assert own.site.rows("select task_id from pgbroker.revoked") == [("another",)]
    own.worker()
    wait_until(lambda: own.site.job(result.id)["status"] == "DEAD", what=own.site.describe)
    assert own.site.record.count("start", task_id=result.id) == 1
    assert "ValueError" in own.site.job(result.id)["last_error"]
    # a revoke that comes after it is another matter
    assert requeue(own, result.id) == "requeued"
    assert own.site.wait_for(result.id, "DEAD")
    own.site.rows("update pgbroker.queues set paused_at = now()")
    assert requeue(own, result.id) == "requeued"
    result.revoke()
    assert cancelled(own, result.id)


def test_a_worker_forgets_a_revoke_when_it_meets_a_job_that_was_requeued_since(own: Ends) -> None:
    own.worker()
    result = dead_letter(own)
    result.revoke()
    wait_until(lambda: [result.id] in (own.app.control.inspect(timeout=0.5).revoked() or {}).values())
    for runs in (2, 3):
        assert requeue(own, result.id) == "requeued"
        wait_until(lambda runs=runs: own.site.record.count("start") == runs, 10, own.site.describe)
        own.site.wait_for(result.id, "DEAD")
    (properties,) = own.site.rows("select properties::jsonb from pgbroker.jobs_dead")[0]
    assert {"correlation_id", "requeued_at"} <= properties.keys()


@pytest.mark.parametrize("is_told", [True, False])
def test_who_requeues_wins_over_a_revoke_by_stamped_headers(own: Ends, is_told: bool) -> None:
    if is_told:
        own.worker()
    result = dead_letter(own, batch="b")
    own.app.control.revoke_by_stamped_headers({"batch": "b"}, reply=is_told, timeout=1)
    assert requeue(own, result.id) == "requeued"
    if not is_told:
        own.worker()
    wait_until(lambda: own.site.record.count("start") == 1 + is_told, what=own.site.describe)
    own.site.wait_for(result.id, "DEAD")
    other = stamped(own, "ends.number", 1, batch="b")
    assert cancelled(own, other.id)
    # a revoke that comes after it is another matter
    own.site.rows("update pgbroker.queues set paused_at = now()")
    assert requeue(own, result.id) == "requeued"
    own.app.control.revoke_by_stamped_headers({"batch": "b"})
    assert cancelled(own, result.id)


@pytest.mark.parametrize("name", ["ends.early", "ends.late"])
def test_terminates(name: str, own: Ends) -> None:
    own.worker("prefork", 2, task_acks_on_failure_or_timeout=False)
    results = group(own.tasks[name].s(30).set(dedupe_key=f"k{n}") for n in range(2)).apply_async()
    wait_until(lambda: own.site.record.count("start") == 2, what=own.site.describe)
    for result in results:
        result.revoke(terminate=True)
    for result in results:
        wait_until(lambda result=result: cancelled(own, result.id), 5, own.site.describe)
        own.wait_state(result, "REVOKED")
        assert own.site.job(result.id)["started_at"] is not None
    assert own.keys() == []
    assert own.tasks["ends.number"].delay(3).get(timeout=10) == 3
    assert own.site.record.runs() == dict.fromkeys((r.id for r in results), 1)
    wait_until(lambda: own.site.statuses() == {"CANCELLED": 2, "DONE": 1}, what=own.site.describe)
