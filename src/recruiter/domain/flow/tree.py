"""A flow as a tree, for people: each step once. One that waits for another stands under it; one that waits for several
stands beside them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from recruiter.domain.flow.graph import Graph, in_order
from recruiter.domain.job_id import JobId

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
