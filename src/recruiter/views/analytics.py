"""Counts of waiting, running and ended jobs, in total or by group, task, owner or tag; and the data of a live screen.

Groups and tasks are counted from indexes and counters, never from the archive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from recruiter.domain.job import JobId
from recruiter.domain.lane import Lane
from recruiter.domain.planning.rules import Rules
from recruiter.domain.search.filter import ENDED, JobFilter
from recruiter.domain.state import State
from recruiter.domain.statistics import (
    Analytics,
    Backlog,
    Counts,
    Kind,
    PeriodSummary,
    Queue,
    Times,
    add_up,
    window,
)
from recruiter.domain.unreadable import Parsed
from recruiter.store.collections.leases import Lease
from recruiter.store.database import Store
from recruiter.store.roster_fields import RosterEntry
from recruiter.store.search.search import MINIMAL


def analyse(
    store: Store, at: datetime, within: timedelta, *, group: str | None = None, task: str | None = None
) -> Analytics:
    """Jobs that ended `within` a time before `at`, and jobs that were due at `at` and have not ended."""
    now = store.clock.now()
    since, until = window(at, within, now)
    counted = store.statistics.read(since, until, group, task)
    backlogs = store.queues.waiting(at, group, task)
    return add_up(counted, _queues(store, backlogs.of, group, task), backlogs.counted_at or now, since, until)


def history(store: Store, within: timedelta) -> Analytics:
    """Jobs that ended `within` the last time. Jobs that have not ended are left out."""
    now = store.clock.now()
    since, until = window(now, within, now)
    return add_up(store.statistics.read(since, until, None, None), {}, now, since, until)


def waiting(store: Store, at: datetime) -> dict[Kind, Queue]:
    return _queues(store, store.queues.waiting(at).of)


def _queues(
    store: Store, backlogs: Mapping[Kind, Backlog], group: str | None = None, task: str | None = None
) -> dict[Kind, Queue]:
    """Jobs that have not ended, by group and task. The backlogs come from counters that know no workers. So held jobs
    are subtracted from the due jobs; they count as running, or as zombies if the worker is silent."""
    live, silent = _held(store)
    held = live | silent
    lanes = {id: Lane.parse(lane) for id, lane in store.due_jobs.lanes_of(held).items()} if held else {}
    outside = store.due_jobs.outside_lanes(lanes) if lanes else set()
    running, zombies = Counter[Kind](), Counter[Kind]()
    counted = Counter[Kind]()  # the held jobs that the backlogs count as due
    for id, lane in lanes.items():
        if group in (None, lane.group) and task in (None, lane.task):
            kind = lane[:2]
            (zombies if id in silent else running)[kind] += 1
            counted[kind] += id not in outside
    queues: dict[Kind, Queue] = {}
    for kind in sorted({*backlogs, *running, *zombies}):
        backlog = backlogs.get(kind, Backlog())
        queued = max(0, backlog.due - counted[kind])
        queues[kind] = Queue(queued, backlog.postponed, running[kind], zombies[kind])
    return queues


def _held(store: Store) -> tuple[set[JobId], set[JobId]]:
    """Jobs that live workers hold, and jobs that silent workers hold."""
    now = store.clock.now()
    gone = {entry.id for entry in store.roster.entries() if entry.is_silent(now)}
    held: set[JobId] = set()
    silent: set[JobId] = set()
    for worker, jobs in store.roster.holders().items():
        (silent if worker in gone else held).update(jobs)
    return held, silent


@dataclass(frozen=True, slots=True)
class Performance:
    """The jobs of one task, group or worker that ended within a time."""

    name: str
    ended: int
    failed: int
    """Failed for good, or lost."""
    latency: Times
    execution_time: Times
    total_seconds: float
    """The sum of the last attempts."""
    trend: tuple[int, ...]
    """Ended jobs in each part of the time, the oldest first."""

    @property
    def share(self) -> float:
        """The share of jobs that failed, from 0 to 1."""
        return self.failed / self.ended if self.ended else 0.0


PerformanceBy = Literal["task", "group", "worker"]
TREND_PARTS = 24
MAX_JOBS_BY_WORKER = 1_000
"""Statistics are kept by group and task. By worker, the newest ended jobs are read."""


def performances(store: Store, by: PerformanceBy, now: datetime, within: timedelta) -> tuple[list[Performance], bool]:
    """The performance of each task, group or worker, and whether all jobs that ended in this time were counted."""
    since, until = window(now, within, now)
    if by != "worker":
        read = store.statistics.read(since, until, None, None)
        counted = [(each.group if by == "group" else each.task, each.at, each.counts) for each in read]
        return _sum_up(counted, since, until), True
    wanted = JobFilter(ended_since=since, state=sorted(ENDED))
    page = store.search.jobs(wanted, now, limit=MAX_JOBS_BY_WORKER, fields=MINIMAL)
    ends: list[tuple[str, datetime, Counts]] = []
    for job in page:
        if job.worker is not None and job.ended_at is not None:
            counts = Counts()
            seconds = (job.ended_at - job.started_at).total_seconds() if job.started_at else None
            latency = (job.started_at - job.scheduled_at).total_seconds() if job.started_at else None
            counts.add(job.state.value, latency, seconds)
            ends.append((job.worker, job.ended_at, counts))
    return _sum_up(ends, since, until), page.next is None


def _sum_up(counted: Iterable[tuple[str, datetime, Counts]], since: datetime, until: datetime) -> list[Performance]:
    """The performance of each name, from pairs of a time and the counts of jobs that ended then."""
    sums: dict[str, Counts] = {}
    trends: dict[str, list[int]] = {}
    span = max(1.0, (until - since).total_seconds())
    for name, at, counts in counted:
        sums.setdefault(name, Counts()).merge(counts)
        part = int((at - since).total_seconds() / span * TREND_PARTS)
        trends.setdefault(name, [0] * TREND_PARTS)[max(0, min(TREND_PARTS - 1, part))] += counts.total
    return [
        Performance(
            name,
            counts.total,
            counts.ended.get(State.FAILED, 0) + counts.ended.get(State.LOST, 0),
            Times.of(counts.latency),
            Times.of(counts.execution_time),
            counts.execution_time.total,
            tuple(trends[name]),
        )
        for name, counts in sorted(sums.items())
        if counts.total
    ]


By = Literal["group", "task", "owner", "tag"]

Totals = dict[str, dict[str, int]]
"""Number of jobs in each state, by name."""


def count(store: Store, by: By, now: datetime, within: timedelta) -> Totals:
    """Jobs in each state, by name: waiting and running jobs, and jobs that ended `within` the last whole minutes."""
    if by == "owner" or by == "tag":
        field, (since, until) = "username" if by == "owner" else "tags", window(now, within, now)
        held = store.roster.held()
        return _totals([*store.scheduled.count_by(field, held), *store.archived.count_by(field, since, until)])
    place, report = 0 if by == "group" else 1, analyse(store, now, within)
    found: list[tuple[str, State, int]] = []
    for kind, queue in report.queues.items():
        found.append((kind[place], State.WAITING, queue.queued + queue.postponed))
        found.append((kind[place], State.RUNNING, queue.running + queue.zombies))
    for kind, summary in report.flows.items():
        found += [(kind[place], State(state), jobs) for state, jobs in summary.ended.items()]
    return _totals(found)


def _totals(found: Iterable[tuple[str, State, int]]) -> Totals:
    totals: Totals = {}
    for name, state, jobs in found:
        if jobs > 0:
            counts = totals.setdefault(name, {})
            counts[state.value] = counts.get(state.value, 0) + jobs
    return dict(sorted(totals.items()))


@dataclass(frozen=True, slots=True)
class Running:
    """A running job."""

    id: JobId
    task: str
    worker: str
    since: datetime
    stage: str | None
    progress: float


@dataclass(frozen=True, slots=True)
class LiveView:
    """The data of a live screen."""

    at: datetime
    lease: Lease | None
    workers: Parsed[RosterEntry]
    running: list[Running]
    """The longest first, up to the number that was asked for."""
    rules: Rules
    minutes: Mapping[datetime, PeriodSummary]
    """Ended jobs by minute, the current minute last."""

    @property
    def leader(self) -> Lease | None:
        return self.lease if self.lease is not None and self.lease.leads(self.at) else None


def overview(store: Store, *, jobs: int, within: timedelta) -> LiveView:
    """The data of a live screen now, with this many running jobs, and the minutes `within` the last time."""
    now = store.clock.now()
    workers = store.roster.entries()
    runs = [(run["since"], run["job"], run["task"], entry.id) for entry in workers for run in entry.running]
    runs = sorted(runs, key=lambda run: run[0])[:jobs]
    progress = store.scheduled.get_many([id for _, id, _, _ in runs])  # unreadable jobs have no progress
    running = []
    for began, id, task, worker in runs:
        job = progress.get(id)
        running.append(Running(id, task, worker, began, job.stage if job else None, job.progress if job else 0.0))
    since, until = window(now, within, now)
    minutes = add_up(store.statistics.read(since, until, None, None), {}, now, since, until).series
    return LiveView(now, store.leases.read(), workers, running, store.limits.read(), minutes)
