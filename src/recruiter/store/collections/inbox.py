"""Documents in `scheduled` that other programs have inserted, before the leader adopts them; some are locked.

A program that keeps its own jobs in this collection, or has moved here from another queue, may write `locked_by` and
`locked_at` into a document before it works on it. Such a lock is respected for a while, which its holder may
prolong by writing a newer `locked_at`; then the document is taken over. A lock without a date is nobody's.

Our own locks are in the roster: workers hold nothing that has not been adopted.
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
    """The query for documents that nobody holds, or not for as long as it seems: a lock from the future has no end."""
    fresh = {"$gt": now - LOCK_LASTS, "$lt": now + LOCK_LASTS}
    return {"$or": [{"locked_by": {"$not": {"$gt": ""}}}, {"locked_at": {"$not": fresh}}]}


def is_locked(document: Mapping[str, Any], now: datetime) -> bool:
    """Whether another program holds it: the opposite of what `unlocked` finds."""
    holder, since = document.get("locked_by"), document.get("locked_at")
    return isinstance(holder, str) and holder > "" and isinstance(since, datetime) and abs(now - since) < LOCK_LASTS


def job_elsewhere(document: Mapping[str, Any], now: datetime) -> Job:
    """A document that another program holds as the job that it will be. Raises StoreError for one that nobody holds:
    what is in it has not been looked at yet."""
    if is_locked(document, now):
        try:
            return job_from({**document, **adopted_fields(dict(document), now)})
        except InvalidJob:
            pass  # the leader will set it aside, in its time
    raise not_adopted(document["_id"])


def not_adopted(id: JobId) -> StoreError:
    return StoreError(
        f"job {id_told(id)} was inserted by another program, and no leader has adopted it yet; ask again in a second"
    )
