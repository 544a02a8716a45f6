"""Typed calls of the SQL functions that keep chords. What each does is written at the head of its ``.sql`` file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pgbroker import errors
from pgbroker.options import Options
from pgbroker.postgres.connection import Session
from pgbroker.postgres.pool import pool_for
from pgbroker.postgres.sql_files import in_statement
from pgbroker.queue.store import Call

#: A part of a member without a place in the header comes after all others.
LAST_POSITION = 2**31 - 1


class HeldJob(NamedTuple):
    """The job that runs a task, and the claim by which it may be ended."""

    job_id: int
    claim: int


class TaskEnd(NamedTuple):
    """What is written in the same transaction as a part.

    Without ``meta`` the task's result is ignored, or was written before; without ``job`` no job ends.
    """

    status: str
    meta: bytes | None = None
    keep_seconds: float | None = None
    job: HeldJob | None = None


class Part(NamedTuple):
    """What a member of a chord returned, encoded by the application's result serializer."""

    task_id: str
    position: int | None
    content: bytes

    @property
    def key(self) -> tuple[str, int]:
        """A member counts once for each place that it has in the header."""
        return self.task_id, LAST_POSITION if self.position is None else self.position


class StoredChord(NamedTuple):
    """A chord as it is kept: encoded structure of the header and body, and the parts in the order of the header."""

    structure: bytes | None
    body: bytes | None
    parts: list[Part]


class ChordStore:
    """Chords in the schema of ``options``, through the sessions that the process shares.

    Every call may be repeated when the connection broke and nobody knows whether it took effect.

    Raises (every method):
        DatabaseUnreachable: No connection, not at the second attempt either.
        DatabaseError: The server refused the statement.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self._prefix = in_statement(options.schema) + "."

    def open(self, group_id: str, *, structure: bytes | None, body: bytes | None, keep_seconds: float | None) -> None:
        """Make a chord known; one that has ended begins anew."""
        self._run(self._call("open_chord", group_id, structure, body, keep_seconds))

    def set_size(self, group_id: str, size: int, *, keep_seconds: float | None) -> bool:
        """Say how many members there are. Returns whether all have returned already, so that it is to be finished."""
        return bool(self._run(self._call("set_chord_size", group_id, size, keep_seconds))[0][0])

    def add(self, group_id: str, *, keep_seconds: float | None) -> None:
        """One more member joins."""
        self._run(self._call("add_to_chord", group_id, keep_seconds))

    def keep(self, group_id: str, part: Part, end: TaskEnd, *, keep_seconds: float | None) -> bool:
        """Keep a part, and with it the end of its task.

        Returns:
            Whether the part would complete the chord: then nothing was written, and :meth:`finish` is to be called.
        """
        job_id, claim = end.job or (None, None)
        call = (
            f"call {self._prefix}return_chord_part(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, null)",
            (
                group_id,
                part.position,
                part.content,
                keep_seconds,
                part.task_id,
                end.status,
                end.meta,
                end.keep_seconds,
                job_id,
                claim,
            ),
        )
        return bool(self._run(call)[0][0] == "COMPLETES")

    def read(self, group_id: str) -> StoredChord:
        """A chord and its parts."""
        found = self._run((f"select structure, body from {self._prefix}chords where group_id = %s", (group_id,)))
        structure, body = found[0] if found else (None, None)
        columns, order = "task_id, position, part", "order by position, number"
        sql = f"select {columns} from {self._prefix}chord_parts where group_id = %s {order}"
        rows = self._run((sql, (group_id,)))
        parts = [Part(task_id, position, bytes(content)) for task_id, position, content in rows]
        return StoredChord(
            None if structure is None else bytes(structure), None if body is None else bytes(body), parts
        )

    def finish(self, group_id: str, part: Part | None, end: TaskEnd | None, publishes: Sequence[Call]) -> bool:
        """End a chord, and publish its body in the same transaction.

        Args:
            group_id: The chord.
            part: Of the member that completes it; ``None`` where all are kept.
            end: The end of that member's task.
            publishes: The statements that publish the body.

        Returns:
            Whether it ended here. If not, nothing was published: it has ended before, or parts are missing by now.

        Raises:
            Unroutable: No binding leads from the body's exchange to a queue; nothing was changed.
        """
        ended = pool_for(self.options).repeat(lambda session: self._finish(session, group_id, part, end, publishes))
        if ended and part is not None and end is not None and end.meta is not None:
            self._run(self._call("wake_waiters", part.task_id, True))
        return ended

    def _finish(
        self, session: Session, group_id: str, part: Part | None, end: TaskEnd | None, publishes: Sequence[Call]
    ) -> bool:
        task_id, position = (part.task_id, part.position) if part is not None else (None, None)
        is_open = False
        try:
            session.query("begin")
            is_open = True
            ended = bool(session.query(*self._call("finish_chord", group_id, task_id, position))[0][0])
            if ended:
                if task_id is not None and end is not None:
                    self._end_task(session, task_id, end)
                for call in publishes:
                    if not session.query(*call):  # a dispatch: exchange and routing key come first
                        raise errors.Unroutable(*call[1][:2])
            session.query("commit")
            is_open = False
        finally:
            if is_open:  # the server forgets the transaction with the connection
                session.close()
        return ended

    def _end_task(self, session: Session, task_id: str, end: TaskEnd) -> None:
        if end.job is not None:
            session.query(
                *self._call("end_with_result", task_id, end.status, end.meta, end.keep_seconds, *end.job, True)
            )
        elif end.meta is not None:
            session.query(*self._call("put_result", task_id, end.status, end.meta, end.keep_seconds))

    def _call(self, name: str, *args: Any) -> Call:
        return f"select {self._prefix}{name}({', '.join(['%s'] * len(args))})", args

    def _run(self, call: Call) -> list[tuple[Any, ...]]:
        return pool_for(self.options).repeat(lambda session: session.query(*call))
