"""Schedule: makes, changes, pauses and removes schedulers. `repeat` makes the jobs of their occurrences."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from recruiter.domain.job import Job
from recruiter.domain.policy_registry import SchedulePolicyRegistry
from recruiter.domain.schedule.occurrences import next_occurrence
from recruiter.domain.schedule.scheduler import Pause, Scheduler
from recruiter.errors import SchedulerNotFound
from recruiter.store.codec import Document, job_document, new_id
from recruiter.store.database import Store
from recruiter.store.job_fields import Use, names, options

_OWN = names(Use.OWN)
_OPTIONS = options()


def put(store: Store, scheduler: Scheduler) -> Scheduler | None:
    """Creates or changes it; returns the one there was. An occurrence that nobody has started yet is changed too."""
    before = store.schedulers.put(scheduler)
    if before is not None and not before.same_definition(scheduler):
        fields: Document = {name: value for name, value in job_document(scheduler.template).items() if name not in _OWN}
        ids = store.scheduled.not_begun(scheduler.urn)
        if ids:
            store.scheduled.change(ids, fields, [name for name in _OPTIONS if name not in fields])
    return before


def get(store: Store, urn: str) -> Scheduler:
    scheduler = store.schedulers.get(urn)
    if scheduler is None:
        raise _not_found(urn)
    return scheduler


def pause(store: Store, now: datetime, urn: str, by: str | None, reason: str | None) -> None:
    get(store, urn)
    store.schedulers.pause(urn, Pause(now, by, reason))


def resume(store: Store, policies: SchedulePolicyRegistry, now: datetime, urn: str) -> None:
    """Goes on with the first occurrence after now."""
    while True:
        scheduler = get(store, urn)
        if scheduler.paused is None:
            return
        handled = max(now, scheduler.handled)
        if store.schedulers.resume(scheduler, handled, next_occurrence(policies.load(scheduler.schedule), handled)):
            return


def _check_exists(store: Store, urn: str) -> None:
    """Also of one that cannot be read."""
    if not store.schedulers.exists(urn):
        raise _not_found(urn)


def _not_found(urn: str) -> SchedulerNotFound:
    return SchedulerNotFound(f"there is no scheduler {urn!r}; `recruiter scheduler list` shows those there are")


def remove(store: Store, now: datetime, urn: str) -> int:
    """Removes it, and asks for its jobs that have not ended to be cancelled; returns how many."""
    _check_exists(store, urn)
    store.schedulers.remove(urn)
    return store.scheduled.flag_urn(urn, {"at": now, "by": "scheduler", "reason": "its scheduler was removed"})


def extra_job(scheduler: Scheduler, now: datetime) -> Job:
    """A job like an occurrence, now; its id is its own, so it takes no occurrence's place."""
    return replace(
        scheduler.template,
        id=new_id(),
        urn=scheduler.urn,
        created_at=now,
        scheduled_at=now,
        expires_at=scheduler.template.expiry(now),
    )


def next_runs(scheduler: Scheduler, policies: SchedulePolicyRegistry, now: datetime, count: int) -> list[datetime]:
    policy = policies.load(scheduler.schedule)
    runs: list[datetime] = []
    moment: datetime | None = max(now, scheduler.handled)
    while moment is not None and len(runs) < count:
        moment = next_occurrence(policy, moment)
        if moment is not None:
            runs.append(moment)
    return runs
