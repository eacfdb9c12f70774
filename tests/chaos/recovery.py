"""How soon work went on after each fault: which pause of the fleet is put down to which fault.

Faults come so often that several act at once. A pause is put down to the heaviest of them: the heaviest faults are
measured first, and each covers the time until work went on; a lighter fault that begins in such a time is not measured,
because nothing could be said about it.
"""

from __future__ import annotations

import bisect
import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tests.chaos.evidence import Evidence, Run
from tests.chaos.faults import Fault

_WATCHED = {
    "child": 2.0,
    "guard": 2.0,
    "producer": 2.0,
    "cleaner": 2.0,
    "inline": 2.0,
    "user": 2.0,
    "host": 2.0,
    "worker": 4.0,
    "rolling": 4.0,
    "leader": 6.0,
}
"""Seconds after a fault in which a pause of the fleet may come of it, by the first word of its kind."""
_WATCHED_DATABASE = 12.0
_WEIGHTS = (*_WATCHED, "primary", "MongoDB")


@dataclass
class Recovery:
    """What was measured of one kind of fault, in seconds."""

    pauses: list[float] = field(default_factory=list)
    """After each fault that acted alone: the longest time in which no job started anywhere."""
    own_jobs: list[float] = field(default_factory=list)
    """Of each job that the fault interrupted: the time until it started again."""


def recoveries(evidence: Evidence) -> dict[str, Recovery]:
    found: dict[str, Recovery] = defaultdict(Recovery)
    starts = sorted(run.start for run in evidence.runs)
    covered: list[tuple[float, float]] = []
    for fault in sorted(evidence.faults, key=lambda fault: (-_weight(fault), fault.at)):
        measured = found[fault.kind]
        if any(begin <= fault.at <= end for begin, end in covered):
            continue
        until = min((begin for begin, _ in covered if begin > fault.at), default=float("inf"))
        pause, over = _longest_pause(starts, fault, until)
        if over:
            measured.pauses.append(pause)
            covered.append((fault.at, max(over, fault.until)))
    for fault, seconds in _interrupted(evidence):
        found[fault.kind].own_jobs.append(seconds)
    return dict(found)


def _longest_pause(starts: Sequence[float], fault: Fault, until: float) -> tuple[float, float]:
    """The longest pause, and when it was over; zeros if a heavier fault came before anything started again."""
    watched = _WATCHED.get(fault.kind.split()[0], _WATCHED_DATABASE)
    end = min(max(fault.until, fault.at) + watched, until)
    longest, over, before = 0.0, 0.0, fault.at
    for place in range(bisect.bisect_right(starts, fault.at), len(starts)):
        at = starts[place]
        if at > until or before > end:
            break
        if at - before > longest:
            longest, over = at - before, at
        before = at
    return longest, over


def _interrupted(evidence: Evidence) -> Iterable[tuple[Fault, float]]:
    """Each run that a fault on its process or its worker ended, and the time from there until the job's next start."""
    hits: dict[int, list[Fault]] = defaultdict(list)
    for fault in evidence.faults:
        for pid in fault.pids:
            hits[pid].append(fault)
    runs: dict[str, list[Run]] = defaultdict(list)
    for run in sorted(evidence.runs, key=lambda run: run.start):
        runs[run.job].append(run)
    for mine in runs.values():
        for run, again in itertools.pairwise(mine):
            faults = [
                fault
                for pid in {run.pid, run.supervisor}
                for fault in hits.get(pid, ())
                if run.end is None and run.start <= fault.at <= again.start
            ]
            if faults:
                first = min(faults, key=lambda fault: fault.at)
                yield first, again.start - first.at


def _weight(fault: Fault) -> int:
    return _WEIGHTS.index(fault.kind.split()[0])
