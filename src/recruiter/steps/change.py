"""Change: another time or another priority for waiting jobs. `store/changes.py` explains the protocol."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from recruiter.domain.duration import DurationLike, not_before, to_timedelta
from recruiter.domain.job import Happened, JobId
from recruiter.domain.names import BLOCKED_LANE, CANCELLED_LANE, check_priority, id_told
from recruiter.domain.retry.decision import after
from recruiter.domain.search.filter import JobFilter
from recruiter.errors import InvalidJob, JobNotFound, JobNotWaiting, RecruiterError
from recruiter.store.changes import JobChange
from recruiter.store.database import Store
from recruiter.store.job_fields import may_expire, waiting_for
from recruiter.store.search import matching


def to_time(
    now: datetime, at: datetime | None, in_: DurationLike | None, by: str | None, reason: str | None
) -> JobChange:
    """The change to a time, or to a delay from now. Raises InvalidJob, InvalidDuration."""
    if (at is None) == (in_ is None):
        raise InvalidJob("reschedule needs either a time (at=…) or a delay (in_=…)")
    if in_ is not None:
        at = after(now, to_timedelta(in_))
    elif not isinstance(at, datetime) or at.utcoffset() is None:
        raise InvalidJob("reschedule needs a datetime with a time zone in at; add tzinfo=UTC")
    assert at is not None
    return JobChange(Happened.RESCHEDULED, not_before(at), now, by, reason)


def to_now(now: datetime, by: str | None, reason: str | None) -> JobChange:
    """The change that makes postponed jobs due."""
    return JobChange(Happened.RUN_NOW, now, now, by, reason)


def to_priority(now: datetime, priority: int | float, by: str | None, reason: str | None) -> JobChange:
    """Raises InvalidJob."""
    return JobChange(Happened.REPRIORITISED, check_priority(priority), now, by, reason)


def change_one(store: Store, id: JobId, change: JobChange) -> None:
    """Changes a job. Raises JobNotFound when it has ended or never was, and JobNotWaiting when it cannot be changed."""
    if not store.changes.apply(change, [id]):
        refusal = _refusal(store, id, change)
        if refusal is not None:
            raise refusal


def change_some(store: Store, filter: JobFilter, ids: Sequence[JobId], change: JobChange) -> int:
    """Changes jobs that a filter has found, if they still match it; returns how many. Jobs that cannot be changed stay
    unchanged."""
    fields = matching.residual(matching.of_waiting(filter, change.at), "worker", "slow")
    return store.changes.apply(change, ids, [*fields, *matching.due_between(filter, change.at)])


def _refusal(store: Store, id: JobId, change: JobChange) -> RecruiterError | None:
    """The error of a change that changed nothing; None if the job is already as wanted."""
    job, hold = f"job {id_told(id)}", store.roster.holder(id)
    document = store.scheduled.document(id)
    if document is None:
        if not store.archived.exists(id):
            return JobNotFound(f"there is no {job}")
        return JobNotFound(f"{job} has ended; `recover` runs it once more")
    lane, expires_at = document.get("lane"), document.get("expires_at")
    if lane is None:
        return JobNotWaiting(f"{job} was inserted by another program and is not adopted yet; try again in a second")
    if lane == CANCELLED_LANE:
        return JobNotWaiting(f"{job} is being cancelled")
    if hold is not None:
        return JobNotWaiting(f"worker {hold.worker} holds {job}: it runs, or starts soon; nothing was changed")
    if lane == BLOCKED_LANE:
        return JobNotWaiting(f"{job} waits for other steps of its flow, or its flow is paused; nothing was changed")
    if not isinstance(change.to, datetime):
        return None  # it has this priority
    if (wait := waiting_for(document)) is not None:
        return JobNotWaiting(
            f"{job} waits for the signal {wait.signal!r}; send it with `recruiter job signal`, or cancel it"
        )
    fixed = document.get("expires_in") is None and may_expire(document)
    if fixed and isinstance(expires_at, datetime) and expires_at <= change.to:
        return InvalidJob(f"{job} expires at {expires_at:%Y-%m-%d %H:%M:%S} UTC and would not start after that")
    if change.what is Happened.RUN_NOW and document.get("scheduled_at", change.to) <= change.to:
        return None  # it is due
    return JobNotWaiting(f"a worker has just taken {job}, or another call has just changed it; look at it again")
