"""The values of a job in each of its states: `Job`, `ArchivedJob`, their attempts, checkpoints and signals."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple

from bson import ObjectId

from recruiter.domain.duration import LONGEST_SECONDS
from recruiter.domain.flow import FlowStep
from recruiter.domain.lane import ISOLATED_AFTER_WORKER_DEATHS, Lane
from recruiter.domain.names import BLOCKED_LANE, DEFAULT_GROUP, DEFAULT_METHOD, check_text
from recruiter.domain.names import JobId as JobId
from recruiter.domain.planning.needs import NOTHING, Needs
from recruiter.domain.progress import MAX_NAME_CHARACTERS, LogLine, StatusEntry
from recruiter.domain.retry.decision import after
from recruiter.domain.state import State
from recruiter.errors import InvalidName

MOST_SIGNALS = 1_000
"""Maximum number of signals of one job."""
MOST_SIGNAL_BYTES = 4 * 1024 * 1024
"""Maximum stored size of all signals of one job."""
NO_SIGNAL = "no signal came in time"
"""The problem of a wait that timed out."""


FAILURE, GAVE_UP = "failure ", "gave up "
"""The beginning of the names of the checkpoints of a step that failed, and of a step that is not tried again."""


class Checkpoint(NamedTuple):
    """A part of a job that is done (`current_job.once`, `sleep`, `wait_for`), and is not repeated in a later run."""

    name: str
    at: datetime
    result: Any = None
    """In its stored form."""
    problem: str | None = None
    """Why there is no result: it could not be stored, no signal came in time, or the error of a failed step."""


class Signal(NamedTuple):
    """A message to a job from outside."""

    name: str
    at: datetime
    data: Any = None
    by: str | None = None
    """The sender, if known."""


class SignalWait(NamedTuple):
    """A job's wait for a signal."""

    signal: str
    since: datetime
    until: datetime | None = None
    checkpoint: str = ""
    """The name of the checkpoint that the wait ends with."""
    any: tuple[str, ...] = ()
    """All the signals of which it waits for the first one, if there are several."""

    @property
    def names(self) -> tuple[str, ...]:
        """The signals that end the wait."""
        return self.any or (self.signal,)

    @property
    def told(self) -> str:
        """The signals that it waits for, in words."""
        return signals_told(self.names)


def signals_told(names: Sequence[str]) -> str:
    return f"the signal {' or '.join(map(repr, names))}"


def check_checkpoint(kind: str, name: object) -> str:
    """The name of a checkpoint or a signal. Raises InvalidName."""
    text = check_text(kind, name)
    if len(text) > MAX_NAME_CHARACTERS:
        raise InvalidName(f"{kind} has {len(text)} characters; at most {MAX_NAME_CHARACTERS} are allowed")
    return text


class Happened(StrEnum):
    """Events of a job other than its attempts. The values are stored: they never change."""

    RESCHEDULED = "rescheduled"
    RUN_NOW = "run-now"
    REPRIORITISED = "reprioritised"
    HANDED_BACK = "handed-back"
    """Its worker stopped it and let it wait again; no attempt was counted."""
    SIGNAL = "signal"
    SLEPT = "slept"
    WAITED = "waited"
    """It left its worker to wait for a signal."""
    CONTINUED = "continued"
    """A wait for a signal has ended: the signal came, or its time was over."""
    STEP_FAILED = "step-failed"
    """A durable step with its own retry policy has failed, and is tried again."""
    STEP_GAVE_UP = "step-gave-up"
    """Such a step has failed for good, and the job went on."""
    FLOW_PAUSED = "flow-paused"
    CANCELLED = "cancelled"
    """At the request of a person."""
    RECOVERED = "recovered"
    """It runs again as another job, or it is that other job."""


HISTORY_KEPT = 50
"""Maximum number of entries in the history of a job; the oldest are removed first."""


class HistoryEntry(NamedTuple):
    """An event of a job."""

    at: datetime
    what: str
    """A value of `Happened`."""
    by: str | None = None
    """The person or the worker that caused it."""
    reason: str | None = None
    old: datetime | JobId | float | None = None
    """The time or priority before a change, or the job that this one repeats."""
    new: datetime | JobId | float | None = None
    """The time or priority after a change, the name of a signal, or the job that repeats this one."""

    def __str__(self) -> str:
        old, new = _written(self.old), _written(self.new)
        match self.what:
            case Happened.RESCHEDULED | Happened.REPRIORITISED:
                text = f"{self.what} from {old} to {new}"
            case Happened.SIGNAL:
                text = f"got the signal {new!r}"
            case Happened.WAITED:
                text = f"left its slot to wait for the signal {new!r}"
            case Happened.CONTINUED:
                text = f"ended its wait for the signal {new!r}"
            case Happened.STEP_FAILED:
                text = f"step {new!r} failed"
            case Happened.STEP_GAVE_UP:
                text = f"step {new!r} failed for good"
            case Happened.RECOVERED:
                text = f"recovered as {new}" if self.new is not None else f"made to repeat {old}"
            case _:
                text = _TEXTS.get(self.what, self.what)
        by = f" by {self.by}" if self.by is not None else ""
        return f"{text}{by}{f': {self.reason}' if self.reason else ''}"


_TEXTS: Mapping[str, str] = {
    Happened.RUN_NOW: "made due",
    Happened.HANDED_BACK: "handed back",
    Happened.SLEPT: "left its slot to sleep",
    Happened.FLOW_PAUSED: "its flow was paused",
}


def _written(value: object) -> str:
    return f"{value:%Y-%m-%d %H:%M:%S} UTC" if isinstance(value, datetime) else str(value)


EXECUTIONS_KEPT = 20
"""Maximum number of attempts that a job keeps; the oldest are removed first."""


class Execution(NamedTuple):
    """One attempt: its times, its worker, and its error, if any."""

    started_at: datetime | None
    ended_at: datetime | None
    worker: str | None
    crashed: bool = False
    exception: str | None = None
    message: str | None = None
    trace: str | None = None
    notes: tuple[str, ...] = ()
    """Errors that did not change the outcome, such as a finalizer that raised."""
    span: str | None = None
    """Its span, as a W3C `traceparent`, if an instrument traced it. Later jobs link to it."""


class Cancellation(NamedTuple):
    """A request to cancel a job."""

    at: datetime | None
    by: str | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class Job:
    """A waiting job: its task and arguments, its time, and its retry policy."""

    id: JobId
    task: str
    args: Mapping[str, Any] | Sequence[Any]
    created_at: datetime
    scheduled_at: datetime
    method: str = DEFAULT_METHOD
    group: str = DEFAULT_GROUP
    priority: int | float = 0
    tags: tuple[str, ...] = ()
    urn: str | None = None
    owner: str | None = None
    at_most_once: bool = False
    timeout: float | None = None
    """Seconds that one attempt may take."""
    max_crashes: int | None = None
    """Number of deaths of its process after which it is archived; None for the default."""
    expires_in: float | None = None
    """Seconds after its scheduled time in which it may start, if `expires_at` was given as a duration."""
    expires_at: datetime | None = None
    """It does not start at this time or later."""
    keep_failed: float | None = None
    """Seconds to keep it in the archive if it does not succeed; None for the time of the cleaner."""
    needs: Needs = NOTHING
    """The resources of its host, or of the fleet, that it uses while it runs."""
    limited_by: str | None = None
    """The key by which it is counted, in addition to its task and group: "customer:42"."""
    debounced: bool = False
    """Its start is written before it starts, because calls with its key depend on it (`debounce`, `throttle`, and
    `unique` until it is started)."""
    flow: FlowStep | None = None
    """Its place in its flow, if it is a step of one."""
    step_results: tuple[Mapping[str, Any], ...] | None = None
    """For a job that repeats a step outside of its flow: the stored results of other steps among its arguments."""
    blocked: bool = False
    """It waits for other steps of its flow, or its flow is paused."""
    attempts: int = 0
    crashes: int = 0
    worker_deaths: int = 0
    """Number of deaths of its whole worker while it ran there, since an attempt last ended by itself."""
    snoozes: int = 0
    """Number of times it asked to be run later, or was deferred; that counts as no attempt."""
    begun_at: datetime | None = None
    """When its code may first have run. Written with the first write about a run, and never removed: a job that runs
    once and ends does not have it."""
    conflicts: int = 0
    """The part of `snoozes` because its own transaction conflicted with others for too long."""
    retry_policy: Mapping[str, Any] | None = None
    recovered_from: JobId | None = None
    """The job that this one repeats, if it was recovered."""
    origin: JobId | None = None
    """The first job of the chain of recoveries that made this one; None for a job that was not recovered."""
    trace_context: Mapping[str, str] | None = None
    """The trace in which it was created, written by instruments: `traceparent` and the like."""
    executions: tuple[Execution, ...] = ()
    status: tuple[StatusEntry, ...] = ()
    """Its reported stages, in all attempts; the last 100 entries."""
    progress: float = 0.0
    """The progress in its stage, from 0 to 1; 1 if it has succeeded."""
    stage: str | None = None
    log: tuple[LogLine, ...] = ()
    """The lines of its log, in all attempts; the last 500 lines or 64 KiB."""
    status_cut: int = 0
    """Number of removed entries of `status`."""
    log_cut: int = 0
    """Number of removed lines of `log`."""
    locked_by: str | None = None
    """The worker that holds it."""
    locked_at: datetime | None = None
    """The start of the attempt. Until the first heartbeat reports it: the time of the assignment."""
    cancel: Cancellation | None = None
    """The request to cancel it."""
    checkpoints: tuple[Checkpoint, ...] = ()
    """The parts that are done, in all attempts (`current_job.once`)."""
    signals: tuple[Signal, ...] = ()
    """The signals that it was sent, taken or not, with their stored data."""
    waits_for: SignalWait | None = None
    """The signal that it waits for (`current_job.wait_for`)."""
    changes: tuple[HistoryEntry, ...] = ()
    """Recorded changes by people and returns by workers; the last 50 entries. `history` has all events."""

    @property
    def due_since(self) -> datetime:
        """When it became due. A step of a flow has the place of its flow in the queue, and is due since its release."""
        released_at = self.flow.due if self.flow is not None else None
        return self.scheduled_at if released_at is None else max(self.scheduled_at, released_at)

    @property
    def key(self) -> JobId:
        """The id of the first job of its chain of recoveries: retries, crashes and `recover` never change it."""
        if self.origin is not None:
            return self.origin
        return self.id if self.recovered_from is None else self.recovered_from

    @property
    def lane(self) -> str:
        """Group, task, needs and key in one string: the planner treats jobs of one lane alike. Blocked steps share a
        special lane."""
        if self.blocked:
            return BLOCKED_LANE
        isolated = self.worker_deaths >= ISOLATED_AFTER_WORKER_DEATHS
        if not self.needs and self.limited_by is None and not isolated:
            return f"{self.group}/{self.task}"  # the common case: this is called for every job
        return str(Lane(self.group, self.task, self.needs, self.limited_by, isolated))

    def expiry(self, scheduled_at: datetime) -> datetime | None:
        """The expiry of such a job if it is scheduled for this time."""
        return None if self.expires_in is None else expiry(scheduled_at, self.expires_in)

    @property
    def state(self) -> State:
        """A job that a worker holds is running, or about to."""
        return State.WAITING if self.locked_by is None else State.RUNNING

    @property
    def history(self) -> tuple[HistoryEntry, ...]:
        """Its events other than attempts, ordered by time: changes by people, signals, sleeps, returns by workers,
        recoveries, pauses of its flow."""
        entries = list(self.changes)
        entries += (HistoryEntry(sent.at, Happened.SIGNAL, sent.by, new=sent.name) for sent in self.signals)
        slept = (done for done in self.checkpoints if done.name.startswith("sleep "))
        entries += (HistoryEntry(done.at, Happened.SLEPT) for done in slept)
        for done in self.checkpoints:
            if (waited := _WAIT.fullmatch(done.name)) is not None:
                reason = "the signal did not come in time" if done.problem == NO_SIGNAL else None
                names = waited[1].replace(", ", " or ")
                entries.append(HistoryEntry(done.at, Happened.CONTINUED, reason=reason, new=names))
            elif done.name.startswith(FAILURE) and isinstance(done.result, dict):
                place = f"failure {done.result.get('number')} in attempt {done.result.get('attempt')}"
                step = done.name.removeprefix(f"{FAILURE}of ")
                entries.append(HistoryEntry(done.at, Happened.STEP_FAILED, reason=f"{place}: {done.problem}", new=step))
            elif done.name.startswith(GAVE_UP):
                step = done.name.removeprefix(GAVE_UP)
                entries.append(HistoryEntry(done.at, Happened.STEP_GAVE_UP, reason=done.problem, new=step))
        if self.waits_for is not None:
            entries.append(HistoryEntry(self.waits_for.since, Happened.WAITED, new=" or ".join(self.waits_for.names)))
        if self.cancel is not None and self.cancel.at is not None:
            entries.append(HistoryEntry(self.cancel.at, Happened.CANCELLED, self.cancel.by, self.cancel.reason))
        if self.recovered_from is not None:
            entries.append(HistoryEntry(self.created_at, Happened.RECOVERED, old=self.recovered_from))
        if isinstance(self, ArchivedJob) and isinstance(self.recovered_as, ObjectId):
            at = self.recovered_as.generation_time  # the time when the id of the other job was generated
            entries.append(HistoryEntry(at, Happened.RECOVERED, new=self.recovered_as))
        return tuple(sorted(entries, key=lambda entry: entry.at))

    # -- its end; ArchivedJob has the values

    @property
    def ended(self) -> bool:
        """Whether it has ended, well or not."""
        return False

    @property
    def done(self) -> bool:
        """Whether it has succeeded."""
        return False

    @property
    def why(self) -> str | None:
        """Why it ended, a value of `Why`."""
        return None

    @property
    def result(self) -> Any:
        """In its stored form; `handle.result()` gives the value the task returned."""
        return None

    @property
    def reason(self) -> str | None:
        """The details of `why`, for people."""
        return None

    @property
    def archived_at(self) -> datetime | None:
        """When it ended."""
        return None

    @property
    def ended_at(self) -> datetime | None:
        """The same as `archived_at`."""
        return self.archived_at

    @property
    def cancelling(self) -> bool:
        """It is being cancelled, and has not ended yet."""
        return self.cancel is not None and not self.ended

    # -- its running attempt, or the last attempt

    @property
    def last_execution(self) -> Execution | None:
        """The last attempt that has ended, if there was one."""
        return self.executions[-1] if self.executions else None

    @property
    def started_at(self) -> datetime | None:
        """When the attempt that runs was started, or given to its worker; otherwise the last one."""
        if self.locked_by is not None:
            return self.locked_at
        return self.executions[-1].started_at if self.executions else None

    @property
    def worker(self) -> str | None:
        """The worker that holds it, or that ran its last attempt."""
        if self.locked_by is not None:
            return self.locked_by
        return self.executions[-1].worker if self.executions else None

    @property
    def error(self) -> str | None:
        """The class of the exception that its last attempt ended with."""
        return self.executions[-1].exception if self.executions else None

    @property
    def message(self) -> str | None:
        """The message of that exception, or how the last attempt ended."""
        return self.executions[-1].message if self.executions else None


_WAIT = re.compile(r"wait_for(?:_any)? (.+) \d+", re.DOTALL)
"""The name of the checkpoint of a wait that has ended."""


def expiry(scheduled_at: datetime, seconds: float) -> datetime:
    """The time `seconds` later, or the last possible time."""
    return after(scheduled_at, timedelta(seconds=min(seconds, LONGEST_SECONDS)))


@dataclass(frozen=True, slots=True)
class ArchivedJob(Job):
    """A job that has ended, with everything that happened to it."""

    done: bool = field(kw_only=True)
    why: str = field(kw_only=True)
    archived_at: datetime = field(kw_only=True)
    result: Any = field(kw_only=True, default=None)
    """In its stored form; `handle.result()` gives the value the task returned."""
    reason: str | None = field(kw_only=True, default=None)
    latency: float | None = field(kw_only=True, default=None)
    """Seconds from the time it was scheduled for to the start of its last attempt."""
    execution_time: float | None = field(kw_only=True, default=None)
    """Seconds that its last attempt took."""
    recovered_as: JobId | None = field(kw_only=True, default=None)
    """The last job that repeats it, if it was recovered."""

    @property
    def ended(self) -> bool:
        return True

    @property
    def state(self) -> State:
        return State.at_the_end(self.done, self.why)


@dataclass(frozen=True, slots=True)
class JobReport:
    """One attempt at a job: it is done, it has failed for good (`why`), or it waits to be tried again (`next_at`)."""

    id: JobId
    task: str
    done: bool
    why: str | None = None
    """Why it ended, a value of `Why`; None while it will be tried again."""
    result: Any = None
    error: str | None = None
    """The error of this attempt, such as "ValueError: no good"."""
    next_at: datetime | None = None
    """When it will be tried again."""
