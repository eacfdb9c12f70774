"""A step of a flow: a job that may wait for other steps. What decides whether it may start is here, and pure.

A step is named by the id of its first job. If it is recovered, a new job is the same step: others wait for the step.

    blocked ──every step in `after` has succeeded──▶ released: an ordinary job in its lane
       │
       └────one of them has failed for good────────▶ archived as `dependency-failed`

For the steps in `any`, a part of `after`, an end of any kind will do.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum, auto

from bson import ObjectId

from recruiter.domain.names import JobId


class On(StrEnum):
    """When a step of a flow runs that waits for the end of the whole flow."""

    SUCCESS = "success"
    FAILURE = "failure"
    END = "end"


@dataclass(frozen=True, slots=True)
class FlowStep:
    """The place of a job in its flow."""

    flow: ObjectId
    step: JobId
    """The id of the first job of this step."""
    after: tuple[JobId, ...] = ()
    """The steps that it waits for."""
    any: frozenset[JobId] = frozenset()
    """Those of them that need not succeed: an end of any kind will do."""
    takes: tuple[JobId, ...] = ()
    """Those of them whose results are among its arguments."""
    on: On | None = None
    """It runs when the flow has ended, and is not counted among its steps."""
    added: ObjectId | None = None
    """What it is ordered by among steps that were added at the same moment, if its own id does not say it."""
    delay: float | None = None
    """Seconds between the moment when nothing holds it back any more and its time."""


class StepState(Enum):
    """The state of a step, as those see it that wait for it."""

    PENDING = auto()
    """One of its jobs waits or runs."""
    SUCCEEDED = auto()
    FAILED = auto()
    GONE = auto()
    """There is no job of it: somebody removed them."""


class Verdict(Enum):
    """What becomes of a step that waits for others."""

    WAIT = auto()
    RELEASE = auto()
    FAIL = auto()


_BAD = (StepState.FAILED, StepState.GONE)


def verdict(step: FlowStep, states: Mapping[JobId, StepState]) -> Verdict:
    """Whether it may start, by the states of the steps it waits for. One failure decides, whatever the others do."""
    found = {each: states.get(each, StepState.GONE) for each in step.after}
    if any(state in _BAD for each, state in found.items() if each not in step.any):
        return Verdict.FAIL
    if any(state is StepState.PENDING for state in found.values()):
        return Verdict.WAIT
    return Verdict.RELEASE


def culprits(step: FlowStep, states: Mapping[JobId, StepState]) -> list[JobId]:
    """The steps that it may not start for."""
    return [each for each in step.after if each not in step.any and states.get(each, StepState.GONE) in _BAD]


class FlowState(StrEnum):
    """The state of a flow."""

    RUNNING = "running"
    """Steps wait or run."""
    PAUSED = "paused"
    """Steps wait or run, and no other step starts."""
    SUCCEEDED = "succeeded"
    """All its steps have succeeded."""
    FAILED = "failed"
    """All its steps have ended, and not all have succeeded."""
    CANCELLED = "cancelled"
    """All its steps have ended, and it was cancelled."""

    @property
    def ended(self) -> bool:
        return self in (FlowState.SUCCEEDED, FlowState.FAILED, FlowState.CANCELLED)


def outcome(failed: int, cancelled: bool) -> FlowState:
    """The state of a flow whose steps have all ended, of which so many have not succeeded."""
    if not failed:
        return FlowState.SUCCEEDED
    return FlowState.CANCELLED if cancelled else FlowState.FAILED


def due_at_the_end(state: FlowState, run: Collection[On]) -> list[On]:
    """Which of the steps that wait for the end of the flow are to run now: each once, whatever comes after."""
    wanted = [On.SUCCESS if state is FlowState.SUCCEEDED else On.FAILURE, On.END]
    return [on for on in wanted if on not in run]
