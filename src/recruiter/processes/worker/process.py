"""The worker process: a supervisor that runs no user code, and the children that run it.

The main thread owns the dispatcher, which gives jobs to the children. All else that makes the process a worker is in
`core.py`. When the registration is lost, the worker stops its children and registers under a new id.
"""

from __future__ import annotations

import gc
import sys
import threading
from datetime import timedelta

from recruiter.domain.duration import humanize
from recruiter.domain.policy_registry import PolicyRegistry
from recruiter.events import Events
from recruiter.processes.loop import Loop, Stop
from recruiter.processes.systemd import ServiceManager
from recruiter.processes.worker.child_pool import ForkServer
from recruiter.processes.worker.core import WorkerCore
from recruiter.processes.worker.dispatcher import Dispatcher
from recruiter.processes.worker.registration import LAST_WRITES
from recruiter.settings import Settings
from recruiter.store.database import Store


class WorkerProcess:
    """The supervisor of a worker: its main loop, which turns the dispatcher until the process is asked to stop."""

    def __init__(
        self,
        store: Store,
        events: Events,
        stop: Stop,
        settings: Settings,
        fork_server: ForkServer,
        *,
        manager: ServiceManager | None = None,
    ) -> None:
        self._store = store
        self._clock = store.clock
        self._events = events
        self._stop = stop
        self._settings = settings
        self._heartbeat = settings.heartbeat.total_seconds()
        self._dispatcher = Dispatcher(
            lambda worker, now: fork_server.spawn(worker, store.target, settings.concurrency, now),
            store.clock,
            events,
            PolicyRegistry(),
            settings,
            fork_server.reporters,
        )
        self._core = WorkerCore(store, events, self._dispatcher, settings)
        self._registration = self._core.registration
        self._reporter = EndReporter(store, events, stop, self._dispatcher, fork_server)
        self._cut_off = False
        self._manager = manager or ServiceManager()

    def run(self) -> None:
        """Works until asked to stop, then finishes running jobs, hands back the others and leaves the roster."""
        # The dispatcher computes, the others wait for MongoDB; with the usual 5 ms each answer would wait for it.
        sys.setswitchinterval(0.0005)
        gc.freeze()  # loaded modules stay: the collector need not visit them again
        self._stop.when_asked(self._dispatcher.wake)
        self._stop.when_at_once(self._dispatcher.kill)
        self._dispatcher.open(self._core.held_jobs)
        self._core.start()
        reports = self._reporter.start()
        try:
            while not self._stop.asked:
                self._dispatcher.turn()
                self._check_registration()
                self._manager.alive()
            self._drain()
        finally:
            reports.join(timeout=LAST_WRITES)
            self._core.close()

    def _check_registration(self) -> None:
        """Ends the children if the registration is lost, and registers again. Ends them too while no heartbeat arrives
        for so long that other workers may have been given their jobs."""
        if self._registration.lost:
            waiting = self._dispatcher.pause()
            running = self._dispatcher.end_children()
            self._core.drop_results()
            self._core.begin_again(running=len(running), waiting=waiting)
            self._cut_off = False
        if not self._cut_off and self._registration.silent_too_long:
            self._cut_off = True
            why = (
                f"no heartbeat of this worker has arrived for {self._registration.silence:.0f} s (MongoDB does not "
                "answer, or this process stood still): others may run its jobs by now"
            )
            self._dispatcher.pause()
            self._dispatcher.interrupt(self._dispatcher.end_children(), why)
        elif self._cut_off and self._registration.silence < self._heartbeat:
            self._cut_off = False
            self._dispatcher.resume()

    def _drain(self) -> None:
        """Lets running jobs finish within the grace period, then ends the others, and writes all outcomes."""
        self._core.drain()
        self._dispatcher.ask_to_stop()
        deadline = self._clock.monotonic() + self._settings.grace.total_seconds()
        self._dispatcher.pause()
        if running := self._dispatcher.running():
            grace = humanize(self._settings.grace)
            self._events.emit("worker.finishing", worker=self._core.held_jobs.worker, running=len(running), grace=grace)
        while not self._dispatcher.idle and self._clock.monotonic() < deadline and not self._registration.lost:
            self._dispatcher.turn()
            self._manager.alive()
        self._dispatcher.let_flush()
        self._dispatcher.interrupt(self._dispatcher.end_children(), "the worker was asked to stop")
        self._core.wait_until_settled(LAST_WRITES)


# -- ends that no process of the job could report ----------------------------------------------------------------------


_REPORT_EVERY_SECONDS = 5.0
_REPORTED_FOR = timedelta(days=1)
"""Older ends are not reported: the application had no instruments or no worker at the time."""
_MAX_REPORTED_AT_ONCE = 100


class EndReporter:
    """Reports the ends of jobs whose processes died to the instruments of the application, such as Sentry.

    A supervisor or the leader has archived such a job, and marked it (`outcomes.unreported`). Neither of them runs code
    of the application. So a worker claims the job, which only one worker can, and a process of its fork server makes
    the report: at most once. A worker whose application has no instruments claims nothing.
    """

    def __init__(
        self, store: Store, events: Events, stop: Stop, dispatcher: Dispatcher, fork_server: ForkServer
    ) -> None:
        self._store = store
        self._dispatcher = dispatcher
        self._fork_server = fork_server
        self._loop = Loop("report", self._step, stop, events)

    def start(self) -> threading.Thread:
        return self._loop.start()

    def _step(self) -> float:
        tasks = self._dispatcher.tasks
        if not tasks or not self._dispatcher.has_instruments:
            return _REPORT_EVERY_SECONDS
        since = self._store.clock.now() - _REPORTED_FOR
        jobs: list[bytes] = []
        while len(jobs) < _MAX_REPORTED_AT_ONCE and (job := self._store.archived.claim_unreported(tasks, since)):
            jobs.append(job)
        if jobs:
            self._fork_server.report(self._store.target, jobs)
        return 0.0 if len(jobs) == _MAX_REPORTED_AT_ONCE else _REPORT_EVERY_SECONDS
