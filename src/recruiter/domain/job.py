"""The values of a job in each of its states: `Job`, `ArchivedJob`, their attempts, checkpoints and signals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple

from bson import ObjectId

from recruiter.domain.flow import FlowStep
from recruiter.domain.lane import ISOLATED_AFTER_WORKER_DEATHS, Lane
from recruiter.domain.names import BLOCKED_LANE, DEFAULT_GROUP, DEFAULT_METHOD, check_text
from recruiter.domain.names import JobId as JobId
from recruiter.domain.planning.needs import NOTHING, Needs
from recruiter.domain.progress import LogLine, StatusEntry
from recruiter.domain.retry.decision import after
from recruiter.domain.state import State
from recruiter.errors import InvalidName

LONGEST_NAME = 200
MOST_SIGNALS = 1_000
"""Of one job."""
MOST_SIGNAL_BYTES = 4 * 1024 * 1024
"""Of all signals of one job, as they are stored."""
NO_SIGNAL = "no signal came in time"
"""The problem of a wait that timed out."""


class Checkpoint(NamedTuple):
    """Something that a job has done (`current_job.once`, `sleep`, `wait_for`), and does not do again in a later run."""

    name: str
    at: datetime
    result: Any = None
    """As it is stored."""
    problem: str | None = None
    """Why there is no result: it could not be stored, or no signal came in time."""


class Signal(NamedTuple):
    """Something that a job was told from outside."""

    name: str
    at: datetime
    data: Any = None
    by: str | None = None
    """Who sent it, if they said so."""


class SignalWait(NamedTuple):
    """What a job waits for."""

    signal: str
    since: datetime
    until: datetime | None = None
    checkpoint: str = ""
    """The name of the checkpoint that the wait ends with."""


def check_checkpoint(kind: str, name: object) -> str:
    """The name of a checkpoint or a signal. Raises InvalidName."""
    text = check_text(kind, name)
    if len(text) > LONGEST_NAME:
        raise InvalidName(f"{kind} has {len(text)} characters; at most {LONGEST_NAME} are allowed")
    return text


class Happened(StrEnum):
    """What happened to a job beside its attempts. The words are stored as written here: they never change."""

    RESCHEDULED = "rescheduled"
    RUN_NOW = "run-now"
    REPRIORITISED = "reprioritised"
    HANDED_BACK = "handed-back"
    """Its worker ended it and let it wait again; no attempt was counted."""
    SIGNAL = "signal"
    SLEPT = "slept"
    WAITED = "waited"
    """It left its worker to wait for a signal."""
    FLOW_PAUSED = "flow-paused"
    CANCELLED = "cancelled"
    """A person asked for it."""
    RECOVERED = "recovered"
    """It was run once more, as another job; or it is that other job."""


HISTORY_KEPT = 50
"""How many entries the history of a job has; the oldest go first."""


class HistoryEntry(NamedTuple):
    """Something that happened to a job."""

    at: datetime
    what: str
    """One of `Happened`."""
    by: str | None = None
    """The person or the worker that did it."""
    reason: str | None = None
    old: datetime | JobId | float | None = None
    """The time or priority before a change, or the job that this one repeats."""
    new: datetime | JobId | float | None = None
    """The time or priority after a change, the name of a signal, or the job that repeats this one."""

    def __str__(self) -> str:
        old, new = _written(self.old), _written(self.new)
        match self.what:
            case Happened.RESCHEDULED | Happened.REPRIORITISED:
                told = f"{self.what} from {old} to {new}"
            case Happened.SIGNAL:
                told = f"got the signal {new!r}"
            case Happened.WAITED:
                told = f"left its slot to wait for the signal {new!r}"
            case Happened.RECOVERED:
                told = f"recovered as {new}" if self.new is not None else f"made to repeat {old}"
            case _:
                told = _TOLD.get(self.what, self.what)
        by = f" by {self.by}" if self.by is not None else ""
        return f"{told}{by}{f': {self.reason}' if self.reason else ''}"


_TOLD: Mapping[str, str] = {
    Happened.RUN_NOW: "made due",
    Happened.HANDED_BACK: "handed back",
    Happened.SLEPT: "left its slot to sleep",
    Happened.FLOW_PAUSED: "its flow was paused",
}


def _written(value: object) -> str:
    return f"{value:%Y-%m-%d %H:%M:%S} UTC" if isinstance(value, datetime) else str(value)


EXECUTIONS_KEPT = 20
"""How many attempts a job remembers; the oldest go first."""


class Execution(NamedTuple):
    """One attempt: when, where, and what went wrong if anything did."""

    started_at: datetime | None
    ended_at: datetime | None
    worker: str | None
    crashed: bool = False
    exception: str | None = None
    message: str | None = None
    trace: str | None = None
    notes: tuple[str, ...] = ()
    """What else went wrong without changing the outcome: finalizers that raised."""
    span: str | None = None
    """Its span, as a W3C `traceparent`, if an instrument traced it. Later jobs link to it."""


class Cancellation(NamedTuple):
    """A request to cancel a job."""

    at: datetime | None
    by: str | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class Job:
    """A job as it waits: what to run, when, and how it may be tried again."""

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
    """How often its process may die under it before it is set aside; None for the usual number."""
    expires_in: float | None = None
    """Seconds after the time it was scheduled for in which it may start, if that is how `expires_at` was said."""
    expires_at: datetime | None = None
    """It is not started at this moment or later."""
    keep_failed: float | None = None
    """Seconds to keep it in the archive if it does not succeed; None for as long as the cleaner says."""
    needs: Needs = NOTHING
    """What it takes of its host, or of the fleet, while it runs."""
    limited_by: str | None = None
    """What it is counted by, beside its task and group: "customer:42"."""
    debounced: bool = False
    """Its start is written before it starts: calls with its key decide by that (`debounce`, `throttle`, and `unique`
    until it is started)."""
    flow: FlowStep | None = None
    """Its place in its flow, if it is a step of one."""
    step_results: tuple[Mapping[str, Any], ...] | None = None
    """Of a job that repeats a step outside of its flow: the results of other steps that are among its arguments, as
    they are stored."""
    blocked: bool = False
    """It waits for other steps of its flow, or its flow is paused."""
    attempts: int = 0
    crashes: int = 0
    worker_deaths: int = 0
    """How often its whole worker died while it ran there, since an attempt last ended by itself."""
    snoozes: int = 0
    """How often it asked to be run later, or was put off; that counts as no attempt."""
    begun_at: datetime | None = None
    """When its code may first have run. Written with the first thing that is written about a run, and never removed: a
    job that runs once and ends does not have it."""
    conflicts: int = 0
    """How often of these it was put off because its own transaction met others for too long."""
    retry_policy: Mapping[str, Any] | None = None
    recovered_from: JobId | None = None
    """The job that this one repeats, if it was recovered."""
    origin: JobId | None = None
    """The first job of the chain of recoveries that made this one; None for a job that was not recovered."""
    trace_context: Mapping[str, str] | None = None
    """The trace in which it was made, as instruments wrote it: `traceparent` and the like."""
    executions: tuple[Execution, ...] = ()
    status: tuple[StatusEntry, ...] = ()
    """What it has said of its stages, in all attempts; the last 100 entries."""
    progress: float = 0.0
    """How far it is in its stage, from 0 to 1; 1 if it has succeeded."""
    stage: str | None = None
    log: tuple[LogLine, ...] = ()
    """What it has written to its log, in all attempts; the last 500 lines or 64 KiB."""
    status_cut: int = 0
    """How many older entries are gone."""
    log_cut: int = 0
    """How many older lines are gone."""
    locked_by: str | None = None
    """The worker that holds it."""
    locked_at: datetime | None = None
    """Since when it runs there, or was given to it: a heartbeat must pass before it is known that it runs."""
    cancel: Cancellation | None = None
    """Who wants it cancelled; it ends in a moment, or has."""
    checkpoints: tuple[Checkpoint, ...] = ()
    """What it has done for good, in all attempts (`current_job.once`)."""
    signals: tuple[Signal, ...] = ()
    """The signals that it was sent, taken or not; the data as it is stored."""
    waits_for: SignalWait | None = None
    """The signal that it waits for (`current_job.wait_for`)."""
    changes: tuple[HistoryEntry, ...] = ()
    """What was written down of it: changes by people, hand backs; the last 50 entries. `history` has everything."""

    @property
    def key(self) -> JobId:
        """The id of the first job of its chain of recoveries: retries, crashes and `recover` never change it."""
        if self.origin is not None:
            return self.origin
        return self.id if self.recovered_from is None else self.recovered_from

    @property
    def lane(self) -> str:
        """What it has in common with jobs that are planned alike: group, task, needs and key. A blocked step is in a
        lane of its own."""
        if self.blocked:
            return BLOCKED_LANE
        isolated = self.worker_deaths >= ISOLATED_AFTER_WORKER_DEATHS
        if not self.needs and self.limited_by is None and not isolated:
            return f"{self.group}/{self.task}"  # nearly always, and it is asked for every job
        return str(Lane(self.group, self.task, self.needs, self.limited_by, isolated))

    def expiry(self, scheduled_at: datetime) -> datetime | None:
        """When a job like this one expires that is scheduled for then."""
        return None if self.expires_in is None else expiry(scheduled_at, self.expires_in)

    @property
    def state(self) -> State:
        """A job that a worker holds is running, or about to."""
        return State.WAITING if self.locked_by is None else State.RUNNING

    @property
    def history(self) -> tuple[HistoryEntry, ...]:
        """What happened to it beside its attempts, in the order of time: changes by people, signals, sleeps, hand
        backs, recoveries, pauses of its flow."""
        return _history(self)

    # -- how it ended: of a job that has not, nothing

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
        """Why it ended, one of `Why`."""
        return None

    @property
    def result(self) -> Any:
        """As it is stored; `handle.result()` gives the value the task returned."""
        return None

    @property
    def reason(self) -> str | None:
        """Why it ended, in words, where there is more to say."""
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

    # -- its attempt that runs, or the last one that has ended

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


def _history(job: Job) -> tuple[HistoryEntry, ...]:
    entries = [*job.changes, *(HistoryEntry(sent.at, Happened.SIGNAL, sent.by, new=sent.name) for sent in job.signals)]
    slept = (done for done in job.checkpoints if done.name.startswith("sleep "))
    entries += (HistoryEntry(done.at, Happened.SLEPT) for done in slept)
    if job.waits_for is not None:
        entries.append(HistoryEntry(job.waits_for.since, Happened.WAITED, new=job.waits_for.signal))
    if job.cancel is not None and job.cancel.at is not None:
        entries.append(HistoryEntry(job.cancel.at, Happened.CANCELLED, job.cancel.by, job.cancel.reason))
    if job.recovered_from is not None:
        entries.append(HistoryEntry(job.created_at, Happened.RECOVERED, old=job.recovered_from))
    if isinstance(job, ArchivedJob) and isinstance(job.recovered_as, ObjectId):
        at = job.recovered_as.generation_time  # of the id that the other job was given then
        entries.append(HistoryEntry(at, Happened.RECOVERED, new=job.recovered_as))
    return tuple(sorted(entries, key=lambda entry: entry.at))


def expiry(scheduled_at: datetime, seconds: float) -> datetime:
    """So many seconds later, or the last moment there is."""
    return after(scheduled_at, timedelta(seconds=min(seconds, _LONGEST)))


_LONGEST = 1e12


@dataclass(frozen=True, slots=True)
class ArchivedJob(Job):
    """A job that has ended, with everything that happened to it."""

    done: bool = field(kw_only=True)
    why: str = field(kw_only=True)
    archived_at: datetime = field(kw_only=True)
    result: Any = field(kw_only=True, default=None)
    """As it is stored; `handle.result()` gives the value the task returned."""
    reason: str | None = field(kw_only=True, default=None)
    latency: float | None = field(kw_only=True, default=None)
    """Seconds from the time it was scheduled for to the start of its last attempt."""
    execution_time: float | None = field(kw_only=True, default=None)
    """Seconds that its last attempt took."""
    recovered_as: JobId | None = field(kw_only=True, default=None)
    """The job that repeats it, if it was recovered; of several, the last."""

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
    """Why it ended, one of `Why`; None while it will be tried again."""
    result: Any = None
    error: str | None = None
    """What went wrong in this attempt, such as "ValueError: no good"."""
    next_at: datetime | None = None
    """When it will be tried again."""
