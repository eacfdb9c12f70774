"""The inline worker: the calling process is a worker for as long as the call lasts.

    heartbeat, fetch, settle, …    four threads, the same as in a worker
    recruiter                      a fifth: it leads if no other process does, and resigns at the end
    the calling thread             runs the jobs, one at a time

It is on the roster like every worker, so it is assigned jobs by the leader, its results are settled under its own
registration, and if it dies or freezes its jobs go to other workers. But it cannot end a job: the user's code runs in
its own thread. So when the registration is lost, the running job continues to its end, and its result is dropped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from recruiter.async_face import StopEvent
from recruiter.domain.job import JobId, JobReport
from recruiter.errors import StoreUnreachable, Superseded
from recruiter.events import Events
from recruiter.processes.inline.runner import InlineApplication, InlineRunner
from recruiter.processes.loop import Stop
from recruiter.processes.recruiter import RecruiterProcess
from recruiter.processes.worker.core import CoreOptions, WorkerCore
from recruiter.processes.worker.held_job import HeldJob
from recruiter.processes.worker.registration import LAST_WRITES
from recruiter.settings import Settings
from recruiter.store.database import Store
from recruiter.views.find import anything_to_do

_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.1
_CLOCKS_DISAGREE = timedelta(milliseconds=100)
"""A job that is due within this time may be due already by the clock of its producer, or of the leader."""


@dataclass(frozen=True)
class InlineMode:
    """How `run`, `run_all`, `watch` and the flush differ."""

    prefetch: bool = True
    """Take more than one job at a time, where they are quick."""
    stays: bool = False
    """Wait for jobs that are not there yet: listen to change waiters, and finish the running job when asked to stop."""
    rejoins: bool = True
    """Continue under a new id when the registration is lost."""
    leads: bool = True
    """Start a recruiter, which leads if there is no other leader. Otherwise the caller assigns each job, due or not."""


class InlineWorker:
    """A worker in the calling process, for one call of `run`, `run_all`, `watch` or the flush."""

    def __init__(
        self,
        store: Store,
        events: Events,
        application: InlineApplication,
        settings: Settings,
        tasks: frozenset[str],
        mode: InlineMode,
    ) -> None:
        self.reports: list[JobReport] = []
        self._store = store
        self._clock = store.clock
        self._events = events
        self._application = application
        self._settings = settings
        self._tasks = tasks
        self._mode = mode
        self._runner = InlineRunner(
            application, store.clock, events, tasks, patient=mode.stays, prefetches=mode.prefetch
        )
        self.signals = self._runner.signals
        core = CoreOptions(listens=mode.stays, at_any_time=not mode.leads)
        self._core = WorkerCore(
            store, events, self._runner, settings, core, on_settled=self._on_settled, on_busy=self._give_back_stale
        )
        self._registration = self._core.registration
        self._recruiter_stop = Stop()
        self._recruiter: RecruiterProcess | None = None
        self._recruiter_thread: threading.Thread | None = None

    @property
    def id(self) -> str:
        return self._core.held_jobs.worker

    # -- coming and going ----------------------------------------------------------------------------------------

    def open(self) -> None:
        """Joins the roster. Raises StoreError when that cannot be done."""
        self._runner.open(self._core.held_jobs)
        # First: if it takes the lead, its writes also hurry the linearizable read that joining waits for.
        if self._mode.leads:
            self._recruiter = RecruiterProcess(
                self._store,
                self._events,
                self._recruiter_stop,
                self._settings,
                policies=self._application.policies,
                schedules=self._application.schedules,
                listen=self._mode.stays,
            )
            self._recruiter_thread = threading.Thread(target=self._recruiter.run, name="recruiter", daemon=True)
            self._recruiter_thread.start()
        self._core.join()
        self._wake_recruiter()  # its first round may have been before we were ready
        self._core.start()

    def close(self) -> None:
        """Hands back the jobs that were not started, writes the results, and leaves the roster in any case."""
        try:
            self._recruiter_stop.ask()
            self._core.drain()
            if self._recruiter_thread is not None:
                self._recruiter_thread.join(timeout=LAST_WRITES)
            self._core.held_jobs.hand_back_untaken()
            self._core.wait_until_settled(LAST_WRITES)
        finally:
            self._core.close()

    # -- working -------------------------------------------------------------------------------------------------

    def take(self, within: float) -> HeldJob | None:
        """A job that is ours to run now, if one comes within this time; it may return sooner without one."""
        if self._registration.lost:
            # Prefetched jobs are no longer ours, and unwritten results do not count.
            waiting = self._core.held_jobs.hand_back_untaken()
            self._drop_superseded()
            self._core.begin_again(running=0, waiting=waiting)
        if self._registration.silent_too_long:
            time.sleep(min(within, _LONGEST_PAUSE))  # by now the jobs that wait here may run elsewhere
            return None
        return self._runner.take(within)

    def next_job(self, wait: float, stop: StopEvent | None = None) -> HeldJob | None:
        """A job to run now; None when there is none, when none was assigned within this time, or when asked to stop."""
        deadline = self._clock.monotonic() + wait
        pause = _FIRST_PAUSE
        while not self.signals.asked and not (stop is not None and stop.is_set()):
            job = self.take(pause)
            if job is not None:
                return job
            if self._clock.monotonic() >= deadline or not self._anything_to_do():
                return None
            self._wake_recruiter()  # another leader may have just resigned, or died
            pause = min(2 * pause, _LONGEST_PAUSE)
        return None

    def run_assigned(self, id: JobId) -> JobReport | None:
        """Runs a job that the caller has assigned to this worker, and settles it; None when it did not run to its end.
        Raises Superseded when the registration is lost."""
        held_jobs, report = self._core.held_jobs, None
        deadline = self._clock.monotonic() + self._store.patience + LAST_WRITES
        while held_jobs.state(id) is None:
            holding = self._store.roster.holding(self.id)
            if holding is None:
                raise Superseded(f"worker {self.id} was taken off the roster")
            if not held_jobs.hear(holding):
                time.sleep(_FIRST_PAUSE)  # a majority of the nodes does not know of the assignment yet
        while held_jobs.state(id) is not None:
            job = self.take(_LONGEST_PAUSE)
            if job is not None:
                report = self.perform(job)
                self.conclude()
            elif self._clock.monotonic() > deadline:
                raise StoreUnreachable(f"MongoDB does not answer; job {id!r} waits for another worker")
        return report

    def perform(self, job: HeldJob) -> JobReport | None:
        """Runs the job; returns its report, or None if it was interrupted. The job has ended only when `conclude` has
        written its outcome."""
        held_jobs = self._core.held_jobs
        outcome, report = self._runner.perform(job)
        held_jobs.ended([(job.id, outcome)])
        if report is not None and not self._mode.stays:  # a worker that stays would collect them for ever
            self.reports.append(report)
        return report

    def take_no_more(self) -> None:
        """With the next settlement the leader learns that this was the last job for us."""
        self._registration.draining = True

    def conclude(self) -> list[JobReport]:
        """Waits until all outcomes are written; returns the reports. Raises StoreUnreachable if one was not written."""
        settled = self._core.wait_until_settled(self._store.patience + LAST_WRITES)
        if not settled and self._registration.lost:
            self._drop_superseded()
        elif not settled:
            ids = ", ".join(map(repr, self._core.held_jobs.unwritten_results))
            raise StoreUnreachable(f"MongoDB refused the results of these jobs; they will run again: {ids}")
        return self.reports

    # -- inside --------------------------------------------------------------------------------------------------

    def _anything_to_do(self) -> bool:
        """Asked while nothing runs here. A job that is being settled may be due again right after that."""
        held_jobs = self._registration.held_jobs
        soon = self._clock.now() + _CLOCKS_DISAGREE
        return not held_jobs.all_settled or anything_to_do(self._store, held_jobs.worker, self._tasks, soon)

    def _drop_superseded(self) -> None:
        """Drops what a lost registration has not written. Raises Superseded if the mode does not register again."""
        deadline = self._clock.monotonic() + LAST_WRITES
        while self._core.held_jobs.settling and self._clock.monotonic() < deadline:
            time.sleep(0.01)  # the batch that is being written will be refused, or was in time
        dropped = self._core.drop_results()
        for id in dropped:
            # The last report of this job: an earlier one was settled before the job came again.
            places = [place for place, report in enumerate(self.reports) if report.id == id]
            del self.reports[places[-1] : places[-1] + 1]
        if not self._mode.rejoins:
            ran = f"; job {dropped[0]!r} ran here to its end, its result was dropped, and it runs again"
            why = "this process was silent for too long and was taken off the roster"
            raise Superseded(why + ran if dropped else why)

    def _on_settled(self) -> None:
        """There is room for more jobs: the leader may assign, and the calling thread may continue."""
        self._wake_recruiter()
        self._runner.wake()

    def _wake_recruiter(self) -> None:
        if self._recruiter is not None:
            self._recruiter.wake()

    def _give_back_stale(self) -> None:
        """So that no job waits behind a slow one while another worker is free. Called by the fetch thread."""
        if self._runner.slow:
            self._core.held_jobs.hand_back_untaken()


_STOP_CHECKED_EVERY_SECONDS = 0.1
"""Time between two checks of the caller's stop event."""
_SLACK = 1.0

ONE = InlineMode(prefetch=False, rejoins=False)
ALL = InlineMode()
WATCH = InlineMode(stays=True)
FLUSH = InlineMode(prefetch=False, rejoins=False, leads=False)


class Inline:
    """The calls that run jobs in the calling process. Each makes its own InlineWorker."""

    def __init__(self, store: Store, events: Events, application: InlineApplication, settings: Settings) -> None:
        self._store = store
        self._events = events
        self._application = application
        self._settings = settings

    @property
    def patience(self) -> float:
        """Seconds after which even the lease of a leader that was killed has run out."""
        return self._settings.lease_time.total_seconds() + _SLACK

    def run(self, tasks: Iterable[str], wait: float | None = None, stop: StopEvent | None = None) -> JobReport | None:
        """Runs one due job; None when there is none to be had, or when asked to stop before there was one."""
        with self.caller(tasks, ONE) as caller:
            job = caller.next_job(self.patience if wait is None else wait, stop)
            if job is None:
                return None
            caller.take_no_more()
            caller.perform(job)
            reports = caller.conclude()
        return reports[0] if reports else None

    def run_all(self, tasks: Iterable[str], stop: StopEvent | None = None) -> list[JobReport]:
        """Runs due jobs until none is left, or until asked to stop."""
        with self.caller(tasks, ALL) as caller:
            while (job := caller.next_job(self.patience, stop)) is not None:
                caller.perform(job)
            return caller.conclude()

    def watch(self, tasks: Iterable[str], stop: StopEvent | None = None) -> None:
        """Runs jobs as they come, until asked to stop."""
        with self.caller(tasks, WATCH) as caller:
            while not caller.signals.asked and not (stop is not None and stop.is_set()):
                job = caller.take(_STOP_CHECKED_EVERY_SECONDS)
                if job is not None:
                    caller.perform(job)

    @contextmanager
    def caller(self, tasks: Iterable[str], mode: InlineMode) -> Iterator[InlineWorker]:
        """Makes this process a worker during the block."""
        caller = InlineWorker(self._store, self._events, self._application, self._settings, frozenset(tasks), mode)
        with caller.signals:
            try:
                caller.open()
                yield caller
            finally:
                caller.close()
