"""The inline runner runs jobs in the calling thread, one at a time; prefetched jobs wait beside it."""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from types import FrameType
from typing import Any, NamedTuple

from recruiter.clock import Clock
from recruiter.domain.arguments.typed import decode_result
from recruiter.domain.job import JobId, JobReport
from recruiter.domain.planning.limits import Limit
from recruiter.domain.policy_registry import PolicyRegistry, SchedulePolicyRegistry
from recruiter.errors import JobCancelled, RecruiterError
from recruiter.events import Events
from recruiter.interruption import Interruptible
from recruiter.processes.loop import SAME_WISH
from recruiter.processes.progress import ProgressSender
from recruiter.processes.worker.held_jobs import HeldJob, HeldJobs, crashed, interrupted
from recruiter.registry import FunctionTask, Registry
from recruiter.steps.execute import Executor
from recruiter.store.codec import Document, decode
from recruiter.store.outcomes import Outcome, Rescheduled, Settled
from recruiter.store.payload import PLAIN, Payload, Sealed, owner_of

_STALE = 1.0
"""Seconds that jobs may wait behind one that runs; then they go back to the roster."""


class InlineApplication(NamedTuple):
    """What it takes to run jobs in the calling process."""

    registry: Registry
    policies: PolicyRegistry
    schedules: SchedulePolicyRegistry
    executor: Callable[[str], Executor]
    """Makes the executor for a worker of this id."""
    payload: Payload = PLAIN
    """Opens results, to report them."""


class InlineRunner:
    def __init__(
        self,
        application: InlineApplication,
        clock: Clock,
        events: Events,
        tasks: frozenset[str],
        *,
        patient: bool = False,
    ) -> None:
        self.tasks: frozenset[str] | None = tasks
        self.limits: Sequence[Limit] = application.registry.limits(tasks)
        self.signals = Signals(self.wake, patient=patient)
        self._application = application
        self._clock = clock
        self._events = events
        self._sender: ProgressSender[HeldJob] = ProgressSender(self._note)
        self._had_free_slot = False
        self._lock = threading.Lock()
        self._waiting: deque[HeldJob] = deque()
        self._running: HeldJob | None = None
        self._began = clock.now()
        self._began_at = 0.0
        self._interruptible = Interruptible()
        # Signal handlers wake it too, and may interrupt the very thread that waits for it: only this queue allows that.
        self._wake_ups: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._held_jobs = HeldJobs("")
        self._executor: Executor | None = None

    # -- from other threads --------------------------------------------------------------------------------------

    def wake(self) -> None:
        self._wake_ups.put(None)

    @property
    def has_free_slot(self) -> bool:
        return self._running is None and not self._waiting and not self._held_jobs.arrived

    def running(self) -> list[tuple[HeldJob, datetime]]:
        with self._lock:
            return [(self._running, self._began)] if self._running is not None else []

    def cancel(self, flags: Mapping[JobId, Document]) -> None:
        with self._lock:
            self._accept()
            waiting = [job for job in self._waiting if job.id in flags]
            for job in waiting:
                self._waiting.remove(job)
            # Both are read here: by the time it is interrupted, the next job may run, with an interruptible of its own.
            running, interruptible = self._running, self._interruptible
        self._held_jobs.hand_back(job.id for job in waiting)
        if running is not None and running.id in flags:
            flag = flags[running.id]
            interruptible.interrupt(JobCancelled(flag.get("by"), flag.get("reason"), flag.get("at")))

    def recall(self, ids: Collection[JobId]) -> None:
        """These must not start any more: those that have not are let go."""
        with self._lock:
            self._accept()
            back = [job for job in self._waiting if job.id in ids]
            self._waiting = deque(job for job in self._waiting if job.id not in ids)
        self._held_jobs.hand_back(job.id for job in back)

    def crash(self, job: HeldJob, at: datetime, how: str) -> Outcome | None:
        return crashed(
            job, self._application.policies, self._held_jobs.worker, at, how, self._held_jobs.progress.fields_of(job.id)
        )

    @property
    def slow(self) -> bool:
        """The job that runs takes so long that others should not wait behind it."""
        with self._lock:
            return self._running is not None and self._clock.monotonic() - self._began_at > _STALE

    def withdraw(self) -> list[HeldJob]:
        """Takes away everything that has not been started."""
        with self._lock:
            self._accept()
            waiting = list(self._waiting)
            self._waiting.clear()
            return waiting

    # -- the calling thread --------------------------------------------------------------------------------------

    def open(self, held_jobs: HeldJobs) -> None:
        """Begins a registration."""
        self.close()
        with self._lock:
            self._held_jobs = held_jobs
            held_jobs.on_recall(self.recall)
            self._waiting.clear()
        self._executor = self._application.executor(held_jobs.worker)

    def close(self) -> None:
        self._sender.close()
        if self._executor is not None:
            self._executor.close()
            self._executor = None

    def take(self, within: float) -> HeldJob | None:
        """The next job, to be performed now. Waits to be woken, at most so long; None does not mean that none comes."""
        job = self._next()
        if job is None:
            if not self._had_free_slot:
                self._held_jobs.wake_ups.fetcher()
            self._had_free_slot = True
            self._wait(within)
            job = self._next()
        self._had_free_slot = job is None
        return job

    def perform(self, job: HeldJob) -> tuple[Outcome | None, JobReport | None]:
        """Runs it; what becomes of it, and the report. Without a report it was interrupted by a signal.

        Interrupted jobs did not end by themselves: they are handed back and no attempt is counted. At-most-once ones
        cannot be started again, and are lost.
        """
        assert self._executor is not None
        self._begin(job)
        try:
            self.signals.in_job = True
            ended = self._executor.run(job.raw, self._interruptible, on_progress=partial(self._sender.call, job))
        except BaseException:  # a signal that found us just before or after the user's code
            self.signals.in_job = False  # at once: another one must not find us here
            if not self.signals.interrupted:
                raise
            return self._interrupted(job), None
        finally:
            self.signals.in_job = False
            self._end()
        told = report(self._application.registry, job.raw, ended, self._application.payload)
        if self.signals.interrupted and not told.done:
            return self._interrupted(job), None
        if (told.error or "").startswith(KeyboardInterrupt.__name__):
            self.signals.note_interrupt()
        return ended, told

    def _note(self, job: HeldJob, progress: bytes) -> None:
        self._held_jobs.add_progress(job, self._began, progress)

    def _begin(self, job: HeldJob) -> None:
        with self._lock:
            self._running, self._began, self._began_at = job, self._clock.now(), self._clock.monotonic()
            self._interruptible = Interruptible()

    def _end(self) -> None:
        with self._lock:
            self._running = None

    def _interrupted(self, job: HeldJob) -> Outcome | None:
        why = "the caller was interrupted"
        worker = self._held_jobs.worker if self._held_jobs is not None else ""
        self._events.emit("job.interrupted", **job.facts(worker), why=why)
        if job.at_most_once:
            return self.crash(job, self._clock.now(), why)
        progress = self._held_jobs.progress.fields_of(job.id)
        return interrupted(job, progress, self._began, self._clock.now(), worker, why)

    def _next(self) -> HeldJob | None:
        with self._lock:
            self._accept()
            return self._waiting.popleft() if self._waiting else None

    def _wait(self, within: float) -> None:
        with suppress(queue.Empty):
            self._wake_ups.get(timeout=within)
            while True:
                self._wake_ups.get_nowait()

    def _accept(self) -> None:
        first, last = self._held_jobs.accept()
        self._waiting.extendleft(reversed(first))
        self._waiting.extend(last)


_STOPS = (signal.SIGINT, signal.SIGTERM)
_UNTOUCHED = (signal.SIG_DFL, signal.default_int_handler)


class Signals:
    """To be entered for as long as jobs run here. Passes on what arrived when it is left."""

    def __init__(self, wake: Callable[[], None], *, patient: bool) -> None:
        self.asked = False
        """Whether to take no more jobs."""
        self.interrupted = False
        """Whether the running job was ended by a signal."""
        self.in_job = False
        """Set by the code that runs jobs: only there a signal is raised as an exception, nowhere in our own code."""
        self._wake = wake
        self._patient = patient
        self._asked_at = 0.0
        self._pass_on: signal.Signals | None = None
        self._wants_out = False
        self._before: dict[signal.Signals, Callable[[int, FrameType | None], object] | int | None] = {}

    def note_interrupt(self) -> None:
        """A job failed with KeyboardInterrupt. If that can have been Ctrl-C, in the caller's own way, it was not meant
        for the job alone."""
        if _in_main_thread() and signal.SIGINT not in self._before:
            self.asked = self._wants_out = True

    def __enter__(self) -> Signals:
        if _in_main_thread():
            for number in _STOPS:
                if signal.getsignal(number) in _UNTOUCHED:
                    self._before[number] = signal.signal(number, self._obey)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._pass_on is not None:
            signal.raise_signal(self._pass_on)
        if self._wants_out:
            raise KeyboardInterrupt

    def _obey(self, number: int, _frame: FrameType | None) -> None:
        """Runs in the main thread between any two of its steps; so it only notes, and takes no lock."""
        now = time.monotonic()
        self._asked_at = self._asked_at or now
        again, self.asked = now - self._asked_at > SAME_WISH, True
        self._wake()
        if again or not self._patient:
            self._pass_on = signal.Signals(number)
        if self.in_job and (again or (number == signal.SIGINT and not self._patient)):
            self.interrupted = True
            raise KeyboardInterrupt


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def report(registry: Registry, raw: bytes, ended: Outcome, payload: Payload = PLAIN) -> JobReport:
    """The report of the job in these bytes, which has been run and has come to this."""
    job = _decoded(raw)
    task = str(job.get("task", ""))
    if isinstance(ended, Rescheduled):
        error = _error(ended.fields.get("last_execution"))
        return JobReport(ended.id, task, False, error=error, next_at=_as_stored(ended.fields.get("scheduled_at")))
    archived = decode(ended.document if isinstance(ended, Settled) else ended)
    if archived["done"]:
        result = _result(registry, task, archived, payload)
        return JobReport(archived["_id"], task, True, archived["why"], result)
    error = _error(archived.get("last_execution")) or archived.get("reason")
    return JobReport(archived["_id"], task, False, archived["why"], error=error)


def _result(registry: Registry, task: str, archived: Document, payload: Payload) -> Any:
    stored, owner = archived.get("result"), owner_of(archived)
    definition = registry.find(task)
    returns = definition.signature.returns if isinstance(definition, FunctionTask) else Any
    try:
        return decode_result(payload.open(Sealed.RESULT, owner, stored), returns)
    except RecruiterError:
        return stored  # the job is done all the same


def _error(execution: Document | None) -> str | None:
    if execution is None:
        return None
    message = execution.get("message")
    return f"{execution['class']}: {message}" if "class" in execution else message


def _as_stored(moment: datetime | None) -> datetime | None:
    """BSON cuts to milliseconds."""
    return None if moment is None else moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def _decoded(raw: bytes) -> Document:
    with contextlib.suppress(Exception):  # it could not be run either, and the archived record says so
        return decode(raw)
    return {}
