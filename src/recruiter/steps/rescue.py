"""Rescue: retires a worker that has been silent for too long, and decides what happens to its jobs.

    at most once, and marked as started    lost: it must not run twice
    ran, or may have been started          back to its place; counts a worker death, the fifth is the last
    certainly not started                  free, unchanged; so is a job that starts after a mark, and has none

When a whole worker dies, the machine is usually the cause: it was reclaimed or switched off. So this counts neither as
an attempt nor as a crash. But a job may be the cause, even a job that no heartbeat has reported yet. So each of them
counts a *worker death*. A job with two worker deaths shares no worker with another such job (domain/planning/pack.py):
only the cause is counted further. An attempt that ends by itself resets the count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

from recruiter.clock import Clock
from recruiter.domain.job import JobId
from recruiter.domain.observation import Observation
from recruiter.domain.planning.workers import RosterWorker
from recruiter.domain.policy_registry import PolicyRegistry
from recruiter.domain.unreadable import Unreadable
from recruiter.errors import DocumentLocked, StoreUnreachable
from recruiter.store import outcomes
from recruiter.store.codec import Document, encode, this_document
from recruiter.store.database import Store
from recruiter.store.outcomes import OutcomeBatch
from recruiter.store.roster_fields import LastEntry

MAX_RETIRED_PER_TRANSACTION = 50
_MAX_RETIRING_SECONDS = 0.5

Silent: TypeAlias = RosterWorker | Unreadable


@dataclass(frozen=True, slots=True)
class Retired:
    """A worker that was retired, and its jobs."""

    worker: str
    ran: tuple[JobId, ...]
    released: int
    unreadable: str | None = None
    """The reason why its entry was unreadable, if it was."""


class Rescue:
    """Observes how long each heartbeat counter has stood still, by the clock of this process.

    A worker is dead after the time that it declares on the roster. `undeclared` seconds are for workers of earlier
    releases, which declare none, and for unreadable entries. `patience` multiplies all of them.
    """

    def __init__(
        self, store: Store, clock: Clock, undeclared: float, policies: PolicyRegistry, patience: float = 1.0
    ) -> None:
        self._store = store
        self._clock = clock
        self._undeclared = undeclared
        self._policies = policies
        self._patience = patience
        self._observation = Observation()

    def dead_after(self, worker: Silent) -> float:
        """Seconds of silence after which this worker counts as dead."""
        declared = worker.dead_after if isinstance(worker, RosterWorker) else None
        return self._undeclared if declared is None else declared

    def is_quiet(self, worker: RosterWorker) -> bool:
        """Whether it should receive no jobs for now: its heartbeat counter stands still, but not long enough to retire
        it; or this process has not observed it yet, and its last heartbeat is old by the clock."""
        still = self._observation.stood_still_for(worker.id, worker.beats)
        if still is not None:
            return still >= self.dead_after(worker) / 2
        age = timedelta() if worker.seen_at is None else abs(self._clock.now() - worker.seen_at)
        return age.total_seconds() >= self.dead_after(worker) / 2

    def retire_silent(self, roster: Sequence[RosterWorker], unreadable: Sequence[Unreadable] = ()) -> list[Retired]:
        """Retires silent workers, and entries that were unreadable for the same time: no leader can assign jobs to
        them, and no other worker can get their jobs. A worker that is alive joins again with a valid entry."""
        now = self._clock.monotonic()
        keys = {bytes(this_document(entry.raw).raw).hex(): entry for entry in unreadable}
        self._observation.forget_all_but({*(worker.id for worker in roster), *keys})
        silent: list[Silent] = [worker for worker in roster if self._is_dead(worker, worker.id, worker.beats, now)]
        silent += [entry for key, entry in keys.items() if self._is_dead(entry, key, 0, now)]
        return self._retire_all(silent)

    def _is_dead(self, worker: Silent, key: str, beats: int, now: float) -> bool:
        dead_after = self._patience * self.dead_after(worker)
        # Several observations must fit into the time: one long gap between two of them proves nothing.
        return self._observation.still_for(key, beats, now, longest_gap=dead_after / 3) >= dead_after

    def _retire_all(self, silent: Sequence[Silent]) -> list[Retired]:
        """Retires these workers and unreadable entries: as many as it can in a limited time, the next pass the rest."""
        until = self._clock.monotonic() + _MAX_RETIRING_SECONDS
        retired: list[Retired] = []
        failures: list[Exception] = []
        # A worker may have died during a settlement, and its children in transactions of their jobs.
        sessions = [session for worker in silent if isinstance(worker, RosterWorker) for session in worker.sessions]
        for session in {repr(session): session for session in sessions}.values():
            self._store.transactions.end_session_of(session)
        for start in range(0, len(silent), MAX_RETIRED_PER_TRANSACTION):
            batch = silent[start : start + MAX_RETIRED_PER_TRANSACTION]
            try:
                retired += self._retire(batch)
            except StoreUnreachable:
                raise
            except Exception:  # an error of one worker must not block the others
                retired += self._retire_one_by_one(batch, failures)
            if self._clock.monotonic() > until:
                break
        if failures and not retired:
            raise failures[-1]
        return retired

    def _retire_one_by_one(self, silent: Sequence[Silent], failures: list[Exception]) -> list[Retired]:
        """Retires the workers of a batch that failed as a whole. Adds the errors to `failures`."""
        retired: list[Retired] = []
        for worker in silent:
            try:
                retired += self._retire([worker])
            except DocumentLocked:
                retired += self._retire_locked(worker)
            except StoreUnreachable:
                raise
            except Exception as error:
                failures.append(error)
        return retired

    def _retire_locked(self, worker: Silent) -> list[Retired]:
        """Retires a worker although another open transaction has written it or one of its jobs. A child that died with
        the worker may have noted its session after the roster was read: ends that session. Otherwise a user holds a
        job: then nothing is written on these jobs, and the worker's death is not counted. An at-most-once job that ran
        is found when another worker is about to start it."""
        if isinstance(worker, RosterWorker):
            now = [session for same in self._store.roster.read() if same.id == worker.id for session in same.sessions]
            for session in now:
                if session not in worker.sessions:
                    self._store.transactions.end_session_of(session)
        try:
            return self._retire([worker])
        except DocumentLocked:
            return self._retire([worker], writes_outcomes=False)

    def _retire(self, silent: Sequence[Silent], *, writes_outcomes: bool = True) -> list[Retired]:
        """Retires workers in one transaction, with the outcomes of their jobs. Workers that are alive are left out."""
        ran: dict[str, tuple[JobId, ...]] = {}

        def decide(entry: LastEntry, jobs: list[Document]) -> OutcomeBatch:
            ran[entry.worker] = tuple(job["_id"] for job in jobs if _has_run(job, entry))
            return OutcomeBatch.of([(job["_id"], self._outcome(job, entry)) for job in jobs] if writes_outcomes else [])

        seen = [worker if isinstance(worker, Unreadable) else (worker.id, worker.beats) for worker in silent]
        entries = self._store.transactions.retire_all(seen, decide)
        return [
            Retired(
                entry.worker,
                ran[entry.worker],
                len(entry.assigned) - len(ran[entry.worker]),
                worker.reason if isinstance(worker, Unreadable) else None,
            )
            for worker, entry in zip(silent, entries, strict=True)
            if entry is not None
        ]

    def _outcome(self, job: Document, entry: LastEntry) -> outcomes.Outcome | None:
        """The outcome of a job whose worker died; None if it did not run, so that it is only released."""
        ran = _has_run(job, entry)
        if not ran and _starts_after_a_mark(job):
            return None
        # With a free slot the worker may have started more jobs than it reported.
        if not ran and 0 < entry.slots <= len(set(entry.assigned) & entry.running.keys()):
            return None
        now = self._clock.now()
        started_at = entry.running.get(job["_id"]) or job.get("started_at") or entry.given_at
        message = f"worker {entry.worker} fell silent and was retired"
        facts: dict[str, Any] = {"worker": entry.worker, "started_at": started_at, "at": now, "message": message}
        try:
            if ran and job.get("at_most_once"):
                return outcomes.crashed(job, self._policies, **facts)
            return outcomes.worker_died(job, ran=ran, **facts)
        except Exception as error:
            if not ran:
                return None  # the next attempt will report it
            return outcomes.unreadable(job["_id"], encode(job), now, f"{message}, and the job cannot be read: {error}")


def _starts_after_a_mark(job: Document) -> bool:
    """Whether its worker writes its start before it starts it (see `HeldJob.needs_mark`). Without this mark, its code
    has not run, and it has not begun for calls with its key."""
    return bool(job.get("at_most_once")) or (job.get("debounced") is True and job.get("begun_at") is None)


def _has_run(job: Document, entry: LastEntry) -> bool:
    """Whether the job certainly ran: it was reported as running, or is marked as started."""
    return job["_id"] in entry.running or entry.worker in (job.get("started_by"), job.get("locked_by"))
