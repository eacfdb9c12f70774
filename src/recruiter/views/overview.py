"""Overview: who leads, who works, what runs and how it went lately; what a live screen shows beside the analytics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from recruiter.domain.job import Job, JobId
from recruiter.domain.observation import SILENT
from recruiter.domain.statistics import Flow, add_up, window
from recruiter.domain.unreadable import Parsed
from recruiter.store.collections.leases import Lease
from recruiter.store.collections.limits import Rules
from recruiter.store.collections.roster import RosterEntry
from recruiter.store.database import Store


@dataclass(frozen=True, slots=True)
class Running:
    """A job that runs, and what it has said of itself."""

    id: JobId
    task: str
    worker: str
    since: datetime
    stage: str | None
    progress: float


@dataclass(frozen=True, slots=True)
class Overview:
    at: datetime
    lease: Lease | None
    workers: Parsed[RosterEntry]
    running: list[Running]
    """The longest first, up to as many as were asked for."""
    rules: Rules
    minutes: Mapping[datetime, Flow]
    """What has ended, minute by minute, the present one last."""

    @property
    def leader(self) -> Lease | None:
        """Who leads, if anybody does."""
        lease = self.lease
        if lease is None or lease.holder is None or self.at - (lease.renewed_at or self.at) > SILENT:
            return None
        return lease


def overview(store: Store, *, jobs: int, within: timedelta) -> Overview:
    """All of it, with so many running jobs at most."""
    now = store.clock.now()
    workers = store.roster.entries()
    runs = [(run["since"], run["job"], run["task"], entry.id) for entry in workers for run in entry.running]
    runs = sorted(runs, key=lambda run: run[0])[:jobs]
    said = store.scheduled.get_many([id for _, id, _, _ in runs])  # one that cannot be read says nothing
    running = [_running(id, task, worker, since, said.get(id)) for since, id, task, worker in runs]
    since, until = window(now, within, now)
    minutes = add_up(store.statistics.read(since, until, None, None), {}, now, since, until).series
    return Overview(now, store.leases.read(), workers, running, store.limits.read(), minutes)


def _running(id: JobId, task: str, worker: str, since: datetime, job: Job | None) -> Running:
    return Running(id, task, worker, since, job.stage if job else None, job.progress if job else 0.0)
