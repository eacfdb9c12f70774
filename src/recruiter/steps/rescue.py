"""Rescue: a worker that has been silent too long is retired, and what it ran is decided like any failed attempt.

Only what it had *started* counts as a crashed attempt; what merely waited in its list is free again, with no attempt
counted. But a job may have been started, and have killed its worker, before the next heartbeat could tell: so those
next in the list are *suspects*. They run alone from now on, on a worker that holds nothing else. If that one dies too,
there is no doubt any more who did it; if the job ends, well or not, it is cleared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from recruiter.clock import Clock
from recruiter.domain.assignment import Registration
from recruiter.domain.job import JobId
from recruiter.domain.observation import Observation
from recruiter.domain.policy_registry import PolicyRegistry
from recruiter.domain.unreadable import Unreadable
from recruiter.errors import StoreUnreachable
from recruiter.store import moves
from recruiter.store.codec import Document, encode, this_document
from recruiter.store.database import Store
from recruiter.store.roster import LastEntry
from recruiter.store.settlement import Movement


@dataclass(frozen=True, slots=True)
class Retired:
    worker: str
    crashed: tuple[JobId, ...]
    released: int
    unreadable: str | None = None
    """Why its entry could not be read, if that is why it was retired."""


class Rescue:
    """Remembers only how long each heartbeat has stood still, on this process's own clock."""

    def __init__(self, store: Store, clock: Clock, dead_after: float, policies: PolicyRegistry) -> None:
        self._store = store
        self._clock = clock
        self._dead_after = dead_after
        self._policies = policies
        # Several looks fit into the time: one long gap between two looks proves nothing about the worker.
        self._observation = Observation(longest_gap=dead_after / 3)

    def retire_silent(self, roster: Sequence[Registration], unreadable: Sequence[Unreadable] = ()) -> list[Retired]:
        """Retires workers that are silent, and entries that could not be read for as long: nobody can give them jobs,
        and what they hold nobody else could get. A worker that lives joins again, with an entry that can be read."""
        now = self._clock.monotonic()
        keys = {bytes(this_document(entry.raw).raw).hex(): entry for entry in unreadable}
        self._observation.forget_all_but({*(worker.id for worker in roster), *keys})
        silent: list[Registration | Unreadable] = [
            w for w in roster if self._observation.still_for(w.id, w.beats, now) >= self._dead_after
        ]
        silent += [
            entry for key, entry in keys.items() if self._observation.still_for(key, "", now) >= self._dead_after
        ]
        retired: list[Retired] = []
        failure: Exception | None = None
        for worker in silent:
            try:
                retired.extend(self._retire(worker))
            except StoreUnreachable:
                raise
            except Exception as error:  # what is wrong with one must not keep the others
                failure = error
        if failure is not None and not retired:
            raise failure
        return retired

    def _retire(self, worker: Registration | Unreadable) -> list[Retired]:
        crashed: list[JobId] = []

        def fate(entry: LastEntry, jobs: list[Document]) -> Movement:
            since = entry.running
            message = f"worker {entry.worker} fell silent and was retired"
            guilty = [job for job in jobs if _ran(job, entry)]
            crashed[:] = [job["_id"] for job in guilty]
            return moves.gather(
                [
                    *((job["_id"], self._crashed(job, entry.worker, since.get(job["_id"]), message)) for job in guilty),
                    *((job["_id"], _suspected(job)) for job in jobs if job["_id"] not in crashed),
                ]
            )

        settlement = self._store.settlement
        if isinstance(worker, Unreadable):
            entry, unreadable = settlement.retire_unreadable(worker, fate), worker.reason
        else:
            settlement.end_session_of(worker.session)  # it may have died in the middle of a settlement
            entry, unreadable = settlement.retire(worker.id, worker.beats, fate), None
        if entry is None:
            return []
        released = len(entry.assigned) - len(crashed)
        return [Retired(entry.worker, tuple(crashed), released, unreadable)]

    def _crashed(self, job: Document, worker: str, since: datetime | None, message: str) -> moves.Move:
        now = self._clock.now()
        try:
            started_at = since or job.get("started_at")
            return moves.crashed(job, self._policies, worker=worker, started_at=started_at, at=now, message=message)
        except Exception as error:
            return moves.unreadable(job["_id"], encode(job), now, f"{message}, and the job cannot be read: {error}")


def _ran(job: Document, entry: LastEntry) -> bool:
    """Whether it was started, certainly: it was seen running, was marked as started or signed, or was there alone."""
    alone = bool(job.get("suspect")) and entry.assigned == (job["_id"],)
    return job["_id"] in entry.running or entry.worker in (job.get("started_by"), job.get("locked_by")) or alone


def _suspected(job: Document) -> moves.Move:
    try:
        return moves.suspected(job)
    except Exception:
        return None  # it cannot be read: whoever runs it next will say so
