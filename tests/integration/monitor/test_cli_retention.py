"""``celery -A APP pgbroker settings`` and ``prune``, and the upkeep behind it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import pytest

from pgbroker.options import Options
from pgbroker.postgres.pool import pool_for
from pgbroker.postgres.rights import runtime_grants
from pgbroker.queue import upkeep
from pgbroker.queue.upkeep import Upkeep

if TYPE_CHECKING:
    from .conftest import Desk

DAY = 86400


# -- settings --------------------------------------------------------------------------------------------


def test_settings_are_shown_and_set_for_all(fresh_desk: Desk) -> None:
    desk = fresh_desk
    lines = desk.call("settings").stdout.splitlines()
    assert lines[0].split() == ["NAME", "VALUE", "MEANING"]
    assert lines[1].startswith("history_seconds  86400 s (1 d)")
    assert lines[2].startswith("dead_seconds     2592000 s (30 d)")
    assert lines[3].startswith("revoked_seconds  10800 s (3 h)")
    assert lines[4].startswith("result_expires   86400 s (1 d)")
    done = desk.call("settings", "history_seconds", 2592000)
    assert (done.exit_code, done.stdout) == (0, "history_seconds is now 2592000 s (30 d)\n")
    assert desk.run("select pgbroker.history_seconds()") == [(2592000,)]
    shown = json.loads(desk.call("settings", "history_seconds", "--json").stdout)
    assert (shown["value"], shown["default"], shown["least"], shown["most"]) == (2592000, 86400, 0, 2592000)
    desk.run("delete from pgbroker.settings")
    assert [row["value"] for row in json.loads(desk.call("settings", "--json").stdout)] == [
        86400,
        2592000,
        10800,
        86400,
    ]
    assert desk.call("settings", "dead_seconds", 0, "--json").exit_code == 0
    assert desk.run("select name, value from pgbroker.settings") == [("dead_seconds", "0")]


def test_finished_jobs_go_at_once_without_history(fresh_desk: Desk) -> None:
    fresh_desk.call("settings", "history_seconds", 0)
    job_id = fresh_desk.put("a")
    fresh_desk.take("a")
    fresh_desk.jobs.complete(job_id, fresh_desk.worker)
    assert fresh_desk.run("select count(*) from pgbroker.job_history") == [(0,)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("history_second",), "did you mean 'history_seconds'?"),
        (("minimum_revision", "1"), "no setting named 'minimum_revision'"),
        (("history_seconds", "2592001"), "from 0 to 2592000, not '2592001' (unit: s;"),
        (("history_seconds", "--", "-1"), "not '-1'"),
        (("dead_seconds", "a week"), "must be a whole number"),
        (("dead_seconds", "1.5"), "must be a whole number"),
        (("result_expires", "60"), "is a setting of Celery's"),
    ],
)
def test_a_wrong_name_or_value_is_2_and_changes_nothing(desk: Desk, words: tuple[str, ...], message: str) -> None:
    before = desk.run("select * from pgbroker.settings order by 1")
    done = desk.call("settings", *words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr
    assert desk.run("select * from pgbroker.settings order by 1") == before


def test_results_are_kept_as_the_application_says(desk: Desk) -> None:
    shown = desk.call("settings", "result_expires", result_expires=7200)
    assert shown.stdout.splitlines()[1].startswith("result_expires  7200 s (2 h)")
    assert desk.call("settings", "result_expires", result_expires=0).stdout.splitlines()[1].split()[1] == "for"


# -- prune -----------------------------------------------------------------------------------------------


def fill_history(desk: Desk) -> None:
    """One finished job at noon (UTC) of each of the last 32 days and now, named by its age in days."""
    desk.run(
        "insert into pgbroker.job_history (slot, job_id, enqueued_at, finished_at, status, priority, attempts,"
        " max_attempts, queue) select pgbroker.history_slot(at), age, at, at, 'DONE', 0, 1, 5, 'q' from (select age,"
        " case age when 0 then clock_timestamp() else (date_trunc('day', clock_timestamp() at time zone 'UTC')"
        " + interval '12 hours' - make_interval(days => age)) at time zone 'UTC' end as at"
        " from generate_series(0, 31) age) days"
    )


def ages(desk: Desk, table: str = "job_history") -> set[int]:
    return {row[0] for row in desk.run(f"select job_id from pgbroker.{table}")}


@pytest.mark.parametrize("days", [0, 1, 7, 30])
def test_history_is_emptied_by_whole_days_and_shows_no_less(fresh_desk: Desk, days: int) -> None:
    desk = fresh_desk
    desk.call("settings", "history_seconds", days * DAY)
    fill_history(desk)
    visible = ages(desk, "job_log")
    done = desk.call("prune")
    assert done.exit_code == 0
    # what is visible stays; beyond it at most the day in which the window begins
    kept = set(range(days + 1)) if days else set()
    assert ages(desk) == kept
    assert visible <= kept
    assert len(visible) >= days
    assert f"emptied {32 - len(kept)} day" in done.stdout
    assert "emptied 0 days" in desk.call("prune").stdout


def test_a_day_that_somebody_reads_is_left_for_the_next_run(fresh_desk: Desk) -> None:
    desk = fresh_desk
    fill_history(desk)
    with closing(desk.database.connect(autocommit=False)) as reader, reader.cursor() as cursor:
        cursor.execute("select tableoid::regclass::text from pgbroker.job_history where job_id = 20")
        (table,) = cursor.fetchone() or ("",)
        reader.rollback()
        cursor.execute(f"select count(*) from {table}")
        done = desk.call("prune", "--json")
        assert (done.exit_code, json.loads(done.stdout)["history_days_busy"]) == (0, 1)
        assert ages(desk) == {0, 1, 20}
    assert json.loads(desk.call("prune", "--json").stdout)["history_days"] == 1
    assert ages(desk) == {0, 1}


def test_expired_jobs_end_as_cancelled_and_celery_learns_of_it(
    fresh_desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = fresh_desk
    monkeypatch.setattr(upkeep, "BATCH", 2)
    expired = [desk.put("a", expires=-1, dedupe_key=f"k{number}") for number in range(5)]
    kept = [desk.put("a"), desk.put("a", expires=600)]
    running = desk.put("b", expires=600)
    desk.take("b")
    desk.run("update pgbroker.jobs_live set expires_at = now() - interval '1 s' where job_id = %s", running)
    assert desk.call("prune").stdout.splitlines()[0] == "cancelled 5 expired jobs"
    assert {desk.status(job_id) for job_id in expired} == {"CANCELLED"}
    assert [desk.status(job_id) for job_id in (*kept, running)] == ["PENDING", "PENDING", "RUNNING"]
    told = desk.run("select job_id, outcome from pgbroker.outcome_outbox order by 1")
    assert told == [(job_id, "EXPIRED") for job_id in expired]


def test_old_dead_letters_go_with_their_events(fresh_desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = fresh_desk
    monkeypatch.setattr(upkeep, "BATCH", 2)
    ids = [desk.bury("a") for _ in range(8)]
    aged = (
        "update pgbroker.jobs_dead set enqueued_at = now() - interval '%s days', buried_at = now() - interval '%s days'"
    )
    for job_id, enqueued, buried in zip(ids, range(47, 39, -1), (40, 40, 1, 40, 40, 40, 0, 29), strict=True):
        desk.run(f"{aged} where job_id = %s", enqueued, buried, job_id)
    # a letter that waited long before it died does not hide the old ones behind it, nor the other way round
    assert desk.call("prune").stdout.splitlines()[1].startswith("deleted 5 dead letters, ")
    assert [job_id for job_id in ids if desk.status(job_id)] == [ids[2], ids[6], ids[7]]
    assert {row[0] for row in desk.run("select job_id from pgbroker.job_events")} == {ids[2], ids[6], ids[7]}
    desk.call("settings", "dead_seconds", 28 * DAY)
    desk.call("prune")
    assert desk.status(ids[7]) is None


def test_events_stay_as_long_as_their_job_is_visible(fresh_desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = fresh_desk
    monkeypatch.setattr(upkeep, "BATCH", 2)
    live, dead, finished, gone = desk.put("a"), desk.bury("b"), desk.put("c"), 987654321
    desk.take("c")
    desk.jobs.complete(finished, desk.worker)
    desk.run("delete from pgbroker.job_events")
    desk.run("insert into pgbroker.job_events (job_id, happened_at, kind, attempts)"
             " select job_id, now() - age, 'lost', 1 from unnest(%s) job_id,"
             " unnest(array[interval '3 days', interval '1 h']) age", [gone, live, dead, finished])  # fmt: skip
    assert "1 event of jobs that are gone" in desk.call("prune").stdout
    assert sorted(desk.run("select job_id, count(*) from pgbroker.job_events group by 1")) == sorted(
        [(live, 2), (dead, 2), (finished, 2), (gone, 1)]
    )


def test_expired_results_and_what_dead_processes_left_go(fresh_desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = fresh_desk
    monkeypatch.setattr(upkeep, "BATCH", 2)
    desk.put("a")
    for number in range(7):
        desk.run("call pgbroker.store_result(%s, 'SUCCESS', '', %s)", f"t{number}", 600 if number == 6 else 0.001)
    desk.run("select pgbroker.declare_queue('reply', null, true, null, false, 0.001)")
    assert desk.call("prune").stdout.splitlines()[-1] == (
        "deleted 6 expired results, 1 transient queue of processes that are gone"
    )
    assert desk.run("select task_id from pgbroker.results") == [("t6",)]


@contextmanager
def _another_pruner(desk: Desk) -> Iterator[None]:
    with closing(desk.database.connect(autocommit=False)) as connection, connection.cursor() as cursor:
        cursor.execute("""select pg_advisory_xact_lock(hashtextextended('"pgbroker".prune', 0))""")
        yield
        connection.rollback()  # waits for the server, as close() does not


def test_one_process_prunes_at_a_time(fresh_desk: Desk) -> None:
    desk = fresh_desk
    expired = desk.put("a", expires=-1)
    with _another_pruner(desk):
        done = desk.call("prune")
        assert (done.exit_code, done.stdout.splitlines()[-1][:27]) == (0, "another process is pruning;")
        assert desk.status(expired) == "PENDING"
        pool = pool_for(desk.options)
        assert pool.value("select pgbroker.prune_dead()") is None
        assert pool.query("select * from pgbroker.prune_history()") == [(False, None, None)]
        assert pool.query("select pruned, last_id from pgbroker.prune_events()") == [(None, None)]
    assert Upkeep(desk.options).run_once().is_leader
    assert desk.status(expired) == "CANCELLED"


def test_the_runtime_role_may_prune(fresh_desk: Desk) -> None:
    desk = fresh_desk
    desk.put("a", expires=-1)
    desk.bury("a")
    desk.run("update pgbroker.jobs_dead set enqueued_at = now() - interval '60 d', buried_at = now() - interval '50 d'")
    fill_history(desk)
    role = f"pgb_role_{uuid.uuid4().hex[:10]}"
    desk.run(f"create role {role} login")
    try:
        desk.run(runtime_grants("pgbroker", role))
        options = Options.from_url(desk.database.server.url(desk.database.name, user=role))
        pruned = Upkeep(options).run_once()
        assert (pruned.expired, pruned.dead, pruned.history_days) == (1, 1, 30)
    finally:
        desk.run(f"drop owned by {role} cascade")
        desk.run(f"drop role {role}")


def test_they_are_commands_of_celery(desk: Desk) -> None:
    assert desk.celery("settings", "dead_second").returncode == 2
    pruned = desk.celery("prune", "--json")
    assert (pruned.returncode, json.loads(pruned.stdout)["is_leader"]) == (0, True)
