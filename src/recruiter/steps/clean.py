"""Clean: finished jobs are kept for a while, then go, in batches, so that the database can breathe between them."""

from __future__ import annotations

from datetime import datetime, timedelta

from recruiter.store.database import Store

BATCH = 1000


COUNTS_KEPT = timedelta(days=30)
"""They are small, and tell whether this Monday is like the last."""


def clean_counts(store: Store, now: datetime, keep_for: timedelta) -> int:
    """Removes one batch of the oldest counts; they are kept for a month, or as long as the jobs if that is longer."""
    return store.statistics.remove_older(now - max(keep_for, COUNTS_KEPT), BATCH)


def clean(store: Store, now: datetime, keep_for: timedelta) -> int:
    """Removes one batch of the oldest archived jobs; a full batch means that there may be more."""
    return store.archived.remove_older(now - keep_for, BATCH)
