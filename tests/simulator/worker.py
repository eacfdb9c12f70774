"""A simulated worker: the real process with its threads, and a simulated dispatcher. Its children are simulated
processes, in which the real executor runs the jobs."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

from recruiter.attempt import note_session
from recruiter.domain.job import JobId
from recruiter.domain.planning.limits import Limit
from recruiter.domain.policy_registry import PolicyRegistry
from recruiter.errors import JobCancelled
from recruiter.events import Events
from recruiter.processes.loop import Stop
from recruiter.processes.systemd import ServiceManager
from recruiter.processes.worker.child_handle import RunningJob
from recruiter.processes.worker.core import CoreOptions, WorkerCore
from recruiter.processes.worker.held_job import HeldJob, crashed, interrupted
from recruiter.processes.worker.held_jobs import HeldJobs
from recruiter.processes.worker.process import WorkerProcess
from recruiter.steps.execute import Executor
from recruiter.store.codec import Document, encode
from recruiter.store.outcomes import Outcome
from recruiter.store.payload import PLAIN
from tests.simulator.hub import Event, Hub, Thread
from tests.simulator.jobs import REGISTRY, RUN
from tests.simulator.ledger import Ledger, SimulatedRun
from tests.simulator.process import Process
from tests.simulator.recruiter import SETTINGS

_POLICIES = PolicyRegistry()
_HALFWAY = encode({"progress": 0.5})


class Worker(WorkerProcess):
    def __init__(self, process: Process, ledger: Ledger, slots: int) -> None:
        settings = SETTINGS.model_copy(update={"processes": slots, "host": process.name})
        self._store, self._clock, self._events = process.store, process.clock, process.events
        self._settings = settings
        self._stop = Stop()
        self._heartbeat = settings.heartbeat.total_seconds()
        self._dispatcher: Any = Children(process, ledger, slots)
        self._core = WorkerCore(process.store, process.events, self._dispatcher, settings, CoreOptions(listens=False))
        usage: Any = SimpleNamespace(measure=lambda _now: {})
        self._core._heartbeat._usage = usage
        self._registration = self._core.registration
        self._reporter: Any = SimpleNamespace(start=lambda: Thread(lambda: None))
        self._cut_off = False
        self._manager = ServiceManager()
        self._process, self._ledger = process, ledger

    def start(self, *, restless: bool) -> None:
        """`restless`: it leaves the roster now and then, and comes back under another id."""
        self._process.threads.start(self.run)
        if restless:
            self._process.threads.start(self._leave_now_and_then)

    def _leave_now_and_then(self) -> None:
        hub = self._process.hub
        while not self._ledger.calm:
            hub.sleep(hub.random.uniform(0.5, 5.0))
            held_jobs = self._registration.held_jobs
            self._registration.leave(self._store, self._events)
            self._registration.lose(held_jobs)


@dataclass
class _Child:
    process: Process
    executor: Executor
    run: SimulatedRun | None = None
    job: HeldJob | None = None


class Children:
    """As the dispatcher: gives jobs to children, and brings back what became of them."""

    def __init__(self, process: Process, ledger: Ledger, slots: int) -> None:
        self.policies = _POLICIES
        self.tasks = frozenset(REGISTRY.own_names)
        self.limits: Sequence[Limit] = ()
        self.has_instruments = False
        self.stack: Document | None = None
        self.prefetch = 0
        self._process, self._ledger, self._slots = process, ledger, slots
        self._hub, self._clock = process.hub, process.clock
        self._held_jobs = HeldJobs("")
        self._children: list[_Child] = []
        self._answered: list[SimulatedRun] = []
        """The runs of this registration whose outcomes have arrived."""
        self._messages: list[Callable[[], None]] = []
        """Answers of children, and reports of their deaths."""
        self._woken = Event(process.hub)
        self._accepting, self._had_free_slot = True, False
        process.threads.on_death.append(self._end_soon)

    def open(self, held_jobs: HeldJobs) -> None:
        for run in self._answered:
            if self._held_jobs.state(run.job) is not None:
                run.excuse = "its registration was lost before its outcome was written"
        self._answered.clear()
        self._held_jobs = held_jobs
        held_jobs.on_recall(lambda _ids: None)  # every taken job has started
        self._accepting = True

    # -- for the threads of the worker ---------------------------------------------------------------------------------

    def wake(self) -> None:
        self._woken.set()

    @property
    def has_free_slot(self) -> bool:
        return self._accepting and self._free > self._held_jobs.waiting

    @property
    def _free(self) -> int:
        return self._slots - len(self._busy)

    @property
    def _busy(self) -> list[tuple[_Child, HeldJob, SimulatedRun]]:
        return [(child, child.job, child.run) for child in self._children if child.job and child.run]

    def running(self) -> list[tuple[HeldJob, datetime]]:
        return [(job, run.since) for _, job, run in self._busy]

    def cancel(self, flags: Mapping[JobId, Document]) -> None:
        self._held_jobs.hand_back_untaken(flags)
        for _, job, run in self._busy:
            if job.id in flags:
                flag = flags[job.id]
                run.interruptible.error = JobCancelled(flag.get("by"), flag.get("reason"), flag.get("at"))

    def ask_stack(self, asked: Document) -> None: ...

    def kill(self) -> None: ...

    def close(self) -> None: ...

    # -- the main thread -----------------------------------------------------------------------------------------------

    def turn(self) -> None:
        self._woken.clear()
        self._hear()
        if not self._accepting:
            self._held_jobs.hand_back_untaken()
        elif self._free:
            for job in self._held_jobs.take(self._free):
                self._start(job)
        for _, job, run in self._busy:
            if self._hub.chance(0.1):
                self._held_jobs.add_progress(job, run.since, _HALFWAY)
        if self._hub.chance(0.1):  # whatever it is, the plan must be right; and two leaders should not plan the same
            self.prefetch = self._hub.random.choice((0, 1, 6))
        had_free_slot, self._had_free_slot = self._had_free_slot, self.has_free_slot
        if self._had_free_slot and not had_free_slot:
            self._held_jobs.wake_ups.fetcher()  # it asks rarely while no slot is free
        self._woken.wait(0.5 if self._process.outside.calm else 0.25)

    def _start(self, job: HeldJob) -> None:
        child = next((child for child in self._children if child.run is None), None) or self._spawn()
        child.job = job
        child.run = run = self._ledger.started(job, self._held_jobs.worker, child.process, self._clock.now())
        child.process.threads.start(lambda: self._run(child, job, run))

    def _spawn(self) -> _Child:
        process = self._process.child(f"{self._process.name}/{self._hub.random.randrange(1000)}")
        application: Any = SimpleNamespace(
            registry=REGISTRY, store=process.store, events=Events(), instruments=(), payload=PLAIN
        )
        process.store.transactions.note_session = note_session
        executor = Executor(REGISTRY, _POLICIES, self._clock, self._held_jobs.worker, owners=[application])
        loops: Any = _Waits(self._hub)
        executor._loops = loops
        child = _Child(process, executor)
        process.threads.on_death.append(lambda: self._send(lambda: self._died(child)))
        self._children.append(child)
        return child

    def _run(self, child: _Child, job: HeldJob, run: SimulatedRun) -> None:
        RUN.set(run)
        outcome = child.executor.run(job.raw, run.interruptible)
        if not child.process.dead:
            self._send(lambda: self._ended(child, run, outcome))

    def _send(self, message: Callable[[], None]) -> None:
        self._messages.append(message)
        self.wake()

    def _hear(self) -> None:
        messages, self._messages = self._messages, []
        for message in messages:
            message()

    def _ended(self, child: _Child, run: SimulatedRun, outcome: Outcome) -> None:
        if child.run is run:
            child.run = child.job = None
            run.process = self._process  # from now on the worker answers for it
            self._answered.append(run)
            self._held_jobs.ended([(run.job, outcome)])

    def _died(self, child: _Child) -> None:
        if child not in self._children:
            return
        self._children.remove(child)
        if child.run is not None and child.job is not None:
            child.run.excuse = "its child was killed"
            job, since, now = child.job, child.run.since, self._clock.now()
            self._held_jobs.child_died(child.process.threads.pid, {job.id: None})
            progress = self._held_jobs.progress.fields_of(job.id)
            outcome = crashed(job, _POLICIES, self._held_jobs.worker, now, "killed", progress, since)
            self._held_jobs.ended([(job.id, outcome)])

    def pause(self) -> int:
        self._accepting = False
        return self._held_jobs.hand_back_untaken()

    def resume(self) -> None:
        self._accepting = True

    def end_children(self) -> list[RunningJob]:
        self._hear()
        ended, self._children = self._children, []
        runs = []
        for child in ended:
            child.process.threads.die()
            if child.run is not None and child.job is not None:
                child.run.excuse = "its worker has ended it"
                self._held_jobs.child_died(child.process.threads.pid, {child.job.id: None})
                runs.append(RunningJob(child.job, child.run.began))
        return runs

    def interrupt(self, runs: Iterable[RunningJob], why: str) -> None:
        now = self._clock.now()
        for job, began in runs:
            since = now - timedelta(seconds=self._hub.now - began)
            progress = self._held_jobs.progress.fields_of(job.id)
            outcome = interrupted(job, _POLICIES, self._held_jobs.worker, now, why, progress, since)
            self._held_jobs.ended([(job.id, outcome)])

    def _end_soon(self) -> None:
        """The worker has died. Its children may live a little longer: they must not do any harm."""
        for child in self._children:
            self._hub.start(child.process.threads.die, after=self._hub.random.choice((0.0, 0.0, 0.4, 3.0)))


class _Waits:
    """As the event loop of an executor: our jobs hand out no coroutine but the pause before they are repeated."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        coroutine.close()
        self._hub.sleep(self._hub.random.uniform(0.01, 0.5))
