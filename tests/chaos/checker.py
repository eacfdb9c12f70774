"""The checker: pure functions from evidence to violations. It believes the ledgers, and asks MongoDB only for the end.

What it cannot see: a job that was acknowledged to nobody; what a job did besides its two lines; an order of events
closer than the clock's resolution.
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from tests.changed_flows import wrong_ends
from tests.chaos.application import (
    BURST,
    KINDS,
    MOST_LIMITED,
    RATE,
    RATE_SECONDS,
    STEPS,
    THROTTLED_SECONDS,
    TICK,
    burst_of,
    flow_of,
    tenant_of,
    to_be_cancelled,
    waits_for,
)
from tests.chaos.evidence import Document, Evidence, FlowEnd, Run, UniqueSend, by_job, crashes, executions, number_of
from tests.chaos.faults import Fault
from tests.chaos.lateness import late_results

_SETTLED_WITHIN = 5.0
"""Seconds from the end of a run until it is on record, if nothing is in the way; and until a worker that has lost its
supervisor, or was frozen, starts nothing more."""
_DEATH_SEEN_WITHIN = 0.3
"""Seconds until a supervisor has noticed the death of a child."""
_LEADS_AGAIN = 10.0
"""Seconds until MongoDB is of use again after a fault of its own, on a slow machine."""
_MANY, _VERY_MANY = 20, 300
"""With this number of process faults, some hit children; with the second one, some hit children that run a job."""
_FEW, _MOST = 30, 0.75
"""The number of jobs of small tenants from which the rule applies, and the part of them that may start late."""
_ALL_KINDS = 2_500
"""With this number of jobs, each kind of work must have run."""
_HELD_BEFORE = 15
"""Jobs that all workers together may have been given and not started yet."""


@dataclass(frozen=True)
class Violation:
    rule: str
    what: str


def check(evidence: Evidence) -> list[Violation]:
    """Every rule that was broken, and by what."""
    rules = (
        *(_nothing_lost, _one_record_each, _right_results, _runs_explained, _crashes_explained, _at_most_once),
        *(_losses_explained, _limit_held, _rate_held, _one_of_a_key, _flows_whole, _flows_in_order, _effects_once),
        *(_steps_once, _signals_received, _orders_with_jobs, _last_call_wins, _periods_held),
        *(_turns_taken, _changed_flows_end_right, _recovered_once),
        *(_each_occurrence_once, _results_in_time, _nothing_left, _no_mistakes, _faults_came, _work_came),
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
        yield Violation("one record each", f"job {id} waits, and has ended too")
    own = (document for document in evidence.documents if document.get("recovered_from") is None)
    numbers = Counter(number for d in own if (number := number_of(d)) is not None)
    for number, count in numbers.items():
        if count > 1:
            yield Violation("one record each", f"number {number} became {count} jobs")
        if number not in evidence.asked:
            yield Violation("one record each", f"number {number} was never asked for")


def _right_results(evidence: Evidence) -> Iterator[Violation]:
    """What has ended has ended well, or was killed by us so often that it was set aside, or was lost as at-most-once,
    or waited for one of those, or was to be cancelled."""
    failed = {number_of(document) for document in evidence.archived if not document.get("done")}
    for document in evidence.archived:
        number, id = number_of(document), document["_id"]
        if document.get("done"):
            if number is not None and document.get("result") != number:
                yield Violation("right results", f"job {id} ended with {document.get('result')!r} instead of {number}")
        elif document["task"] != "changed" and (
            not _excused(document, failed) and crashes(document) < 2
        ):  # the rule for jobs that kill their process needs more deaths than that
            last = document.get("last_execution") or {}
            told = f"{document.get('reason')}; {last.get('class')}: {str(last.get('message'))[:300]}"
            yield Violation("right results", f"job {id} of {document['task']} ended as {document.get('why')!r}: {told}")


def _excused(document: Document, failed: set[int | None]) -> bool:
    if document.get("why") == "dependency-failed":
        return bool(failed.intersection(waits_for(number_of(document) or 0)))
    if document.get("why") == "cancelled":
        return document["task"] == "slow" and to_be_cancelled(number_of(document) or 0)
    if document["task"] == "mended":
        return (document.get("last_execution") or {}).get("class") == ValueError.__name__
    return bool(document.get("at_most_once")) and document.get("why") == "lost"


def _runs_explained(evidence: Evidence) -> Iterator[Violation]:
    """A run that no attempt accounts for needs a fault that hit its process, its worker or MongoDB."""
    hits = Hits(evidence.faults, evidence.dead_after)
    for document, mine, surplus in surplus_runs(evidence):
        explained = sum(1 for run in mine if hits.explain(run))
        if surplus > explained:
            yield Violation(
                "runs explained",
                f"job {document['_id']} ran {len(mine)} times, {document.get('attempts')} attempts are recorded, "
                f"and faults explain {explained}: {[(r.worker, r.pid, round(r.start, 2)) for r in mine]}",
            )


def _crashes_explained(evidence: Evidence) -> Iterator[Violation]:
    """A crash is recorded only where somebody was hit: the process that ran the job, its worker, or MongoDB then."""
    hit = {pid for fault in evidence.faults for pid in fault.pids}
    hits = Hits(evidence.faults, evidence.dead_after)
    runs: dict[str, list[Run]] | None = None
    for document in evidence.archived:
        for execution in executions(document):
            if not execution.get("crashed"):
                continue
            runs = by_job(evidence.runs) if runs is None else runs
            worker = str(execution.get("worker"))
            pids = {run.pid for run in runs.get(str(document["_id"]), []) if run.worker == worker}
            ended_at = execution.get("ended_at")
            moment = ended_at.timestamp() - evidence.epoch if ended_at is not None else 0.0
            if not ({int(worker.rsplit(":", 2)[1])} | pids) & hit and not hits.database_around(moment, moment):
                yield Violation("crashes explained", f"job {document['_id']} crashed on {worker}, which nobody hit")


def _at_most_once(evidence: Evidence) -> Iterator[Violation]:
    for id, runs in by_job(run for run in evidence.runs if run.task == "once").items():
        if len(runs) > 1:
            yield Violation("at most once", f"job {id} started {len(runs)} times: {[r.worker for r in runs]}")


def _losses_explained(evidence: Evidence) -> Iterator[Violation]:
    """An at-most-once job that is lost has started, or was about to: on a worker that was hit then, or in a child that
    was. A worker that was asked to stop is not hit: it hands back what it has not started."""
    started = {run.job for run in evidence.runs if run.task == "once"}
    hits = Hits((fault for fault in evidence.faults if not fault.is_polite), evidence.dead_after)
    of_children = [fault.at for fault in evidence.faults if fault.kind.startswith(("child", "guard"))]
    for document in evidence.archived:
        if document.get("why") == "lost" and str(document["_id"]) not in started:
            last = document.get("last_execution") or {}
            moment = last["ended_at"].timestamp() - evidence.epoch if "ended_at" in last else 0.0
            worker = str(last.get("worker") or "::0:")
            if last.get("crashed") and any(0.0 <= moment - at <= _DEATH_SEEN_WITHIN for at in of_children):
                continue  # its child had claimed it and had not written the first line
            if not hits.explain(Run(str(document["_id"]), "once", worker, 0, 0, moment, moment)):
                yield Violation("losses explained", f"job {document['_id']} was lost on {worker} and never started")


def _limit_held(evidence: Evidence) -> Iterator[Violation]:
    """At no time do more jobs run than may. Runs without an end do not count, nor do frozen runs: their jobs may have
    been given to other workers. MongoDB's faults are no excuse."""
    hits = Hits(evidence.faults, evidence.dead_after)
    limited = (run for run in evidence.runs if run.task == "limited")
    whole = [run for run in limited if run.end is not None and not hits.on_process(run)]
    moments = sorted([(run.start, 1) for run in whole] + [(run.end or 0.0, -1) for run in whole])
    running = most = 0
    for _, change in moments:
        running += change
        most = max(most, running)
    if most > MOST_LIMITED:
        yield Violation("limit held", f"{most} limited jobs ran at once, {MOST_LIMITED} may")


def _rate_held(evidence: Evidence) -> Iterator[Violation]:
    """Not more starts in any two seconds than may be given in three, and what workers may have held before: what counts
    is when a job was given to its worker, and it may start a moment later."""
    hits = Hits(evidence.faults, evidence.dead_after)
    starts = sorted(run.start for run in evidence.runs if run.task == "paced" and not hits.on_process(run))
    most = int(RATE * 3.0 / RATE_SECONDS) + _HELD_BEFORE
    for place, start in enumerate(starts[most:]):
        if start - starts[place] < 2.0:
            yield Violation("rate held", f"{most + 1} paced jobs started within 2 s, {RATE} may in {RATE_SECONDS:g} s")
            return


def _one_of_a_key(evidence: Evidence) -> Iterator[Violation]:
    """While a unique job had not ended, no other of its key was made: none that was acknowledged as new after the first
    was there, and before a later start of the first."""
    hits = Hits(evidence.faults, evidence.dead_after)
    last_start: dict[str, float] = {}
    for run in evidence.runs:
        if run.task == "alone" and not hits.explain(run):
            last_start[run.job] = max(run.start, last_start.get(run.job, 0.0))
    by_key: dict[str, list[UniqueSend]] = defaultdict(list)
    for send in evidence.unique:
        if send.new:
            by_key[send.key].append(send)
    for key, sends in by_key.items():
        there = iter(sorted(sends, key=lambda send: send.acknowledged_at))
        first, latest = next(there, None), ("", 0.0)
        for send in sorted(sends, key=lambda send: send.asked_at):
            while first is not None and first.acknowledged_at <= send.asked_at:
                latest = max(latest, (first.job, last_start.get(first.job, 0.0)), key=lambda each: each[1])
                first = next(there, None)
            if latest[1] > send.acknowledged_at:
                yield Violation("one of a key", f"job {send.job} of key {key} was made although {latest[0]} was there")


def _flows_whole(evidence: Evidence) -> Iterator[Violation]:
    """Of each flow all steps were stored, or none."""
    numbers = (number_of(document) for document in evidence.documents if document["task"] == "part")
    for first, count in Counter(flow_of(number) for number in numbers if number is not None).items():
        if count != STEPS:
            yield Violation("flows whole", f"flow {first} has {count} of {STEPS} steps")


def _flows_in_order(evidence: Evidence) -> Iterator[Violation]:
    """No step started before those that it waits for had come to their end."""
    numbers = {str(d["_id"]): number_of(d) or 0 for d in evidence.documents if d["task"] == "part"}
    starts: dict[int, float] = {}
    ends: dict[int, float] = {}
    for run in evidence.runs:
        if run.task == "part" and run.job in numbers:
            number = numbers[run.job]
            starts[number] = min(run.start, starts.get(number, run.start))
            if run.end is not None:
                ends[number] = min(run.end, ends.get(number, run.end))
    for number, start in starts.items():
        for before in waits_for(number):
            if ends.get(before, float("inf")) > start:
                yield Violation("flows in order", f"step {number} started before step {before} had ended")


def _effects_once(evidence: Evidence) -> Iterator[Violation]:
    """What a job wrote in its own transaction is there once if the job succeeded, and not at all otherwise."""
    wanted = {number_of(d): int(bool(d.get("done"))) for d in evidence.documents if d["task"] == "counted"}
    for number in wanted.keys() | evidence.effects.keys():
        found = evidence.effects.get(number or 0, 0)
        if found != wanted.get(number, 0):
            yield Violation(
                "effects once", f"job number {number} has {found} effects, {wanted.get(number, 0)} should be"
            )


def _steps_once(evidence: Evidence) -> Iterator[Violation]:
    """A durable step is done once; again only if a fault came before its checkpoint could be stored."""
    hits = Hits(evidence.faults, evidence.dead_after)
    charges = by_job(evidence.charges)
    for document in evidence.archived:
        if document["task"] == "durable":
            mine = charges.get(str(document["_id"]), [])
            if document.get("done") and not mine:
                yield Violation("steps once", f"job {document['_id']} succeeded without its step")
            if len(mine) - 1 > sum(1 for charge in mine if hits.explain(charge)):
                yield Violation("steps once", f"job {document['_id']} did its step {len(mine)} times")


def _signals_received(evidence: Evidence) -> Iterator[Violation]:
    for job, at in evidence.timed_out.items():
        if evidence.signalled.get(job, at) < at - _SETTLED_WITHIN:
            yield Violation("signals received", f"job {job} was sent its signal, and its wait timed out")


def _orders_with_jobs(evidence: Evidence) -> Iterator[Violation]:
    """A job and a document that were committed together are both there; of a transaction that was given up neither."""
    jobs = {number_of(document) for document in evidence.documents if document["task"] == "ordered"}
    for number in jobs.symmetric_difference(evidence.orders):
        which = "a document without its job" if number in evidence.orders else "a job without its document"
        yield Violation("orders with jobs", f"number {number}: {which}")


def _last_call_wins(evidence: Evidence) -> Iterator[Violation]:
    """A debounced or throttled job runs with the number of its last call: not with one whose call was over before
    another began."""
    numbers = {str(d["_id"]): number_of(d) for d in evidence.archived if d["task"] in ("latest", "throttled")}
    sends = [*evidence.debounced, *evidence.throttled]
    over = {(send.job, send.number): send.acknowledged_at for send in sends}
    for send in sends:
        if send.job not in numbers:
            yield Violation("last call wins", f"job {send.job} was acknowledged for number {send.number}, and is gone")
        elif over.get((send.job, numbers[send.job] or 0), send.asked_at) < send.asked_at:
            yield Violation("last call wins", f"job {send.job} ran with {numbers[send.job]}, not with {send.number}")


def _periods_held(evidence: Evidence) -> Iterator[Violation]:
    """Two jobs of one key do not start in one period. A moment is allowed from the time at which a job was given."""
    hits = Hits(evidence.faults, evidence.dead_after)
    keys = {send.job: send.key for send in evidence.throttled}
    starts: dict[str, list[float]] = defaultdict(list)
    first = {run.job: run for run in sorted(evidence.runs, key=lambda run: -run.start) if run.job in keys}
    for job, run in sorted(first.items(), key=lambda each: each[1].start):
        if not hits.explain(run):
            starts[keys[job]].append(run.start)
    for key, moments in starts.items():
        for before, after in itertools.pairwise(moments):
            if after - before < THROTTLED_SECONDS / 2:
                yield Violation("periods held", f"two jobs of key {key} started {after - before:.2f} s apart")


def _turns_taken(evidence: Evidence) -> Iterator[Violation]:
    """The one job of a small tenant does not wait for the many of a large one that are due with it. A job may have been
    given to a worker that was hit, so single ones prove nothing."""
    small, late = turns(evidence)
    if small >= _FEW and late > _MOST * small:
        yield Violation("turns taken", f"{late} of {small} jobs of small tenants started after most of a large one's")


def turns(evidence: Evidence) -> tuple[int, int]:
    """The number of jobs of small tenants, and of those that started after most jobs of the large one."""
    numbers = {str(d["_id"]): number_of(d) or 0 for d in evidence.documents if d["task"] == "fair"}
    starts: dict[int, float] = {}
    for run in evidence.runs:
        if run.task == "fair" and run.job in numbers:
            number = numbers[run.job]
            starts[number] = min(run.start, starts.get(number, run.start))
    small, late = 0, 0
    for first in {burst_of(number) for number in starts}:
        burst = range(first, first + BURST)
        large = sorted(starts[n] for n in burst if n in starts and tenant_of(n) == "large")
        for number in burst:
            if number in starts and tenant_of(number) != "large":
                small += 1
                late += bisect.bisect_left(large, starts[number]) > len(large) / 2
    return small, late


def _changed_flows_end_right(evidence: Evidence) -> Iterator[Violation]:
    """A flow that users changed has the outcome of its steps, and no step is lost or doubled."""
    jobs: dict[str, list[Document]] = defaultdict(list)
    for document in evidence.archived:
        if document["task"] == "changed" and document.get("flow") is not None:
            jobs[str(document["flow"]["id"])].append(document)
    for id in evidence.flows.keys() | jobs.keys():
        end = evidence.flows.get(id, FlowEnd())
        if not end.state.ended:
            yield Violation("changed flows end right", f"flow {id} is {end.state.value}")
        else:
            for wrong in wrong_ends(jobs[id], end.state, cancelled=end.is_cancelled, added=end.steps):
                yield Violation("changed flows end right", f"flow {id}: {wrong}")


def _recovered_once(evidence: Evidence) -> Iterator[Violation]:
    """Users recover each failed job at the same time, and each becomes one other job."""
    mended = [document for document in evidence.documents if document["task"] == "mended"]
    copies = Counter(str(d["recovered_from"]) for d in mended if d.get("recovered_from") is not None)
    for document in mended:
        wanted, id = int(document.get("recovered_as") is not None), str(document["_id"])
        if copies[id] != wanted:
            yield Violation("recovered once", f"job {id} was recovered {wanted} times and became {copies[id]} jobs")


def _results_in_time(evidence: Evidence) -> Iterator[Violation]:
    for late in late_results(evidence):
        if not late.cause:
            yield Violation("results in time", f"job {late.job} of {late.task} came {late.seconds:.1f} s too late")


def _each_occurrence_once(evidence: Evidence) -> Iterator[Violation]:
    """One job for each second between the first and the last occurrence."""
    ticks = [str(d["_id"]) for d in evidence.documents if d.get("urn") == TICK]
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


def _faults_came(evidence: Evidence) -> Iterator[Violation]:
    """Most faults of processes are meant for the children, and some of these run a job. A run in which they do not meet
    any shows nothing."""
    hit = Counter(fault.kind for fault in evidence.faults if not fault.hits_everybody)
    if hit.total() >= _MANY and hit["child killed"] < hit.total() / 4:
        yield Violation("faults came", f"of {hit.total()} faults of processes {hit['child killed']} hit a child")
    killed = {pid for fault in evidence.faults if fault.kind == "child killed" for pid in fault.pids}
    if hit["child killed"] >= _VERY_MANY and not any(run.end is None and run.pid in killed for run in evidence.runs):
        yield Violation("faults came", f"{hit['child killed']} children were killed, and none of them ran a job")


def _work_came(evidence: Evidence) -> Iterator[Violation]:
    """A run shows nothing about a kind of work that it did not contain."""
    if len(evidence.acknowledged) >= _ALL_KINDS:
        for task in (KINDS | {"changed"}) - {run.task for run in evidence.runs}:
            yield Violation("work came", f"of {len(evidence.acknowledged):,} jobs none of {task} ran")


# -- what the rules share --------------------------------------------------------------------------------------------


class Hits:
    """Which faults could have cost a run its record."""

    def __init__(self, faults: Iterable[Fault], dead_after: float) -> None:
        self._slack = dead_after + _LEADS_AGAIN
        self._by_pid: dict[int, list[Fault]] = defaultdict(list)
        database: list[tuple[float, float]] = []
        for fault in faults:
            for pid in fault.pids if not fault.is_polite else ():
                self._by_pid[pid].append(fault)
            if fault.hits_everybody:
                database.append((fault.at - _SETTLED_WITHIN, (fault.until or fault.at) + self._slack))
        self._database = _joined(database)
        self._starts = [start for start, _ in self._database]

    def explain(self, run: Run) -> bool:
        """A fault on its process or its worker while it ran or was to be settled, or on MongoDB around that time. A
        worker that was asked to stop has to settle what it ran."""
        return self.on_process(run) or self.database_around(run.start, run.end or run.start)

    def on_process(self, run: Run) -> bool:
        end = float("inf") if run.end is None else run.end + _SETTLED_WITHIN
        for pid in (run.pid, run.supervisor):
            for fault in self._by_pid.get(pid, ()):
                if fault.at <= end and (fault.until or fault.at) + _SETTLED_WITHIN >= run.start:
                    return True
        return False

    def database_around(self, start: float, end: float) -> bool:
        place = bisect.bisect_right(self._starts, end)
        return place > 0 and self._database[place - 1][1] >= start


def _joined(times: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """In order; those that overlap as one."""
    joined: list[tuple[float, float]] = []
    for start, end in sorted(times):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined


def surplus_runs(evidence: Evidence) -> Iterator[tuple[Document, list[Run], int]]:
    """The jobs that ran more often than attempts are recorded, their runs, and how many too many."""
    runs = by_job(evidence.runs)
    for document in evidence.archived:
        mine = runs.get(str(document["_id"]), [])
        surplus = len(mine) - int(document.get("attempts") or 0) - int(document.get("snoozes") or 0)
        if surplus > 0:
            yield document, mine, surplus
