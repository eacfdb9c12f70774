"""Documents in `scheduled` that other programs have inserted, before the leader adopts them; some are locked.

Another program may write `locked_by` and `locked_at` into a document before it works on it. Such a lock is respected
for 15 minutes, and its holder may prolong it by writing a newer `locked_at`. Then the document is taken over. A lock
without a date does not count.

Our locks are in the roster: workers hold only adopted documents.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from recruiter.domain.job import Job, JobId
from recruiter.domain.names import id_told
from recruiter.errors import InvalidJob, StoreError
from recruiter.store.codec import Document, adopted_fields, job_from

LOCK_LASTS = timedelta(minutes=15)


def unlocked(now: datetime) -> Document:
    """The query for documents without a valid lock. A lock from the future is invalid: it would have no end."""
    fresh = {"$gt": now - LOCK_LASTS, "$lt": now + LOCK_LASTS}
    return {"$or": [{"locked_by": {"$not": {"$gt": ""}}}, {"locked_at": {"$not": fresh}}]}


def is_locked(document: Mapping[str, Any], now: datetime) -> bool:
    """Whether another program holds it: the opposite of `unlocked`."""
    holder, since = document.get("locked_by"), document.get("locked_at")
    return isinstance(holder, str) and holder > "" and isinstance(since, datetime) and abs(now - since) < LOCK_LASTS


def job_elsewhere(document: Mapping[str, Any], now: datetime) -> Job:
    """The job that a locked document will be. Raises StoreError for a document without a lock: it is unchecked."""
    if is_locked(document, now):
        try:
            return job_from({**document, **adopted_fields(dict(document), now)})
        except InvalidJob:
            pass  # the leader will set it aside
    raise not_adopted(document["_id"])


def not_adopted(id: JobId) -> StoreError:
    return StoreError(
        f"job {id_told(id)} was inserted by another program, and no leader has adopted it yet; ask again in a second"
    )
