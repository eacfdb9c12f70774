"""Flows in the console: what is shown of them, and their graph laid out for a drawing.

The drawing has one column for each depth, and lines from left to right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from recruiter.domain.flow import layers
from recruiter.web.schemas import Sentence

BOX, GAP = (190, 44), (70, 14)
FOLDED = 6
"""So many steps of one column that look alike and stand between the same others are one box."""
MOST = 300
"""Boxes in a drawing; a larger flow is shown as a list only."""


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


def drawn(steps: Sequence[FlowStepRow]) -> FlowGraph | None:
    """None when there are too many boxes for anybody to read."""
    by_id = {step.step: step for step in steps if step.on is None}
    graph = {id: [other for other in step.after if other in by_id] for id, step in by_id.items()}
    dependents: dict[str, list[str]] = {id: [] for id in graph}
    for id, after in graph.items():
        for other in after:
            dependents[other].append(id)
    box_of: dict[str, int] = {}
    nodes: list[FlowNode] = []
    for depth, layer in enumerate(layers(graph)):
        alike: dict[object, list[str]] = {}
        for id in layer:
            kind = (by_id[id].task, by_id[id].state, tuple(graph[id]), tuple(dependents[id]))
            alike.setdefault(kind, []).append(id)
        boxes = [box for ids in alike.values() for box in ([ids] if len(ids) >= FOLDED else [[id] for id in ids])]
        for row, ids in enumerate(boxes):
            box_of |= dict.fromkeys(ids, len(nodes))
            nodes.append(FlowNode(by_id[ids[0]], len(ids), depth * (BOX[0] + GAP[0]), row * (BOX[1] + GAP[1])))
            if len(nodes) > MOST:
                return None
    ends = {(box_of[other], box_of[id], other in by_id[id].any) for id in graph for other in graph[id]}
    edges = [_edge(nodes[one], nodes[other], any_) for one, other, any_ in sorted(ends)]
    width = max((node.x for node in nodes), default=0) + BOX[0]
    height = max((node.y for node in nodes), default=0) + BOX[1]
    return FlowGraph(width, height, nodes, edges)


def _edge(one: FlowNode, other: FlowNode, any_: bool) -> FlowEdge:
    x1, y1, x2, y2 = one.x + BOX[0], one.y + BOX[1] / 2, other.x, other.y + BOX[1] / 2
    middle = (x1 + x2) / 2
    return FlowEdge(f"M{x1},{y1} C{middle},{y1} {middle},{y2} {x2},{y2}", any_)
