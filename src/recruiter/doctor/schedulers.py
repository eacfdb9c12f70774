"""Repeatable jobs that are broken, late, have not kept a promise, or are paused."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from recruiter.doctor.thresholds import Thresholds
from recruiter.domain.duration import humanize
from recruiter.domain.finding import Finding, note, ok, problem
from recruiter.domain.schedule.scheduler import Scheduler
from recruiter.store.database import ServerFacts, Store
from recruiter.views.health import last_success


def _schedulers(store: Store, _: ServerFacts, thresholds: Thresholds) -> Iterator[Finding]:
    schedulers, well = store.schedulers.all(), 0
    for scheduler in schedulers:
        finding = _judged_scheduler(store, scheduler, store.clock.now(), thresholds)
        if finding is not None:
            yield finding
        else:
            well += 1
    if well:
        yield ok("schedulers", f"{well} of {len(schedulers)} schedulers are on time")


def _judged_scheduler(store: Store, scheduler: Scheduler, now: datetime, thresholds: Thresholds) -> Finding | None:
    who = f"scheduler {scheduler.urn}"
    if scheduler.broken:
        todo = f"Correct its policy or its job and create it again; or: recruiter scheduler remove {scheduler.urn}"
        return problem("schedulers", f"{who} is broken and makes no jobs: {scheduler.broken}", todo)
    if scheduler.paused:
        by, reason = scheduler.paused.by or "somebody", scheduler.paused.reason or "no reason given"
        todo = f"Resume it: recruiter scheduler resume {scheduler.urn}"
        return note("schedulers", f"{who} was paused by {by}: {reason}", todo)
    if scheduler.next_at is not None and now - scheduler.next_at > thresholds.late:
        late = humanize(now.replace(microsecond=0) - scheduler.next_at.replace(microsecond=0))
        return problem(
            "schedulers", f"{who} is {late} late", "Only a leader makes its jobs: see the finding about the leader"
        )
    told = scheduler.broken_promise(last_success(store, scheduler), now)
    if told is not None:
        todo = f"Look at its jobs: recruiter scheduler list, and recruiter scheduler next {scheduler.urn}"
        return problem("schedulers", f"{who} {told}", todo)
    return None


CHECKS = (_schedulers,)
