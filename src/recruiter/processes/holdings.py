"""What a worker holds during one registration, as far as it knows: shared by the threads of a supervisor.

Every answer of the roster carries how many releases it has seen. Threads ask independently, so answers can arrive out
of order, and an old one would show jobs that have been let go since; it is recognised by that number and ignored.
Otherwise a job that was handed back, or settled for a retry, could be started here a second time while it is already
somebody else's.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from datetime import datetime

from recruiter.domain.job import JobId
from recruiter.domain.policy_registry import PolicyRegistry
from recruiter.processes.held import HeldJob
from recruiter.processes.progress.buffer import ProgressBuffer
from recruiter.store import moves
from recruiter.store.codec import Document, decode
from recruiter.store.moves import Move
from recruiter.store.roster import Holding

Outcome = tuple[JobId, Move]

LARGEST_SETTLEMENT = 1000
LARGEST_BYTES = 32 * 1024 * 1024


class Holdings:
    """One registration: its id, and the jobs on their way from the roster to the children and back."""

    def __init__(self, worker: str) -> None:
        self.worker = worker
        self.arrivals: deque[HeldJob] = deque()
        """Fetched, not yet seen by the dispatcher."""
        self.marked: deque[HeldJob] = deque()
        """At-most-once jobs that are marked as started, not yet seen by the dispatcher."""
        self._once_waiting: deque[HeldJob] = deque()
        self._once_open: set[JobId] = set()
        self._lock = threading.Lock()
        self._known: set[JobId] = set()
        self._heard = -1
        self._to_fetch: list[JobId] = []
        self._outcomes: deque[Outcome] = deque()
        self.settling = 0
        self.tracks = ProgressBuffer()

    def hear(self, holding: Holding) -> bool:
        """Takes note of an answer of the roster; true when there are new jobs to fetch."""
        with self._lock:
            return self._hear(holding)

    def _hear(self, holding: Holding) -> bool:
        if holding.settled < self._heard:
            return False
        self._heard = holding.settled
        new = [id for id in holding.assigned if id not in self._known]
        self._known.update(new)
        self._to_fetch.extend(new)
        return bool(self._to_fetch)

    def to_fetch(self) -> list[JobId]:
        with self._lock:
            ids, self._to_fetch = self._to_fetch, []
            return ids

    def not_begun(self) -> list[JobId]:
        """Everything that has not got as far as the dispatcher, to be handed back."""
        ids = self.to_fetch()
        with self._lock:
            ids.extend(job.id for job in self._once_waiting)
            self._once_waiting.clear()
            return ids

    def not_fetched(self, ids: list[JobId]) -> None:
        """Fetching failed; to be tried again."""
        with self._lock:
            self._to_fetch[:0] = ids

    def wait_for_mark(self, jobs: Iterable[HeldJob]) -> None:
        """At-most-once jobs: they wait here until a slot is theirs, and are marked as started only then."""
        with self._lock:
            self._once_waiting.extend(jobs)

    def to_mark(self, slots: int) -> list[HeldJob]:
        """As many as can start now; the fewer are marked, the fewer are lost with this process."""
        with self._lock:
            count = min(len(self._once_waiting), max(0, slots - len(self._once_open)))
            jobs = [self._once_waiting.popleft() for _ in range(count)]
            self._once_open.update(job.id for job in jobs)
            return jobs

    def not_marked(self, jobs: list[HeldJob]) -> None:
        with self._lock:
            self._once_open.difference_update(job.id for job in jobs)
            self._once_waiting.extendleft(reversed(jobs))

    def ended(self, outcomes: Iterable[Outcome]) -> None:
        """What became of some jobs; consumed under no lock, so that a slow decision holds nobody up."""
        fresh = list(outcomes)
        with self._lock:
            self._outcomes.extend(fresh)
            self._once_open.difference_update(id for id, _ in fresh)

    def to_settle(self) -> list[Outcome]:
        """Everything that has gathered, up to a bound in number and in bytes."""
        batch: list[Outcome] = []
        size = 0
        with self._lock:
            while self._outcomes and len(batch) < LARGEST_SETTLEMENT and size < LARGEST_BYTES:
                batch.append(self._outcomes.popleft())
                size += len(batch[-1][1]) if isinstance(batch[-1][1], bytes) else 0
            self.settling = len(batch)
            return batch

    def settled(self, outcomes: Iterable[Outcome], holding: Holding) -> bool:
        """These are no longer ours; takes note of what still is. True when there are new jobs to fetch."""
        ids = [id for id, _ in outcomes]
        with self._lock:  # one lock for all: in between, an old answer would bring the jobs back
            self._known.difference_update(ids)
            self.tracks.forget(ids)
            self.settling = 0
            return self._hear(holding)

    def saw(self, running: Iterable[tuple[HeldJob, datetime]], now: datetime, after: float) -> bool:
        """Notes which jobs have run for longer than so many seconds; true when that is to be written on them."""
        with self._lock:
            return self.tracks.saw([run for run in running if run[0].id in self._known], now, after)

    def not_settled(self, outcomes: list[Outcome]) -> None:
        with self._lock:
            self._outcomes.extendleft(reversed(outcomes))
            self.settling = 0

    @property
    def results(self) -> list[JobId]:
        """Jobs whose results have not been written."""
        with self._lock:
            return [id for id, move in self._outcomes if move is not None]

    @property
    def all_settled(self) -> bool:
        with self._lock:
            return not self._outcomes and not self.settling


def crashed(job: HeldJob, policies: PolicyRegistry, worker: str, at: datetime, how: str, said: Document) -> Move:
    """What it means for a job, whatever is in it, that it was started and will not come to its end.

    `said` is what it has said of itself before.
    """
    try:
        document = decode(job.raw) | said
        return moves.crashed(document, policies, worker=worker, started_at=None, at=at, message=how)
    except Exception as error:
        return moves.unreadable(job.id, job.raw, at, f"{how}, and the job cannot be read: {error}")
