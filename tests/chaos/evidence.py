"""What the checker goes by: the lines of the ledgers, and MongoDB's documents at the end."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bson import ObjectId

from recruiter import FlowState
from tests.chaos.faults import Fault

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Run:
    """One execution of a job, as its own process has written it down."""

    job: str
    task: str
    worker: str
    pid: int
    attempt: int
    start: float
    end: float | None
    """None when it never came to its end."""

    @property
    def supervisor(self) -> int:
        """The pid in the worker's id: HOST:PID:TOKEN."""
        return int(self.worker.rsplit(":", 2)[1])


@dataclass(frozen=True, slots=True)
class UniqueSend:
    """A job of which there may be one of its key at a time, as its producer has sent it."""

    key: str
    job: str
    """The id that it was told, of a new job or of the one that was there."""
    new: bool
    asked_at: float
    acknowledged_at: float
    number: int = 0


@dataclass(frozen=True, slots=True)
class FlowEnd:
    """How a flow that users changed has ended."""

    state: FlowState = FlowState.RUNNING
    is_cancelled: bool = False
    steps: set[ObjectId] = field(default_factory=set)
    """The steps that were acknowledged."""


@dataclass
class Evidence:
    acknowledged: dict[int, str]
    """Number of the job → its id."""
    asked: set[int]
    """Every number that was ever asked for; those not acknowledged may exist or not."""
    runs: list[Run]
    faults: list[Fault]
    scheduled: list[Document]
    archived: list[Document]
    roster: list[Document] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    stopping: list[str] = field(default_factory=list)
    """What went wrong when the fleet was asked to stop."""
    mistakes: list[str] = field(default_factory=list)
    """Lines of the logs in which a process speaks of a mistake of its own."""
    unique: list[UniqueSend] = field(default_factory=list)
    effects: dict[int, int] = field(default_factory=dict)
    """What the jobs with a transaction of their own have left, by their number: how often."""
    charges: list[Run] = field(default_factory=list)
    """The runs of the step of `durable` that must be done once."""
    signalled: dict[str, float] = field(default_factory=dict)
    """Jobs whose signal was acknowledged, and when."""
    timed_out: dict[str, float] = field(default_factory=dict)
    """Jobs whose wait for the signal timed out, and when."""
    orders: set[int] = field(default_factory=set)
    """The documents that producers have committed together with a job, by its number."""
    debounced: list[UniqueSend] = field(default_factory=list)
    throttled: list[UniqueSend] = field(default_factory=list)
    flows: dict[str, FlowEnd] = field(default_factory=dict)
    """The flows that users changed, by their id."""
    acknowledged_at: dict[str, float] = field(default_factory=dict)
    seen: dict[str, float] = field(default_factory=dict)
    """When the result of a job was there for its producer."""
    epoch: float = 0.0
    """The Unix time at which the monotonic clock was zero."""
    dead_after: float = 15.0

    @property
    def documents(self) -> Iterable[Document]:
        return itertools.chain(self.scheduled, self.archived)


def by_job(runs: Iterable[Run]) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        found[run.job].append(run)
    return found


def number_of(document: Document) -> int | None:
    """Which of our jobs it is; occurrences have none."""
    if document.get("urn") is not None:
        return None
    arguments = document.get("args")
    first = next(iter(arguments.values() if isinstance(arguments, Mapping) else arguments or ()), None)
    return first if isinstance(first, int) else None


def crashes(document: Document) -> int:
    return sum(1 for execution in executions(document) if execution.get("crashed"))


def executions(document: Document) -> list[Document]:
    return document.get("executions") or [document.get("last_execution") or {}]
