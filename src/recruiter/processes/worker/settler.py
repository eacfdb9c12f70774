"""The settler writes the outcomes of jobs: all that have gathered since the last batch, in one transaction.

A transaction costs about the same for one outcome as for a hundred. So outcomes gather for `settle_within`.
`Settler._must_settle` has the reasons to write them earlier.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection

from recruiter.domain.job import JobId
from recruiter.errors import DocumentLocked, Superseded
from recruiter.events import Events
from recruiter.processes.loop import UNTIL_WOKEN_SECONDS, Loop, Stop
from recruiter.processes.worker.held_jobs import HeldJobs, JobOutcome
from recruiter.processes.worker.registration import JobRunner, Registration
from recruiter.steps.settle import as_children_left_them, settle
from recruiter.store.database import Store
from recruiter.store.roster_fields import Holding

LARGE_BATCH_JOBS = 300
"""Number of outcomes that are settled without waiting for more."""
_BUFFER_USED = 2 / 3
"""The part of the jobs that a worker may hold which has ended when they are settled without waiting for more."""
_AGAIN_SECONDS = 0.5
"""Rest after the registration was lost: the owner of the worker begins another one."""
_LOCKED_AGAIN_SECONDS = 1.0
"""Rest before a job is settled again that another transaction holds. Others do not wait for it."""


class Settler:
    """The thread that writes outcomes to MongoDB, in batches, and thereby releases the jobs."""

    def __init__(
        self,
        store: Store,
        events: Events,
        stop: Stop,
        registration: Registration,
        runner: JobRunner,
        on_settled: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._events = events
        self._registration = registration
        self._runner = runner
        self._on_settled = on_settled
        """Called after each batch: the worker may hold new jobs, and has room for more."""
        self._settle_within = registration.settings.settle_within.total_seconds()
        """If the worker is killed, the jobs whose outcomes have gathered run again."""
        self._batch_began_at = -math.inf
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
        """There are outcomes. The loop is left asleep while they gather: it wakes by itself after that time."""
        if self._must_settle():
            self._loop.wake()

    def _must_settle(self) -> bool:
        """Whether the outcomes that there are must be written now. This is the one place that decides it."""
        held_jobs, slots = self._registration.held_jobs, self._registration.settings.slots
        have_gathered_long_enough = self._until_due() <= 0
        is_large_batch = held_jobs.unsettled >= LARGE_BATCH_JOBS
        has_slot_without_next_job = held_jobs.unfinished < 2 * slots
        # The leader gives more jobs when outcomes are written, and until then the others must last.
        has_used_its_buffer = held_jobs.unsettled >= _BUFFER_USED * (slots + self._runner.prefetch)
        return have_gathered_long_enough or is_large_batch or has_slot_without_next_job or has_used_its_buffer

    def _until_due(self) -> float:
        """Seconds for which outcomes may still gather."""
        may_gather_for = min(self._settle_within, self._registration.held_jobs.outcomes_may_wait)
        return max(0.0, self._batch_began_at + may_gather_for - time.monotonic())

    def _step(self) -> float:
        """Settles a batch if one must be settled now; returns the seconds to wait."""
        if not self._must_settle():
            return self._until_due()
        try:
            settled = self.settle()
        except Superseded:
            return _AGAIN_SECONDS
        except DocumentLocked:
            return _LOCKED_AGAIN_SECONDS
        if not settled and self._locked:
            return max(0.0, self._locked_again_at - time.monotonic())
        until_due = self._until_due()
        if settled or until_due > 0:
            return until_due  # no other thread wakes this loop while outcomes may gather (`hear`)
        return UNTIL_WOKEN_SECONDS

    def settle(self) -> list[JobOutcome]:
        """Settles one batch now, and returns it; it is empty when there is nothing to settle.

        Whatever is raised, the outcomes are kept, to be settled again. Superseded means that they do not count.
        """
        held_jobs = self._registration.held_jobs
        gathered = held_jobs.to_settle()
        if time.monotonic() >= self._locked_again_at:
            self._locked.clear()
        batch = [outcome for outcome in gathered if outcome[0] not in self._locked]
        if not batch:
            held_jobs.not_settled(gathered, may_wait=math.inf)
            return []
        died = held_jobs.died_with_children(id for id, _ in batch)
        self._batch_began_at = time.monotonic()
        try:
            batch = self._after_deaths(held_jobs, batch, died)
            self._end_progress(held_jobs, batch)
            holding = self._write(held_jobs, batch)
        except BaseException as error:
            held_jobs.not_settled(gathered)
            if isinstance(error, Superseded):
                self._registration.lose(held_jobs)
            raise
        settled = [outcome for outcome in batch if outcome[0] not in self._locked]
        # First the locked ones: a worker that ends must not find that all is settled. Others do not hurry for them.
        if locked := [outcome for outcome in gathered if outcome[0] in self._locked]:
            held_jobs.not_settled(locked, may_wait=math.inf)
        held_jobs.settled(settled, holding)
        for id, outcome in settled:
            if (tell := died.get(id)) is not None:
                tell(outcome)
        self._on_settled()
        return settled

    def _after_deaths(
        self, held_jobs: HeldJobs, outcomes: list[JobOutcome], died: Collection[JobId]
    ) -> list[JobOutcome]:
        """Ends the sessions of children that died in a transaction of their job, and corrects the outcomes of their
        jobs by what only the children knew: that the job has ended in its transaction, and its checkpoints."""
        dead = held_jobs.take_dead_children()
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

    def _end_progress(self, held_jobs: HeldJobs, outcomes: list[JobOutcome]) -> None:
        """No progress may be written after an outcome. A job that is handed back keeps its progress, and loses the mark
        that it runs here."""
        stopped = held_jobs.progress.stop([id for id, _ in outcomes])
        handed_back = {id for id, outcome in outcomes if outcome is None}.intersection(stopped)
        final = held_jobs.progress.final(handed_back, held_jobs.worker) if handed_back else []
        if final:
            self._store.scheduled.clear_progress(final)

    def _write(self, held_jobs: HeldJobs, outcomes: list[JobOutcome]) -> Holding:
        """Writes what another transaction does not hold; notes the other jobs in `_locked`."""

        def note_locked(id: JobId) -> None:
            self._locked.add(id)
            self._locked_again_at = time.monotonic() + _LOCKED_AGAIN_SECONDS

        return settle(
            self._store,
            held_jobs.worker,
            outcomes,
            {"prefetch": self._runner.prefetch, "draining": self._registration.draining},
            on_reduced=lambda id, refused: self._events.emit("job.reduced", job=id, error=str(refused)),
            on_locked=note_locked,
        )
