"""Flower with a page about this broker.

Flower asks its views for a broker (``BaseHandler.get_broker``) and serves what its table of URLs names. So two views
with a broker of ours, put before Flower's own into that table, are all there is; nothing of Flower's is replaced.
"""

from __future__ import annotations

from typing import Any

from celery import Celery
from flower import urls
from flower.api.tasks import GetQueueLengths
from flower.views.broker import BrokerView

from pgbroker import errors
from pgbroker.monitor import insight
from pgbroker.options import Options

#: One queue as Flower wants it; the names are those of RabbitMQ's management API.
QueueRow = dict[str, Any]


def install() -> None:
    """Let every Flower that is made in this process from now on have our views."""
    if urls.handlers[: len(_HANDLERS)] != _HANDLERS:
        urls.handlers[:0] = _HANDLERS


def queue_rows(options: Options, consumed: list[str]) -> list[QueueRow]:
    """What the Broker page shows: queues that are consumed, and queues that hold jobs, by name.

    Args:
        options: Which server and schema.
        consumed: Queues that workers told Flower they consume from; shown whatever they hold, transient ones, too.

    Returns:
        A row for each. ``messages`` are all jobs that have not ended: ready, held by a worker (unacknowledged), and
        waiting to be due. Dead letters are none of them. When a queue became idle is not recorded, so it is not told.
    """
    found = {queue.queue: queue for queue in insight.queues(options, with_transient=True)}
    rows = []
    for name in sorted({*found, *consumed}):
        queue = found.get(name, insight.QueueOverview(queue=name, kind="job"))
        messages = queue.ready + queue.scheduled + queue.running
        if name in consumed or (queue.kind == "job" and (messages or queue.consumers)):
            rows.append(
                {
                    "name": name,
                    "messages": messages,
                    "messages_ready": queue.ready,
                    "messages_unacknowledged": queue.running,
                    "consumers": queue.consumers,
                }
            )
    return rows


class QueueCounter:
    """What Flower calls a broker: told names of queues, it answers with their counts.

    Args:
        application: The running ``flower.app.Flower``.
    """

    def __init__(self, application: Any) -> None:
        self._application = application

    async def queues(self, names: list[str]) -> list[QueueRow]:
        """The rows of :func:`queue_rows`, read in one of Flower's threads: its event loop waits for nothing.

        Raises:
            HTTPError: 503, the database does not answer; Flower logs why.
        """
        rows: list[QueueRow] = await self._application.blocking_runner.run(
            "broker.queues",
            "pgbroker",
            lambda: queue_rows(_options_of(self._application.capp), names),
            connection_errors=(errors.PgBrokerError,),
        )
        return rows


def _options_of(app: Celery) -> Options:
    with app.connection_for_read() as connection:
        transport: Any = connection.transport
        options: Options = transport.options
        return options


class _OurBroker:
    """For views: where the application's broker is ours, so is the view's."""

    application: Any

    def get_broker(self) -> Any:
        """Whoever counts the queues."""
        if self.application.transport == "pgbroker":
            return QueueCounter(self.application)
        return super().get_broker()  # type: ignore[misc]


class PgBrokerView(_OurBroker, BrokerView):  # type: ignore[misc]
    """The Broker page."""


class PgQueueLengths(_OurBroker, GetQueueLengths):  # type: ignore[misc]
    """``/api/queues/length``."""


# without names, so that links go on being made from Flower's own entries
_HANDLERS = [(r"/broker", PgBrokerView), (r"/api/queues/length", PgQueueLengths)]
