"""The worker process: a supervisor that runs no user code, and the children that do.

    roster ──holding──▶ fetch ──jobs──▶ dispatcher ──outcomes──▶ settle ──▶ MongoDB
       ▲                                 │  ▲ pipes                 │
       │                               children                     │
       └─ heartbeat (no job can hold it up) ◀── what is still held ─┘

Five threads: the main one, here, owns the dispatcher; `heartbeat.py`, `fetching.py`, `settling.py` and
`progress/writer.py` wait for MongoDB so that the dispatcher never does. When the registration is lost
(`registration.py`), whatever ran under it is ended and a new one begins under a new id.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

from recruiter.clock import SteadyClock
from recruiter.domain.planning.prefetch import Throughput
from recruiter.domain.policy_registry import PolicyRegistry
from recruiter.events import Events
from recruiter.processes.loop import Stop
from recruiter.processes.progress.writer import ProgressWriter
from recruiter.processes.systemd import ServiceManager
from recruiter.processes.worker.child_handle import Run
from recruiter.processes.worker.child_pool import ForkServer
from recruiter.processes.worker.dispatcher import Dispatcher
from recruiter.processes.worker.fetcher import Fetcher
from recruiter.processes.worker.heartbeat import Heartbeat
from recruiter.processes.worker.held_jobs import HeldJob
from recruiter.processes.worker.registration import LAST_WRITES, Registration, RegistrationOptions
from recruiter.processes.worker.settler import Settler
from recruiter.store.database import Store


@dataclass(frozen=True)
class WorkerOptions:
    groups: tuple[str, ...] | None = None
    processes: int = 1
    concurrency: int = 1
    heartbeat: float = 1.0
    dead_after: float = 15.0
    grace: float = 30.0
    resources: str = ""
    host: str = ""
    memory_limit: int | None = None
    memory_hard_limit: int | None = None
    tell_all: bool = False
    """Whether to emit an event for every job that succeeds, too."""

    @property
    def slots(self) -> int:
        return self.processes * self.concurrency


class WorkerProcess:
    def __init__(
        self,
        store: Store,
        events: Events,
        stop: Stop,
        options: WorkerOptions,
        fork_server: ForkServer,
        *,
        manager: ServiceManager | None = None,
    ) -> None:
        self._store = store
        self._clock = store.clock
        self._events = events
        self._stop = stop
        self._options = options
        self._threads_stop = Stop()
        self._fetch_stop = Stop()
        self._dispatcher = Dispatcher(
            lambda worker, now: fork_server.spawn(worker, store.target.uri, options.concurrency, now),
            SteadyClock(store.clock),
            events,
            PolicyRegistry(),
            children=options.processes,
            memory_limit=options.memory_limit,
            hard_limit=options.memory_hard_limit,
            told=lambda: self._settler.wake(),
            starving=lambda: self._fetcher.wake(),
            heard=lambda: self._progress_writer.wake(),
            tell_all=options.tell_all,
        )
        roster = RegistrationOptions(
            options.groups,
            options.slots,
            options.resources,
            options.host,
            options.heartbeat,
            options.dead_after,
        )
        self._registration = registration = Registration(store.clock, roster, self._dispatcher.wake)
        throughput = Throughput()
        self._settler = Settler(
            store, events, self._threads_stop, registration, throughput, settled=lambda: self._fetcher.wake()
        )
        self._fetcher = Fetcher(
            store, events, self._fetch_stop, registration, self._dispatcher, ended=self._settler.wake
        )
        self._progress_writer = ProgressWriter(store, events, self._threads_stop, registration)
        self._heartbeat = Heartbeat(
            store,
            events,
            self._threads_stop,
            registration,
            self._dispatcher,
            throughput,
            given=self._fetcher.wake,
            noticed=self._progress_writer.wake,
            ended=self._settler.wake,
        )
        self._cut_off = False
        self._manager = manager or ServiceManager()

    def run(self) -> None:
        """Works until asked to stop, then finishes what runs, hands the rest back and leaves the roster."""
        # The dispatcher computes, the others wait for MongoDB; with the usual 5 ms each answer would wait for it.
        sys.setswitchinterval(0.0005)
        self._stop.when_asked(self._dispatcher.wake)
        self._stop.when_at_once(self._dispatcher.kill)
        self._dispatcher.open(self._registration.held_jobs)
        fetching = self._fetcher.start()
        threads = [self._heartbeat.start(), self._settler.start(), self._progress_writer.start()]
        try:
            while not self._stop.asked:
                self._dispatcher.turn()
                self._mind_registration()
                self._manager.alive()
            # Nothing new from here on: what would arrive after the last look would be neither run nor handed back.
            self._fetch_stop.ask()
            fetching.join(timeout=LAST_WRITES)
            self._drain()
        finally:
            self._fetch_stop.ask()
            self._threads_stop.ask()
            self._fetcher.close()
            for thread in threads:
                thread.join(timeout=LAST_WRITES)
            self._registration.leave(self._store, self._events)
            self._dispatcher.close()

    def _mind_registration(self) -> None:
        if self._registration.lost:
            self._begin_again()
        if not self._cut_off and self._registration.silent_too_long:
            # By now others may have been given these jobs: end them rather than run them twice.
            self._cut_off = True
            self._interrupt(self._dispatcher.pause(), self._dispatcher.end_children(), "MongoDB cannot be reached")
        elif self._cut_off and self._registration.silence < self._options.heartbeat:
            self._cut_off = False
            self._dispatcher.resume()

    def _begin_again(self) -> None:
        """The registration is gone: whatever ran under it is not ours any more."""
        old = self._registration.held_jobs
        waiting = self._dispatcher.pause()
        running = self._dispatcher.end_children()
        self._events.emit("worker.lost", worker=old.worker, running=len(running), waiting=len(waiting))
        for id in old.results:
            self._events.emit("job.superseded", job=id, worker=old.worker)
        self._registration.begin()
        self._cut_off = False
        self._dispatcher.open(self._registration.held_jobs)
        self._heartbeat.wake()

    def _drain(self) -> None:
        self._registration.draining = True
        self._dispatcher.ask_to_stop()
        self._heartbeat.wake()
        deadline = self._clock.monotonic() + self._options.grace
        self._give_back(self._dispatcher.pause())
        while not self._dispatcher.idle and self._clock.monotonic() < deadline and not self._registration.lost:
            self._give_back_unfetched()
            self._dispatcher.turn()
            self._manager.alive()
        self._interrupt([], self._dispatcher.end_children(), "the worker was asked to stop")
        deadline = self._clock.monotonic() + LAST_WRITES
        held_jobs = self._registration.held_jobs
        while not held_jobs.all_settled and self._clock.monotonic() < deadline and not self._registration.lost:
            self._settler.wake()
            time.sleep(0.01)

    def _interrupt(self, waiting: list[HeldJob], running: list[Run], why: str) -> None:
        self._give_back(waiting)
        self._dispatcher.interrupt(running, why)
        self._settler.wake()

    def _give_back_unfetched(self) -> None:
        """What the leader gave us before it saw that we are leaving."""
        ids = self._registration.held_jobs.not_begun()
        if ids:
            self._registration.held_jobs.ended([(id, None) for id in ids])
            self._settler.wake()

    def _give_back(self, jobs: list[HeldJob]) -> None:
        self._registration.held_jobs.ended([(job.id, None) for job in jobs])
        self._settler.wake()
