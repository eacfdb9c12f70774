"""Overdue: schedulers that must succeed within some time, and have not."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from recruiter.domain.schedule.scheduler import Scheduler
from recruiter.store.database import Store


@dataclass(frozen=True, slots=True)
class Overdue:
    urn: str
    told: str


def overdue(store: Store, now: datetime) -> list[Overdue]:
    """Looks at all that have promised something; remembers the successes that it finds."""
    found = []
    for scheduler in store.schedulers.promising():
        told = scheduler.broken_promise(_last_success(store, scheduler), now)
        if told is not None:
            found.append(Overdue(scheduler.urn, told))
    return found


def _last_success(store: Store, scheduler: Scheduler) -> datetime | None:
    ended = store.archived.latest(scheduler.urn, done=True)
    if ended is None or (scheduler.succeeded_at is not None and ended.archived_at <= scheduler.succeeded_at):
        return scheduler.succeeded_at
    store.schedulers.note_success(scheduler.urn, ended.archived_at)
    return ended.archived_at
