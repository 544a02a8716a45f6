"""The work that nobody waits for: ending what expired, and deleting what was kept long enough."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from pgbroker.options import Options
from pgbroker.postgres.pool import pool_for
from pgbroker.postgres.sql_files import in_statement
from pgbroker.queue.store import Call

#: Rows that one transaction ends or deletes.
BATCH = 1000

Query = Callable[..., list[tuple[Any, ...]]]


@dataclasses.dataclass(slots=True, kw_only=True)
class Pruned:
    """What one run did.

    Args:
        is_leader: False if another process was at it; what it left undone, that one does.
        expired: Waiting jobs that had expired and are CANCELLED now.
        dead: Dead letters that were deleted.
        events: Rows of ``job_events`` that were deleted.
        history_days: Day partitions of the history that were emptied.
        history_days_busy: Those that must be emptied and were in use; the next run tries again.
        results: Results, groups and chords that were deleted, and aliases of results that are gone.
        revocations: Revocations whose time was over, and outcomes that no worker delivered for a week.
        transient_queues: Transient queues of dead processes that were removed.
    """

    is_leader: bool = True
    expired: int = 0
    dead: int = 0
    events: int = 0
    history_days: int = 0
    history_days_busy: int = 0
    results: int = 0
    revocations: int = 0
    transient_queues: int = 0


class _AnotherLeads(Exception):
    pass


class Upkeep:
    """Prunes one schema, in short transactions; any number of processes may try, one at a time works.

    Args:
        options: Which server and schema.
        query: Runs a statement with its arguments and returns the rows; by default on the process's shared sessions.
    """

    def __init__(self, options: Options, query: Query | None = None) -> None:
        self._prefix = in_statement(options.schema) + "."
        self._query = query or pool_for(options).query

    def run_once(self) -> Pruned:
        """Do all that is due now.

        Raises:
            DatabaseUnreachable: There is no connection. What was done until then stays done.
            DatabaseError: The server refused a statement.
        """
        pruned = Pruned()
        try:
            pruned.expired = self._in_batches("prune_expired")
            pruned.dead = self._in_batches("prune_dead")
            self._prune_history(pruned)
            self._prune_events(pruned)
        except _AnotherLeads:
            pruned.is_leader = False
        pruned.results = self._in_batches("expire_results", until_none=True) + self._expire_aliases()
        pruned.results += self._in_batches("expire_chords", until_none=True)
        pruned.revocations = int(self._query(*self._call("prune_revoked"))[0][0])
        pruned.transient_queues = int(self._query(*self._call("sweep_transient"))[0][0])
        return pruned

    def _call(self, function: str, *arguments: Any, columns: str | None = None) -> Call:
        marks = ", ".join(["%s"] * len(arguments))
        call = f"{self._prefix}{function}({marks})"
        return f"select {columns} from {call}" if columns else f"select {call}", arguments

    def _in_batches(self, function: str, *, until_none: bool = False) -> int:
        total = 0
        while True:
            count: int | None = self._query(*self._call(function, BATCH))[0][0]
            if count is None:
                raise _AnotherLeads
            total += count
            if count < (1 if until_none else BATCH):
                return total

    def _expire_aliases(self) -> int:
        total = 0
        while True:
            looked_at, deleted = self._query(*self._call("expire_aliases", BATCH, columns="looked_at, deleted"))[0]
            total += int(deleted)
            if looked_at < BATCH:
                return total

    def _prune_history(self, pruned: Pruned) -> None:
        last_day = 0
        while True:
            call = self._call("prune_history", last_day, columns="is_leader, last_day, is_emptied")
            is_leader, last_day, is_emptied = self._query(*call)[0]
            if not is_leader:
                raise _AnotherLeads
            if last_day is None:
                return
            pruned.history_days += is_emptied
            pruned.history_days_busy += not is_emptied

    def _prune_events(self, pruned: Pruned) -> None:
        last_id = 0
        while last_id is not None:
            count, last_id = self._query(*self._call("prune_events", last_id, BATCH, columns="pruned, last_id"))[0]
            if count is None:
                raise _AnotherLeads
            pruned.events += count
