"""The jobs that a worker holds during one registration, as far as it knows, each in one state.

    the list on the roster names it, or the event of an assignment
         │  hear, hear_event      heartbeat, fetcher and settler, with each answer of the roster; the change waiter
         ▼
     ASSIGNED ─────────┐
         │  fetched    │          the fetcher, with the current document
         ▼             │
      FETCHED ─────────┤          waits here; an at-most-once job is first marked as started (to_mark … marked)
       │    ▲          │
  take │    │ put_back │ ended    the runner: a child runs it, or is about to
       ▼    │          │
       TAKEN ──────────┤
                       ▼
                     ENDED ◀─ not_settled ─┐
                       │  to_settle        │   the settler
                       ▼                   │
                    SETTLING ──────────────┘
                       │  settled             the answer to its release: the worker now forgets the job
                       ▼

Every answer of the roster carries the whole list, and two counters that only grow: the number of releases (`settled`)
and of assignments (`given`). Threads ask independently, so answers can arrive out of order. An old answer names jobs
that were released later; the counters show its age, and it is ignored. Otherwise a job that was handed back, or settled
for a retry, could be started here a second time while another worker holds it. For the same reason an id stays known
until its release is answered, even while the outcome of the release is unknown.

The change event of an assignment names only the new jobs, and the number of the assignment. It counts if that number is
greater than in the newest list: that list names all jobs of earlier assignments that were not released. Other events
are ignored: a job may have been learned from a list, run and released before its event arrives.

If a new list omits a job that this worker has not released, the worker has lost the job. The worker forgets it, recalls
it from the runner, and does not write its outcome.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from itertools import pairwise
from types import MappingProxyType

from bson import ObjectId

from recruiter.domain.job import JobId
from recruiter.processes.progress import ProgressBuffer
from recruiter.processes.worker.held_job import HeldJob, not_started
from recruiter.store.outcomes import Outcome, Settled, ToArchive
from recruiter.store.roster_fields import Assignment, Holding

TellEnd = Callable[[Outcome | None], None]
"""Reports the outcome of a job."""
_NONE: Mapping[JobId, TellEnd | None] = MappingProxyType({})
JobOutcome = tuple[JobId, Outcome | None]

_FAR_MORE_FACTOR, _ALWAYS_HELD_JOBS = 4, 20
"""A worker holds far too many jobs if it holds more than this factor times the jobs that it will end soon, plus this
number."""
MAX_FETCHED_JOBS = 400
AWAITED_WITHIN_SECONDS = 0.025
"""Maximum time for which an outcome waits if another job waits for it: the next step of a flow, or the next job under a
limit."""
MAX_SETTLED_JOBS = 1000
MAX_SETTLED_BYTES = 32 * 1024 * 1024


class HeldState(Enum):
    ASSIGNED = auto()
    FETCHED = auto()
    TAKEN = auto()
    ENDED = auto()
    SETTLING = auto()


_NOT_TAKEN = frozenset([HeldState.ASSIGNED, HeldState.FETCHED])
_NOT_ENDED = _NOT_TAKEN | {HeldState.TAKEN}


def _nobody() -> None:
    """Wakes no thread."""


@dataclass(frozen=True)
class WakeUps:
    """The threads of a worker. Each transition of a job wakes the thread that does the next one."""

    fetcher: Callable[[], None] = _nobody
    """Jobs were assigned, or the runner could start one and has none."""
    runner: Callable[[], None] = _nobody
    """Jobs were fetched, or the registration is lost."""
    settler: Callable[[], None] = _nobody
    """There are outcomes to settle."""
    progress_writer: Callable[[], None] = _nobody
    """There is progress to write."""


NOBODY = WakeUps()
"""For a worker without threads."""


class HeldJobs:
    """One registration: its id, and the jobs on their way from the roster to the children and back. For all threads.

    Methods whose name begins with an underscore are called with the lock held."""

    def __init__(self, worker: str, wake_ups: WakeUps = NOBODY) -> None:
        self.worker = worker
        """The id of the registration, which the roster calls a worker."""
        self.wake_ups = wake_ups
        self.progress = ProgressBuffer()
        self._lock = threading.Lock()
        self._states: dict[JobId, HeldState] = {}
        self._jobs: dict[JobId, HeldJob] = {}
        """Jobs that are fetched and have not ended."""
        self._settled = self._given = -1
        """The counters of the newest list."""
        self._listed: Set[JobId] = frozenset()
        """The jobs that the newest list names."""
        self.heard_at = -math.inf
        """When the newest list came, on the real clock."""

        self._to_fetch: list[JobId] = []
        self._waiting: deque[HeldJob] = deque()
        """Fetched jobs that may start, by priority. Jobs that are marked as started come first: the time from the mark
        to the start should be short."""
        self._to_mark: deque[HeldJob] = deque()
        """Fetched jobs that must be marked as started before they may start."""
        self._marks: dict[JobId, HeldJob] = {}
        """Jobs that are marked as started, or may be: the outcome of a mark can be unknown."""
        self._outcomes: deque[JobOutcome] = deque()
        self._settling = 0
        self.outcomes_may_wait = math.inf
        """Seconds for which the gathered outcomes may wait: few if other jobs wait for one of the outcomes."""
        self.limited: Set[str] = frozenset()
        """The tasks and groups that have a limit, as `task:NAME` and `group:NAME`."""

        self._is_allowed: Callable[[HeldJob], bool] = lambda _: True
        """Whether a job may start: its group is not paused, and neither is its flow."""
        self._doubtful: set[JobId] = set()
        """Jobs that were being fetched when the worker asked which flows are paused: see `flows_to_ask_about`."""
        self._recall: Callable[[Collection[JobId]], None] = lambda _: None

        self._dead_children: list[int] = []
        """Processes that may have died in a transaction of their job."""
        self._died_with: dict[JobId, TellEnd | None] = {}
        """The jobs that ran in them."""

    def on_recall(self, recall: Callable[[Collection[JobId]], None]) -> None:
        """Calls `recall` with taken jobs that must no longer start. The runner hands back jobs it has not started."""
        self._recall = recall

    def state(self, id: JobId) -> HeldState | None:
        """The state of a job; None if the job is not held."""
        with self._lock:
            return self._states.get(id)

    # -- answers of the roster -------------------------------------------------------------------------------------

    def hear(self, holding: Holding) -> bool:
        """Learns from an answer of the roster which jobs are held; true when there are new jobs to fetch."""
        with self._lock:
            lost = self._take_in(holding)
            has_new = bool(self._to_fetch)
        if lost:
            self._recall(lost)
        if has_new:
            self.wake_ups.fetcher()
        return has_new

    def hear_event(self, assignment: Assignment) -> None:
        """Learns the jobs of a new assignment from its change event, which comes before the next list. `_given` stays:
        an event names only its own jobs, and events before it may be lost, so only a list moves the counter."""
        with self._lock:
            if assignment.worker != self.worker or assignment.given <= self._given:
                return  # of another registration, or the newest list has named these jobs
            self._learn(assignment.jobs)
            has_new = bool(self._to_fetch)
        if has_new:
            self.wake_ups.fetcher()

    def _take_in(self, holding: Holding) -> list[JobId]:
        """Learns new jobs from a list, unless it is old, and forgets lost jobs; returns the lost jobs."""
        if holding.settled < self._settled or holding.given < self._given:
            return []
        named = frozenset(holding.assigned)
        # Only a job that a list has named can be lost: one known from an event may be newer than this list.
        lost = [id for id in self._listed - named if self._states.get(id) in _NOT_ENDED]
        self._settled, self._given, self._listed = holding.settled, holding.given, named
        self.heard_at = time.monotonic()
        self._learn(holding.assigned)
        self.progress.forget(lost)
        self._drop(lost)
        for id in lost:
            del self._states[id]
            self._jobs.pop(id, None)
            self._marks.pop(id, None)
            self._died_with.pop(id, None)
        return lost

    def _learn(self, ids: Iterable[JobId]) -> None:
        # Each once: a list that names a job twice, because a write on it was doubled, must not start it twice.
        new = dict.fromkeys((id for id in ids if id not in self._states), HeldState.ASSIGNED)
        self._states.update(new)
        self._to_fetch.extend(new)

    def _drop(self, ids: Collection[JobId]) -> None:
        """Takes these jobs out of all queues before the runner."""
        if ids:
            self._to_fetch = [id for id in self._to_fetch if id not in ids]
            self._waiting = deque(job for job in self._waiting if job.id not in ids)
            self._to_mark = deque(job for job in self._to_mark if job.id not in ids)

    # -- the fetcher -------------------------------------------------------------------------------------------------

    def to_fetch(self) -> list[JobId]:
        """The next jobs to fetch, up to a bound: the first jobs of a large assignment start while the others are
        fetched."""
        with self._lock:
            ids, self._to_fetch = self._to_fetch[:MAX_FETCHED_JOBS], self._to_fetch[MAX_FETCHED_JOBS:]
            return ids

    def not_fetched(self, ids: Iterable[JobId]) -> None:
        """Fetching failed: these jobs are fetched again."""
        with self._lock:
            self._to_fetch[:0] = [id for id in ids if self._states.get(id) is HeldState.ASSIGNED]

    def fetched(self, ids: Iterable[JobId], jobs: Iterable[HeldJob]) -> None:
        """Queues these jobs, whose documents the fetcher has read. The others of `ids` are handed back: they do not
        exist any longer, were cancelled, may not start now, or belong to a paused flow."""
        found = {job.id: job for job in jobs}
        with self._lock:
            mine = [id for id in ids if self._states.get(id) is HeldState.ASSIGNED]
            accepted = [found[id] for id in mine if id in found and self._may_wait_here(found[id])]
            self._doubtful.difference_update(ids)
            for job in accepted:
                self._states[job.id], self._jobs[job.id] = HeldState.FETCHED, job
                (self._to_mark if job.needs_mark else self._waiting).append(job)
            refused = [id for id in mine if self._states[id] is HeldState.ASSIGNED]
            self._end((id, None) for id in refused)
            self._let_urgent_jobs_overtake()
        self.wake_ups.runner()
        if refused:
            self.wake_ups.settler()

    def _let_urgent_jobs_overtake(self) -> None:
        """A job with a high priority does not wait behind the jobs that were prefetched before it came."""
        priorities = [job.priority for job in self._waiting]
        if any(later > earlier for earlier, later in pairwise(priorities)):
            ordered = sorted(self._waiting, key=lambda job: (job.id not in self._marks, -job.priority))
            self._waiting = deque(ordered)

    def _may_wait_here(self, job: HeldJob) -> bool:
        is_doubtful = job.flow is not None and job.id in self._doubtful
        return not (job.is_cancelled or job.is_paused or is_doubtful) and self._is_allowed(job)

    def to_mark(self, slots: int) -> list[HeldJob]:
        """At-most-once and debounced jobs to mark, as many as can start now. More marks would mean more lost jobs if
        this process dies."""
        with self._lock:
            occupied = self._marks.keys() - {job.id for job in self._to_mark}  # a job whose mark failed is in both
            count = min(len(self._to_mark), max(0, slots - len(occupied)))
            jobs = [self._to_mark.popleft() for _ in range(count)]
            self._marks.update((job.id, job) for job in jobs)
            return jobs

    def not_marked(self, jobs: list[HeldJob]) -> None:
        """Marking failed: these jobs are marked again. They stay in `_marks`, because the write may have succeeded: a
        job that is handed back then loses its mark (`_end`)."""
        with self._lock:
            again = [job for job in jobs if self._states.get(job.id) is HeldState.FETCHED]
            self._to_mark.extendleft(reversed(again))

    def marked(self, jobs: Iterable[HeldJob]) -> None:
        """These jobs are marked and may start."""
        with self._lock:
            mine = [job for job in jobs if self._states.get(job.id) is HeldState.FETCHED]
            self._waiting.extendleft(reversed(mine))
        self.wake_ups.runner()

    # -- the runner -----------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """The number of jobs that the runner can take."""
        return len(self._waiting)

    @property
    def next_priority(self) -> int | None:
        """The priority of the next job that the runner can take; None without one."""
        with self._lock:
            return self._waiting[0].priority if self._waiting else None

    def take(self, count: int) -> list[HeldJob]:
        """The next jobs, at most `count`, to be started now."""
        with self._lock:
            jobs = [self._waiting.popleft() for _ in range(min(count, len(self._waiting)))]
            self._states.update((job.id, HeldState.TAKEN) for job in jobs)
            return jobs

    def put_back(self, jobs: list[HeldJob]) -> None:
        """Puts taken jobs that have not started at the head of the queue, behind more urgent ones, unless they must no
        longer start."""
        with self._lock:
            mine = [job for job in jobs if self._states.get(job.id) is HeldState.TAKEN]
            refused = [job.id for job in mine if not self._is_allowed(job)]
            again = [job for job in mine if job.id not in refused]
            self._states.update((job.id, HeldState.FETCHED) for job in again)
            self._waiting.extendleft(reversed(again))
            self._let_urgent_jobs_overtake()
            self._end((id, None) for id in refused)
        if refused:
            self.wake_ups.settler()

    def ended(self, outcomes: Iterable[JobOutcome]) -> None:
        """Jobs have these outcomes. Only the first outcome of a job counts, and only while the job is held."""
        fresh = list(outcomes)
        if fresh:
            with self._lock:
                self._end(fresh)
            self.wake_ups.settler()

    def hand_back(self, ids: Iterable[JobId]) -> None:
        """Releases jobs that have not started. They have no outcome: the roster names them no longer, and the leader
        may give them to any worker."""
        self.ended([(id, None) for id in ids])

    def hand_back_untaken(self, ids: Collection[JobId] | None = None) -> int:
        """Hands back the jobs among these that the runner has not taken; without ids, all such jobs. Returns their
        number."""
        with self._lock:
            handed_back = self._hand_back_untaken(list(self._states) if ids is None else ids)
        if handed_back:
            self.wake_ups.settler()
        return len(handed_back)

    def _hand_back_untaken(self, ids: Iterable[JobId]) -> set[JobId]:
        untaken = {id for id in ids if self._states.get(id) in _NOT_TAKEN}
        self._drop(untaken)
        self._end((id, None) for id in untaken)
        return untaken

    def add_progress(self, job: HeldJob, since: datetime, progress: bytes) -> None:
        self.progress.add(job, since, progress)
        self.wake_ups.progress_writer()

    def _end(self, outcomes: Iterable[JobOutcome]) -> None:
        """Queues the outcomes to be settled. An outcome is ignored if its job is not held or has ended already."""
        for id, outcome in outcomes:
            if self._states.get(id) in _NOT_ENDED:
                self._states[id] = HeldState.ENDED
                job = self._jobs.pop(id, None)
                if job is not None:
                    self.outcomes_may_wait = min(self.outcomes_may_wait, self._outcome_may_wait(job))
                marked = self._marks.pop(id, None)  # the job, if it was marked on its document as started
                if marked is not None and outcome is None:
                    outcome = not_started(marked)  # handed back: its document must lose the mark
                self._outcomes.append((id, outcome))

    def _outcome_may_wait(self, job: HeldJob) -> float:
        """Seconds for which the outcome of this job may wait to be written together with others."""
        if job.at_most_once:
            return 0.0  # if the worker died before, the job would count as lost
        is_limited = job.has_limit_key or f"task:{job.task}" in self.limited or f"group:{job.group}" in self.limited
        if is_limited or job.flow is not None or job.debounced_until is not None:
            return AWAITED_WITHIN_SECONDS
        return math.inf

    # -- the heartbeat -----------------------------------------------------------------------------------------------

    def note_running(self, running: Iterable[tuple[HeldJob, datetime]], now: datetime, after: float) -> None:
        """The running jobs. Those that have run for longer than `after` seconds are marked, for people to see."""
        with self._lock:
            mine = [run for run in running if self._states.get(run[0].id) in _NOT_ENDED]
            has_marks = self.progress.add_running(mine, now, after)
        if has_marks:
            self.wake_ups.progress_writer()

    def flows_to_ask_about(self) -> set[ObjectId]:
        """The flows whose steps it holds. The caller asks which of them are paused, and then calls `allow`. A step that
        is being fetched now may have been read before a pause, and its flow is not in the result: from now on the step
        is doubtful, and `fetched` hands it back."""
        with self._lock:
            coming = set(self._to_fetch)
            assigned = (id for id, state in self._states.items() if state is HeldState.ASSIGNED)
            self._doubtful = {id for id in assigned if id not in coming}
            return {job.flow for job in self._jobs.values() if job.flow is not None}

    def allow(self, is_allowed: Callable[[HeldJob], bool]) -> None:
        """From now on, a job starts only if `is_allowed` is true for it. The other jobs are handed back, or recalled
        from the runner."""
        with self._lock:
            self._is_allowed = is_allowed
            refused = {id for id, job in self._jobs.items() if not is_allowed(job)}
            handed_back = self._hand_back_untaken(refused)
        if handed_back:
            self.wake_ups.settler()
        if taken := refused - handed_back:
            self._recall(taken)

    def hand_back_all_but(self, most: int) -> None:
        """Hands back the last jobs if the worker holds far more jobs than it will end soon, because jobs take longer
        than before. Otherwise urgent jobs, limits and pauses would have to wait for them."""
        with self._lock:
            untaken = [id for id, state in self._states.items() if state in _NOT_TAKEN]
        if len(untaken) > _FAR_MORE_FACTOR * most + _ALWAYS_HELD_JOBS:
            self.hand_back_untaken(untaken[most:])  # the last ones; a job that is taken meanwhile stays

    # -- the settler -------------------------------------------------------------------------------------------------

    def child_died(self, pid: int, jobs: Mapping[JobId, TellEnd | None] = _NONE) -> None:
        """Call this before the outcomes of its jobs are reported: the settler first ends the transaction that the child
        may have left open, and only then writes the outcomes."""
        with self._lock:
            self._dead_children.append(pid)
            self._died_with.update(jobs)

    def died_with_children(self, ids: Iterable[JobId]) -> dict[JobId, TellEnd | None]:
        """The jobs among these that ran in a dead child. The child may have stored more facts about them."""
        with self._lock:
            return {id: self._died_with[id] for id in ids if id in self._died_with}

    def take_dead_children(self) -> list[int]:
        """The children that have died since the last call."""
        with self._lock:
            dead, self._dead_children = self._dead_children, []
            return dead

    @property
    def unsettled(self) -> int:
        """The number of outcomes that wait to be settled."""
        return len(self._outcomes)

    @property
    def unfinished(self) -> int:
        """The number of jobs that have not ended."""
        return len(self._states) - len(self._outcomes) - self._settling

    def to_settle(self) -> list[JobOutcome]:
        """Takes the next batch of outcomes to write, bounded in number and in bytes."""
        batch: list[JobOutcome] = []
        size = 0
        with self._lock:
            while self._outcomes and len(batch) < MAX_SETTLED_JOBS and size < MAX_SETTLED_BYTES:
                id, outcome = self._outcomes.popleft()
                batch.append((id, outcome))
                size += len(outcome.document) if isinstance(outcome, ToArchive) else 0
                self._states[id] = HeldState.SETTLING
            self._settling = len(batch)
            if not self._outcomes:
                self.outcomes_may_wait = math.inf
            return batch

    def settled(self, outcomes: Iterable[JobOutcome], holding: Holding) -> None:
        """Forgets these settled jobs, and learns from the answer which jobs remain."""
        ids = [id for id, _ in outcomes]
        with self._lock:  # one lock for all: in between, an old answer would bring the jobs back
            lost = self._take_in(holding)  # first, while these jobs are known: an answer that names them is older
            for id in ids:
                self._states.pop(id, None)
                self._died_with.pop(id, None)
            self.progress.forget(ids)
            self._settling = 0
        if lost:
            self._recall(lost)

    def not_settled(self, outcomes: list[JobOutcome], *, may_wait: float = 0.0) -> None:
        """Puts back outcomes that were not written, as far as is known. They may wait for `may_wait` seconds."""
        with self._lock:
            self._states.update((id, HeldState.ENDED) for id, _ in outcomes)
            self._outcomes.extendleft(reversed(outcomes))
            if outcomes:
                self.outcomes_may_wait = min(self.outcomes_may_wait, may_wait)
            self._settling = 0

    @property
    def settling(self) -> int:
        """The number of jobs that are being settled now."""
        return self._settling

    @property
    def unwritten_results(self) -> list[JobId]:
        with self._lock:
            return [id for id, outcome in self._outcomes if outcome is not None and not isinstance(outcome, Settled)]

    @property
    def all_settled(self) -> bool:
        with self._lock:
            return not self._outcomes and not self._settling
