"""Repeat: creates, changes, pauses and removes schedulers. The leader creates the jobs of due occurrences.

    due schedulers ──▶ late_occurrences: the instants ──▶ one transaction: fence, move `handled`, insert jobs

Every occurrence is created once, no matter which process dies. Its job and the new `handled` of its scheduler are
written in one transaction, on three conditions: this term still leads, the scheduler has not changed since it was read,
and no job with the id of this occurrence exists.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from recruiter.domain.job import Job
from recruiter.domain.policy_registry import SchedulePolicyRegistry
from recruiter.domain.schedule.scheduler import Due, Pause, Plan, Scheduler, late_occurrences, next_occurrence, plan
from recruiter.domain.text import cut
from recruiter.errors import DocumentLocked, InvalidSchedule, SchedulerNotFound
from recruiter.store.codec import Document, job_document, new_id
from recruiter.store.database import Store
from recruiter.store.job_fields import Use, names, options

_OWN = names(Use.OWN)
_OPTIONS = options()


def put(store: Store, scheduler: Scheduler) -> Scheduler | None:
    """Creates or changes a scheduler; returns the previous one. Occurrences that have not begun are changed too. If a
    run begins in the same moment, its next attempt or its next write may see the new definition."""
    before = store.schedulers.put(scheduler)
    if before is not None and not before.same_definition(scheduler):
        fields: Document = {name: value for name, value in job_document(scheduler.template).items() if name not in _OWN}
        ids = set(store.scheduled.not_begun(scheduler.urn))
        if ids:
            ids -= store.roster.held()  # they may run now
            store.scheduled.change(list(ids), fields, [name for name in _OPTIONS if name not in fields])
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
    """Ends the pause of a scheduler. Its next occurrence is the first after now."""
    while True:
        scheduler = get(store, urn)
        if scheduler.paused is None:
            return
        handled = max(now, scheduler.handled)
        if store.schedulers.resume(scheduler, handled, next_occurrence(policies.load(scheduler.schedule), handled)):
            return


def _not_found(urn: str) -> SchedulerNotFound:
    return SchedulerNotFound(f"there is no scheduler {urn!r}; `recruiter scheduler list` shows all schedulers")


def remove(store: Store, now: datetime, urn: str) -> int:
    """Removes it, and cancels its jobs that have not ended; returns their number."""
    if not store.schedulers.remove(urn):
        raise _not_found(urn)
    return store.scheduled.flag_all([urn], {"at": now, "by": "scheduler", "reason": "its scheduler was removed"})


def extra_job(scheduler: Scheduler, now: datetime) -> Job:
    """An extra job like an occurrence, due now. It has a new id, so it replaces no occurrence."""
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


MAX_SCHEDULERS_PER_PASS = 500
MAX_OCCURRENCES_PER_TRANSACTION = 1_000
"""Approximately; the leader has other work between two transactions."""
_MAX_ASKING_SECONDS = 0.5
"""For the calls of schedule policies; then the occurrences that are known so far are created."""
_RETRY_BROKEN_AFTER = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Repetition:
    """The effects of one pass over the schedulers that are due."""

    made: int = 0
    skipped: int = 0
    broken: tuple[tuple[str, str], ...] = ()
    """Urns and reasons, including unreadable schedulers."""
    more: bool = False
    """More schedulers may be due: repeat the pass immediately."""
    locked: bool = False
    """Another open transaction has written a scheduler or its job: repeat the pass later."""


def repeat(store: Store, policies: SchedulePolicyRegistry, term: int, holder: str, now: datetime) -> Repetition:
    """Creates the occurrences that are due, one pass. A scheduler whose policy fails is postponed. Only for the leader;
    raises Superseded when it no longer leads."""
    found = store.schedulers.due(now, MAX_SCHEDULERS_PER_PASS)
    until = store.clock.monotonic() + _MAX_ASKING_SECONDS
    occurrences = 0
    calendar = _Calendar(policies, now)
    dues: dict[str, tuple[Scheduler, Due]] = {}
    broken: list[tuple[str, str]] = []
    for document in found.unreadable:
        store.schedulers.set_aside(document, document.reason, now + _RETRY_BROKEN_AFTER)
    for scheduler in found:
        if occurrences >= MAX_OCCURRENCES_PER_TRANSACTION or store.clock.monotonic() > until:
            break
        try:
            dues[scheduler.urn] = scheduler, calendar.due(scheduler)
            occurrences += len(dues[scheduler.urn][1].occurrences)
        except InvalidSchedule as error:
            broken.append((scheduler.urn, cut(str(error))))
            store.schedulers.set_aside(scheduler, cut(str(error)), now + _RETRY_BROKEN_AFTER)
    locked: list[str] = []
    plans = _create(store, dues, now, term, holder, locked) if dues else []
    return Repetition(
        made=sum(len(plan.instants) for plan in plans),
        skipped=sum(plan.skipped for plan in plans),
        broken=(*broken, *((document.id, document.reason) for document in found.unreadable)),
        more=len(found) + len(found.unreadable) == MAX_SCHEDULERS_PER_PASS or len(dues) + len(broken) < len(found),
        locked=bool(locked),
    )


class _Calendar:
    """Calls each policy once: on the hour, thousands of schedulers have the same occurrences."""

    def __init__(self, policies: SchedulePolicyRegistry, now: datetime) -> None:
        self._policies = policies
        self._now = now
        self._answers: dict[tuple[Any, ...], Due] = {}

    def due(self, scheduler: Scheduler) -> Due:
        if not scheduler.template.task:
            raise InvalidSchedule(scheduler.broken or "its job cannot be one")
        question = (repr(scheduler.schedule), scheduler.handled, scheduler.window, scheduler.late)
        if question not in self._answers:
            policy = self._policies.load(scheduler.schedule)
            window, late = scheduler.window, scheduler.late
            self._answers[question] = late_occurrences(policy, scheduler.handled, self._now, window, late)
        return self._answers[question]


def _create(
    store: Store, dues: dict[str, tuple[Scheduler, Due]], now: datetime, term: int, holder: str, locked: list[str]
) -> list[Plan]:
    """Creates the due occurrences: in one transaction, or scheduler by scheduler if any was changed or is locked. Adds
    the schedulers to `locked` that another transaction holds up."""

    def decide(busy: set[str]) -> list[Plan]:
        return [plan(scheduler, due, urn in busy) for urn, (scheduler, due) in dues.items()]

    try:
        plans = store.transactions.repeat(list(dues), decide, now, term, holder)
    except DocumentLocked:
        plans = None
        if len(dues) == 1:
            locked += dues
    if plans is not None:
        return plans
    if len(dues) == 1:
        return []  # it was just changed, paused or removed, or is locked: the next pass reads it again
    return [made for urn, due in dues.items() for made in _create(store, {urn: due}, now, term, holder, locked)]
