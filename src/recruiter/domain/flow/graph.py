"""The graph of a flow: which step waits for which. It is checked before anything is stored."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

from recruiter.domain.job_id import JobId
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
                raise InvalidFlow(f"{name(step)} waits for {other!r}, which is no step of this flow")
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
