"""Many messages in one transaction: all of them are stored, or none."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from pgbroker import errors
from pgbroker.postgres.connection import Session
from pgbroker.postgres.pool import SessionPool
from pgbroker.queue.routing import Dispatched, Routing, routing_for
from pgbroker.queue.store import Call, Message

#: Messages, and bytes of their bodies, that one statement stores at most.
CHUNK_MESSAGES = 500
CHUNK_BYTES = 4_000_000


class Letter(NamedTuple):
    """A message on its way.

    Attributes:
        message: With exchange and routing key, or without an exchange and with the queue.
        must_arrive: If no binding leads on, the whole batch fails.
        with_alias: See :meth:`~pgbroker.queue.store.Store.publish`.
    """

    message: Message
    must_arrive: bool = False
    with_alias: bool = False


#: A letter's place in its batch, and the letter.
Numbered = tuple[int, Letter]


class Writer:
    """Stores letters in a transaction that is open.

    Args:
        query: Runs a statement there.
        routing: The schema's calls.
    """

    def __init__(self, query: Callable[[Call], list[tuple[Any, ...]]], routing: Routing) -> None:
        self._query = query
        self._routing = routing
        self._began: dt.datetime = query(("select clock_timestamp()", ()))[0][0]

    def write(self, letters: Iterable[Numbered]) -> Iterator[tuple[int, Letter, list[Dispatched]]]:
        """Store letters, statement by statement; those with dedupe keys come last and are kept until then.

        Keys are inserted in their order, or two batches could wait for each other; the order of the letters is kept by
        their times.

        Yields:
            Each letter with its number and where it went.

        Raises:
            Unroutable: A letter that must arrive leads nowhere.
            BatchFailed: The server refused one.
        """
        with_keys: list[Numbered] = []

        def without_keys() -> Iterator[Numbered]:
            for number, letter in letters:
                if letter.message.dedupe_key is None:
                    yield number, letter
                else:
                    with_keys.append((number, letter))

        for chunk in _chunks(without_keys()):
            yield from self._store(chunk)
        with_keys.sort(key=_key_order)
        for chunk in _chunks(with_keys):
            yield from self._store(chunk)

    def _store(self, chunk: list[Numbered]) -> Iterator[tuple[int, Letter, list[Dispatched]]]:
        went_to: dict[int, list[Dispatched]] = {number: [] for number, _ in chunk}
        try:
            rows = self._query(self._call(chunk))
        except errors.DatabaseError as exc:
            if type(exc) is not errors.DatabaseError:
                exc.add_note(f"The statement was to store {_range(chunk)}.")
                raise  # neither a lost connection nor a wait that was too long is the fault of one message
            raise _Refused(chunk, exc) from exc
        for number, *found in rows:
            went_to[number].append(Dispatched(*found))
        for number, letter in chunk:
            message = letter.message
            if letter.must_arrive and not went_to[number]:
                raise errors.Unroutable(message.exchange or "", message.routing_key or message.queue)
            yield number, letter, went_to[number]

    def _call(self, chunk: list[Numbered]) -> Call:
        messages = [letter.message for _, letter in chunk]
        aliases = [letter.with_alias for _, letter in chunk]
        return self._routing.publish_many(messages, [number for number, _ in chunk], aliases, self._began)

    def culprit(self, chunk: list[Numbered]) -> tuple[int, Letter, errors.DatabaseError] | None:
        """Try letters one by one, until the server refuses one; the transaction must be rolled back afterwards."""
        for numbered in chunk:
            try:
                self._query(self._call([numbered]))
            except errors.DatabaseError as exc:
                return *numbered, exc
        return None


class _Refused(Exception):
    """The server refused one of these letters."""

    def __init__(self, chunk: list[Numbered], error: errors.DatabaseError) -> None:
        super().__init__(str(error))
        self.chunk = chunk
        self.error = error


def publish_all(pool: SessionPool, letters: Sequence[Letter]) -> list[list[Dispatched]]:
    """Store messages in one transaction, in statements of bounded size.

    Returns:
        For each letter where it went.

    Raises:
        Unroutable: A letter that must arrive leads nowhere.
        StatementTimeout: Somebody else's open transaction has held a dedupe key for ``dedupe_wait_seconds``.
        BatchFailed: The server refused a letter; the error says which.
        ConnectionLost: The connection broke; the message says whether anything may have been stored.
    """
    went_to: list[list[Dispatched]] = [[] for _ in letters]
    with writing(pool) as writer:
        for number, _, found in writer.write(enumerate(letters)):
            went_to[number] = found
    return went_to


@contextlib.contextmanager
def writing(pool: SessionPool) -> Iterator[Writer]:
    """A transaction for the ``with`` block, committed at its end.

    Raises:
        BatchFailed: The server refused a letter; also the errors of a session.
    """
    routing = routing_for(pool.options.schema)
    with pool.lend() as session:
        try:
            _begin(session, pool)
            yield Writer(lambda call: session.query(*call), routing)
        except _Refused as refused:
            _roll_back(session)
            raise _named(session, pool, routing, refused) from refused.error
        except BaseException:
            _roll_back(session)
            raise
        _commit(session)


def _begin(session: Session, pool: SessionPool) -> None:
    wait_ms = max(1, int(pool.options.dedupe_wait_seconds * 1000))
    session.query(f"begin; set local lock_timeout = {wait_ms}")


def _named(session: Session, pool: SessionPool, routing: Routing, refused: _Refused) -> errors.BatchFailed:
    """The error with the letter that the server refuses, found by trying them once more; nothing of that stays."""
    found = None
    with contextlib.suppress(errors.PgBrokerError):
        _begin(session, pool)
        found = Writer(lambda call: session.query(*call), routing).culprit(refused.chunk)
    _roll_back(session)
    if found is None:
        return _failed(_range(refused.chunk), refused.error)
    number, letter, error = found
    task = f" (task {letter.message.task_name}, id {letter.message.task_id})" if letter.message.task_name else ""
    return _failed(f"message {number + 1} of the batch{task}", error)


def _failed(which: str, error: errors.DatabaseError) -> errors.BatchFailed:
    return errors.BatchFailed(which, str(error), sqlstate=error.sqlstate)


def _range(chunk: list[Numbered]) -> str:
    numbers = sorted(number + 1 for number, _ in chunk)
    if len(numbers) == 1:
        return f"message {numbers[0]} of the batch"
    return f"one of the messages {numbers[0]} to {numbers[-1]} of the batch"


def _key_order(numbered: Numbered) -> tuple[str, str, str, int]:
    number, (message, *_) = numbered
    return message.exchange or "", message.routing_key or message.queue, message.dedupe_key or "", number


def _chunks(letters: Iterable[Numbered]) -> Iterator[list[Numbered]]:
    chunk: list[Numbered] = []
    size = 0
    for numbered in letters:
        more = len(numbered[1].message.body)
        if chunk and (len(chunk) >= CHUNK_MESSAGES or size + more > CHUNK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(numbered)
        size += more
    if chunk:
        yield chunk


def _commit(session: Session) -> None:
    try:
        session.query("commit")
    except errors.ConnectionLost as exc:
        raise errors.ConnectionLost(
            f"the connection broke while a batch was committed; whether it was stored is not known: {exc}"
        ) from exc


def _roll_back(session: Session) -> None:
    """Leave the session without a transaction; if that is not possible, without a connection."""
    try:
        if session.is_open:
            session.query("rollback")
    except errors.PgBrokerError:
        session.close()
