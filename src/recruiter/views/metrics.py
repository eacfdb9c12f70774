"""Metrics for a monitoring system.

Counters (starts, ends, retries, times) come from the totals of `statistics`, which no restart or cleaning resets.
Gauges are the current state. Both are read from indexes and counts, so the size of the archive does not matter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from recruiter.domain.lane import Lane
from recruiter.domain.names import ASIDE
from recruiter.domain.schedule.scheduler import Scheduler
from recruiter.domain.statistics import Counts, Kind, Queue, Spread
from recruiter.store.database import Store
from recruiter.views.analytics import waiting
from recruiter.views.health import last_success
from recruiter.views.resources import LimitUse, limit_uses

_MAX_LANES_READ = 2_000
"""Maximum number of lanes whose oldest job is read."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """All metrics at one time."""

    queues: Mapping[Kind, Queue]
    totals: Mapping[Kind, Counts]
    """All counts, the kind that was seen first comes first."""
    oldest_due: Mapping[str, float]
    """Age in seconds of the oldest due job of each group that no worker holds; 0 without one."""
    archived: int
    """About how many jobs the archive has."""
    workers: Mapping[str, int]
    """By state."""
    slots: int
    """Of the workers that are not silent, like `slots_used`."""
    slots_used: int
    leader_present: bool
    term: int
    rounds: Spread
    """Duration of the rounds of all leaders."""
    assigned: int
    """By all leaders."""
    limits: Sequence[LimitUse]
    paused: frozenset[str]
    """Groups, all of them where all starts are blocked."""
    schedules: Mapping[str, int]
    """By state."""
    schedule_lateness: float
    """Seconds that the latest of them is late."""


def metrics(store: Store) -> Metrics:
    now = store.clock.now()
    queues = waiting(store, now)
    totals: dict[Kind, Counts] = {}
    for period in sorted(store.statistics.totals(), key=lambda period: (period.at, period.group, period.task)):
        totals.setdefault((period.group, period.task), Counts()).merge(period.counts)
    rules = store.limits.read()
    groups = {group for group, _ in (*queues, *totals)}
    paused = groups if rules.blocked else {group for group in groups if rules.pauses(group) is not None}
    workers = store.roster.entries()
    alive = [entry.registration for entry in workers if entry.state(now) != "silent"]
    lease = store.leases.read()
    rounds, assigned = store.statistics.rounds()
    schedules = [_schedule_state(store, scheduler, now) for scheduler in store.schedulers.all()]
    return Metrics(
        queues=queues,
        totals=totals,
        oldest_due=_oldest_due(store, groups, now),
        archived=store.archived.about(),
        workers=Counter(entry.state(now) for entry in workers),
        slots=sum(worker.slots for worker in alive),
        slots_used=sum(min(worker.slots, worker.holds) for worker in alive),
        leader_present=lease is not None and lease.leads(now),
        term=lease.term if lease is not None else 0,
        rounds=rounds,
        assigned=assigned,
        limits=limit_uses(store, rules, now),
        paused=frozenset(paused),
        schedules=Counter(state for state, _ in schedules),
        schedule_lateness=max((late for _, late in schedules), default=0.0),
    )


def _oldest_due(store: Store, groups: set[str], now: datetime) -> dict[str, float]:
    lanes = [lane for lane in store.due_jobs.lanes() if lane not in ASIDE][:_MAX_LANES_READ]
    ages = dict.fromkeys(groups, 0.0)
    for lane, since in store.due_jobs.oldest_due(lanes, now, store.roster.held()).items():
        group = Lane.parse(lane).group
        ages[group] = max(ages.get(group, 0.0), (now - since).total_seconds())
    return ages


def _schedule_state(store: Store, scheduler: Scheduler, now: datetime) -> tuple[str, float]:
    """The state of a repeatable job (`overdue`: without success for too long), and the seconds that it is late."""
    if scheduler.broken:
        return "broken", 0.0
    if scheduler.paused is not None:
        return "paused", 0.0
    late = 0.0 if scheduler.next_at is None else max(0.0, (now - scheduler.next_at).total_seconds())
    if scheduler.late_by(now):
        return "late", late
    overdue = scheduler.broken_promise(last_success(store, scheduler), now)
    return ("on_time" if overdue is None else "overdue"), late
