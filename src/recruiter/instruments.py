"""Instruments: tools that follow a job from its producer to the process that runs it, such as tracing.

    producing    around the call that stores jobs     enqueue, create, enqueue_many, recover, the start of a flow
    stamp        for each new job                     writes its context for the other process into the document
    attempt      around each attempt, where it runs   and receives the outcome of the attempt
    process_died for a job that ended because its process did: a crash, a hard timeout, a worker that fell silent
    flush        soon after jobs, and when a process that runs jobs ends

`recruiter.instrument(OpenTelemetry())` adds one. Without any, nothing is called and nothing is stored. An instrument
that raises affects no job: the event `instrument.failed` reports it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal, TypeVar

from recruiter.domain.job import ArchivedJob, Job
from recruiter.domain.text import said_by
from recruiter.events import Events

T = TypeVar("T")

_NOTHING = nullcontext()


@dataclass(frozen=True, slots=True)
class SendStart:
    """Jobs that are about to be stored by one call."""

    name: str
    """The name of their task, or of their flow."""
    count: int
    recruiter: Any
    """The Recruiter that stores them."""
    group: str | None
    """Their group; None if they are in several."""
    is_flow: bool = False
    """Whether they are the steps of a flow."""


@dataclass(frozen=True, slots=True)
class AttemptStart:
    """An attempt that is about to begin."""

    job: Job
    number: int
    """1 for the first attempt."""
    worker: str
    recruiter: Any
    """The Recruiter that the task is of; None where the job runs without one."""


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """How an attempt ended."""

    outcome: Literal["succeeded", "failed", "retried", "snoozed", "cancelled"]
    """`failed` for good, or to be `retried`; `snoozed` if the job asked to be run later."""
    error: BaseException | None = None
    next_at: datetime | None = None
    """When it will be tried again."""


@dataclass(frozen=True, slots=True)
class ProcessDeath:
    """A job that has ended for good because its process died: nothing in that process could report it."""

    job: ArchivedJob
    """`job.why` and `job.last_execution` have the details."""
    recruiter: Any
    """The Recruiter that the task is of."""


class Follower:
    """The state of an instrument during one attempt."""

    trace_id: str | None = None
    """The trace that the attempt belongs to, as 32 hexadecimal digits; log lines have it."""
    span: str | None = None
    """The span of the attempt as a W3C `traceparent`. It is stored with the attempt: later jobs can link to it."""

    def ended(self, end: AttemptEnd) -> None:
        """Called once, before the attempt is left; not if the process dies, nor if the job is handed back."""


class Instrument:
    """Derive from it, and write the methods that you need."""

    def producing(self, start: SendStart) -> AbstractContextManager[Any]:
        """Around a call that stores jobs."""
        del start
        return _NOTHING

    def stamp(self, job: Job, carrier: dict[str, str]) -> None:
        """Writes the context for the process that runs this job into `carrier`, which is stored with the job as its
        `trace_context`. Called inside `producing`."""

    def attempt(self, start: AttemptStart) -> AbstractContextManager[Follower]:
        """Around an attempt, finalizers included. The block is left in the thread or task in which it was entered."""
        del start
        return nullcontext(Follower())

    def process_died(self, death: ProcessDeath) -> None:
        """Called once for a job that has ended for good because its process died: it crashed, it was ended by force,
        or its worker fell silent. Called in another process that has loaded the application."""

    def flush(self) -> None:
        """Sends what has gathered. Called in a thread of a process that runs jobs, soon after each job, and when the
        process ends. Takes two seconds at most."""


class Following:
    """The open blocks of all instruments around one attempt."""

    def __init__(self, guard: Callable[..., None]) -> None:
        self._guard = guard
        self._open: list[tuple[AbstractContextManager[Follower], Follower]] = []

    def enter(self, instrument: Instrument, start: AttemptStart) -> None:
        def enter() -> None:
            block = instrument.attempt(start)
            self._open.append((block, block.__enter__()))

        self._guard(instrument, enter)

    @property
    def trace_id(self) -> str | None:
        return next(filter(None, (follower.trace_id for _, follower in self._open)), None)

    @property
    def span(self) -> str | None:
        return next(filter(None, (follower.span for _, follower in self._open)), None)

    def ended(self, end: AttemptEnd) -> None:
        for _, follower in self._open:
            self._guard(follower, follower.ended, end)

    def close(self) -> None:
        while self._open:
            block, _ = self._open.pop()
            self._guard(block, block.__exit__, None, None, None)


class Instruments:
    """The instruments of one Recruiter. An error in one affects neither the job nor the others."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._all: list[Instrument] = []

    def __bool__(self) -> bool:
        return bool(self._all)

    def add(self, instrument: Instrument) -> None:
        self._all.append(instrument)

    def producing(self, start: Callable[[], SendStart]) -> AbstractContextManager[Any]:
        return self._producing(start()) if self._all else _NOTHING

    @contextmanager
    def _producing(self, start: SendStart) -> Iterator[None]:
        """Enters the `producing` block of each instrument, and leaves them with the exception of this block, if any."""
        blocks: list[AbstractContextManager[Any]] = []

        def enter(instrument: Instrument) -> None:
            block = instrument.producing(start)
            block.__enter__()
            blocks.append(block)

        for instrument in self._all:
            self._guard(instrument, enter, instrument)
        error: BaseException | None = None
        try:
            yield
        except BaseException as raised:
            error = raised
            raise
        finally:
            outcome = (None, None, None) if error is None else (type(error), error, error.__traceback__)
            for block in reversed(blocks):
                self._guard(block, block.__exit__, *outcome)

    def stamped(self, job: Job) -> Job:
        """The job with the trace context of the instruments, which connects its attempts with the call that made it."""
        if not self._all:
            return job
        carrier: dict[str, str] = {}
        for instrument in self._all:
            self._guard(instrument, instrument.stamp, job, carrier)
        context = trace_context(carrier)
        return job if context is None else replace(job, trace_context=context)

    def attempt(self, start: AttemptStart) -> Following:
        following = Following(self._guard)
        for instrument in self._all:
            following.enter(instrument, start)
        return following

    def process_died(self, death: ProcessDeath) -> None:
        for instrument in self._all:
            self._guard(instrument, instrument.process_died, death)

    def flush(self) -> None:
        for instrument in self._all:
            self._guard(instrument, instrument.flush)

    def _guard(self, what: object, call: Callable[..., Any], *arguments: Any) -> None:
        try:
            call(*arguments)
        except Exception as error:
            self._events.emit("instrument.failed", instrument=type(what).__name__, error=said_by(error, repr))


# -- the trace in which a job was made, as W3C Trace Context -------------------------------------------------------


MAX_ENTRIES, MAX_ENTRY_CHARACTERS = 20, 8_192
"""Anything beyond these limits is neither stored nor read."""

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")


def trace_context(value: Any) -> dict[str, str] | None:
    """The valid part of a trace context: strings by name, bounded in number and length."""
    if not isinstance(value, Mapping):
        return None
    sound = {
        name: text
        for name, text in list(value.items())[:MAX_ENTRIES]
        if isinstance(name, str) and isinstance(text, str) and len(text) <= MAX_ENTRY_CHARACTERS and "\0" not in name
    }
    return sound or None


def trace_id_of(context: Any) -> str | None:
    """The id of the trace in a W3C trace context, if there is one."""
    parent = context.get("traceparent") if isinstance(context, Mapping) else None
    found = _TRACEPARENT.fullmatch(parent) if isinstance(parent, str) else None
    return found[1] if found else None
