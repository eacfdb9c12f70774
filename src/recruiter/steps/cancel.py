"""Cancel: sets the cancelled flag, and archives flagged and expired jobs that nobody holds.

The flag decides nothing by itself, so there is no race: the worker that holds a job stops and settles it; a job that
nobody holds is archived by the leader, the only process that could assign it.

Expired jobs go the same way. A worker checks the time before it starts a job (execute.py); a job that waits, in a
paused group or without a worker, is found here by the leader.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from recruiter.clock import Clock
from recruiter.domain.job import JobId
from recruiter.domain.names import id_told
from recruiter.domain.search.filter import JobFilter
from recruiter.domain.unreadable import Parsed
from recruiter.errors import DocumentLocked, DocumentRefused, JobNotFound
from recruiter.store import outcomes
from recruiter.store.batches import write_split
from recruiter.store.codec import Document
from recruiter.store.database import Store
from recruiter.store.outcomes import OutcomeBatch, ToArchive
from recruiter.store.search import matching

FLAGS_AT_ONCE = 500
_CHASED_FOR = timedelta(minutes=1)


def cancel(store: Store, clock: Clock, id: JobId, by: str | None = None, reason: str | None = None) -> None:
    """Asks for a job to be cancelled. Raises JobNotFound when it has ended already, or never was."""
    if store.scheduled.flag_cancelled(id, clock.now(), by, reason):
        return
    ended = store.archived.get(id)
    if ended is None:
        raise JobNotFound(f"there is no job {id_told(id)}")
    raise JobNotFound(f"job {id_told(id)} has ended already ({ended.why}); nothing to cancel")


def cancel_some(
    store: Store, filter: JobFilter, ids: Sequence[JobId], now: datetime, by: str | None, reason: str | None
) -> int:
    """The same for jobs that a filter has found, if they are still such; returns how many. One that has ended meanwhile
    is left as it is, and one that is flagged already is not counted again."""
    fields = matching.residual(matching.of_waiting(filter, now), "worker", "slow")
    conditions = [*fields, *matching.due_between(filter, now)]
    return store.scheduled.flag_some(ids, conditions, {"at": now, "by": by, "reason": reason})


def without_new_jobs(began: datetime, now: datetime) -> tuple[Document, ...]:
    """The condition that leaves out jobs which have been made since, but for a minute's worth: cancelling does not run
    after a quicker producer for ever. A date that lies in the future is somebody's mistake, and counts."""
    until = began + _CHASED_FOR
    return () if now <= until else ({"$nor": [{"created_at": {"$gt": until, "$lte": now}}]},)


Tell = Callable[[Document], None]
"""Called with each job that was archived."""


def _nobody(_: Document) -> None:
    """Is told."""


def archive_cancelled(store: Store, clock: Clock, term: int, holder: str, tell: Tell = _nobody) -> Parsed[JobId]:
    """Archives a batch of flagged jobs that nobody holds. Only for the leader: no other process could assign them."""
    free = store.scheduled.flagged(FLAGS_AT_ONCE, store.roster.held())
    return _archive(store, clock.now(), term, holder, free, outcomes.cancelled, tell)


EXPIRED_AT_ONCE = 500


def archive_expired(store: Store, clock: Clock, term: int, holder: str, tell: Tell = _nobody) -> Parsed[JobId]:
    """Archives a batch of expired jobs that nobody holds. Only for the leader."""
    now = clock.now()
    if not store.scheduled.any_expired(now):
        return Parsed()
    free = store.scheduled.expired(now, EXPIRED_AT_ONCE, store.roster.held())
    return _archive(store, now, term, holder, free, outcomes.expired, tell)


def _archive(
    store: Store,
    now: datetime,
    term: int,
    holder: str,
    free: Parsed[Document],
    outcome: Callable[[Document, datetime], ToArchive],
    tell: Tell,
) -> Parsed[JobId]:
    """If MongoDB refuses what would be archived of a job, as much of it is archived as can be. A job that another
    transaction holds is left for the next time."""
    left: set[JobId] = set()

    def write(archive: Sequence[tuple[JobId, ToArchive]]) -> None:
        store.transactions.archive_unheld(OutcomeBatch(archive=dict(archive)), term, holder)

    def alone(item: tuple[JobId, ToArchive], error: DocumentRefused | DocumentLocked) -> None:
        if isinstance(error, DocumentLocked):
            left.add(item[0])
        else:
            store.transactions.archive_reduced(*item, error, now, term, holder)

    if free:
        write_split([(document["_id"], outcome(document, now)) for document in free], write, alone)
    archived = [document for document in free if document["_id"] not in left]
    for document in archived:
        tell(document)
    return Parsed((document["_id"] for document in archived), free.unreadable)
