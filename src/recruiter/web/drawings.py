"""Drawings: lines of figures over time, the next 24 hours of a schedule, the life of a job to scale, and the graph of a
flow: one column for each depth, and lines from left to right.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from recruiter.domain.duration import UNTIL_SIGNAL
from recruiter.domain.flow import layers
from recruiter.domain.job import ArchivedJob, Execution, Job
from recruiter.domain.state import State
from recruiter.web.formats import zone_of
from recruiter.web.schemas import FlowEdge, FlowGraph, FlowNode, FlowStepRow, Part
from recruiter.web.serializers import shown_state

BOX, GAP = (212, 44), (64, 14)
FOLDED = 6  # Minimum number of steps of one kind that are drawn as one box
MOST = 300  # Boxes in a drawing. A flow with more has one box for each task and state; if that is too much, none
_MAX_ROUNDS = 50
_TOUCHING_PERCENT = 0.6  # Runs that are closer than this cannot be distinguished, and are drawn as one bar
_DAY_SECONDS = 86400


# -- figures and schedules ---------------------------------------------------------------------------------------------


def sparkline(values: Sequence[float | None], width: float = 120.0, height: float = 24.0) -> str:
    """The path of an SVG line, the highest value at the top; unknown values are gaps."""
    known = [value for value in values if value is not None]
    if len(values) < 2 or not known:
        return ""
    most = max(known) or 1.0
    step = width / (len(values) - 1)
    parts: list[str] = []
    for place, value in enumerate(values):
        if value is None:
            continue
        gap = place == 0 or values[place - 1] is None
        parts.append(f"{'M' if gap else 'L'}{place * step:.1f},{height - 1 - value / most * (height - 2):.1f}")
        if gap and (place + 1 == len(values) or values[place + 1] is None):
            parts.append("h.1")  # a point
    return "".join(parts)


def hour_ticks(now: datetime, moments: list[datetime]) -> list[float]:
    """Positions of times within the next 24 hours, in percent. They move once a minute."""
    now = now.replace(second=0, microsecond=0)
    places = ((moment - now).total_seconds() / _DAY_SECONDS * 100 for moment in moments)
    return sorted({round(place, 2) for place in places if 0 <= place <= 100})


def hour_bars(now: datetime, moments: list[datetime]) -> list[tuple[float, float]]:
    """Times within the next 24 hours as bars: left edges and widths, in percent. Times that touch are one bar."""
    bars: list[tuple[float, float]] = []
    for place in hour_ticks(now, moments):
        right_edge = sum(bars[-1]) if bars else -100.0
        if place - right_edge <= _TOUCHING_PERCENT:
            bars[-1] = bars[-1][0], round(place - bars[-1][0], 2)
        else:
            bars.append((place, 0.0))
    return bars


def hour_marks(now: datetime, zone: str | None = None) -> list[tuple[float, str]]:
    """Every sixth hour of the next 24 on the clock of this zone: its position in percent, and its name. Hours at the
    ends would not fit and are left out."""
    there = now.astimezone(zone_of(zone))
    first = there.replace(minute=0, second=0, microsecond=0, hour=there.hour - there.hour % 6)
    moments = [first + timedelta(hours=6 * number) for number in range(1, 5)]
    marks = [(place, moment) for moment in moments for place in hour_ticks(now, [moment.astimezone(UTC)])]
    return [(place, f"{moment:%H:%M}") for place, moment in marks if 4 <= place <= 96]


# -- the life of a job -------------------------------------------------------------------------------------------------


def life_of(job: Job, now: datetime) -> list[Part]:
    """From its creation to its end, or to now. Parts that take no time are left out, attempts never are."""
    return [part for part in _parts(job, now) if part.attempt is not None or part.until > part.since]


def _parts(job: Job, now: datetime) -> Iterator[Part]:
    reached = job.created_at
    first = max(0, job.attempts - len(job.executions)) + 1
    if isinstance(job.scheduled_at, datetime) and not job.executions and job.scheduled_at > reached:
        until = min(job.scheduled_at, _end(job, now))
        yield Part("postponed", reached, until, "postponed")
        reached = until
    for number, attempt in enumerate(job.executions, first):
        if attempt.started_at is None or attempt.ended_at is None:
            continue
        begun = max(reached, attempt.started_at)
        yield Part("waiting", reached, begun, "waits" if number == first else "waits to be tried again")
        kind = _kind(job, attempt, last=number == first + len(job.executions) - 1)
        reached = max(begun, attempt.ended_at)
        yield Part(kind, begun, reached, f"attempt {number} {_outcome(kind, attempt)}", number)
    yield from _rest(job, reached, now)


def _rest(job: Job, reached: datetime, now: datetime) -> Iterator[Part]:
    if isinstance(job, ArchivedJob):
        if not job.executions or job.state is State.CANCELLED:
            yield Part("waiting", reached, max(reached, job.archived_at), f"waits, then {shown_state(job, now)}")
        return
    if job.locked_by is not None and job.locked_at is not None:
        begun = max(reached, job.locked_at)
        yield Part("waiting", reached, begun, "waits")
        yield Part("running", begun, max(begun, now), f"attempt {job.attempts + 1} runs", job.attempts + 1)
        return
    if job.executions and isinstance(job.scheduled_at, datetime) and now < job.scheduled_at != UNTIL_SIGNAL:
        yield Part("waiting", reached, max(reached, now), "waits to be tried again")
        yield Part("postponed", max(reached, now), job.scheduled_at, "until it is tried again")
        return
    yield Part("waiting", reached, max(reached, now), "waits")


def _end(job: Job, now: datetime) -> datetime:
    if isinstance(job, ArchivedJob):
        return job.archived_at
    return now if job.scheduled_at == UNTIL_SIGNAL else max(now, job.scheduled_at)


def _kind(job: Job, attempt: Execution, *, last: bool) -> str:
    if attempt.crashed or attempt.exception:
        return "failed"
    if last and isinstance(job, ArchivedJob):
        return job.state.value
    return "failed" if attempt.message else "succeeded"


def _outcome(kind: str, attempt: Execution) -> str:
    if attempt.crashed:
        return "ended when its process died"
    return f"failed with {attempt.exception}" if attempt.exception else kind


@dataclass(frozen=True, slots=True)
class Bar:
    """A part on a ruler that is `width` long."""

    part: Part
    x: float
    width: float


def bars(parts: Sequence[Part], width: float = 1000.0, least: float = 4.0) -> list[Bar]:
    """To scale, after each part has got the least width that can be seen."""
    if not parts:
        return []
    lengths = [(part.until - part.since).total_seconds() for part in parts]
    total = sum(lengths) or 1.0
    least = min(least, width / len(parts))
    room = width - least * len(parts)
    found, x = [], 0.0
    for part, length in zip(parts, lengths, strict=True):
        size = least + length / total * room
        found.append(Bar(part, round(x, 2), round(size, 2)))
        x += size
    return found


# -- the graph of a flow -----------------------------------------------------------------------------------------------


def folded(steps: Sequence[FlowStepRow]) -> list[list[list[str]]]:
    """The boxes of each column, with their steps; steps that look alike share a box. Empty if there are too many."""
    by_id = {step.step: step for step in steps if step.on is None}
    graph = _graph(by_id)
    columns = layers(graph)
    kinds = {id: (depth, by_id[id].task, by_id[id].state) for depth, layer in enumerate(columns) for id in layer}
    for kind_of, least in ((_refined(kinds, graph), FOLDED), (kinds, 2)):
        boxes = [_boxes(layer, kind_of, least) for layer in columns]
        if sum(map(len, boxes)) <= MOST:
            return boxes
    return []


def _graph(by_id: Mapping[str, FlowStepRow]) -> dict[str, list[str]]:
    return {id: [other for other in step.after if other in by_id] for id, step in by_id.items()}


def _refined(kinds: Mapping[str, Hashable], graph: Mapping[str, Sequence[str]]) -> Mapping[str, Hashable]:
    """Splits kinds until steps of one kind also have neighbours of the same kinds: parallel chains become one."""
    dependents: dict[str, list[str]] = {id: [] for id in graph}
    for id, after in graph.items():
        for other in after:
            dependents[other].append(id)
    for _ in range(_MAX_ROUNDS):
        numbers: dict[Hashable, int] = {}
        finer: dict[str, Hashable] = {}
        for id, kind in kinds.items():
            neighbours = (frozenset(kinds[other] for other in near[id]) for near in (graph, dependents))
            finer[id] = numbers.setdefault((kind, *neighbours), len(numbers))
        if len(numbers) == len(set(kinds.values())):
            break
        kinds = finer
    return kinds


def _boxes(layer: Sequence[str], kind_of: Mapping[str, Hashable], least: int) -> list[list[str]]:
    alike: dict[Hashable, list[str]] = {}
    for id in layer:
        alike.setdefault(kind_of[id], []).append(id)
    return [box for ids in alike.values() for box in ([ids] if len(ids) >= least else [[id] for id in ids])]


def graph_of(steps: Sequence[FlowStepRow]) -> FlowGraph | None:
    """None when there are too many boxes to read."""
    by_id = {step.step: step for step in steps if step.on is None}
    graph = _graph(by_id)
    box_of: dict[str, int] = {}
    nodes: list[FlowNode] = []
    for depth, boxes in enumerate(columns := folded(steps)):
        for row, ids in enumerate(sorted(boxes, key=lambda ids: _height(graph[ids[0]], box_of, nodes))):
            box_of |= dict.fromkeys(ids, len(nodes))
            nodes.append(FlowNode(by_id[ids[0]], len(ids), depth * (BOX[0] + GAP[0]), row * (BOX[1] + GAP[1])))
    if by_id and not columns:
        return None
    ends = {(box_of[other], box_of[id], other in by_id[id].any) for id in graph for other in graph[id]}
    edges = [_edge(nodes[one], nodes[other], any_) for one, other, any_ in sorted(ends)]
    width = max((node.x for node in nodes), default=0) + BOX[0]
    height = max((node.y for node in nodes), default=0) + BOX[1]
    return FlowGraph(width, height, nodes, edges)


def _height(after: Sequence[str], box_of: Mapping[str, int], nodes: Sequence[FlowNode]) -> float:
    """The mean height of these boxes: a step stands beside the steps that it waits for."""
    return sum(nodes[box_of[id]].y for id in after) / len(after) if after else 0.0


def _edge(one: FlowNode, other: FlowNode, any_: bool) -> FlowEdge:
    x1, y1, x2, y2 = one.x + BOX[0], one.y + BOX[1] / 2, other.x, other.y + BOX[1] / 2
    middle = (x1 + x2) / 2
    return FlowEdge(f"M{x1},{y1} C{middle},{y1} {middle},{y2} {x2},{y2}", any_)
