"""The worker core: everything that makes a process a worker, except the place where its jobs run.

    roster ──assignments──▶ fetcher ──jobs──▶ job runner ──outcomes──▶ settler ──▶ MongoDB
       ▲                                          │                       │
       │                                      progress ──▶ progress writer│
       └── heartbeat (no job can hold it up) ◀── jobs still held ─────────┘

Four threads wait for MongoDB, so that the thread of the job runner never does. They meet in `HeldJobs`: each transition
of a job wakes the thread for the next transition (`WakeUps`). Two kinds of process use the core:

    WorkerProcess    its runner is the dispatcher, with child processes
    InlineWorker     its runner is the calling thread (`run`, `run_all`, `watch`, the flush)

When the registration is lost, the owner of the core ends or drops what ran under it, and calls `begin_again`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from recruiter.domain.job import JobId
from recruiter.errors import StoreError, StoreUnreachable
from recruiter.events import Events
from recruiter.processes.loop import UNTIL_WOKEN_SECONDS, Loop, Stop
from recruiter.processes.worker.fetcher import Fetcher
from recruiter.processes.worker.heartbeat import Heartbeat
from recruiter.processes.worker.held_jobs import HeldJobs, WakeUps
from recruiter.processes.worker.registration import LAST_WRITES, JobRunner, Registration
from recruiter.processes.worker.settler import Settler
from recruiter.settings import Settings
from recruiter.store.database import Store

_BETWEEN_LOOKS = 0.002


@dataclass(frozen=True)
class CoreOptions:
    """How the uses of the core differ."""

    listens: bool = True
    """Whether to open a change stream when no jobs come; not worth it for a worker that does not wait for long."""
    at_any_time: bool = False
    """Whether to start jobs that are paused, or were put off."""


WORKER = CoreOptions()


class WorkerCore:
    """The threads of a worker that talk to MongoDB, around the runner of its jobs."""

    def __init__(
        self,
        store: Store,
        events: Events,
        runner: JobRunner,
        settings: Settings,
        options: CoreOptions = WORKER,
        *,
        on_settled: Callable[[], None] = lambda: None,
        on_busy: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._clock = store.clock
        self._events = events
        self._runner = runner
        self._on_settled = on_settled
        """Called after each batch of outcomes that was written."""
        self._stop, self._fetch_stop = Stop(), Stop()
        self._threads: list[threading.Thread] = []
        self._fetch_thread: threading.Thread | None = None
        self.registration = registration = Registration(store.clock, settings, self._wake_ups())
        self._progress_writer = ProgressWriter(store, events, self._stop, registration)
        self._settler = Settler(store, events, self._stop, registration, runner, self._settled)
        self._fetcher = Fetcher(
            store,
            events,
            self._fetch_stop,
            registration,
            runner,
            on_busy=on_busy,
            listen=options.listens,
            at_any_time=options.at_any_time,
        )
        self._heartbeat = Heartbeat(
            store, events, self._stop, registration, runner, obeys_pauses=not options.at_any_time
        )

    def _wake_ups(self) -> WakeUps:
        return WakeUps(
            fetcher=lambda: self._fetcher.wake(),
            runner=self._runner.wake,
            settler=lambda: self._settler.hear(),
            progress_writer=lambda: self._progress_writer.wake(),
        )

    @property
    def held_jobs(self) -> HeldJobs:
        return self.registration.held_jobs

    # -- coming and going ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Works on all threads; the heartbeat joins the roster as soon as the tasks are known."""
        self._threads += [self._heartbeat.start(), self._progress_writer.start(), self._settler.start()]
        self._fetch_thread = self._fetcher.start()

    def join(self) -> None:
        """Joins the roster now, before the threads are started. Raises StoreError when that cannot be done."""
        while (wait := self._heartbeat.join()) and not (self.registration.joined or self.registration.lost):
            time.sleep(wait)

    def begin_again(self, *, running: int, waiting: int) -> None:
        """The registration is lost: continues under a new id. The jobs of the old one belong to other workers."""
        self._events.emit("worker.lost", worker=self.held_jobs.worker, running=running, waiting=waiting)
        self.registration.begin()
        self._runner.open(self.held_jobs)
        self._heartbeat.wake()

    def drop_results(self) -> list[JobId]:
        """Drops the results that a lost registration has not written; returns their jobs."""
        dropped = self.held_jobs.unwritten_results
        for id in dropped:
            self._events.emit("job.superseded", job=id, worker=self.held_jobs.worker)
        return dropped

    def drain(self) -> None:
        """Stops fetching: a job that arrived later would neither run nor be handed back."""
        self.registration.draining = True
        self._fetch_stop.ask()
        if self._fetch_thread is not None:
            self._fetch_thread.join(timeout=LAST_WRITES)
        self._heartbeat.wake()

    def close(self) -> None:
        """Ends the threads, leaves the roster, and closes the runner. Jobs that are still held are free immediately."""
        self._fetch_stop.ask()
        self._stop.ask()
        self._fetcher.close()
        deadline = self._clock.monotonic() + LAST_WRITES
        for thread in self._threads:
            thread.join(timeout=max(0.0, deadline - self._clock.monotonic()))
        self.registration.leave(self._store, self._events)
        self._runner.close()

    # -- outcomes ------------------------------------------------------------------------------------------------

    def wait_until_settled(self, within: float) -> bool:
        """Waits until all outcomes are written; false if some were not within this time, in seconds."""
        deadline = self._clock.monotonic() + within
        held_jobs = self.held_jobs
        while not held_jobs.all_settled and self._clock.monotonic() < deadline and not self.registration.lost:
            self._settler.wake()
            time.sleep(_BETWEEN_LOOKS)
        return held_jobs.all_settled

    def _settled(self) -> None:
        self._fetcher.wake()
        self._on_settled()


# -- progress ------------------------------------------------------------------------------------------------------


_BETWEEN_WRITES = 0.25
"""Seconds; together with the sender's, the progress of a job can be seen within half a second."""


class ProgressWriter:
    """Writes the progress of running jobs on their documents, and which worker runs them since when.

    There is one write for all jobs of the worker a few times a second, no matter how much they report. If MongoDB
    refuses it, the jobs continue, and all progress is written again with the outcome.
    """

    def __init__(self, store: Store, events: Events, stop: Stop, registration: Registration) -> None:
        self._store = store
        self._events = events
        self._registration = registration
        self._loop = Loop("progress", self._step, stop, events)
        self._wrote_at = 0.0
        """On the real clock, also where the application's stands still."""

    def start(self) -> threading.Thread:
        return self._loop.start()

    def wake(self) -> None:
        self._loop.wake()

    def _step(self) -> float:
        """Writes the progress that is due; returns the seconds to wait."""
        rest = self._wrote_at + _BETWEEN_WRITES - time.monotonic()
        if rest > 0:
            return rest
        held_jobs, registration = self._registration.held_jobs, self._registration
        if registration.lost or registration.silent_too_long:
            return _BETWEEN_WRITES  # by now other workers may hold the jobs
        marks = held_jobs.progress.take(held_jobs.worker)
        written = True
        try:
            if marks:
                self._wrote_at = time.monotonic()
                self._store.scheduled.mark_progress(marks)
        except StoreUnreachable:
            written = False
            raise
        except StoreError as error:
            # It counts as written: the outcome of each job has its progress once more.
            self._events.emit("progress.refused", jobs=[mark.id for mark in marks], error=str(error))
        finally:
            held_jobs.progress.written(written)
        return UNTIL_WOKEN_SECONDS
