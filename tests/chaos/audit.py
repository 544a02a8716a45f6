"""Judges a run: what became of every task, and whether that was allowed.

Three witnesses are compared: the publishes that returned, the diary that the tasks wrote, and the tables. A second run,
or a dead letter, needs an excuse: a kill of the very process, at the right time.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import Counter, defaultdict
from typing import Any

from kills import Story
from load import Published
from victims import Kill

#: "A few milliseconds" after which a start is on record, on a busy machine with two cores.
START_SECONDS = 1.0

POOL_PROCESS_LOST, WORKER_LOST, USED_UP = "pool process lost", "worker lost after start", "attempts used up"

#: Why a task may be a dead letter.
REASONS = {
    "chaos.early": (POOL_PROCESS_LOST, WORKER_LOST),
    "chaos.late": (USED_UP,),
    "chaos.late_once": (POOL_PROCESS_LOST, USED_UP),
}


@dataclasses.dataclass
class Run:
    """One run of a task, as the diary has it. ``end`` is ``None`` if it did not get there."""

    pid: int
    parent: int
    start: float
    end: float | None = None

    def was_hit_by(self, kill: Kill) -> bool:
        """Whether that kill ended the process, or ended it together with its parent.

        The signal may have been on its way for a while. Pids come round again, but not so soon.
        """
        was_meant = self.pid in kill.victims or (kill.what == "main" and self.parent == kill.main)
        return was_meant and kill.at > self.start - START_SECONDS


class Audit:
    """The verdict on a run.

    Attributes:
        faults: What must not be, one line each.
        counts: How many tasks fared how.
        late_by: Seconds from a start to the kill that led to another run, for early acknowledged tasks.
    """

    def __init__(self, story: Story) -> None:
        self.story = story
        self.faults = list(story.troubles)
        self.counts: Counter[str] = Counter()
        self.late_by: list[float] = []
        self._runs = self._read_runs()
        self._rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for row in story.rows:
            self._rows[str(row["task_id"])].append(row)
        for published in story.published:
            self._judge(published)
        for stranger in self._runs.keys() - {one.task_id for one in story.published}:
            self.faults.append(f"{stranger} ran, and nobody published it")
        self._judge_keys()

    def _read_runs(self) -> dict[str, list[Run]]:
        runs: dict[str, Run] = {}
        by_task: dict[str, list[Run]] = defaultdict(list)
        for line in self.story.lines:
            if line["event"] == "start":
                run = runs[line["run"]] = Run(line["pid"], line["parent"], line["at"])
                by_task[line["task_id"]].append(run)
            elif line["event"] == "end":
                runs[line["run"]].end = line["at"]
        return by_task

    # -- one task -----------------------------------------------------------------------------------

    def _judge(self, published: Published) -> None:
        task_id = published.task_id
        rows, runs = self._rows[task_id], self._runs.get(task_id, [])
        if len(rows) != 1 or rows[0]["status"] not in ("DONE", "DEAD"):
            self.counts["lost"] += not rows
            self.faults.append(f"{task_id} is not where it should be: {rows}")
            return
        (row,) = rows
        self._judge_repeats(task_id, runs)
        if row["status"] == "DONE":
            self._judge_done(task_id, row, runs)
        else:
            self._judge_dead(published, row, runs)

    def _judge_repeats(self, task_id: str, runs: list[Run]) -> None:
        self.counts["runs"] += len(runs)
        self.counts["doubled"] += len(runs) > 1
        for run, again in itertools.pairwise(runs):
            hits = [kill for kill in self.story.kills if run.was_hit_by(kill) and kill.at < again.start]
            if not hits:
                self.faults.append(f"{task_id} ran twice, and nobody killed its first run: {runs}")
            elif run.end is not None and run.end > again.start:
                self.faults.append(f"{task_id} ran twice at the same time: {runs}")
            elif self.story.mode.is_strict:
                self.faults.append(f"{task_id} ran twice under strict_start: {runs}")
            elif not self.story.mode.is_late:
                self.late_by.append(max(0.0, hits[0].at - run.start))
                if self.late_by[-1] > START_SECONDS:
                    self.faults.append(f"{task_id} ran again, though killed long after its start: {runs} {hits[0]}")

    def _judge_done(self, task_id: str, row: dict[str, Any], runs: list[Run]) -> None:
        self.counts["DONE"] += 1
        if not any(run.end is not None for run in runs):
            self.faults.append(f"{task_id} is DONE, and never ended: {row} {runs}")
        elif not self.story.mode.is_late and any(run.end is None for run in runs):
            self.counts["DONE, a first run broken off"] += 1  # an excused repeat
        if self.story.results[task_id] != "SUCCESS":
            self.faults.append(f"{task_id} is DONE, its result {self.story.results[task_id]}: {row} {runs}")

    def _judge_dead(self, published: Published, row: dict[str, Any], runs: list[Run]) -> None:
        task_id, result = published.task_id, self.story.results[published.task_id]
        has_ended = any(run.end is not None for run in runs)
        how = "before it began" if not runs else "after its end" if has_ended else "in its run"
        reason = _reason(row["last_error"])
        self.counts["DEAD"] += 1
        self.counts[f"DEAD, killed {how}"] += 1
        self.counts[f"DEAD, {reason}"] += 1
        if reason not in REASONS[published.task]:
            self.faults.append(f"{task_id} is DEAD for no good reason: {row} {runs}")
        if not any(f":{kill.main}:" in str(row["worker"]) for kill in self.story.kills):
            self.faults.append(f"{task_id} is DEAD, and nobody hurt its worker: {row} {runs}")
        if result != "FAILURE":
            self.faults.append(f"{task_id} is DEAD, its result {result}: {row} {runs}")

    def _judge_keys(self) -> None:
        """A key that was given away is free of whoever had it before."""
        holder: dict[str, Published] = {}
        for published in sorted(self.story.published, key=lambda one: one.at):
            if published.key is None:
                continue
            before = holder.get(published.key)
            if before is not None and any(run.start > published.at for run in self._runs[before.task_id]):
                self.faults.append(f"{before.task_id} began when its key was {published.task_id}'s")
            holder[published.key] = published


def _reason(last_error: str) -> str:
    """What a dead letter says of itself, in short."""
    spent = re.search(r"loss (\d+) of (\d+)$", last_error)
    if spent is not None:
        return USED_UP if spent[1] == spent[2] else last_error
    if last_error.startswith("WorkerLostError"):
        return POOL_PROCESS_LOST
    return WORKER_LOST if last_error.startswith(WORKER_LOST) else last_error
