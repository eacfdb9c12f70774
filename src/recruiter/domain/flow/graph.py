"""The graph of a flow: which step waits for which. It is checked before anything is stored.

For people it is drawn as a tree, each step once: one that waits for another stands under it; one that waits for several
stands beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

from recruiter.domain.names import JobId
from recruiter.errors import InvalidFlow

T = TypeVar("T", bound=Hashable)

Graph = Mapping[JobId, Sequence[JobId]]
"""Each step with the steps that it waits for."""


def in_order(graph: Mapping[T, Sequence[T]], name: Callable[[T], str] = repr) -> list[T]:
    """The steps, each after those that it waits for. Raises InvalidFlow for a cycle, and for a step that waits for one
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
    """The steps by depth: the first layer waits for nothing, each other one for a step of the layer before it. Steps
    that are not in the graph are left out of account."""
    depth: dict[T, int] = {}
    known = {step: [other for other in after if other in graph] for step, after in graph.items()}
    for step in in_order(known):
        depth[step] = max((depth[other] + 1 for other in known[step]), default=0)
    found: list[list[T]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for step in graph:
        found[depth[step]].append(step)
    return found


def _cycle(graph: Mapping[T, Sequence[T]], stuck: set[T]) -> list[T]:
    """One cycle among steps each of which waits for another of them; the first stands at its end again."""
    path: list[T] = []
    place: dict[T, int] = {}
    step = min(stuck, key=repr)
    while step not in place:
        place[step] = len(path)
        path.append(step)
        step = next(other for other in graph[step] if other in stuck)
    return [*path[place[step] :], step][::-1]


FOLDED = 5
"""So many steps in a row that look alike, and that no other stands under, are one line."""


@dataclass(frozen=True, slots=True)
class Branch:
    """One line of the tree."""

    prefix: str
    """The lines to its left."""
    steps: tuple[JobId, ...]
    """The step that it shows; several that look alike."""
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
    lines = iter(_lines(children, None, alike))
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
            stack.append((steps[0], below, iter(_lines(children, steps[0], alike))))


def _lines(
    children: dict[JobId | None, list[JobId]], parent: JobId | None, alike: Callable[[JobId], Hashable]
) -> Sequence[tuple[tuple[JobId, ...], bool]]:
    """The lines under a step, each with whether it is the last."""
    lines: list[tuple[JobId, ...]] = []
    for (_, leaf), run in groupby(children.get(parent, ()), lambda step: (alike(step), step not in children)):
        steps = tuple(run)
        lines += [steps] if leaf and len(steps) >= FOLDED else [(step,) for step in steps]
    return [(steps, number == len(lines) - 1) for number, steps in enumerate(lines)]
