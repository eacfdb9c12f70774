"""The settler writes the outcomes of jobs: all that have gathered since the last batch, in one step.

A batch costs about as much as a hundred jobs in it, whether it has one or a hundred. So while other jobs wait behind
those that run, outcomes gather for a moment; a worker that has nothing else to do writes its outcome at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection

from recruiter.domain.job import JobId
from recruiter.domain.planning.prefetch import Throughput
from recruiter.errors import DocumentLocked, Superseded
from recruiter.events import Events
from recruiter.processes.loop import Loop, Stop
from recruiter.processes.worker.held_jobs import HeldJobs, JobOutcome
from recruiter.processes.worker.registration import Registration
from recruiter.steps.settle import as_children_left_them, settle
from recruiter.store.database import Store
from recruiter.store.roster_fields import Holding

GATHERED_FOR = 0.025
"""Seconds between the beginnings of two batches. If a worker is killed, the jobs whose outcomes have not been written
run again: it should not be longer than it must."""
ENOUGH = 100
"""So many outcomes need not wait for more."""
_LOCKED_AGAIN_SECONDS = 1.0
"""Rest before a job is settled again that another transaction holds. Others do not wait for it."""


class Settler:
    def __init__(
        self,
        store: Store,
        events: Events,
        stop: Stop,
        registration: Registration,
        throughput: Throughput,
        on_settled: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._clock = store.clock
        self._events = events
        self._registration = registration
        self._throughput = throughput
        self._on_settled = on_settled
        """Called after each batch: the worker may hold new jobs, and has room for more."""
        self._began_at = -GATHERED_FOR
        """When the last batch began, on the real clock, also where the application's stands still."""
        self._locked: set[JobId] = set()
        """Jobs that another transaction held when they were to be settled."""
        self._locked_again_at = 0.0
        self._loop = Loop("settle", self._step, stop, events)
        store.wakers.add(self._loop.wake)

    def start(self) -> threading.Thread:
        return self._loop.start()

    def wake(self) -> None:
        self._loop.wake()

    def hear(self) -> None:
        """There are outcomes. The loop is left asleep while they gather: it wakes by itself when that is over."""
        if not self._gathers():
            self._loop.wake()

    def _gathers(self) -> bool:
        return self._rest() > 0 and self._registration.held_jobs.gathers(self._registration.settings.slots, ENOUGH)

    def _rest(self) -> float:
        return self._began_at + GATHERED_FOR - time.monotonic()

    def settle(self) -> list[JobOutcome]:
        """Settles one batch now, and returns it; it is empty when there is nothing to settle.

        Whatever is raised, the outcomes are kept, to be settled again. Superseded means that they do not count.
        """
        held_jobs = self._registration.held_jobs
        outcomes, later = self._without_locked(held_jobs.to_settle())
        if not outcomes:
            held_jobs.not_settled(later)
            return []
        self._began_at = time.monotonic()
        locked: set[JobId] = set()
        try:
            died = held_jobs.died_with_children(id for id, _ in outcomes)
            outcomes = self._after_deaths(held_jobs, outcomes, died)
            holding = self._write(held_jobs, outcomes, locked.add)
        except BaseException as error:
            self._note_locked(locked)
            held_jobs.not_settled([*later, *outcomes])
            if isinstance(error, Superseded):
                self._registration.lose(held_jobs)
            raise
        self._note_locked(locked)
        settled = [outcome for outcome in outcomes if outcome[0] not in locked] if locked else outcomes
        self._throughput.count(sum(1 for _, outcome in settled if outcome is not None), self._clock.monotonic())
        held_jobs.settled(settled, holding)
        held_jobs.not_settled([*later, *(outcome for outcome in outcomes if outcome[0] in locked)])
        for id, outcome in settled if died else ():
            if (tell := died.get(id)) is not None:
                tell(outcome)
        self._on_settled()
        return settled

    def _without_locked(self, outcomes: list[JobOutcome]) -> tuple[list[JobOutcome], list[JobOutcome]]:
        """The outcomes to be written now, and those that rest because another transaction held their job."""
        if time.monotonic() >= self._locked_again_at:
            self._locked.clear()
        if not self._locked:
            return outcomes, []
        now = [outcome for outcome in outcomes if outcome[0] not in self._locked]
        return now, [outcome for outcome in outcomes if outcome[0] in self._locked]

    def _note_locked(self, ids: set[JobId]) -> None:
        if ids:
            self._locked |= ids
            self._locked_again_at = time.monotonic() + _LOCKED_AGAIN_SECONDS

    def _after_deaths(
        self, held_jobs: HeldJobs, outcomes: list[JobOutcome], died: Collection[JobId]
    ) -> list[JobOutcome]:
        """Frees what children have left locked that died in a transaction of their job; and corrects the outcomes of
        their jobs by what only the children knew: that the job has ended in its transaction, and its checkpoints."""
        dead = held_jobs.dead_children()
        try:
            sessions = self._store.roster.sessions_of(held_jobs.worker, dead) if dead else []
            for session in sessions:
                self._store.transactions.end_session_of(session)
            if sessions:
                self._store.roster.forget_sessions(held_jobs.worker, dead)
        except BaseException:
            for pid in dead:
                held_jobs.child_died(pid)
            raise
        return as_children_left_them(self._store, outcomes, died) if died else outcomes

    def _step(self) -> float:
        if self._gathers():
            return self._rest()
        try:
            settled = self.settle()
        except Superseded:
            return 0.5  # the owner of the registration begins again
        except DocumentLocked:
            return _LOCKED_AGAIN_SECONDS
        if not settled and self._locked:
            return max(0.0, self._locked_again_at - time.monotonic())
        # As long as outcomes may gather, nobody wakes this loop for them.
        return max(0.0, self._rest()) if settled or self._rest() > 0 else 3600.0

    def _write(self, held_jobs: HeldJobs, outcomes: list[JobOutcome], on_locked: Callable[[JobId], None]) -> Holding:
        self._end_progress(held_jobs, outcomes)
        facts = {"prefetch": self._throughput.prefetch, "draining": self._registration.draining}
        return settle(
            self._store,
            held_jobs.worker,
            outcomes,
            facts,
            on_reduced=lambda id, refused: self._events.emit("job.reduced", job=id, error=str(refused)),
            seen=held_jobs.seen,
            on_locked=on_locked,
        )

    def _end_progress(self, held_jobs: HeldJobs, outcomes: list[JobOutcome]) -> None:
        """No progress may be written after an outcome. A job that is handed back keeps its progress, and loses the mark
        that it runs here."""
        stopped = held_jobs.progress.stop([id for id, _ in outcomes])
        released = {id for id, outcome in outcomes if outcome is None}.intersection(stopped)
        final = held_jobs.progress.final(released, held_jobs.worker) if released else []
        if final:
            self._store.scheduled.clear_progress(final)
