"""Overdue: schedulers that must succeed within some time, and have not."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from recruiter.domain.duration import humanize
from recruiter.domain.scheduler import Scheduler
from recruiter.store.database import Store


@dataclass(frozen=True, slots=True)
class Overdue:
    urn: str
    told: str


def overdue(store: Store, now: datetime) -> list[Overdue]:
    """Looks at all that have promised something; remembers the successes that it finds."""
    found = []
    for scheduler in store.schedulers.promising():
        succeeded_at = _last_success(store, scheduler)
        promise = scheduler.must_succeed_within
        assert promise is not None
        late = now - max(succeeded_at or scheduler.created_at, scheduler.created_at) - promise
        if late.total_seconds() > 0 and scheduler.paused is None:
            last = f"its last success is from {succeeded_at:%Y-%m-%d %H:%M:%S}" if succeeded_at else "it never has"
            found.append(Overdue(scheduler.urn, f"must succeed every {humanize(promise)}, and {last}"))
    return found


def _last_success(store: Store, scheduler: Scheduler) -> datetime | None:
    ended = store.archived.latest(scheduler.urn, done=True)
    if ended is None or (scheduler.succeeded_at is not None and ended.archived_at <= scheduler.succeeded_at):
        return scheduler.succeeded_at
    store.schedulers.note_success(scheduler.urn, ended.archived_at)
    return ended.archived_at
