"""The figures of a run: kills, what became of the tasks, and how long it took until orphans were taken back."""

from __future__ import annotations

from collections import Counter, defaultdict
from math import inf
from statistics import median
from typing import Any

from audit import Audit
from victims import Kill

#: A statement that a worker sent before it was killed may still be under way. No lease of it ends so soon.
LAST_BREATH_SECONDS = 0.5


class Figures:
    """Of one run, when it has been judged."""

    def __init__(self, audit: Audit) -> None:
        self._audit, self._story = audit, audit.story
        self._ready = {line["pid"]: line["at"] for line in self._story.lines if line["event"] == "ready"}

    def recovery(self, what: str, *, is_covered: bool) -> list[float]:
        """Seconds from each kill to the moment at which the last job that it orphaned was taken back or ended.

        Args:
            what: Kills of what. Children of a worker that gave up for want of them do not count: its leases run out.
            is_covered: Those after which another worker was up all the time, or the others.
        """
        lost, ended = self._moments(self._story.events), self._moments(self._story.rows)
        seconds = []
        for number, kill in enumerate(self._story.kills):
            if kill.what != what or (what == "children" and kill.main in self._story.gave_up):
                continue
            later = [other.at for other in self._story.kills[number + 1 :] if other.main == kill.main]
            moments = [at for at in lost[kill.main] if kill.at < at < min(later, default=inf)]
            if what == "main":
                # found to have succeeded, which is no event; what it said with its last breath does not count
                moments += [at for at in ended[kill.main] if at > kill.at + LAST_BREATH_SECONDS]
            if moments and self._is_covered(kill.at, max(moments)) == is_covered:
                seconds.append(max(moments) - kill.at)
        return seconds

    def _is_covered(self, since: float, until: float) -> bool:
        """Whether there was a worker up at each moment between."""
        ends = {kill.main: kill.at for kill in self._story.kills if kill.what == "main"}
        for pid, ready_at in sorted(self._ready.items(), key=lambda one: one[1]):
            if pid not in self._story.gave_up and ready_at <= since:
                since = max(since, ends.get(pid, inf))
        return since >= until

    @staticmethod
    def _moments(entries: list[dict[str, Any]]) -> dict[int, list[float]]:
        """Main process of the worker concerned -> when."""
        moments: dict[int, list[float]] = defaultdict(list)
        for entry in entries:
            if entry["worker"] and entry["at"]:
                moments[int(entry["worker"].split(":")[1])].append(entry["at"])
        return moments

    def _was_starting(self, kill: Kill) -> bool:
        return bool(kill.at < self._ready.get(kill.main, inf))

    def report(self) -> str:
        """The figures, one a line."""
        kills, counts, late_by = self._story.kills, self._audit.counts, self._audit.late_by
        lines = [
            f"mode: {self._story.mode.name}",
            f"kills: {len(kills)}, by pool: {dict(Counter(kill.pool for kill in kills))}",
            f"kills of main processes: {sum(kill.what == 'main' for kill in kills)}",
            f"kills of a worker that was still starting: {sum(self._was_starting(kill) for kill in kills)}",
            f"kills of a worker with the node name of a dead one: {sum(kill.is_namesake for kill in kills)}",
            f"workers that gave up because they lost a child while they started: {len(self._story.gave_up)}",
            f"tasks: {len(self._story.published)}, and {self._story.duplicates} duplicates refused",
            f"lost: {counts['lost']}",
            *(f"{name}: {count}" for name, count in sorted(counts.items()) if name != "lost"),
        ]
        if late_by:
            lines.append(
                f"ran again, killed after its start by: median {1000 * median(late_by):.1f} ms, "
                f"most {1000 * max(late_by):.1f} ms"
            )
        for what in ("main", "children"):
            for is_covered in (True, False):
                if seconds := self.recovery(what, is_covered=is_covered):
                    lines.append(
                        f"recovery after a kill of {what}, {'a' if is_covered else 'at times no'} worker up: "
                        f"{len(seconds)} times, median {median(seconds):.2f} s, most {max(seconds):.2f} s"
                    )
        return "\n".join(lines)
