"""The inline runner runs jobs in the calling thread, one at a time."""

from __future__ import annotations

import queue
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from types import FrameType
from typing import Any, NamedTuple

from recruiter.clock import Clock
from recruiter.domain.arguments.typed import decode_result
from recruiter.domain.job import JobId, JobReport
from recruiter.domain.planning.limits import Limit
from recruiter.domain.planning.prefetch import MAX_PREFETCHED_JOBS, JobPace
from recruiter.domain.policy_registry import PolicyRegistry, SchedulePolicyRegistry
from recruiter.errors import JobCancelled, RecruiterError
from recruiter.events import Events
from recruiter.interruption import Interruptible
from recruiter.processes.child.stack import stack_text
from recruiter.processes.loop import SAME_WISH
from recruiter.processes.progress import ProgressSender
from recruiter.processes.worker.held_job import HeldJob, interrupted
from recruiter.processes.worker.held_jobs import HeldJobs
from recruiter.registry import FunctionTask, Registry
from recruiter.steps.execute import Executor
from recruiter.store.codec import Document, decode
from recruiter.store.outcomes import Outcome, Rescheduled
from recruiter.store.payload import PLAIN, Payload, Sealed, owner_of

_STALE_SECONDS = 1.0
"""Time that jobs may wait behind a running job; then they go back to the roster."""


class InlineApplication(NamedTuple):
    """The parts of an application that run jobs in the calling process."""

    registry: Registry
    policies: PolicyRegistry
    schedules: SchedulePolicyRegistry
    executor: Callable[[str], Executor]
    """Makes the executor for a worker of this id."""
    payload: Payload = PLAIN
    """Opens results, to report them."""


class InlineRunner:
    """Runs the jobs of an inline worker, one at a time, in the calling thread."""

    def __init__(
        self,
        application: InlineApplication,
        clock: Clock,
        events: Events,
        tasks: frozenset[str],
        *,
        patient: bool = False,
        prefetches: bool = True,
    ) -> None:
        """`patient`: the first signal lets the running job finish."""
        self.tasks: frozenset[str] | None = tasks
        self.limits: Sequence[Limit] = application.registry.limits(tasks)
        self.signals = Signals(self.wake, patient=patient)
        self.policies = application.policies
        self._application = application
        self._clock = clock
        self._events = events
        self._sender: ProgressSender[HeldJob] = ProgressSender(
            lambda job, progress: self._held_jobs.add_progress(job, self._began, progress)
        )
        self._had_free_slot = False
        self._pace = JobPace()
        self._most_prefetched = MAX_PREFETCHED_JOBS if prefetches else 0
        self.stack: Document | None = None
        self._lock = threading.Lock()
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
        return self._running is None and not self._held_jobs.waiting

    @property
    def prefetch(self) -> int:
        return 0 if self.slow else min(self._most_prefetched, self._pace.prefetch)

    def running(self) -> list[tuple[HeldJob, datetime]]:
        with self._lock:
            return [(self._running, self._began)] if self._running is not None else []

    def cancel(self, flags: Mapping[JobId, Document]) -> None:
        self._held_jobs.hand_back_untaken(flags)
        with self._lock:
            # Both are read here: by the time it is interrupted, the next job may run, with its own interruptible.
            running, interruptible = self._running, self._interruptible
        if running is not None and running.id in flags:
            flag = flags[running.id]
            interruptible.interrupt(JobCancelled(flag.get("by"), flag.get("reason"), flag.get("at")))

    def ask_stack(self, asked: Document) -> None:
        self.stack = {**asked, "text": stack_text(), "at": self._clock.now()}

    @property
    def slow(self) -> bool:
        """The job that runs takes so long that others should not wait behind it."""
        with self._lock:
            return self._running is not None and self._clock.monotonic() - self._began_at > _STALE_SECONDS

    # -- the calling thread --------------------------------------------------------------------------------------

    def open(self, held_jobs: HeldJobs) -> None:
        """Begins a registration."""
        self.close()
        with self._lock:
            self._held_jobs = held_jobs
        self._executor = self._application.executor(held_jobs.worker)

    def close(self) -> None:
        self._sender.close()
        if self._executor is not None:
            self._executor.close()
            self._executor = None

    def take(self, within: float) -> HeldJob | None:
        """The next job, to be performed now. Waits to be woken, at most so long; None does not mean that none comes."""
        jobs = self._held_jobs.take(1)
        if not jobs:
            if not self._had_free_slot:
                self._held_jobs.wake_ups.fetcher()
            self._had_free_slot = True
            with suppress(queue.Empty):
                self._wake_ups.get(timeout=within)
                while True:
                    self._wake_ups.get_nowait()
            jobs = self._held_jobs.take(1)
        self._had_free_slot = not jobs
        return jobs[0] if jobs else None

    def perform(self, job: HeldJob) -> tuple[Outcome | None, JobReport | None]:
        """Runs the job; returns the outcome and the report. A job that was interrupted by a signal has no report."""
        assert self._executor is not None
        with self._lock:
            self._running, self._began, self._began_at = job, self._clock.now(), self._clock.monotonic()
            self._interruptible = Interruptible()
        try:
            self.signals.in_job = True
            ended = self._executor.run(job.raw, self._interruptible, on_progress=partial(self._sender.call, job))
        except BaseException:  # a signal that found us just before or after the user's code
            self.signals.in_job = False  # first: another signal must not find us here
            if not self.signals.interrupted:
                raise
            return self._interrupted(job), None
        finally:
            self.signals.in_job = False
            with self._lock:
                self._running = None
            self._pace.count(1, self._clock.monotonic() - self._began_at)
        report = self._report(job, ended)
        if self.signals.interrupted and not report.done:
            return self._interrupted(job), None
        failed_with_interrupt = (report.error or "").startswith(KeyboardInterrupt.__name__)
        if failed_with_interrupt:
            self.signals.note_interrupt()
        return ended, report

    def _report(self, job: HeldJob, outcome: Outcome) -> JobReport:
        """The report of a job that has ended, or waits for its next attempt."""
        task = job.task or ""
        if not isinstance(outcome, Rescheduled):
            return ended_report(self._application.registry, task, decode(outcome.document), self._application.payload)
        next_at = outcome.fields.get("scheduled_at")
        if next_at is not None:
            next_at = next_at.replace(microsecond=next_at.microsecond // 1000 * 1000)  # as BSON stores it
        return JobReport(job.id, task, False, error=_error(outcome.fields.get("last_execution")), next_at=next_at)

    def _interrupted(self, job: HeldJob) -> Outcome | None:
        why, worker = "the caller was interrupted", self._held_jobs.worker
        self._events.emit("job.interrupted", **job.facts(worker), why=why)
        progress = self._held_jobs.progress.fields_of(job.id)
        return interrupted(job, self.policies, worker, self._clock.now(), why, progress, self._began)


_STOPS = (signal.SIGINT, signal.SIGTERM)
_UNTOUCHED = (signal.SIG_DFL, signal.default_int_handler)


class Signals:
    """Handles SIGINT and SIGTERM while jobs run here. When it is left, a signal that ended the call is raised again."""

    def __init__(self, wake: Callable[[], None], *, patient: bool) -> None:
        self.asked = False
        """Whether to take no further jobs."""
        self.interrupted = False
        """Whether a signal ended the running job."""
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
        """The signal handler: takes no further jobs, and interrupts the running job on Ctrl-C or on the second signal;
        if patient, only on the second. It runs between any two steps of the main thread, so it takes no lock."""
        now = time.monotonic()
        self._asked_at = self._asked_at or now
        is_second, self.asked = now - self._asked_at > SAME_WISH, True
        self._wake()
        if is_second or not self._patient:
            self._pass_on = signal.Signals(number)
        if self.in_job and (is_second or (number == signal.SIGINT and not self._patient)):
            self.interrupted = True
            raise KeyboardInterrupt


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def ended_report(registry: Registry, task: str, archived: Document, payload: Payload = PLAIN) -> JobReport:
    """The report of a job that has ended."""
    if not archived["done"]:
        error = _error(archived.get("last_execution")) or archived.get("reason")
        return JobReport(archived["_id"], task, False, archived["why"], error=error)
    result, definition = archived.get("result"), registry.find(task)
    returns = definition.signature.returns if isinstance(definition, FunctionTask) else Any
    with suppress(RecruiterError):  # otherwise the stored form is reported
        result = decode_result(payload.open(Sealed.RESULT, owner_of(archived), result), returns)
    return JobReport(archived["_id"], task, True, archived["why"], result)


def _error(execution: Document | None) -> str | None:
    if execution is None:
        return None
    message = execution.get("message")
    return f"{execution['class']}: {message}" if "class" in execution else message
