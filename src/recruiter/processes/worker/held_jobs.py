"""The jobs that a worker holds during one registration, as far as it knows, each in one state.

    the roster's list names it, or the event of an assignment
         │  hear, hear_event  whoever has asked the roster: heartbeat, fetcher, settler; or the change waiter
         ▼
     ASSIGNED ─────────┐
         │  fetched    │      the fetcher, with the document as it is now
         ▼             │
      FETCHED ─────────┤      an at-most-once job waits here until it is marked as started (to_mark … marked)
         │  accept     │
         ▼             │  ended
       QUEUED ─────────┤      the runner: in its queue, or sent to a child that has not claimed it
         │  saw        │
         ▼             │
      STARTED ─────────┤      the heartbeat has seen it run
                       ▼
                     ENDED ◀─ not_settled ─┐
                       │  to_settle        │   the settler
                       ▼                   │
                    SETTLING ──────────────┘
                       │  settled             the answer to its release: only now it is not ours any more
                       ▼

Every answer of the roster carries how many releases and how many assignments it has seen. Threads ask independently, so
answers can arrive out of order, and an old one would show jobs that have been let go since; it is recognised by those
numbers and ignored. Otherwise a job that was handed back, or settled for a retry, could be started here a second time
while it is already somebody else's. For the same reason an id stays known until its release is answered, also while the
outcome of that is unknown.

An assignment is also heard of from its change event, which names the new jobs and the number of the assignment. It
counts only if that number is greater than in the answer to the last release: an id leaves the known ones only by a
release, so a newer event cannot name a job that was released. Comparing it with other events would not do: the job may
have been heard of from a list, run and released before its event arrives.

`seen` says how far the list is known, so that an answer need not repeat it. While the outcome of a release is unknown,
nobody knows which of its jobs are still in the list, and all of it has to be read.

A job that an answer no longer names, although nobody here has released it, is not ours: it is forgotten, recalled from
the runner, and whatever becomes of it here is not written.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from types import MappingProxyType
from typing import Any, NamedTuple

from recruiter.domain.job import Happened, JobId
from recruiter.domain.names import CANCELLED_LANE
from recruiter.domain.planning.needs import THOUSAND, amount_of
from recruiter.domain.policy_registry import PolicyRegistry
from recruiter.instruments import trace_id_of
from recruiter.processes.progress import ProgressBuffer
from recruiter.store import outcomes
from recruiter.store.codec import Document, decode, flow_id_of, is_blocked
from recruiter.store.job_fields import history_entry
from recruiter.store.outcomes import Outcome, Settled
from recruiter.store.roster_fields import Assignment, Holding, Seen

TellEnd = Callable[[Outcome | None], None]
"""Tells how a job has ended."""
_NONE: Mapping[JobId, TellEnd | None] = MappingProxyType({})
JobOutcome = tuple[JobId, Outcome | None]

_CANCELLED = CANCELLED_LANE.encode()

_FAR_MORE, _ALWAYS_HELD = 4, 20
"""So many times as many as will be done soon, and some more, are far more."""
LARGEST_FETCH = 400
LARGEST_SETTLEMENT = 1000
LARGEST_BYTES = 32 * 1024 * 1024


class HeldJob(NamedTuple):
    """A job that this worker holds, as bytes."""

    id: JobId
    raw: bytes

    @property
    def at_most_once(self) -> bool:
        if b"at_most_once" not in self.raw:
            return False
        try:
            return bool(decode(self.raw).get("at_most_once"))
        except Exception:
            return False  # it cannot be read; the child will say so

    @property
    def debounced_until(self) -> datetime | None:
        """When it was due as it was fetched, if producers may still change it: it has not begun."""
        if b"\x08debounced\x00" not in self.raw or self._field("begun_at") is not None:
            return None
        moment = self._field("scheduled_at") if self._field("debounced") is True else None
        return moment if isinstance(moment, datetime) else None

    @property
    def is_marked(self) -> bool:
        """Whether it is written down that it starts, before it does."""
        return self.at_most_once or self.debounced_until is not None

    @property
    def cancelled(self) -> bool:
        """Whether somebody had cancelled it when it was fetched."""
        return _CANCELLED in self.raw and self._field("lane") == CANCELLED_LANE

    def is_postponed(self, until: datetime) -> bool:
        """Whether it is not due by then, because a person or a producer (`debounce`) put it off after the leader had
        found it. No other job is given before its time."""
        if b"\x04history\x00" not in self.raw and b"\x08debounced\x00" not in self.raw:
            return False
        due = self._field("scheduled_at")
        return isinstance(due, datetime) and due > until

    @property
    def is_paused(self) -> bool:
        """Whether it was a step of a paused flow when it was fetched."""
        if b"held\x00" not in self.raw or not is_blocked(self.raw):
            return False
        flow = self._field("flow")
        return isinstance(flow, dict) and flow.get("held") is not None

    @property
    def flow(self) -> bytes | None:
        """The id of the flow that it is a step of."""
        return flow_id_of(self.raw) if b"\x03flow\x00" in self.raw else None

    @property
    def group(self) -> str | None:
        """None of one that cannot be read; the child will say so."""
        group = self._field("group")
        return group if isinstance(group, str) else None

    def facts(self, worker: str) -> dict[str, Any]:
        """What every event about it says: the job, its task, the attempt, the worker and the trace, as far as they can
        be read."""
        try:
            document = decode(self.raw)
            facts = {"task": document.get("task"), "attempt": int(document.get("attempts") or 0) + 1}
            trace_id = trace_id_of(document.get("trace_context"))
        except Exception:
            return {"job": self.id, "worker": worker}
        return {"job": self.id, **facts, "worker": worker, **({} if trace_id is None else {"trace_id": trace_id})}

    def _field(self, name: str) -> object:
        try:
            return decode(self.raw).get(name)
        except Exception:
            return None

    @property
    def memory(self) -> int | None:
        """How many bytes of memory it asked for, if it did; it may not use more."""
        if b"mem\x00" not in self.raw:
            return None
        try:
            return amount_of("mem", decode(self.raw).get("mem")) // THOUSAND or None
        except Exception:
            return None


class HeldState(Enum):
    ASSIGNED = auto()
    FETCHED = auto()
    QUEUED = auto()
    STARTED = auto()
    ENDED = auto()
    SETTLING = auto()


_BEFORE_THE_END = frozenset([HeldState.ASSIGNED, HeldState.FETCHED, HeldState.QUEUED, HeldState.STARTED])
_NOT_STARTED = frozenset([HeldState.ASSIGNED, HeldState.FETCHED, HeldState.QUEUED])


def _nobody() -> None:
    """Nobody waits for it."""


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
    """One registration: its id, and the jobs on their way from the roster to the children and back. For all threads."""

    def __init__(self, worker: str, wake_ups: WakeUps = NOBODY) -> None:
        self.worker = worker
        self.wake_ups = wake_ups
        self.progress = ProgressBuffer()
        self._lock = threading.Lock()
        self._states: dict[JobId, HeldState] = {}
        self._jobs: dict[JobId, HeldJob] = {}
        """Of those that are fetched and have not ended."""
        self._settled = self._given = self._given_at_release = -1
        """How many releases and assignments have been heard of; and of assignments, with the answer to a release."""
        self._count: int | None = None
        """How many jobs the list had then; None when it must be read again."""
        self._unsure: set[JobId] = set()
        """Jobs that have been released with an unknown outcome."""
        self._to_fetch: list[JobId] = []
        self._arrivals: deque[HeldJob] = deque()
        """Fetched, and not seen by the runner."""
        self._next: deque[HeldJob] = deque()
        """Likewise, and marked as started: the less time passes from a mark to its start, the better."""
        self._to_mark: deque[HeldJob] = deque()
        """Fetched, at most once, and not marked as started."""
        self._marks: dict[JobId, HeldJob] = {}
        self._doubtful: set[JobId] = set()
        """Jobs that were being fetched when it was asked which flows are paused: see `flows`."""
        """At-most-once jobs that are marked as started, or may be: the outcome of a mark can be unknown."""
        self._outcomes: deque[JobOutcome] = deque()
        self._settling = 0
        self._dead_children: list[int] = []
        """Processes that may have died in a transaction of their job."""
        self._died_with: dict[JobId, TellEnd | None] = {}
        """The jobs that ran in them."""
        self._recall: Callable[[Collection[JobId]], None] = lambda _: None
        self._may_start: Callable[[HeldJob], bool] = lambda _: True

    def on_recall(self, recall: Callable[[Collection[JobId]], None]) -> None:
        """Calls `recall` with jobs that must not start any more. The runner ends those that have not (`ended`)."""
        self._recall = recall

    def state(self, id: JobId) -> HeldState | None:
        """None of a job that is not held."""
        with self._lock:
            return self._states.get(id)

    # -- what the roster says --------------------------------------------------------------------------------------

    @property
    def seen(self) -> Seen | None:
        """How far the list is known; None when all of it must be read."""
        with self._lock:
            known = self._count is not None and not self._unsure
            return Seen(self._settled, self._given, self._count or 0) if known else None

    @property
    def missed_some(self) -> bool:
        """Whether an assignment was not heard of, although a later one was."""
        return self._count is None and self._given >= 0

    def hear(self, holding: Holding) -> bool:
        """Takes note of an answer of the roster; true when there are new jobs to fetch."""
        with self._lock:
            lost = self._hear(holding)
            new = bool(self._to_fetch)
        if lost:
            self._recall(lost)
        if new:
            self.wake_ups.fetcher()
        return new

    def hear_event(self, assignment: Assignment) -> bool:
        """Takes note of an assignment; true when there are new jobs to fetch."""
        with self._lock:
            if assignment.worker != self.worker or assignment.given <= self._given_at_release:
                return False
            if assignment.given > self._given:
                in_order = self._count is not None and assignment.given == self._given + 1
                self._count = (self._count or 0) + len(assignment.jobs) if in_order else None
                self._given = assignment.given
            self._learn(assignment.jobs)
            new = bool(self._to_fetch)
        if new:
            self.wake_ups.fetcher()
        return new

    def _hear(self, holding: Holding) -> list[JobId]:
        """Returns jobs that are lost: the list does not name them any more."""
        if holding.settled < self._settled or holding.given < self._given:
            return []
        self._settled, self._given, self._count = holding.settled, holding.given, holding.count
        self._learn(holding.assigned)
        if holding.behind is not None or len(self._states) == len(holding.assigned):
            return []
        named = set(holding.assigned)
        missing = [(id, state) for id, state in self._states.items() if id not in named]
        lost = [id for id, state in missing if state in _BEFORE_THE_END]
        self._unsure.update(id for id, state in missing if state not in _BEFORE_THE_END)
        self._forget(lost)
        return lost

    def _hear_release(self, holding: Holding) -> list[JobId]:
        """The answer to a release, which may come after the event of a later assignment."""
        self._given_at_release = max(self._given_at_release, holding.given)
        if holding.given >= self._given:
            return self._hear(holding)
        if holding.settled > self._settled:
            self._settled, self._count = holding.settled, None
            self._learn(holding.assigned)
        return []

    def _learn(self, ids: Iterable[JobId]) -> None:
        states = self._states
        # Each once: a list that names a job twice, because a write on it was doubled, must not start it twice.
        new = dict.fromkeys((id for id in ids if id not in states), HeldState.ASSIGNED)
        states.update(new)
        self._to_fetch.extend(new)

    def _forget(self, ids: Collection[JobId]) -> None:
        if not ids:
            return
        gone = set(ids)
        self.progress.forget(gone)
        for id in gone:
            self._states.pop(id, None)
            self._jobs.pop(id, None)
            self._marks.pop(id, None)
        self._to_fetch = [id for id in self._to_fetch if id not in gone]
        self._arrivals = deque(job for job in self._arrivals if job.id not in gone)
        self._next = deque(job for job in self._next if job.id not in gone)
        self._to_mark = deque(job for job in self._to_mark if job.id not in gone)

    # -- the fetcher -------------------------------------------------------------------------------------------------

    def to_fetch(self) -> list[JobId]:
        """The next ones, up to a bound: the first jobs of a large assignment start while the rest is fetched."""
        with self._lock:
            ids, self._to_fetch = self._to_fetch[:LARGEST_FETCH], self._to_fetch[LARGEST_FETCH:]
            return ids

    def not_fetched(self, ids: Iterable[JobId]) -> None:
        """Fetcher failed; to be tried again."""
        with self._lock:
            self._to_fetch[:0] = [id for id in ids if self._states.get(id) is HeldState.ASSIGNED]

    def fetched(self, ids: Iterable[JobId], jobs: Iterable[HeldJob]) -> bool:
        """The documents of jobs that were to be fetched; true when some are let go at once, because they are gone,
        cancelled, or may not start now, or their flow is paused."""
        there = {job.id: job for job in jobs}
        with self._lock:
            mine = [id for id in ids if self._states.get(id) is HeldState.ASSIGNED]
            to_start = [there[id] for id in mine if id in there and self._starts(there[id])]
            self._doubtful.difference_update(ids)
            kept = {job.id for job in to_start}
            for job in to_start:
                self._states[job.id] = HeldState.FETCHED
                self._jobs[job.id] = job
                (self._to_mark if job.is_marked else self._arrivals).append(job)
            let_go = [id for id in mine if id not in kept]
            self._end((id, None) for id in let_go)
        self.wake_ups.runner()
        if let_go:
            self.wake_ups.settler()
        return bool(let_go)

    def _starts(self, job: HeldJob) -> bool:
        doubtful = job.id in self._doubtful and job.flow is not None
        return not job.cancelled and not job.is_paused and not doubtful and self._may_start(job)

    def to_mark(self, slots: int) -> list[HeldJob]:
        """At-most-once and debounced jobs, as many as can start now; the fewer are marked, the fewer are lost with this
        process."""
        with self._lock:
            again = sum(job.id in self._marks for job in self._to_mark)  # marking these failed
            count = min(len(self._to_mark), max(0, slots - len(self._marks) + again))
            jobs = [self._to_mark.popleft() for _ in range(count)]
            self._marks.update((job.id, job) for job in jobs)
            return jobs

    def not_marked(self, jobs: list[HeldJob]) -> None:
        """Marking failed; to be tried again. It may have been done all the same: what goes back now is unmarked."""
        with self._lock:
            again = [job for job in jobs if self._states.get(job.id) is HeldState.FETCHED]
            self._to_mark.extendleft(reversed(again))

    def marked(self, jobs: Iterable[HeldJob]) -> None:
        """These may start."""
        with self._lock:
            self._next.extend(job for job in jobs if self._states.get(job.id) is HeldState.FETCHED)
        self.wake_ups.runner()

    # -- the runner -----------------------------------------------------------------------------------------------

    @property
    def arrived(self) -> bool:
        """Whether there are jobs to accept."""
        return bool(self._arrivals or self._next)

    def accept(self) -> tuple[list[HeldJob], list[HeldJob]]:
        """What has arrived since the last time: those that are to be started next, and those behind all others."""
        if not self.arrived:
            return [], []
        with self._lock:
            first, last = list(self._next), list(self._arrivals)
            self._next.clear()
            self._arrivals.clear()
            self._states.update((job.id, HeldState.QUEUED) for jobs in (first, last) for job in jobs)
            return first, last

    def ended(self, outcomes: Iterable[JobOutcome]) -> None:
        """What became of some jobs. It is taken only once of each, and only of those that are held."""
        fresh = list(outcomes)
        if fresh:
            with self._lock:
                self._end(fresh)
            self.wake_ups.settler()

    def hand_back(self, ids: Iterable[JobId]) -> None:
        """These jobs go back to the roster as if they had never been here."""
        self.ended([(id, None) for id in ids])

    def add_progress(self, job: HeldJob, since: datetime, progress: bytes) -> None:
        """A job has reported progress."""
        self.progress.add(job, since, progress)
        self.wake_ups.progress_writer()

    def _end(self, outcomes: Iterable[JobOutcome]) -> None:
        for id, outcome in outcomes:
            if self._states.get(id) in _BEFORE_THE_END:
                self._states[id] = HeldState.ENDED
                self._jobs.pop(id, None)
                marked = self._marks.pop(id, None)
                self._outcomes.append((id, _unmarked(marked) if marked and outcome is None else outcome))

    def not_begun(self) -> list[JobId]:
        """Everything that has not got as far as the runner, to be handed back."""
        with self._lock:
            self._to_fetch = []
            self._arrivals.clear()
            self._next.clear()
            self._to_mark.clear()
            early = (HeldState.ASSIGNED, HeldState.FETCHED)
            return [id for id, state in self._states.items() if state in early]

    # -- the heartbeat -----------------------------------------------------------------------------------------------

    def saw(self, running: Iterable[tuple[HeldJob, datetime]], now: datetime, after: float) -> bool:
        """Notes which jobs run; true when there are some that have run for longer than so many seconds, and that is to
        be written on them."""
        with self._lock:
            mine = [run for run in running if self._states.get(run[0].id) in _BEFORE_THE_END]
            self._states.update((job.id, HeldState.STARTED) for job, _ in mine)
            to_write = self.progress.add_running(mine, now, after)
        if to_write:
            self.wake_ups.progress_writer()
        return to_write

    def flows(self) -> set[bytes]:
        """The flows of which it holds steps, to ask which of them are paused. A step that is being fetched now may have
        been read before the pause, and its flow is not among these: it goes back."""
        with self._lock:
            coming = set(self._to_fetch)
            assigned = (id for id, state in self._states.items() if state is HeldState.ASSIGNED)
            self._doubtful = {id for id in assigned if id not in coming}
            return set(filter(None, (job.flow for job in self._jobs.values())))

    def allow(self, may_start: Callable[[HeldJob], bool]) -> bool:
        """From now on only jobs start of which this is true. The others are let go, or recalled from the runner.

        True when some were let go."""
        with self._lock:
            self._may_start = may_start
            refused = {id for id, job in self._jobs.items() if not may_start(job)}
            here = self._let_go(refused)
        self._recall_others(refused, here)
        return bool(here)

    def hand_back_all_but(self, most: int) -> None:
        """If it holds far more than it will end soon, because jobs take longer than those before them did, then the
        last of them go back: urgent jobs, limits and pauses would have to wait for them."""
        with self._lock:
            waiting = [id for id, state in self._states.items() if state in _NOT_STARTED]
            if len(waiting) <= _FAR_MORE * most + _ALWAYS_HELD:
                return
            surplus = set(waiting[most:])
            self._to_fetch = [id for id in self._to_fetch if id not in surplus]
            here = self._let_go(surplus)
        self._recall_others(surplus, here)

    def _let_go(self, ids: Collection[JobId]) -> list[JobId]:
        """Those of these that the runner has not seen are let go; returns them."""
        here = [id for id in ids if self._states[id] in (HeldState.ASSIGNED, HeldState.FETCHED)]
        self._arrivals = deque(job for job in self._arrivals if job.id not in ids)
        self._next = deque(job for job in self._next if job.id not in ids)
        self._to_mark = deque(job for job in self._to_mark if job.id not in ids)
        self._end((id, None) for id in here)
        return here

    def _recall_others(self, ids: Collection[JobId], here: Collection[JobId]) -> None:
        if here:
            self.wake_ups.settler()
        if elsewhere := set(ids).difference(here):
            self._recall(elsewhere)

    # -- the settler -------------------------------------------------------------------------------------------------

    def child_died(self, pid: int, jobs: Mapping[JobId, TellEnd | None] = _NONE) -> None:
        """Before the outcomes of its jobs: their settlement must not wait for what it has left locked, and only the
        settler learns how they have ended."""
        with self._lock:
            self._dead_children.append(pid)
            self._died_with.update(jobs)

    def died_with_children(self, ids: Iterable[JobId]) -> dict[JobId, TellEnd | None]:
        """Those of these jobs that ran in a child that died: it may have known more of them than this process."""
        died_with = self._died_with
        return {id: died_with[id] for id in ids if id in died_with} if died_with else {}

    def dead_children(self) -> list[int]:
        """Those that have died since this was last asked."""
        if not self._dead_children:
            return []
        with self._lock:
            dead, self._dead_children = self._dead_children, []
            return dead

    def gathers(self, slots: int, enough: int) -> bool:
        """Whether outcomes may wait for others: there are few, and every slot has its next job."""
        outcomes = len(self._outcomes)
        return outcomes < enough and len(self._states) - outcomes - self._settling >= 2 * slots

    def to_settle(self) -> list[JobOutcome]:
        """Everything that has gathered, up to a bound in number and in bytes."""
        batch: list[JobOutcome] = []
        size = 0
        with self._lock:
            while self._outcomes and len(batch) < LARGEST_SETTLEMENT and size < LARGEST_BYTES:
                batch.append(self._outcomes.popleft())
                size += len(batch[-1][1]) if isinstance(batch[-1][1], bytes) else 0
            self._states.update((id, HeldState.SETTLING) for id, _ in batch)
            self._settling = len(batch)
            return batch

    def settled(self, outcomes: Iterable[JobOutcome], holding: Holding) -> bool:
        """These are no longer ours; takes note of what still is. True when there are new jobs to fetch."""
        ids = [id for id, _ in outcomes]
        with self._lock:  # one lock for all: in between, an old answer would bring the jobs back
            lost = self._hear_release(holding)  # first: these are known, and what names them is older
            for id in ids:
                self._states.pop(id, None)
            self._unsure.difference_update(ids)
            for id in self._died_with.keys() & set(ids) if self._died_with else ():
                del self._died_with[id]
            self.progress.forget(ids)
            self._settling = 0
            new = bool(self._to_fetch)
        if lost:
            self._recall(lost)
        return new

    def not_settled(self, outcomes: list[JobOutcome]) -> None:
        """Writing them failed; to be tried again. It may have been done all the same."""
        with self._lock:
            self._states.update((id, HeldState.ENDED) for id, _ in outcomes)
            self._unsure.update(id for id, _ in outcomes)
            self._outcomes.extendleft(reversed(outcomes))
            self._settling = 0

    @property
    def settling(self) -> int:
        """How many are being settled at this moment."""
        return self._settling

    @property
    def results(self) -> list[JobId]:
        """Jobs whose results have not been written."""
        with self._lock:
            return [id for id, outcome in self._outcomes if outcome is not None and not isinstance(outcome, Settled)]

    @property
    def all_settled(self) -> bool:
        with self._lock:
            return not self._outcomes and not self._settling


def _unmarked(job: HeldJob) -> Outcome | None:
    try:
        return outcomes.not_started(decode(job.raw))
    except Exception:
        return None  # it cannot be read: whoever runs it next will say so


def crashed(
    job: HeldJob,
    policies: PolicyRegistry,
    worker: str,
    at: datetime,
    how: str,
    said: Document,
    started_at: datetime | None = None,
) -> Outcome | None:
    """What it means for a job, whatever is in it, that it was started and will not come to its end.

    `said` is what it has said of itself before.
    """
    try:
        document = decode(job.raw) | said
        return outcomes.crashed(document, policies, worker=worker, started_at=started_at, at=at, message=how)
    except Exception as error:
        return outcomes.unreadable(job.id, job.raw, at, f"{how}, and the job cannot be read: {error}")


def interrupted(
    job: HeldJob, progress: Document, started_at: datetime, at: datetime, worker: str, why: str
) -> Outcome | None:
    """A started job that is handed back, with the progress that it has reported: its run may not write any more."""
    try:
        happened = history_entry(Happened.HANDED_BACK, at, f"worker {worker}", why)
        return outcomes.interrupted(decode(job.raw), progress, started_at, happened)
    except Exception:
        return None  # it cannot be read: whoever runs it next will say so
