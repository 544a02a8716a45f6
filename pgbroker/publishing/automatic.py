"""Calls that join an open transaction without being told which, where the application has asked for that.

Looked for are Django's atomic blocks and the sessions of SQLAlchemy that were registered; both only of this thread,
greenlet or asyncio task.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

from pgbroker.queue import joined
from pgbroker.queue.callers import Caller, class_names
from pgbroker.queue.framework_callers import SCOPED_SESSION, DjangoCaller, SqlalchemyCaller

#: The setting of the application; a task's own ``join_transaction`` wins.
SETTING = "pgbroker_join_transactions"

_scoped_sessions: list[Any] = []
_began: ContextVar[tuple[weakref.ref[Any], ...]] = ContextVar("pgbroker_sessions", default=())


def register_session(source: Any) -> None:
    """Let calls that join by themselves join the transactions of these sessions.

    Args:
        source: A ``scoped_session`` (Flask-SQLAlchemy's ``db.session`` is one), of which the session of the current
            scope counts; or a ``sessionmaker``, of which those sessions count that began a transaction in this thread,
            greenlet or asyncio task.

    Raises:
        TypeError: It is neither.
    """
    from sqlalchemy import event
    from sqlalchemy.orm import sessionmaker

    if SCOPED_SESSION in class_names(source):
        if not any(known is source for known in _scoped_sessions):
            _scoped_sessions.append(source)
    elif isinstance(source, sessionmaker):
        if not event.contains(source, "after_transaction_create", _note_begin):
            event.listen(source, "after_transaction_create", _note_begin)
    else:
        raise TypeError(f"expected a scoped_session or a sessionmaker, not {type(source).__name__}")


def joining(task: Any) -> AbstractContextManager[None]:
    """For the publish of a call of this task: the open transactions, if the application wants them to be joined."""
    wanted = task.join_transaction
    if wanted is None:
        wanted = task.app.conf.get(SETTING)
    if not wanted or joined.current() is not None:
        return contextlib.nullcontext()
    callers = [*_django_callers(), *_session_callers()]
    return joined.join(joined.Block(callers, is_automatic=True)) if callers else contextlib.nullcontext()


def _django_callers() -> Iterator[Caller]:
    if "django.db" not in sys.modules:
        return
    for wrapper in sys.modules["django.db"].connections.all(initialized_only=True):
        if wrapper.in_atomic_block:
            yield DjangoCaller(wrapper)


def _session_callers() -> Iterator[Caller]:
    here = [scoped() for scoped in _scoped_sessions if scoped.registry.has()]
    here += [session for ref in _began.get() if (session := ref()) is not None]
    for session in here:
        if session.in_transaction():
            yield SqlalchemyCaller(session)


def _note_begin(session: Any, transaction: Any) -> None:
    if transaction.parent is not None:
        return
    # those of earlier transactions go: whether one is still open is asked of the session
    others = tuple(ref for ref in _began.get() if (s := ref()) is not None and s is not session and s.in_transaction())
    _began.set((*others, weakref.ref(session)))
