"""An operator who requeues a job wins over a revoke of before, also over one that this worker remembers.

``requeue.sql`` lifts the revoke in the database and marks the message. Celery's workers keep what they were told in
memory: ids for three hours, stamps for as long as they run.

Source: ``celery.worker.state``, ``celery.worker.request.Request.revoked`` (5.7).
"""

from __future__ import annotations

from typing import Any

from celery.worker import state as worker_state

#: Property of the message of a job that was requeued.
REQUEUED_AT = "requeued_at"


def forget_revoke(message: Any) -> None:
    """If this is such a job, let its task's id pass from now on, for its retries too."""
    if REQUEUED_AT in message.properties:
        worker_state.revoked.discard(message.headers.get("id"))


def overlook_stamps(request: Any) -> None:
    """If this is such a job, let no stamp that it bears keep it from running: others bear the stamp as well."""
    if REQUEUED_AT not in request.message.properties:
        return
    is_revoked = request.revoked

    def is_revoked_by_id() -> bool:
        whole = request._request_dict
        request._request_dict = {**whole, "stamped_headers": None}
        try:
            return bool(is_revoked())
        finally:
            request._request_dict = whole

    # on the instance: Celery makes its own subclass of Request
    request.revoked = is_revoked_by_id
