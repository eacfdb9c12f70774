"""The record of a world, from outside: acknowledged jobs, signals and steps, and each start of a job."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from bson import ObjectId

from recruiter.domain.job import JobId
from recruiter.domain.planning.limits import Rate
from recruiter.interruption import Interruptible
from recruiter.processes.worker.held_job import HeldJob
from recruiter.store.codec import Document, decode
from tests.simulator.hub import Hub
from tests.simulator.process import Process
from tests.simulator.rules import Rules, Violation
from tests.simulator.server import Server

RATE = Rate(2, 2.0)
"""The rate at which jobs of `paced` may start."""
_CLOCKS = 0.02
"""Seconds by which clocks may differ: the log of starts has hundredths of its window."""


@dataclass
class SimulatedRun:
    job: JobId
    task: str
    args: Any
    worker: str
    process: Process
    ledger: Ledger
    since: datetime
    began: float
    excuse: str | None = None
    """Why it may be that no attempt accounts for it."""
    interruptible: Interruptible = field(default_factory=Interruptible)

    @property
    def hub(self) -> Hub:
        return self.process.hub

    @property
    def excused(self) -> bool:
        """Whether no attempt needs to account for it: there is an excuse, or its process was hit since, and may have
        lost it unnoticed."""
        return self.excuse is not None or self.process.dead or self.process.was_hit_since(self.began)


class Ledger:
    def __init__(self, hub: Hub, server: Server, child_deaths: Callable[[], float]) -> None:
        self._hub = hub
        self._server = server
        self._child_deaths = child_deaths
        self.rules = Rules(server)
        self.failed: Violation | None = None
        """The first one: it must not be swallowed by code that it would be raised through."""
        self.numbers = itertools.count(1)
        """For jobs, calls, signals and effects: no number is used twice."""
        self.acknowledged: dict[JobId, float] = {}
        self.maybe: set[JobId] = set()
        """Enqueued without an answer: they may exist."""
        self.signals: dict[JobId, list[int]] = defaultdict(list)
        """The data of the signals that were acknowledged."""
        self.runs: dict[JobId, list[SimulatedRun]] = defaultdict(list)
        self.lines: list[str] = []
        self.clocks_agree = True
        """False if the primary's clock is stepped: then times cannot be compared."""
        self._paced: set[JobId] = set()
        """Jobs with a rate that are held."""
        self._given_at_a_rate = 0
        self._first_paced_at = float("inf")

    def note(self, what: str) -> None:
        self.lines.append(f"{self._hub.now:9.3f} {what}")

    def fail(self, violation: Violation) -> None:
        self.failed = self.failed or violation

    @property
    def calm(self) -> bool:
        return not self._child_deaths()

    def child_dies(self) -> bool:
        return self._hub.chance(self._child_deaths())

    # -- reports of runs and people ------------------------------------------------------------------------------------

    def started(self, job: HeldJob, worker: str, process: Process, since: datetime) -> SimulatedRun:
        document = decode(job.raw)
        run = SimulatedRun(job.id, document["task"], document["args"], worker, process, self, since, self._hub.now)
        self.note(f"{worker} starts {job.id}")
        self.runs[job.id].append(run)
        if run.task == "once" and len(self.runs[job.id]) > 1:
            self.fail(Violation(f"job {job.id} is at most once, and started {len(self.runs[job.id])} times"))
        try:
            self.rules.may_start(document)
        except Violation as violation:
            self.fail(violation)
        return run

    def did(self, run: SimulatedRun, name: str) -> None:
        """A run calls a function of `once`."""
        document = self._collection("scheduled").get(run.job) or self._collection("archived").get(run.job) or {}
        if any(kept["name"] == name for kept in document.get("checkpoints", ())):
            self.fail(Violation(f"job {run.job} does {name!r} again, although its checkpoint is written"))

    def kept(self, run: SimulatedRun) -> None:
        """A run continues after a checkpoint."""
        document = self._collection("scheduled").get(run.job, {})
        self.rules.kept[run.job].update(kept["name"] for kept in document.get("checkpoints", ()))

    def added(self, flow: ObjectId, step: JobId) -> None:
        """This step was added to a flow, and was acknowledged."""
        self.rules.steps[flow].add(step)

    def met(self, id: JobId, call: int, task: str, began: float, *, created: bool) -> None:
        """A call with a key was acknowledged with this job."""
        self.note(f"call {call} of {task} {'made' if created else 'met'} {id}")
        if id not in self._collection("scheduled") and id not in self._collection("archived"):
            raise Violation(f"call {call} was acknowledged with job {id}, which is nowhere")
        if task in ("debounced", "throttled") and call not in self.rules.calls[id]:
            raise Violation(f"call {call} was acknowledged with job {id}, which never had its arguments")
        runs = self.runs.get(id)
        if task == "started" and runs and runs[0].began < began:
            raise Violation(f"call {call} met job {id}, which had started {began - runs[0].began:.3f} s before it")

    # -- while it runs -------------------------------------------------------------------------------------------------

    def check(self, changed: list[tuple[str, Any]]) -> None:
        """After every write that others can see."""
        waiting = self._collection("scheduled")
        self.rules.check(changed)
        for name, key in changed:
            if name == "scheduled" and key in waiting and waiting[key]["task"] == "paced":
                self._first_paced_at = min(self._first_paced_at, self._hub.now)
        if any(name == "roster" for name, _ in changed):
            self._check_holds(waiting)

    def _check_holds(self, waiting: dict[Any, Any]) -> None:
        held: Counter[Any] = Counter()
        for entry in self._collection("roster").values():
            held.update(job for job in set(entry["assigned"]) if job in waiting)
        for job, holders in held.items():
            if holders > 1:
                raise Violation(f"job {job} is held by {holders} workers")
        limited = [job for job in held if waiting[job]["task"] == "limited"]
        if len(limited) > 1:
            raise Violation(f"{len(limited)} limited jobs are held, 1 may be")
        self._check_rate({job for job in held if waiting[job]["task"] == "paced"})

    def _check_rate(self, held: set[Any]) -> None:
        """Whatever became of the leaders, and however late their writes came, not more were given than the rate allows
        for the time since the first one was there. (A leader that stands still between the count and the write gives
        the counted jobs late, so that a single window may have more.)"""
        new, self._paced = held - self._paced, held
        if new and self.clocks_agree:
            self._given_at_a_rate += len(new)
            most = RATE.count * (int((self._hub.now - self._first_paced_at + _CLOCKS) // RATE.seconds) + 1)
            if self._given_at_a_rate > most:
                raise Violation(f"{self._given_at_a_rate} jobs were given, {most} may be at {RATE}")

    def _collection(self, name: str) -> dict[Any, Any]:
        return self._server.collections.get(name, {})

    # -- at the end ----------------------------------------------------------------------------------------------------

    def check_the_end(self, urn: str) -> None:
        waiting, ended = self._collection("scheduled"), self._collection("archived")
        for id in self.acknowledged:
            if id not in ended:
                raise Violation(f"job {id} was acknowledged and {'never ended' if id in waiting else 'is nowhere'}")
        for id, runs in self.runs.items():
            document = ended.get(id)
            if document is not None:
                self._check_runs(id, document, runs)
        for id, sent in self.signals.items():
            self._check_signals(id, ended[id], sent)
        self._check_recovered({**waiting, **ended})
        self._check_occurrences(urn, {**waiting, **ended})
        self._check_counts(ended)
        self.rules.check_the_end(clocks_agree=self.clocks_agree)

    def _check_runs(self, id: JobId, document: Document, runs: list[SimulatedRun]) -> None:
        attempts = int(document.get("attempts") or 0)
        counted = attempts + int(document.get("snoozes") or 0)
        unexcused = [run for run in runs if not run.excused]
        if len(unexcused) > counted:
            raise Violation(f"job {id} ran {len(runs)} times, {counted} runs are recorded, {len(unexcused)} should")
        finished = counted - int(document.get("crashes") or 0)  # a crash may be blamed on a job that did not start
        if finished > len(runs):
            raise Violation(f"job {id} ran {len(runs)} times, and {finished} runs are recorded as finished")
        if self.rules.calls.get(id, ()) and any(run.args["call"] != self.rules.calls[id][-1] for run in runs):
            raise Violation(f"job {id} ran with the arguments of another call than the last one")
        result = document.get("result")
        number = result.get("n") if isinstance(result, dict) else result
        if document["done"] and number != document["args"].get("n"):
            raise Violation(f"job {id} ended with the result {result!r}")

    def _check_signals(self, id: JobId, document: Document, sent: list[int]) -> None:
        arrived = [signal["data"] for signal in document.get("signals", ())]
        for data in sent:
            if (times := arrived.count(data)) != 1:
                raise Violation(f"signal {data} of job {id} was acknowledged, and has arrived {times} times")

    def _check_recovered(self, jobs: dict[Any, Any]) -> None:
        made = Counter(document["recovered_from"] for document in jobs.values() if "recovered_from" in document)
        for id, times in made.items():
            if times > 1:
                raise Violation(f"job {id} was recovered {times} times")

    def _check_occurrences(self, urn: str, jobs: dict[Any, Any]) -> None:
        scheduler = self._collection("schedulers").get(urn)
        if scheduler is None:
            return
        made = sum(1 for document in jobs.values() if document.get("urn") == urn and "recovered_from" not in document)
        if made != scheduler["made"]:
            raise Violation(f"{made} occurrences are there, {scheduler['made']} were made")
        span = (scheduler["handled"] - scheduler["created_at"]).total_seconds()
        due = int(span // scheduler["schedule"]["parameters"]["interval"])
        if abs(made + scheduler["skipped"] - due) > 1:
            raise Violation(f"{made} occurrences were made and {scheduler['skipped']} skipped, {due} were due")

    def _check_counts(self, ended: dict[Any, Any]) -> None:
        """Adds the counts of processes, and the totals into which the leader folds them."""
        counts = [each for each in self._collection("statistics").values() if {"writer", "total"} & each["_id"].keys()]
        counted = sum(number for each in counts for number in each.get("ended", {}).values())
        if counted != len(ended) + len(self.rules.forgotten):
            raise Violation(
                f"{len(ended)} jobs have ended, {len(self.rules.forgotten)} were forgotten, and {counted} are counted"
            )
