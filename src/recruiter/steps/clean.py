"""Clean: finished jobs are kept for a while, then go, in batches, so that the database can breathe between them."""

from __future__ import annotations

from datetime import datetime, timedelta

from recruiter.store.database import Store

BATCH = 1000


def clean(store: Store, now: datetime, keep_for: timedelta) -> int:
    """Removes one batch of the oldest archived jobs; a full batch means that there may be more."""
    return store.archived.remove_older(now - keep_for, BATCH)
