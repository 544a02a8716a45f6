"""Many messages in one transaction: all of them are stored, or none."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pgbroker import errors
from pgbroker.postgres.connection import Session
from pgbroker.postgres.pool import SessionPool
from pgbroker.queue.routing import Dispatched, Routing, routing_for
from pgbroker.queue.store import Message

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


@dataclasses.dataclass
class _Place:
    """A letter and its place in the batch."""

    at: int
    letter: Letter


def publish_all(pool: SessionPool, letters: Sequence[Letter]) -> list[list[Dispatched]]:
    """Store messages in one transaction, in statements of bounded size.

    Returns:
        For each letter where it went.

    Raises:
        Unroutable: A letter that must arrive leads nowhere.
        StatementTimeout: Somebody else's open transaction has held a dedupe key for ``dedupe_wait_seconds``.
        ConnectionLost: The connection broke; the message says whether anything may have been stored.
    """
    routing = routing_for(pool.options.schema)
    went_to: list[list[Dispatched]] = [[] for _ in letters]
    with pool.lend() as session:
        try:
            # Dedupe keys are inserted in their order, or two batches could wait for each other; the order of the
            # letters is kept by their times.
            began = session.query("begin; select clock_timestamp()")[0][0]
            wait_ms = max(1, int(pool.options.dedupe_wait_seconds * 1000))
            session.query(f"set local lock_timeout = {wait_ms}")
            for chunk in _chunks(_in_key_order(letters)):
                _store(session, routing, chunk, began, went_to)
        except BaseException:
            _roll_back(session)
            raise
        _commit(session)
    return went_to


def _store(
    session: Session, routing: Routing, chunk: list[_Place], began: dt.datetime, went_to: list[list[Dispatched]]
) -> None:
    timed = [(place.letter.message, began + dt.timedelta(microseconds=place.at)) for place in chunk]
    messages = [
        message if message.run_after is not None or message.delay_seconds else message._replace(run_after=time)
        for message, time in timed
    ]
    rows = session.query(*routing.dispatch_many(messages, [place.letter.with_alias for place in chunk]))
    for number, *found in rows:
        went_to[chunk[number].at].append(Dispatched(*found))
    for place in chunk:
        message = place.letter.message
        if place.letter.must_arrive and not went_to[place.at]:
            raise errors.Unroutable(message.exchange or "", message.routing_key or message.queue)


def _in_key_order(letters: Sequence[Letter]) -> list[_Place]:
    places = [_Place(at, letter) for at, letter in enumerate(letters)]

    def key(place: _Place) -> tuple[str, str, str]:
        message = place.letter.message
        return (message.exchange or "", message.routing_key or message.queue, message.dedupe_key or "")

    return [p for p in places if p.letter.message.dedupe_key is None] + sorted(
        (p for p in places if p.letter.message.dedupe_key is not None), key=key
    )


def _chunks(places: list[_Place]) -> Iterator[list[_Place]]:
    chunk: list[_Place] = []
    size = 0
    for place in places:
        more = len(place.letter.message.body)
        if chunk and (len(chunk) >= CHUNK_MESSAGES or size + more > CHUNK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(place)
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
