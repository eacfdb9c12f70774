"""Health: whether a process is alive, and whether each scheduler succeeds as often as it must.

Probes ask for the health of a process often, so it must be cheap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from recruiter.domain.duration import humanize
from recruiter.domain.schedule.scheduler import Scheduler
from recruiter.store.collections.processes import ProcessEntry
from recruiter.store.database import Store
from recruiter.store.roster_fields import RosterEntry

Role = Literal["worker", "recruiter", "cleaner"]


@dataclass(frozen=True, slots=True)
class Health:
    """Whether a process is alive, with a sentence."""

    well: bool
    text: str


def health(store: Store, role: Role, host: str, pid: int | None, within: timedelta) -> Health:
    """The health of the process of this role on this host, or with this pid, that was seen last. It may be silent
    `within` this time; a worker declares its own time."""
    who = f"{role} on {host}" + (f" with pid {pid}" if pid is not None else "")
    entries: Sequence[RosterEntry | ProcessEntry] = store.roster.entries()
    if role != "worker":
        entries = [entry for entry in store.processes.entries() if entry.role == role]
    found = [entry for entry in entries if entry.host == host and pid in (None, entry.pid)]
    if not found:
        where = "the roster" if role == "worker" else "the list of processes"
        return Health(False, f"no {who} is on {where}: it has not joined yet, was retired, or has ended")
    latest = max(found, key=lambda entry: entry.seen_at)
    silent = max(timedelta(), store.clock.now() - latest.seen_at)
    text = humanize(timedelta(seconds=round(silent.total_seconds(), 1)))
    if silent > (latest.dead_after if isinstance(latest, RosterEntry) else within):
        return Health(False, f"the {who} has been silent for {text}")
    return Health(True, f"the {who} was seen {text} ago")


def overdue(store: Store, now: datetime) -> dict[str, str]:
    """The schedulers that have not succeeded within `must_succeed_within`, by urn, each with a sentence. Stores the
    successes that it finds."""
    found = {}
    for scheduler in store.schedulers.promising():
        success = last_success(store, scheduler)
        if success is not None and success != scheduler.succeeded_at:
            store.schedulers.note_success(scheduler.urn, success)
        text = scheduler.broken_promise(success, now)
        if text is not None:
            found[scheduler.urn] = text
    return found


def last_success(store: Store, scheduler: Scheduler) -> datetime | None:
    """When a job of this scheduler succeeded last; None for a scheduler without `must_succeed_within`."""
    if scheduler.must_succeed_within is None:
        return None
    ended = store.archived.latest(scheduler.urn, done=True)
    moments = [ended.archived_at if ended is not None else None, scheduler.succeeded_at]
    return max((moment for moment in moments if moment is not None), default=None)
