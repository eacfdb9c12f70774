"""Cancel: sets the cancelled flag, and archives flagged and expired jobs that no worker holds.

The flag decides nothing by itself, so there is no race: the worker that holds a job stops and settles it. The leader,
which is the only process that could assign a job, archives jobs that no worker holds.

Expired jobs go the same way. A worker checks the time before it starts a job (execute.py). The leader archives expired
jobs that still wait, for example in a paused group.
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

FLAGS_AT_ONCE = EXPIRED_AT_ONCE = 500
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
    """Asks for jobs to be cancelled that a filter has found, if they still match it; returns their number. Jobs that
    have ended or are flagged already are not counted."""
    fields = matching.residual(matching.of_waiting(filter, now), "worker", "slow")
    conditions = [*fields, *matching.due_between(filter, now)]
    return store.scheduled.flag_some(ids, conditions, {"at": now, "by": by, "reason": reason})


def without_new_jobs(began: datetime, now: datetime) -> tuple[Document, ...]:
    """The condition that leaves out jobs that were created more than a minute after the call began: cancelling does not
    chase a faster producer. Jobs with a date in the future are included: the date is wrong."""
    until = began + _CHASED_FOR
    return () if now <= until else ({"$nor": [{"created_at": {"$gt": until, "$lte": now}}]},)


OnArchived = Callable[[Document], None]
"""Called with each job that was archived."""


def archive_cancelled(
    store: Store, clock: Clock, term: int, holder: str, on_archived: OnArchived = lambda _: None
) -> Parsed[JobId]:
    """Archives a batch of flagged jobs that no worker holds. Only for the leader: no other process assigns them."""
    free = store.scheduled.flagged(FLAGS_AT_ONCE, store.roster.held())
    return _archive(store, clock.now(), term, holder, free, outcomes.cancelled, on_archived)


def archive_expired(
    store: Store, clock: Clock, term: int, holder: str, on_archived: OnArchived = lambda _: None
) -> Parsed[JobId]:
    """Archives a batch of expired jobs that no worker holds. Only for the leader."""
    now = clock.now()
    if not store.scheduled.any_expired(now):
        return Parsed()
    free = store.scheduled.expired(now, EXPIRED_AT_ONCE, store.roster.held())
    return _archive(store, now, term, holder, free, outcomes.expired, on_archived)


def _archive(
    store: Store,
    now: datetime,
    term: int,
    holder: str,
    free: Parsed[Document],
    outcome: Callable[[Document, datetime], ToArchive],
    on_archived: OnArchived,
) -> Parsed[JobId]:
    """Archives jobs that no worker holds, with this outcome; returns their ids. If MongoDB refuses an outcome, a
    smaller form of it is archived. A job that another transaction holds is left for the next pass."""
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
        on_archived(document)
    return Parsed((document["_id"] for document in archived), free.unreadable)
