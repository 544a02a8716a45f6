"""``with pgbroker.transaction(conn): task.delay(...)``: tasks are committed or rolled back with the caller's rows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from pgbroker.queue import joined
from pgbroker.queue.framework_callers import caller_for


@contextlib.contextmanager
def transaction(conn: Any) -> Iterator[None]:
    """Publish the tasks of the block in the transaction of ``conn``.

    Nothing is seen by workers before that transaction commits, and a rollback (to a savepoint, too) takes the tasks
    back. The end of the block ends no transaction. Only jobs join: remote control, events and declarations do not, nor
    do retry and replacement of the task that is running here.

    Args:
        conn: A SQLAlchemy ``Session`` or ``Connection`` (also inside ``run_sync``), a psycopg2 or psycopg 3 connection,
            a Django connection or the alias of one.

    Raises:
        TypeError: ``conn`` is something else.
        NotInTransaction: It is in autocommit mode and in no transaction; raised at once, and at each publish.
        OtherDatabase: At the first publish: it does not lead to the broker's database.
        TransactionFailed: A publish made the transaction fail; raised there, and again at the end of the block if the
            first was caught and nothing rolled back.
    """
    caller = caller_for(conn)
    caller.connection()
    with joined.join(joined.Block([caller])):
        yield
