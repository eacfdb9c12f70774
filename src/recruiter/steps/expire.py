"""Expire: jobs that nobody has started in time are archived, and never start.

Whoever runs a job looks at the time before it starts (execute.py). A job that waits, in a paused group or without a
worker, is found here by the leader, the only one who could give it to somebody.
"""

from __future__ import annotations

from recruiter.clock import Clock
from recruiter.domain.job import JobId
from recruiter.domain.unreadable import Parsed
from recruiter.store import outcomes
from recruiter.store.database import Store
from recruiter.store.transactions import OutcomeBatch

EXPIRED_AT_ONCE = 500


def archive_expired(store: Store, clock: Clock, term: int, holder: str) -> Parsed[JobId]:
    """Archives a batch of expired jobs that nobody holds. Only for the leader."""
    now = clock.now()
    free = store.scheduled.expired(now, EXPIRED_AT_ONCE, store.roster.held())
    if free:
        archive = {document["_id"]: outcomes.expired(document, now) for document in free}
        store.transactions.archive_unheld(OutcomeBatch(archive=dict(archive)), term, holder)
    return Parsed((document["_id"] for document in free), free.unreadable)
