"""Flows: the state of a flow and of its steps, computed from their documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import takewhile
from operator import eq
from typing import Any

from bson import ObjectId

from recruiter.domain.flow import FlowState, On
from recruiter.domain.job import JobId
from recruiter.domain.names import BLOCKED_LANE
from recruiter.domain.state import SKIPPED, WHY_SKIPPED, State, Why
from recruiter.domain.text import remark, shown
from recruiter.errors import FlowNotFound
from recruiter.store.codec import Document, flow_of
from recruiter.store.collections.flows import FlowPlace, StoredFlow
from recruiter.store.database import Store
from recruiter.store.flow_steps import StepCounts

BLOCKED = "blocked"
_SHOWN: Document = {
    **dict.fromkeys(("task", "lane", "flow.id", "flow.step", "flow.after", "flow.any", "flow.on", "done", "why"), 1),
    **dict.fromkeys(("flow.many", "flow.added", "flow.name", "flow.failed", "flow.part", "created_at"), 1),
    **dict.fromkeys(("reason", "archived_at", "recovered_as", "recovered_from", "attempts", "scheduled_at"), 1),
    **dict.fromkeys(("last_execution.started_at", "last_execution.class", "last_execution.message", "locked_at"), 1),
}


@dataclass(frozen=True, slots=True)
class StepReport:
    """The current state of a step of a flow."""

    step: JobId
    """The id of its first job; others wait for this."""
    job: JobId
    """Its last job; for a step that has succeeded, the job that succeeded."""
    task: str
    state: str
    """Of this job: `blocked`, `waiting`, `running`, `succeeded`, `failed`, `cancelled`, `lost`; or `skipped`, if it
    never ran: a step that it waited for has not succeeded, or its flow did not need it. `why` says which."""
    after: tuple[JobId, ...] = ()
    any: frozenset[JobId] = frozenset()
    on: On | None = None
    why: str | None = None
    """The reason for the end of its last job, a value of `Why`."""
    error: str | None = None
    attempts: int = 0
    started_at: datetime | None = None
    ended_at: datetime | None = None
    name: str | None = None
    """Its own name in the flow, if it was given one."""
    failed: frozenset[JobId] = frozenset()
    """Those in `after` of which at least one must fail, otherwise it is skipped."""
    part: tuple[str, ...] = ()
    """The sub-flow that it belongs to: its name, after the names of the sub-flows around it."""

    @property
    def title(self) -> str:
        """Its name and its task, or only its task."""
        return self.task if self.name is None else f"{self.name}: {self.task}"


@dataclass(frozen=True, slots=True)
class SubFlowReport:
    """The current state of a flow that was added to another flow."""

    name: str
    state: str
    """The state that it would have as one step: `blocked` before its first step may start, then `running`, and at the
    end `succeeded`, `failed`, `lost`, `cancelled`, or `skipped` if none of its steps has run."""
    counts: Mapping[str, int]
    """Number of steps in each state."""

    @property
    def ended(self) -> bool:
        """Whether none of its steps waits or runs."""
        return self.state not in _NOT_ENDED


@dataclass(frozen=True, slots=True)
class FlowReport:
    """The current state of a flow."""

    id: ObjectId
    name: str
    owner: str | None
    state: FlowState
    created_at: datetime
    ended_at: datetime | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    """Number of steps in each state."""
    note: str | None = None
    """The author and the reason of a pause or cancellation."""
    ends: Mapping[str, str] = field(default_factory=dict)
    """The jobs for the end of the flow that have been made, `success`, `failure` or `end`, each with its state. A list
    of flows leaves them out."""

    @property
    def total(self) -> int:
        """Number of steps added so far."""
        return sum(self.counts.values())

    @property
    def progress(self) -> float:
        """The share of its steps that have ended, from 0 to 1."""
        left = sum(self.counts.get(state, 0) for state in _NOT_ENDED)
        return 1.0 if not self.total else (self.total - left) / self.total


_NOT_ENDED = (BLOCKED, State.WAITING.value, State.RUNNING.value)
_STATES = (BLOCKED, *(state.value for state in State), SKIPPED)


def flow_report(store: Store, id: ObjectId) -> FlowReport:
    """Raises FlowNotFound."""
    # Markers first: without markers the leader has processed every earlier event, and the flow is up to date.
    marked = store.flows.with_markers([id])
    flow = found(store, id)
    report = _flow_report(flow, store.flow_steps.counts([id])[id], id in marked)
    return replace(report, ends=_jobs_at_the_end(store, flow)) if flow.run else report


def _jobs_at_the_end(store: Store, flow: StoredFlow) -> dict[str, str]:
    """The states of the jobs for the end of the flow. A job that failed is named before others of its kind."""
    made = {job["_id"]: on for on, job in flow.ends if on in flow.run}
    states: dict[str, str] = {}
    for step, job in store.flow_steps.last_jobs(flow.id, list(made)).items():
        state = _state_at_the_end(job["done"], str(job.get("why"))) if "done" in job else State.WAITING.value
        on = made[step].value
        states[on] = state if states.get(on, "succeeded") == "succeeded" else states[on]
    return states


def flow_reports(store: Store, limit: int, owner: str | None = None, running: bool | None = None) -> list[FlowReport]:
    """The newest flows."""
    return _with_counts(store, store.flows.latest(limit, owner, running))


def _with_counts(store: Store, latest: Sequence[StoredFlow]) -> list[FlowReport]:
    marked = store.flows.with_markers([flow.id for flow in latest if flow.outcome is not None])
    counts = store.flow_steps.counts([flow.id for flow in latest])
    return [_flow_report(flow, counts[flow.id], flow.id in marked) for flow in latest]


def find_flows(
    store: Store, limit: int, *, state: str = "", text: str = "", after: FlowPlace | None = None
) -> tuple[list[FlowReport], FlowPlace | None]:
    """A page of the newest flows in this state whose name, owner or id contains the text; and the place after which the
    next page begins, if there is one. It reads a bounded number of flows."""
    found: list[StoredFlow] = []
    running = state in (FlowState.RUNNING, FlowState.PAUSED) if state else None
    read = last = after  # the places of the last flow that was read, and of the last one on the page
    for _ in range(_MAX_READS):
        flows = store.flows.latest(_FLOWS_PER_READ, running=running, after=read)
        for flow in flows:
            before = read.number if read is not None and read.created_at == flow.created_at else 0
            read = FlowPlace(flow.created_at, before + 1)
            shown = f"{flow.name} {flow.owner or ''} {flow.id}".casefold()
            if state in ("", flow.state) and text.casefold() in shown:
                if len(found) == limit:
                    return _with_counts(store, found), last
                found.append(flow)
                last = read
        if len(flows) < _FLOWS_PER_READ:
            return _with_counts(store, found), None
    return _with_counts(store, found), read


_FLOWS_PER_READ = 200
_MAX_READS = 10


def failed_step(store: Store, id: ObjectId) -> StepReport | None:
    """A step that failed, of a flow that has failed."""
    row = store.flow_steps.first_failed(id, _SHOWN)
    return None if row is None else _step_report(row, set())


def flow_id(id: ObjectId | str) -> ObjectId:
    """The id of a flow, which may be given as text. Raises FlowNotFound."""
    if isinstance(id, ObjectId):
        return id
    if not isinstance(id, str) or not ObjectId.is_valid(id):
        raise FlowNotFound(f"{shown(id)} is not the id of a flow: these have 24 digits and letters up to f")
    return ObjectId(id)


def found(store: Store, id: ObjectId) -> StoredFlow:
    """Raises FlowNotFound."""
    flow = store.flows.get(id)
    if flow is None:
        raise FlowNotFound(f"there is no flow {id}: it was removed with its jobs, or never existed")
    return flow


def step_reports(store: Store, id: ObjectId) -> list[StepReport]:
    """Every step of the flow, each once, in the order in which they were added."""
    held = store.roster.held()
    # A job that has just ended may be found twice.
    rows = {row["_id"]: row for row in store.flow_steps.rows(id, _SHOWN)}
    latest: dict[JobId, StepReport] = {}
    for row in sorted(rows.values(), key=_rank_among_jobs):
        step = _step_report(row, held)
        if step is not None:
            latest[step.step] = step
    order = _order(rows.values())
    return sorted(latest.values(), key=lambda step: (step.on is not None, order[step.step]))


def sub_flow_reports(store: Store, id: ObjectId) -> list[SubFlowReport]:
    """Its sub-flows, each after the sub-flow that it is in."""
    by_part: dict[tuple[str, ...], list[StepReport]] = {}
    # Markers first: without markers the leader has processed every earlier event.
    marked = id in store.flows.with_markers([id])
    for step in step_reports(store, id):
        for depth in range(1, len(step.part) + 1):
            by_part.setdefault(step.part[:depth], []).append(step)
    return [SubFlowReport("/".join(part), _state_of_all(of, marked), _counts(of)) for part, of in by_part.items()]


def _state_of_all(steps: Sequence[StepReport], marked: bool) -> str:
    """The state of a sub-flow with these steps. While the flow is marked, the leader may still release a step."""
    states = [step.state for step in steps]
    if all(state == BLOCKED for state in states):
        return BLOCKED
    if marked or not set(states).isdisjoint(_NOT_ENDED):
        return State.RUNNING.value
    for state in (State.FAILED.value, State.LOST.value, State.CANCELLED.value):
        if state in states:
            return state
    if State.SUCCEEDED.value not in states:
        return SKIPPED
    given_up = any(step.state == SKIPPED and step.why == Why.DEPENDENCY_FAILED for step in steps)
    return State.FAILED.value if given_up else State.SUCCEEDED.value


def _counts(steps: Iterable[StepReport]) -> dict[str, int]:
    counts = Counter(step.state for step in steps)
    return {state: counts[state] for state in _STATES if counts[state]}


def _order(rows: Iterable[Document]) -> dict[JobId, tuple[datetime, str]]:
    """The order of the steps: by the time when each was added, then by an id that was generated at that time."""
    order: dict[JobId, tuple[datetime, str]] = {}
    for row in rows:
        place = flow_of(row)
        if place is not None:
            mine = row["created_at"], str(place.added or place.step)
            order[place.step] = min(mine, order.get(place.step, mine))
    return order


def _rank_among_jobs(row: Document) -> tuple[bool, bool, bool]:
    """A sort key: the last of the jobs of a step decides its state. That is a job that waits or runs; else a job that
    has succeeded, whether or not it was repeated outside of the flow; else the last job."""
    return "archived_at" not in row, bool(row.get("done")), row.get("recovered_as") is None


def _step_report(row: Document, held: set[JobId]) -> StepReport | None:
    place = flow_of(row)
    if place is None:
        return None
    last = row.get("last_execution") or {}
    error = row.get("reason") or ": ".join(filter(None, (last.get("class"), last.get("message"))))
    return StepReport(
        place.step,
        row["_id"],
        str(row.get("task", "")),
        _state(row, held),
        place.after,
        place.any,
        place.on,
        row.get("why"),
        str(error) if error else None,
        row.get("attempts") or 0,
        row.get("locked_at") or last.get("started_at"),
        row.get("archived_at"),
        place.name,
        place.failed,
        place.part,
    )


def _state(row: Mapping[str, Any], held: set[JobId]) -> str:
    if "archived_at" in row:
        return _state_at_the_end(bool(row.get("done")), str(row.get("why")))
    if row["_id"] in held:
        return State.RUNNING.value
    return BLOCKED if row.get("lane") == BLOCKED_LANE else State.WAITING.value


def _state_at_the_end(done: bool, why: str) -> str:
    return SKIPPED if why in WHY_SKIPPED else State.at_the_end(done, why).value


def _flow_report(flow: StoredFlow, steps: StepCounts, marked: bool) -> FlowReport:
    if steps.waiting or steps.running or marked:
        # It has not ended, or continues: a step was recovered or added, and the leader has not processed it yet.
        flow = replace(flow, outcome=None, ended_at=None)
    blocked = steps.waiting[BLOCKED_LANE]
    counts = Counter({BLOCKED: blocked, State.RUNNING.value: steps.running})
    counts[State.WAITING.value] = steps.waiting.total() - blocked
    for why, number in steps.ended.items():
        counts[_state_at_the_end(why == Why.DONE, why)] += number
    flag = flow.cancel or flow.paused
    text = None
    if flag is not None:
        what = "cancelled" if flow.cancel is not None else "paused"
        text = f"{what} by {remark(flag.by, flag.reason)}"
    shown = {state: counts[state] for state in _STATES if counts[state]}
    return FlowReport(flow.id, flow.name, flow.owner, flow.state, flow.created_at, flow.ended_at, shown, text)


def mermaid(steps: Sequence[StepReport], subs: Sequence[SubFlowReport] = ()) -> str:
    """The flow as text in the language of Mermaid, which many wikis and editors draw."""
    known = {step.step: f"s{number}" for number, step in enumerate(steps, 1)}
    lines = ["flowchart TD"]
    states = {sub.name: sub.state for sub in subs}
    open_parts: tuple[str, ...] = ()
    for step in sorted(steps, key=lambda step: step.part):
        common = sum(takewhile(bool, map(eq, open_parts, step.part)))
        lines += ["    end"] * (len(open_parts) - common)
        for depth in range(common + 1, len(step.part) + 1):
            name = "/".join(step.part[:depth])
            lines.append(f'    subgraph p{len(lines)}["{_quoted(name)}: {states.get(name, "")}"]')
        open_parts = step.part
        title = step.title if step.on is None else f"on {step.on.value}: {step.task}"
        lines.append(f'    {known[step.step]}["{_quoted(title)}<br/>{step.state}"]:::{step.state}')
    lines += ["    end"] * len(open_parts)
    for step in steps:
        for id in step.after:
            if id in known:
                arrow = "-.->|failed|" if id in step.failed else "-.->|any end|" if id in step.any else "-->"
                lines.append(f"    {known[id]} {arrow} {known[step.step]}")
    lines += [f"    classDef {state} fill:{colour}" for state, colour in _FILLS.items()]
    return "\n".join(lines)


def _quoted(text: str) -> str:
    return "".join(
        character if character.isalnum() or character in " .:/_-" else f"#{ord(character)};" for character in text
    )


_FILLS = {"succeeded": "#cfead0", "failed": "#f6caca", "lost": "#f6caca", "running": "#c9e2f5", "skipped": "#eeeeee"}
