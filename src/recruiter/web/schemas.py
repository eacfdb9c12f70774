"""The values of the console and the API: plain, redacted, with ids as text and times in UTC."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from bson import ObjectId
from typing_extensions import TypedDict

from recruiter.doctor.findings import Finding as Finding
from recruiter.doctor.findings import Level as Level
from recruiter.domain.flow import FlowStep
from recruiter.domain.job import ArchivedJob, HistoryEntry
from recruiter.domain.planning.needs import Needs
from recruiter.domain.schedule.scheduler import Pause
from recruiter.domain.statistics import Times
from recruiter.store.collections.actions import ActionEntry as ActionEntry
from recruiter.views.analytics import Performance as Performance
from recruiter.views.record import DERIVED, DETAILS, FIELDS


@dataclass(frozen=True, slots=True)
class Sentence:
    """The state of affairs in one sentence."""

    level: Level
    text: str  # Times in it are written as `2026-11-17 03:00:00 UTC`


@dataclass(frozen=True, slots=True)
class _Page:
    at: datetime
    sentence: Sentence


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """The answer to a request that failed."""

    detail: str  # The problem, and the remedy


@dataclass(frozen=True, slots=True)
class Amount:
    """A number; a lower bound if it is not exact."""

    number: int
    exact: bool = True


# -- jobs --------------------------------------------------------------------------------------------------------------


def _json_type(hint: Any) -> Any:
    """The type of a value of `job_record`, from the type of the attribute."""
    origin, inner = get_origin(hint), get_args(hint)
    if ObjectId in inner:  # the id of a job
        return str | int | None if NoneType in inner else str | int
    if origin in (Union, UnionType):
        return Union[tuple(map(_json_type, inner))]  # noqa: UP007 (of a tuple)
    if origin in (tuple, frozenset):
        return list[_json_type(inner[0])]  # type: ignore[misc]
    if hint is Needs:
        return dict[str, float]
    if hint is ObjectId:
        return str
    if isinstance(hint, type) and (hasattr(hint, "_fields") or hint is FlowStep):
        return _object(hint.__name__, get_type_hints(hint))
    return hint if hint in (str, int, float, bool, datetime, NoneType) else Any


def _object(name: str, hints: Mapping[str, Any]) -> Any:
    return TypedDict(name, {field: _json_type(hint) for field, hint in hints.items()})  # type: ignore[operator]


_HINTS = get_type_hints(ArchivedJob) | dict.fromkeys(("state", "key"), str)
_HINTS |= dict.fromkeys(("error", "message", "worker", "flow"), str | None)
_HINTS |= {"cancelling": bool, "started_at": datetime | None, "ended_at": datetime | None}
_HINTS |= {name: _HINTS[name] | None for name in ("done", "why", "archived_at")}
_HAPPENING: Any = _object("Happening", get_type_hints(HistoryEntry) | {"old": Any, "new": Any, "text": str})


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a job's life."""

    kind: str  # `postponed`, `waiting`, `running`, `succeeded`, `failed`, `cancelled` or `lost`
    since: datetime
    until: datetime
    label: str
    attempt: int | None = None


JobRow: Any = _object(
    "JobRow",
    {name: _HINTS[name] for name in (*FIELDS, *DERIVED, "flow") if name not in DETAILS}
    | {"args": str, "waits": str | None, "level": str, "slow": str | None},
)
"""A job at a glance. Its arguments are in one line, redacted, and cut where they are long."""


_JobRecord: Any = _object(
    "JobRecord", {name: _HINTS[name] for name in (*FIELDS, *DERIVED, "flow")} | {"flow_step": FlowStep | None}
)


class JobView(_JobRecord):  # type: ignore[misc]
    """Everything about a job. Arguments, results and the document are redacted."""

    history: list[_HAPPENING]
    at: datetime
    sentence: str  # Why it is where it is
    slow: str | None  # Says that it runs longer than nearly all jobs of its task took
    stack: dict[str, Any] | None  # The calls that it was in when a person asked last: `text` and `at`
    timeline: list[Part]
    document: dict[str, Any]  # All that is stored, as JSON


@dataclass(frozen=True, slots=True)
class JobList:
    """A page of jobs."""

    at: datetime
    jobs: list[JobRow]
    next: str | None  # The value of `after` for the next page; null at the end
    looked_at: int  # About how many documents were read for it
    unreadable: int = 0  # Documents that belong on this page and cannot be read; `recruiter doctor` names them


# -- flows -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FlowRow:
    """A flow in short."""

    id: str
    name: str
    owner: str | None
    state: str
    steps: int
    progress: float
    counts: dict[str, int]
    note: str | None
    created_at: datetime
    ended_at: datetime | None
    why: str | None = None  # The reason why it waits, or why it failed


@dataclass(frozen=True, slots=True)
class FlowsPage(_Page):
    flows: list[FlowRow]
    next: str | None = None  # The value of `after` for the next page; null at the end


@dataclass(frozen=True, slots=True)
class FlowStepRow:
    """A step of a flow, with its last job."""

    step: str
    job: str
    task: str
    state: str
    after: list[str]
    any: list[str]
    on: str | None
    error: str | None
    started_at: datetime | None
    ended_at: datetime | None
    name: str | None = None  # Its own name in the flow


@dataclass(frozen=True, slots=True)
class FlowNode:
    """A box in the drawing of a flow: a step, or several that look alike."""

    step: FlowStepRow
    count: int
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class FlowEdge:
    path: str
    any: bool  # An end of any kind will do


@dataclass(frozen=True, slots=True)
class FlowGraph:
    width: float
    height: float
    nodes: list[FlowNode]
    edges: list[FlowEdge]


@dataclass(frozen=True, slots=True)
class FlowPage(_Page):
    """Everything about a flow."""

    flow: FlowRow
    graph: FlowGraph | None
    steps: list[FlowStepRow]
    more: int  # Number of steps on the next pages
    labels: dict[str, str] = field(default_factory=dict)
    """The name of a step, or the arguments that distinguish it from other steps of its task."""


# -- the fleet ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Leader:
    host: str
    pid: int
    term: int
    since: datetime | None


@dataclass(frozen=True, slots=True)
class RunningRow:
    """A job that runs."""

    id: str
    task: str
    since: datetime
    stage: str | None
    progress: float
    slow: str | None  # Says that it runs longer than nearly all jobs of its task took


@dataclass(frozen=True, slots=True)
class WorkerRow:
    id: str
    host: str
    pid: int
    state: str  # `works`, `joining`, `drained`, `leaving` or `silent`
    slots: int
    holds: int
    groups: list[str] | None  # Null: every group
    tasks: list[str]
    runs: list[RunningRow]
    resources: dict[str, float]
    joined_at: datetime
    seen_at: datetime
    drained: dict[str, Any] | None  # Since when, by whom and why
    clock_offset: float | None  # Seconds that the server's clock is ahead of its host's
    version: str | None
    memory_bytes: float | None  # Of the worker and its children
    cpu: float | None  # The number of processors that they use


@dataclass(frozen=True, slots=True)
class WorkersPage(_Page):
    leader: Leader | None
    workers: list[WorkerRow]


# -- numbers -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Point:
    """Jobs that ended in one minute or hour."""

    at: datetime
    seconds: float  # Length of this step so far
    ended: dict[str, int]
    latency: Times
    duration: Times


@dataclass(frozen=True, slots=True)
class Waiting:
    """Jobs of one group and task that have not ended."""

    group: str
    task: str
    queued: int
    postponed: int
    running: int
    reason: str | None  # Why the due ones do not start; null when they only wait their turn
    level: Level  # How serious that is: `ok`, `note` or `problem`
    about: str  # The jobs that the reason holds for: `group mail`, `task resize`; empty for all jobs
    is_partial: bool  # Only some of the due ones wait for this reason


@dataclass(frozen=True, slots=True)
class FrequentError:
    error: str
    by: str  # The word to filter by: `error`, or `why` where no attempt has raised anything
    count: Amount
    trend: list[int]  # Number of errors in each part of the time, the oldest first
    last_at: datetime
    tasks: list[str]
    is_new: bool = False  # Whether jobs ended before this time, none of them with this error


@dataclass(frozen=True, slots=True)
class OverviewPage:
    at: datetime
    within: str
    since: datetime
    until: datetime
    sentence: Sentence
    queued: int
    postponed: int
    running: int
    slots: int
    workers: int
    counted_at: datetime
    per_second: float  # Jobs that ended, over the last minute or two
    ended: dict[str, int]
    latency: Times
    duration: Times
    series: list[Point]
    waiting: list[Waiting]
    waiting_kinds: int  # Number of kinds; `waiting` has the longest queues
    errors: list[FrequentError]
    leader: Leader | None
    paused: dict[str, Pause]  # Paused groups, and `fleet` if all starts are blocked
    due_trend: list[int | None]  # Due jobs at each step of `series`; null without a sample
    running_trend: list[int | None]


@dataclass(frozen=True, slots=True)
class TasksPage(_Page):
    by: str
    within: str
    rows: list[Performance]
    more: int  # Number of rows that are not shown
    complete: bool  # False if only the newest ended jobs were counted


@dataclass(frozen=True, slots=True)
class GroupRow:
    name: str
    queued: int
    postponed: int
    running: int
    per_minute: float  # Jobs that ended, a minute, in the last five
    arrivals: float | None  # New jobs per minute, estimated; null without a sample of five minutes ago
    failed: int
    latency_p95: float | None
    next_due: datetime | None  # Due time of the next job
    next_id: str | None
    paused: Pause | None
    reason: str | None
    level: Level  # How serious the reason or the pause is


@dataclass(frozen=True, slots=True)
class LimitRow:
    """A limit, and how much of it is in use."""

    subject: str
    at_once: float | None
    used: float
    rate: str | None
    started: int  # Starts within the period of the rate
    rate_count: int | None
    floating: bool
    holders: list[str]  # The first few jobs that hold it
    source: str  # `declared`, or by which user
    is_set: bool  # Whether a person has set it; the application declares the others
    values: dict[str, str]  # As the action `set-limit` takes them


@dataclass(frozen=True, slots=True)
class GroupsPage(_Page):
    blocked: Pause | None
    groups: list[GroupRow]
    limits: list[LimitRow]


@dataclass(frozen=True, slots=True)
class EndedRun:
    id: str
    state: str
    at: datetime


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    urn: str
    task: str
    group: str
    schedule: str
    words: str  # The schedule for people: `every minute`
    zone: str | None
    next_runs: list[datetime]
    """Runs within 24 hours, or the next run after that. Of very many runs a sample that covers all of this time."""
    runs_in_a_day: Amount  # Number of runs within 24 hours
    last_at: datetime | None
    made: int
    skipped: int
    paused: Pause | None
    trouble: str | None  # Why it is broken, late, or has not succeeded in time
    last: list[EndedRun]  # The newest first


@dataclass(frozen=True, slots=True)
class SchedulesPage(_Page):
    schedules: list[ScheduleRow]
    more: int  # Number of schedules that are not shown


@dataclass(frozen=True, slots=True)
class ProblemsPage(_Page):
    findings: list[Finding]  # Problems first, then notes
    fine: list[Finding]  # Checks that passed
    set_aside: list[JobRow] = field(default_factory=list)
    past_actions: list[ActionEntry] = field(default_factory=list)
    complete: bool = True  # False while the doctor still looks
