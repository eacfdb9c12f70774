"""Late results: they came long after the job was due, and long after the last fault that concerned it."""

from __future__ import annotations

import bisect
import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.chaos.application import DEBOUNCED_SECONDS, THROTTLED_SECONDS, task_of, waits_for
from tests.chaos.evidence import Document, Evidence, Run, by_job, crashes
from tests.chaos.faults import Fault

_SLACK = 5.0
"""Seconds beyond the time after which a worker counts as dead."""
_BEHIND = 30.0
"""Seconds in which the fleet may still be busy with the jobs that waited during a fault."""
_FEW = 20
"""Jobs that may start before a job although they came later, while the whole fleet is behind."""


@dataclass(frozen=True, slots=True)
class Late:
    """A result that came long after its job was due, and after the last fault on its processes or on MongoDB."""

    job: str
    task: str
    due: float
    seconds: float
    """The delay."""
    cause: str
    """Another explanation; empty if there is none."""


def late_results(evidence: Evidence) -> list[Late]:
    """A fault concerns a job if it hit a process that ran it, or a worker that held it, or MongoDB, or if the producer
    that looked for its result was frozen."""
    by_pid, holding = defaultdict[int, list[Fault]](list), defaultdict[str, list[Fault]](list)
    for fault in evidence.faults:
        for pid in fault.pids if not fault.is_polite else ():
            by_pid[pid].append(fault)
        for job in fault.held:
            holding[job].append(fault)
    of_all = [fault for fault in evidence.faults if fault.hits_everybody or fault.kind == "producer frozen"]
    runs, due_at = by_job(evidence.runs), _due(evidence)
    order = _Order(evidence, runs)
    late = []
    for document in evidence.archived:
        job = str(document["_id"])
        due, seen = due_at.get(job), evidence.seen.get(job)
        if due is None or seen is None or seen - due < evidence.dead_after + _SLACK:
            continue
        own = [fault for run in runs.get(job, ()) for pid in (run.pid, run.supervisor) for fault in by_pid.get(pid, ())]
        own = [fault for fault in (*own, *holding.get(job, ())) if due <= fault.end and fault.at <= seen]
        concerned = [*own, *(fault for fault in of_all if fault.at <= seen)]
        since = max((due, *(min(seen, _moment(fault, evidence.dead_after)) for fault in concerned)))
        if seen - since > evidence.dead_after + _SLACK:
            cause = _by_rule(document) or _by_next_leader(evidence, own, since, seen)
            if not cause and order.overtook(job, due) <= _FEW:
                cause = _by_fleet(evidence, since, seen)
            late.append(Late(job, document["task"], due, seen - since, cause))
    return late


def _moment(fault: Fault, dead_after: float) -> float:
    """The time after which a job should continue. A worker that is frozen for long is replaced before it wakes up."""
    is_replaced = fault.kind in ("worker frozen", "inline frozen") and fault.end - fault.at > dead_after
    return fault.at if is_replaced else fault.end


def _by_rule(document: Document) -> str:
    return f"ran alone, after {crashes(document)} crashes" if crashes(document) else ""


def _by_next_leader(evidence: Evidence, own: Sequence[Fault], since: float, seen: float) -> str:
    """The next leader measures again how long a worker has been silent."""
    leaders = [fault for fault in evidence.faults if fault.kind.startswith("leader") and since <= fault.at <= seen]
    if not own or not leaders or seen - leaders[-1].at > evidence.dead_after + _SLACK:
        return ""
    return f"{own[-1].kind}, and the next leader noticed it, after: {leaders[-1].kind}"


def _by_fleet(evidence: Evidence, since: float, seen: float) -> str:
    """A fault that delayed all jobs."""
    everywhere = [f for f in evidence.faults if f.hits_everybody or f.kind.startswith(("leader", "rolling"))]
    before = [fault for fault in everywhere if since - _BEHIND <= fault.end <= seen]
    return f"the whole fleet was behind after: {max(before, key=lambda fault: fault.end).kind}" if before else ""


def _due(evidence: Evidence) -> dict[str, float]:
    """From when on each job could run, where that is known: not before the fleet ran its first job."""
    began = min((run.start for run in evidence.runs), default=0.0)
    due = {job: max(began, at) for job, at in evidence.acknowledged_at.items()}
    for job in due.keys() & (evidence.signalled.keys() | evidence.timed_out.keys()):
        due[job] = max(due[job], evidence.signalled.get(job, 0.0), evidence.timed_out.get(job, 0.0))
    for period, sends in ((DEBOUNCED_SECONDS, evidence.debounced), (THROTTLED_SECONDS, evidence.throttled)):
        for send in sends:
            due[send.job] = max(due.get(send.job, 0.0), send.acknowledged_at + period)
    for number, job in evidence.acknowledged.items():
        if task_of(number) == "part":
            before = [evidence.seen.get(evidence.acknowledged.get(n, "")) for n in waits_for(number)]
            if None in before:
                due.pop(job, None)
            else:
                due[job] = max((due.get(job, began), *(at for at in before if at is not None)))
    return due


class _Order:
    """In which order jobs became due, and started."""

    def __init__(self, evidence: Evidence, runs: Mapping[str, list[Run]]) -> None:
        self._starts = {job: max(run.start for run in mine) for job, mine in runs.items()}
        starts = ((evidence.acknowledged_at.get(job), start) for job, start in self._starts.items())
        self._both = sorted((at, start) for at, start in starts if at is not None)

    def overtook(self, job: str, due: float) -> int:
        """The number of jobs that came later and started earlier."""
        start = self._starts.get(job, float("inf"))
        place = bisect.bisect_right(self._both, (due, float("inf")))
        return sum(other < start for _, other in itertools.islice(self._both, place, None))
