"""Flows: jobs that wait for other jobs. The decision whether a step may start is here, and pure; so is the graph.

A step is identified by the id of its first job. A recovered step has a new job, but keeps this id for its dependents.

    blocked ──every step in `after` has succeeded──▶ released: an ordinary job in its lane
       │
       ├────a required step has failed for good────▶ archived as `dependency-failed`
       │
       └────it is not needed───────────────────────▶ archived as `not-needed`

For the steps in `any`, a part of `after`, an end of any kind will do. At least one of the steps in `failed`, another
part, must have failed: a compensation is not needed if all of them have succeeded. A step that waits for a
skipped step is skipped too.

The graph has the dependencies of each step. It is checked before anything is stored. For people it is drawn as a tree,
each step once: a step with one dependency stands under it; a step with several stands next to them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum, StrEnum, auto
from itertools import groupby
from typing import TypeVar

from bson import ObjectId

from recruiter.domain.names import JobId
from recruiter.errors import InvalidFlow


class On(StrEnum):
    """The end of the flow after which an `on_…` step runs."""

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
    """The steps in `after` that need not succeed: an end of any kind will do."""
    takes: tuple[JobId, ...] = ()
    """The steps in `after` whose results are among its arguments."""
    on: On | None = None
    """It runs when the flow has ended, and is not counted among its steps."""
    added: ObjectId | None = None
    """Orders steps that were added at the same time, if their own ids do not."""
    delay: float | None = None
    """Seconds between its release and its time."""
    name: str | None = None
    """Unique in its flow; None for most steps."""
    failed: frozenset[JobId] = frozenset()
    """The steps in `after` of which at least one must have failed."""
    due: datetime | None = None
    """When the leader released it. Its place in the queue is as old as the flow: see `scheduled_at` of its job."""
    part: tuple[str, ...] = ()
    """The sub-flow that it belongs to: its name, after the names of the sub-flows around it."""
    result_of: tuple[int, ...] = ()
    """The sub-flows whose result is its result; 1 is the outermost one."""
    item_of: tuple[int, ...] = ()
    """The sub-flows whose result is a list that contains its result."""
    adder: JobId | None = None
    """The running step that added it. Another attempt of this step leaves it unchanged."""

    def waiting_for(self, steps: Iterable[JobId], any: Iterable[JobId] = (), failed: Iterable[JobId] = ()) -> FlowStep:
        """Its place when it waits for these steps too. The steps in `any` and in `failed` are a part of them."""
        after = tuple(dict.fromkeys((*self.after, *steps)))
        return replace(self, after=after, any=self.any.union(any), failed=self.failed.union(failed))

    def inside(self, part: Sequence[str], *, result: bool, is_list: bool) -> FlowStep:
        """Its place when its flow becomes a sub-flow; `result` if it has the result of this sub-flow, or a part of the
        list."""
        deeper = len(part)
        own = (deeper,) if result else ()
        return replace(
            self,
            part=(*part, *self.part),
            result_of=(*(() if is_list else own), *(depth + deeper for depth in self.result_of)),
            item_of=(*(own if is_list else ()), *(depth + deeper for depth in self.item_of)),
        )


class StepState(Enum):
    """The state of a step, for the steps that wait for it."""

    PENDING = auto()
    """A job of it waits or runs."""
    SUCCEEDED = auto()
    FAILED = auto()
    SKIPPED = auto()
    """It was not needed."""
    GONE = auto()
    """It has no job: its jobs were removed."""


class Verdict(Enum):
    """The decision about a step that waits for other steps."""

    WAIT = auto()
    RELEASE = auto()
    FAIL = auto()
    SKIP = auto()


_BAD = (StepState.FAILED, StepState.GONE)


def verdict(step: FlowStep, states: Mapping[JobId, StepState]) -> Verdict:
    """The decision, by the states of the steps that it waits for. One failed required step is enough for FAIL. For SKIP
    all must have ended: a step that still runs may fail, and whether a step failed decides about its compensation."""
    found = {each: states.get(each, StepState.GONE) for each in step.after}
    required = {state for each, state in found.items() if each not in step.any and each not in step.failed}
    if not required.isdisjoint(_BAD):
        return Verdict.FAIL
    if StepState.PENDING in found.values():
        return Verdict.WAIT
    if StepState.SKIPPED in required:
        return Verdict.SKIP
    if step.failed and not any(found[each] in _BAD for each in step.failed):
        return Verdict.SKIP
    return Verdict.RELEASE


def culprits(step: FlowStep, states: Mapping[JobId, StepState]) -> list[JobId]:
    """The required steps that failed or no longer exist, so that this step cannot start."""
    optional = step.any | step.failed
    return [each for each in step.after if each not in optional and states.get(each, StepState.GONE) in _BAD]


def conditional_steps(places: Iterable[FlowStep]) -> frozenset[JobId]:
    """The steps that run only if another step has failed, and the steps that need the success of such a step. If no
    step fails they are skipped, and a step that waits for the whole flow does not need them."""
    by_id = {place.step: place for place in places}
    found: set[JobId] = set()
    for id in in_order({id: [step for step in place.after if step in by_id] for id, place in by_id.items()}):
        place = by_id[id]
        if place.failed or not found.isdisjoint(set(place.after) - place.any):
            found.add(id)
    return frozenset(found)


def joined(
    step: FlowStep, running: JobId, added: Sequence[JobId], conditional: Collection[JobId] = frozenset()
) -> FlowStep:
    """The place of a step that waits for a running step, after the running step has added steps before its dependents.
    The step waits for the added steps in the same way; for a conditional one, any end will do."""
    any = added if running in step.any else () if running in step.failed else conditional
    return step.waiting_for(added, any, added if running in step.failed else ())


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
    """The state of a flow whose steps have all ended; `failed` is the number of steps that did not succeed."""
    if not failed:
        return FlowState.SUCCEEDED
    return FlowState.CANCELLED if cancelled else FlowState.FAILED


def due_at_the_end(state: FlowState, run: Collection[On]) -> list[On]:
    """The steps that wait for the end of the flow and run now: each runs once."""
    wanted = [On.SUCCESS if state is FlowState.SUCCEEDED else On.FAILURE, On.END]
    return [on for on in wanted if on not in run]


# -- the graph ------------------------------------------------------------------------------------------------------

T = TypeVar("T", bound=Hashable)

Graph = Mapping[JobId, Sequence[JobId]]
"""Each step with the steps that it waits for."""


def in_order(graph: Mapping[T, Sequence[T]], name: Callable[[T], str] = repr) -> list[T]:
    """The steps, each after its dependencies. Raises InvalidFlow for a cycle, and for a step that waits for one
    which is not in the graph."""
    left = {step: len(set(after)) for step, after in graph.items()}
    dependents: dict[T, list[T]] = {}
    for step, after in graph.items():
        for other in set(after):
            if other not in graph:
                raise InvalidFlow(f"{name(step)} waits for {other!r}, which is not a step of this flow")
            dependents.setdefault(other, []).append(step)
    free = [step for step, count in left.items() if not count]
    ordered: list[T] = []
    while free:
        ordered += free
        after_these: list[T] = []
        for step in free:
            for dependent in dependents.get(step, ()):
                left[dependent] -= 1
                if not left[dependent]:
                    after_these.append(dependent)
        free = after_these
    if len(ordered) < len(graph):
        told = " → ".join(name(step) for step in _cycle(graph, set(graph).difference(ordered)))
        raise InvalidFlow(f"these steps wait for each other, so that none could start: {told}")
    return ordered


def layers(graph: Mapping[T, Sequence[T]]) -> list[list[T]]:
    """The steps by depth. The steps of the first layer wait for nothing; every other step waits for a step of the layer
    before. Dependencies that are not in the graph are ignored."""
    depth: dict[T, int] = {}
    known = {step: [other for other in after if other in graph] for step, after in graph.items()}
    for step in in_order(known):
        depth[step] = max((depth[other] + 1 for other in known[step]), default=0)
    found: list[list[T]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for step in graph:
        found[depth[step]].append(step)
    return found


def _cycle(graph: Mapping[T, Sequence[T]], stuck: set[T]) -> list[T]:
    """One cycle among steps that each wait for another of these steps. The result begins and ends with the same
    step."""
    path: list[T] = []
    place: dict[T, int] = {}
    step = min(stuck, key=repr)
    while step not in place:
        place[step] = len(path)
        path.append(step)
        step = next(other for other in graph[step] if other in stuck)
    return [*path[place[step] :], step][::-1]


FOLDED = 5
"""Minimum number of identical steps in a row, without steps below them, that are shown as one line."""


@dataclass(frozen=True, slots=True)
class Branch:
    """One line of the tree."""

    prefix: str
    """The tree characters to its left."""
    steps: tuple[JobId, ...]
    """The step that the line shows, or several identical steps."""
    parent: JobId | None = None
    """The step that it stands under."""


def branches(graph: Graph, alike: Callable[[JobId], Hashable]) -> Iterator[Branch]:
    """The tree, line by line. Steps that are `alike` may share a line."""
    children: dict[JobId | None, list[JobId]] = {}
    known = {step: [other for other in after if other in graph] for step, after in graph.items()}
    parents: dict[JobId, JobId | None] = {}
    for step in in_order(known):
        after = known[step]
        parents[step] = None if not after else after[0] if len(after) == 1 else parents[after[-1]]
    for step in graph:
        children.setdefault(parents[step], []).append(step)

    def looks(step: JobId) -> Hashable:
        """A step with several dependencies stands next to them, and must not share their line."""
        return alike(step), tuple(known[step])

    lines = iter(_lines(children, None, looks))
    stack: list[tuple[JobId | None, str, Iterator[tuple[tuple[JobId, ...], bool]]]] = [(None, "", lines)]
    while stack:
        parent, prefix, lines = stack[-1]
        entry = next(lines, None)
        if entry is None:
            stack.pop()
            continue
        steps, last = entry
        top = parent is None
        yield Branch(prefix if top else f"{prefix}{'└─ ' if last else '├─ '}", steps, parent)
        if len(steps) == 1 and steps[0] in children:
            below = "" if top else f"{prefix}{'   ' if last else '│  '}"
            stack.append((steps[0], below, iter(_lines(children, steps[0], looks))))


def _lines(
    children: dict[JobId | None, list[JobId]], parent: JobId | None, alike: Callable[[JobId], Hashable]
) -> Sequence[tuple[tuple[JobId, ...], bool]]:
    """The lines under a step, each with whether it is the last."""
    lines: list[tuple[JobId, ...]] = []
    for (_, leaf), run in groupby(children.get(parent, ()), lambda step: (alike(step), step not in children)):
        steps = tuple(run)
        lines += [steps] if leaf and len(steps) >= FOLDED else [(step,) for step in steps]
    return [(steps, number == len(lines) - 1) for number, steps in enumerate(lines)]
