"""What the console shows and the API answers: plain values, with ids as text and times in UTC.

Arguments and results in them are redacted already.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any


class Level(StrEnum):
    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Sentence:
    """What is the matter, in one sentence."""

    level: Level
    text: str
    """Times in it are written as `2026-11-17 03:00:00 UTC`."""


@dataclass(frozen=True, slots=True)
class PauseView:
    """Since when, by whom and why something is paused, drained or cancelled."""

    at: datetime | None
    by: str | None
    reason: str | None
    what: str = ""


@dataclass(frozen=True, slots=True)
class Amount:
    """How many there are; or at least, or about, where counting all would take too long."""

    number: int
    exact: bool = True


# -- jobs --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job at a glance."""

    id: str
    task: str
    group: str
    state: str
    """`waiting`, `postponed`, `running`, `succeeded`, `failed`, `cancelled` or `lost`."""
    args: str
    """In one line, redacted, and cut where they are long."""
    created_at: datetime
    scheduled_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    attempts: int
    priority: float
    why: str | None
    error: str | None
    message: str | None
    worker: str | None
    owner: str | None
    urn: str | None
    tags: list[str]
    stage: str | None
    progress: float
    cancelling: bool


@dataclass(frozen=True, slots=True)
class JobList:
    """A page of jobs."""

    at: datetime
    jobs: list[JobRow]
    next: str | None
    """What to give as `after` for the next page; null if there is nothing more."""
    looked_at: int
    """About how many documents were read for it."""


@dataclass(frozen=True, slots=True)
class Attempt:
    number: int
    started_at: datetime | None
    ended_at: datetime | None
    worker: str | None
    crashed: bool
    error: str | None
    message: str | None
    trace: str | None
    notes: list[str]


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a job's log."""

    at: datetime
    text: str


@dataclass(frozen=True, slots=True)
class Stage:
    state: str
    stage: str | None
    progress: float
    error: str | None
    at: datetime


@dataclass(frozen=True, slots=True)
class Checkpoint:
    name: str
    at: datetime
    problem: str | None


@dataclass(frozen=True, slots=True)
class Happening:
    """What happened to a job beside its attempts."""

    at: datetime
    what: str
    by: str | None
    reason: str | None
    text: str


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a job's life."""

    kind: str
    """`postponed`, `waiting`, `running`, `succeeded`, `failed`, `cancelled` or `lost`."""
    since: datetime
    until: datetime
    label: str
    attempt: int | None = None


@dataclass(frozen=True, slots=True)
class JobView:
    """Everything about a job."""

    at: datetime
    id: str
    key: str
    """The id of the first job of its chain of recoveries."""
    sentence: str
    """Why it is where it is."""
    state: str
    task: str
    method: str
    group: str
    priority: float
    tags: list[str]
    owner: str | None
    urn: str | None
    limited_by: str | None
    needs: str | None
    timeout: float | None
    at_most_once: bool
    retry: str | None
    attempts: int
    crashes: int
    worker_deaths: int
    snoozes: int
    conflicts: int
    created_at: datetime
    scheduled_at: datetime | None
    locked_by: str | None
    locked_at: datetime | None
    ended_at: datetime | None
    why: str | None
    reason: str | None
    cancel: PauseView | None
    stage: str | None
    progress: float
    args: Any
    result: Any
    executions: list[Attempt]
    stages: list[Stage]
    log: list[Line]
    log_cut: int
    recovered_from: str | None
    recovered_as: str | None
    flow: str | None
    """The flow that it is a step of."""
    signal: str | None
    """The signal that it waits for."""
    history: list[Happening]
    done: list[Checkpoint]
    """What it has done for good, and does not do again when it is tried again."""
    expires_at: datetime | None
    trace: str | None
    """The id of the trace in which it was made."""
    timeline: list[Part]
    document: dict[str, Any]
    """All that is stored, as JSON."""


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


@dataclass(frozen=True, slots=True)
class FlowList:
    at: datetime
    sentence: Sentence
    flows: list[FlowRow]


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
    any: bool
    """An end of any kind will do."""


@dataclass(frozen=True, slots=True)
class FlowGraph:
    width: float
    height: float
    nodes: list[FlowNode]
    edges: list[FlowEdge]


@dataclass(frozen=True, slots=True)
class FlowView:
    """Everything about a flow."""

    at: datetime
    sentence: Sentence
    flow: FlowRow
    graph: FlowGraph | None
    steps: list[FlowStepRow]
    more: int
    """How many steps are not shown."""


# -- the fleet ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Leader:
    host: str
    pid: int
    term: int
    since: datetime | None


@dataclass(frozen=True, slots=True)
class Run:
    """A job that runs."""

    id: str
    task: str
    since: datetime
    stage: str | None
    progress: float


@dataclass(frozen=True, slots=True)
class Worker:
    id: str
    host: str
    pid: int
    state: str
    """`works`, `joining`, `drained`, `leaving` or `silent`."""
    slots: int
    holds: int
    groups: list[str] | None
    """Null: every group."""
    tasks: list[str]
    runs: list[Run]
    resources: dict[str, float]
    joined_at: datetime
    seen_at: datetime
    drained: PauseView | None
    clock_offset: float | None
    """Seconds that the server's clock is ahead of its host's."""


@dataclass(frozen=True, slots=True)
class Fleet:
    at: datetime
    sentence: Sentence
    leader: Leader | None
    workers: list[Worker]


# -- numbers -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Seconds; null where nothing was measured."""

    p50: float | None
    p95: float | None
    p99: float | None


@dataclass(frozen=True, slots=True)
class Point:
    """What ended in one minute or hour."""

    at: datetime
    seconds: float
    """How long this step is, as far as it has gone."""
    ended: dict[str, int]
    latency: Percentiles
    duration: Percentiles


@dataclass(frozen=True, slots=True)
class Waiting:
    """Jobs of one group and task that have not ended."""

    group: str
    task: str
    queued: int
    postponed: int
    running: int
    reason: str | None
    """Why the due ones do not start; null when they only wait their turn."""
    stuck: bool
    """They will not start as things are."""


@dataclass(frozen=True, slots=True)
class FrequentError:
    error: str
    by: str
    """The word to filter by: `error`, or `why` where no attempt has raised anything."""
    count: Amount
    trend: list[int]
    """How many in each part of the time, the oldest first."""
    last_at: datetime
    tasks: list[str]


@dataclass(frozen=True, slots=True)
class Overview:
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
    per_second: float
    """Jobs that ended, over the last minute or two."""
    ended: dict[str, int]
    latency: Percentiles
    duration: Percentiles
    series: list[Point]
    waiting: list[Waiting]
    waiting_kinds: int
    """How many kinds there are; `waiting` has the longest of them."""
    errors: list[FrequentError]
    leader: Leader | None
    paused: list[PauseView]
    due_trend: list[int | None]
    """How many jobs were due at each step of `series`; null where nobody has looked."""
    running_trend: list[int | None]


@dataclass(frozen=True, slots=True)
class Group:
    name: str
    queued: int
    postponed: int
    running: int
    per_minute: float
    """Jobs that ended, a minute, in the last five."""
    arrivals: float | None
    """Likewise jobs that were made: about; null where nobody looked five minutes ago."""
    failed: int
    latency_p95: float | None
    next_due: datetime | None
    """Since when the job that comes next has been due."""
    next_id: str | None
    paused: PauseView | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class LimitUse:
    """A limit, and how much of it is in use."""

    subject: str
    at_once: float | None
    used: float
    rate: str | None
    started: int
    """Of the rate: how many have started within its time."""
    rate_count: int | None
    floating: bool
    holders: list[str]
    """The first few jobs that hold it."""


@dataclass(frozen=True, slots=True)
class Groups:
    at: datetime
    sentence: Sentence
    blocked: PauseView | None
    groups: list[Group]
    limits: list[LimitUse]


@dataclass(frozen=True, slots=True)
class Ended:
    id: str
    state: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Schedule:
    urn: str
    task: str
    group: str
    schedule: str
    zone: str | None
    next_runs: list[datetime]
    """Of the next 24 hours, or the next one after them."""
    last_at: datetime | None
    made: int
    skipped: int
    paused: PauseView | None
    trouble: str | None
    """It is broken, late, or has not kept what it must."""
    last: list[Ended]
    """The newest first."""


@dataclass(frozen=True, slots=True)
class Schedules:
    at: datetime
    sentence: Sentence
    schedules: list[Schedule]
    more: int
    """How many are not shown."""


@dataclass(frozen=True, slots=True)
class Problem:
    level: Level
    about: str
    code: str
    """A word that never changes, for scripts."""
    text: str
    todo: str


@dataclass(frozen=True, slots=True)
class SetAside:
    id: str
    at: datetime
    task: str
    why: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class PastAction:
    """What somebody did by hand."""

    at: datetime
    by: str
    verb: str
    subject: str
    reason: str | None
    outcome: str | None


@dataclass(frozen=True, slots=True)
class Problems:
    at: datetime
    sentence: Sentence
    findings: list[Problem]
    """Problems first, then notes."""
    fine: list[Problem]
    """What was looked at and is well."""
    set_aside: list[SetAside] = field(default_factory=list)
    past_actions: list[PastAction] = field(default_factory=list)
    complete: bool = True
    """False while the doctor still looks."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What every page shows at its edges."""

    version: str
    place: str
    """Database and host: `shop@db1`."""
    mongodb: str
    leader: Leader | None
    problems: int | None
    """Null until somebody has looked."""
