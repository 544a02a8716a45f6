"""Which messages join a transaction of the application: jobs, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgbroker.queue import joined
from pgbroker.transport import handing_on

if TYPE_CHECKING:
    from pgbroker.queue.joined import JoinedTransaction
    from pgbroker.queue.store import Message
    from pgbroker.transport.envelope import Envelope
    from pgbroker.transport.process import Process


def transaction_for_job(process: Process, message: Envelope) -> JoinedTransaction | None:
    """The transaction in which a job is to be published, or ``None`` for the broker's own connection."""
    block = joined.current()
    # The running task's own retry must survive the rollback that it brings about.
    if block is None or ("task" in message.headers and handing_on.is_handed_on(message.headers.get("id"))):
        return None
    return block.transaction(process.pool)


def transaction_for(process: Process, message: Envelope, row: Message) -> JoinedTransaction | None:
    """The same for a message of which it is not known where it leads to.

    A queue that the default exchange would make is made here, by itself: its uncommitted row would make every other
    process that declares it wait.
    """
    if joined.current() is None:
        return None
    query, routing = process.pool.query, process.routing
    if row.exchange is not None:
        is_job = "task" in message.headers or query(*routing.leads_to_jobs(row))[0][0]
    else:
        kind = query(*routing.queue_kind(row.queue))[0][0] or query(*routing.declare_queue(row.queue))[0][0]
        is_job = kind == "job"
    return transaction_for_job(process, message) if is_job or "task" in message.headers else None
