"""The checker: pure functions from evidence to violations. It believes the ledgers, and asks MongoDB only for the end.

What it cannot see: a job that was acknowledged to nobody; what a job did besides its two lines; an order of events
closer than the clock's resolution.
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from tests.chaos.application import MOST_LIMITED, TICK
from tests.chaos.faults import Fault

Document = Mapping[str, Any]


@dataclass(frozen=True)
class Run:
    """One execution of a job, as its own process has written it down."""

    job: str
    task: str
    worker: str
    pid: int
    attempt: int
    start: float
    end: float | None
    """None when it never came to its end."""

    @property
    def supervisor(self) -> int:
        """The pid in the worker's id: HOST:PID:TOKEN."""
        return int(self.worker.rsplit(":", 2)[1])


@dataclass
class Evidence:
    acknowledged: dict[int, str]
    """Number of the job → its id."""
    asked: set[int]
    """Every number that was ever asked for; those not acknowledged may exist or not."""
    runs: list[Run]
    faults: list[Fault]
    scheduled: list[Document]
    archived: list[Document]
    roster: list[Document] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    stopping: list[str] = field(default_factory=list)
    """What went wrong when the fleet was asked to stop."""
    mistakes: list[str] = field(default_factory=list)
    """Lines of the logs in which a process speaks of a mistake of its own."""
    dead_after: float = 15.0


@dataclass(frozen=True)
class Violation:
    rule: str
    what: str


def check(evidence: Evidence) -> list[Violation]:
    """Every rule that was broken, and by what."""
    rules = (
        *(_nothing_lost, _one_record_each, _right_results, _runs_explained, _crashes_explained, _at_most_once),
        *(_limit_held, _each_occurrence_once, _nothing_left, _no_mistakes),
    )
    return [violation for rule in rules for violation in rule(evidence)]


# -- the rules -------------------------------------------------------------------------------------------------------


def _nothing_lost(evidence: Evidence) -> Iterator[Violation]:
    """Every acknowledged job has ended."""
    ended = {str(document["_id"]) for document in evidence.archived}
    waiting = {str(document["_id"]) for document in evidence.scheduled}
    for number, id in evidence.acknowledged.items():
        if id not in ended:
            where = "still waits" if id in waiting else "is nowhere"
            yield Violation("nothing lost", f"job {id} (number {number}) was acknowledged and {where}")


def _one_record_each(evidence: Evidence) -> Iterator[Violation]:
    """A job is in one collection, and no number became two jobs."""
    both = {d["_id"] for d in evidence.scheduled} & {d["_id"] for d in evidence.archived}
    for id in both:
        yield Violation("one record each", f"job {id} waits and has ended at once")
    numbers = Counter(number for d in (*evidence.scheduled, *evidence.archived) if (number := _number(d)) is not None)
    for number, count in numbers.items():
        if count > 1:
            yield Violation("one record each", f"number {number} became {count} jobs")
        if number not in evidence.asked:
            yield Violation("one record each", f"number {number} was never asked for")


def _right_results(evidence: Evidence) -> Iterator[Violation]:
    """What has ended has ended well, or was killed by us so often that it was set aside, or lost as at-most-once."""
    for document in evidence.archived:
        number, id = _number(document), document["_id"]
        if document.get("done"):
            if number is not None and document.get("result") != number:
                yield Violation("right results", f"job {id} ended with {document.get('result')!r} instead of {number}")
        elif document.get("at_most_once") and document.get("why") == "lost":
            continue
        elif _crashes(document) < 2:  # the rule for jobs that kill their process needs more deaths than that
            last = document.get("last_execution") or {}
            told = f"{document.get('reason')}; {last.get('class')}: {str(last.get('message'))[:300]}"
            yield Violation("right results", f"job {id} of {document['task']} ended as {document.get('why')!r}: {told}")


def _runs_explained(evidence: Evidence) -> Iterator[Violation]:
    """A run that no attempt accounts for needs a fault that hit its process, its worker or MongoDB."""
    hits = Hits(evidence.faults, evidence.dead_after)
    runs = _by_job(evidence.runs)
    for document in evidence.archived:
        mine = runs.get(str(document["_id"]), [])
        surplus = len(mine) - int(document.get("attempts") or 0)
        explained = sum(1 for run in mine if hits.explain(run))
        if surplus > explained:
            yield Violation(
                "runs explained",
                f"job {document['_id']} ran {len(mine)} times, {document.get('attempts')} attempts are recorded, "
                f"and faults explain {explained}: {[(r.worker, r.pid, round(r.start, 2)) for r in mine]}",
            )


def _crashes_explained(evidence: Evidence) -> Iterator[Violation]:
    """A crash is recorded only where somebody was hit."""
    hit = {pid for fault in evidence.faults for pid in fault.pids}
    database = any(fault.hits_everybody for fault in evidence.faults)
    runs = _by_job(evidence.runs)
    for document in evidence.archived:
        for execution in document.get("executions") or [document.get("last_execution") or {}]:
            if not execution.get("crashed") or database:
                continue
            worker = str(execution.get("worker"))
            pids = {run.pid for run in runs.get(str(document["_id"]), []) if run.worker == worker}
            if not ({int(worker.rsplit(":", 2)[1])} | pids) & hit:
                yield Violation("crashes explained", f"job {document['_id']} crashed on {worker}, which nobody hit")


def _at_most_once(evidence: Evidence) -> Iterator[Violation]:
    for id, runs in _by_job(run for run in evidence.runs if run.task == "once").items():
        if len(runs) > 1:
            yield Violation("at most once", f"job {id} started {len(runs)} times: {[r.worker for r in runs]}")


def _limit_held(evidence: Evidence) -> Iterator[Violation]:
    """At every instant at most so many run, of those that came to their end: when the others ended nobody knows."""
    hits = Hits(evidence.faults, evidence.dead_after)
    whole = [run for run in evidence.runs if run.task == "limited" and run.end is not None and not hits.explain(run)]
    moments = sorted([(run.start, 1) for run in whole] + [(run.end or 0.0, -1) for run in whole])
    running = most = 0
    for _, change in moments:
        running += change
        most = max(most, running)
    if most > MOST_LIMITED:
        yield Violation("limit held", f"{most} limited jobs ran at once, {MOST_LIMITED} may")


def _each_occurrence_once(evidence: Evidence) -> Iterator[Violation]:
    """One job for each second between the first and the last occurrence."""
    ticks = [str(d["_id"]) for d in (*evidence.scheduled, *evidence.archived) if d.get("urn") == TICK]
    moments = sorted(datetime.fromisoformat(id.rpartition("@")[2]) for id in ticks)
    for before, after in itertools.pairwise(moments):
        if after == before:
            yield Violation("each occurrence once", f"{after:%H:%M:%S} became two jobs")
        elif after - before > timedelta(seconds=1):
            yield Violation("each occurrence once", f"nothing between {before:%H:%M:%S} and {after:%H:%M:%S}")


def _nothing_left(evidence: Evidence) -> Iterator[Violation]:
    for document in evidence.roster:
        yield Violation("nothing left", f"worker {document['_id']} is still on the roster")
    for process in evidence.orphans:
        yield Violation("nothing left", f"process {process} still runs")
    for what in evidence.stopping:
        yield Violation("nothing left", what)


def _no_mistakes(evidence: Evidence) -> Iterator[Violation]:
    for line in evidence.mistakes:
        yield Violation("no mistakes", line)


# -- what the rules share --------------------------------------------------------------------------------------------


class Hits:
    """Which faults could have cost a run its record."""

    def __init__(self, faults: Iterable[Fault], dead_after: float) -> None:
        self._slack = dead_after + 10.0
        self._by_pid: dict[int, list[Fault]] = defaultdict(list)
        database: list[tuple[float, float]] = []
        for fault in faults:
            for pid in fault.pids:
                self._by_pid[pid].append(fault)
            if fault.hits_everybody:
                database.append((fault.at, (fault.until or fault.at) + self._slack))
        self._database = sorted(database)
        self._starts = [start for start, _ in self._database]

    def explain(self, run: Run) -> bool:
        """A fault on its process or its worker while it ran or was to be settled, or on MongoDB around that time."""
        end = (run.end or run.start) + self._slack
        for pid in (run.pid, run.supervisor):
            for fault in self._by_pid.get(pid, ()):
                if fault.at <= end and (fault.until or fault.at) + self._slack >= run.start:
                    return True
        place = bisect.bisect_right(self._starts, end)
        return any(until >= run.start for _, until in self._database[max(0, place - 3) : place])


def _by_job(runs: Iterable[Run]) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        found[run.job].append(run)
    return found


def _number(document: Document) -> int | None:
    """Which of our jobs it is; occurrences have none."""
    if document.get("urn") is not None:
        return None
    arguments = document.get("args")
    first = next(iter(arguments.values() if isinstance(arguments, Mapping) else arguments or ()), None)
    return int(first) if first is not None else None


def _crashes(document: Document) -> int:
    executions = document.get("executions") or [document.get("last_execution") or {}]
    return sum(1 for execution in executions if execution.get("crashed"))
