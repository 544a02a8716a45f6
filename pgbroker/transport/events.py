"""A worker's events on their way: its event loop sends many of them in one statement, and nobody waits for it.

Celery sends up to three events for each task. A broker that is spoken to through a socket takes them in passing; a
statement and its answer for each would cost the worker more than the tasks.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from pgbroker.errors import DatabaseError, PgBrokerError, StatementTimeout
from pgbroker.queue import event_calls
from pgbroker.queue.store import Message
from pgbroker.transport.conversation import Saying

#: While there are ever more, they wait for each other so long. The first one after a pause goes at once.
PACE_SECONDS = 0.05

#: One statement takes so many messages, and bytes of their bodies.
MOST_AT_ONCE = 200
MOST_BYTES_AT_ONCE = 1_000_000

#: If the server is slow or away, the oldest are dropped beyond so many.
MOST_WAITING = 5000


class EventBuffer:
    """Of one process. Messages may be added by any thread; the pump that drives the buffer takes them.

    Attributes:
        exchange: Where the worker sends its events to; ``None`` outside a worker, or where its pool runs tasks in the
            thread of the event loop, which would hold the events of a task back until its end.
        is_heard: Whether something was bound to the exchange when a message was last sent there. If not, a message is
            published as any other, so that it is found out whether anything is bound.
    """

    def __init__(self) -> None:
        self.exchange: str | None = None
        self.is_heard = False
        #: When the next statement may be sent, on the monotonic clock.
        self.due_at = 0.0
        self._drivers: list[Callable[[], None]] = []
        self._waiting: deque[Message] = deque(maxlen=MOST_WAITING)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._waiting)

    def takes(self, exchange: str) -> bool:
        """Whether a message to this exchange may be sent later."""
        return self.is_heard and exchange == self.exchange and bool(self._drivers)

    def add(self, message: Message) -> None:
        """Let a message wait for the event loop."""
        with self._lock:
            self._waiting.append(message)
        for wake in self._drivers:
            wake()

    def saying(self, prefix: str, now: float) -> Saying:
        """The statement that sends what waits, or as much of it as one takes.

        Args:
            prefix: Of the schema's functions.
            now: On the monotonic clock.
        """
        messages, self.due_at = self.take(), now + PACE_SECONDS
        return Saying(
            event_calls.post_many(prefix, messages),
            lambda rows: self.sent(is_heard=rows[0][0]),
            lambda exc: self.refused(messages, exc),
        )

    def take(self) -> list[Message]:
        """The next messages to be sent, in their order."""
        taken: list[Message] = []
        size_bytes = 0
        with self._lock:
            while self._waiting and len(taken) < MOST_AT_ONCE and size_bytes < MOST_BYTES_AT_ONCE:
                taken.append(self._waiting.popleft())
                size_bytes += len(taken[-1].body)
        return taken

    def sent(self, *, is_heard: bool) -> None:
        """Messages were sent; ``is_heard``: something is bound to the exchange that led on for one of them."""
        self.is_heard = is_heard

    def refused(self, messages: list[Message], exc: PgBrokerError) -> None:
        """They were not sent. They wait again, unless it was for their sake."""
        if isinstance(exc, DatabaseError) and not isinstance(exc, StatementTimeout):
            return
        with self._lock:
            room = MOST_WAITING - len(self._waiting)
            self._waiting.extendleft(reversed(messages[-room:] if room else []))

    def drive(self, wake: Callable[[], None]) -> None:
        """Somebody will take what waits; ``wake`` is called when there is something."""
        self._drivers.append(wake)

    def drive_no_more(self, wake: Callable[[], None]) -> None:
        """He ceases."""
        if wake in self._drivers:
            self._drivers.remove(wake)
