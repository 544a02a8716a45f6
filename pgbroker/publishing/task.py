"""``task_cls="pgbroker:Task"``: dedupe keys on tasks, and results that know whether they are duplicates."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
from collections.abc import Callable
from typing import Any

import celery
from celery.utils import uuid

from pgbroker.errors import DedupeNotSupported, DuplicateJob
from pgbroker.publishing import automatic, awaiting, canvas
from pgbroker.queue import joined
from pgbroker.queue.job_arguments import check_key
from pgbroker.transport import handing_on, receipts

canvas.install()

DedupeKey = str | bool | Callable[[tuple[Any, ...], dict[str, Any]], str | None] | None


class Task(celery.Task):  # type: ignore[type-arg]
    """A Celery task whose calls may carry a dedupe key.

    Attributes:
        dedupe_key: Key of every call: a format string over the bound arguments (``"collect:{place_id}"``), a
            callable ``(args, kwargs) -> str | None``, or ``True`` for the task's name and arguments.
        dead_letter: ``False``: a failure for good leaves no dead letter.
        join_transaction: ``True``: a call joins an open transaction by itself; ``None``: if the application's setting
            ``pgbroker_join_transactions`` says so.
    """

    dedupe_key: DedupeKey = None
    dead_letter: bool = True
    join_transaction: bool | None = None

    def apply_async(
        self,
        args: Any = None,
        kwargs: Any = None,
        task_id: str | None = None,
        *more: Any,
        dedupe_key: str | None = None,
        on_duplicate: str | None = None,
        **options: Any,
    ) -> Any:
        """Publish a call; see ``celery.Task.apply_async``.

        Args:
            args: Positional arguments of the task.
            kwargs: Keyword arguments of the task.
            task_id: Id of the call, made up if not given.
            *more: As Celery has them.
            dedupe_key: Holds until this call really ends: another call with this key in this queue is not stored.
                Wins over the task's own key.
            on_duplicate: ``"raise"``: a duplicate raises.
            **options: As Celery has them.

        Returns:
            The result. For a duplicate it is that of the live job, with ``duplicate`` true.

        Raises:
            DuplicateJob: The key is held, and ``on_duplicate`` is ``"raise"``.
        """
        if on_duplicate not in (None, "raise"):
            raise ValueError(f'on_duplicate must be "raise" or None, not {on_duplicate!r}')
        key = dedupe_key if dedupe_key is not None else self._own_key(task_id, args, kwargs)
        if key is not None:
            options["dedupe_key"] = check_key(key)
        own_id = task_id or uuid()
        # an id that was given to us may be known elsewhere: a member of a group, a retry
        is_expendable = task_id is None or on_duplicate == "raise"
        with receipts.collect(own_id, is_expendable=is_expendable) as found, automatic.joining(self):
            result: Any = super().apply_async(args, kwargs, own_id, *more, **options)
        twin = next((receipt for receipt in found if receipt.duplicate_of is not None), None)
        if task_id is None and twin is not None and twin.duplicate_task_id == own_id:
            twin = None  # published twice, because the connection was lost before the first answer
        if twin is not None and options.get("chord") is not None:
            raise DedupeNotSupported(
                f"chord member {self.name} is a duplicate of task {twin.duplicate_task_id}: the chord cannot complete"
            )
        if twin is not None and twin.duplicate_task_id is not None:
            live = None if on_duplicate == "raise" else self.AsyncResult(twin.duplicate_task_id)
            self._correct_trail(own_id, live)
            if live is None:
                raise DuplicateJob(twin.duplicate_of or 0, twin.duplicate_task_id)
            result = live
        result.duplicate = twin is not None
        return result

    async def adelay(self, *args: Any, **kwargs: Any) -> Any:
        """``delay()`` for asyncio, see :meth:`aapply_async`."""
        return await self.aapply_async(args, kwargs)

    async def aapply_async(self, args: Any = None, kwargs: Any = None, *more: Any, **options: Any) -> Any:
        """``apply_async()`` for asyncio: arguments, result and errors are the same, the event loop does not wait.

        A cancelled ``await`` stops waiting; whether the call was published is then not known, unless it had not begun.
        """
        call = functools.partial(self.apply_async, args, kwargs, *more, **options)
        with automatic.joining(self):
            return await awaiting.publish(call)

    def replace(self, sig: Any) -> Any:
        """See ``celery.Task.replace``. What takes the task's place joins no transaction that the task has opened.

        That one is rolled back, as a rule, by the exception with which the task ends here.
        """
        with joined.outside():
            return super().replace(sig)

    def _correct_trail(self, task_id: str, live: Any) -> None:
        """Make the live job a child of the running task, where Celery has just noted a task that does not exist."""
        running = self.app.current_worker_task
        children = running.request.children if running is not None else None
        if children and getattr(children[-1], "id", None) == task_id:
            children[-1:] = [] if live is None else [live]

    def _own_key(self, task_id: str | None, args: Any, kwargs: Any) -> str | None:
        if handing_on.is_handed_on(task_id):
            return None  # the transport passes on the key that the running job holds, wherever it came from
        return self.dedupe_key_of(tuple(args or ()), dict(kwargs or {}))

    def dedupe_key_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        """The key that the task's own ``dedupe_key`` gives a call, or ``None``.

        Raises:
            ValueError: The format string names an argument that the call does not have.
        """
        rule: Any = inspect.getattr_static(self, "dedupe_key")  # a function in the class is no method here
        rule = getattr(rule, "__func__", rule)
        if rule is None or rule is False:
            return None
        if rule is True:
            text = json.dumps([args, kwargs], sort_keys=True, default=repr)
            return f"{self.name}:{hashlib.sha256(text.encode()).hexdigest()}"
        if callable(rule):
            key: str | None = rule(args, kwargs)
            return key
        try:
            bound = inspect.signature(self.run).bind(*args, **kwargs)
            bound.apply_defaults()
            return str(rule).format(**bound.arguments)
        except (TypeError, KeyError, IndexError) as exc:
            raise ValueError(f"dedupe_key {rule!r} of task {self.name} does not fit this call: {exc}") from None
