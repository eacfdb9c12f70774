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


def clean(
    store: Store,
    now: datetime,
    keep_for: timedelta,
    keep_failed: timedelta | None = None,
    *,
    since: datetime | None = None,
) -> int:
    """Removes one batch of the oldest archived jobs; a full batch means that there may be more.

    Those that did not succeed are kept for `keep_failed`, or for as long as they say themselves. Those that succeeded
    are looked for from `since` on.
    """
    archived = store.archived
    removed = archived.remove_succeeded(now - keep_for, BATCH, since)
    if removed < BATCH:
        failed_than = now - (keep_for if keep_failed is None else keep_failed)
        removed += archived.remove_failed(failed_than, BATCH - removed)
    if removed < BATCH:
        removed += archived.remove_kept(now, BATCH - removed)
    return removed
