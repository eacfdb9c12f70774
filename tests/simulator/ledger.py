"""What happened, seen from outside: which jobs were acknowledged, each start, and what befell whom."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from recruiter.domain.job import JobId
from recruiter.domain.planning.limits import Rate
from recruiter.processes.worker.held_job import HeldJob
from recruiter.store.codec import decode
from tests.simulator.hub import Hub
from tests.simulator.process import Process
from tests.simulator.server import Server

RATE = Rate(2, 2.0)
"""How many jobs of `paced` may start in how many seconds."""
_CLOCKS = 0.02
"""Seconds by which clocks may differ: the log of starts has hundredths of its window."""


class Violation(AssertionError):
    pass


@dataclass
class SimulatedRun:
    job: JobId
    task: str
    worker: str
    process: Process
    since: datetime
    began: float
    ended: float | None = None
    excuse: str | None = None
    """Why it may be that no attempt accounts for it."""

    @property
    def excused(self) -> bool:
        """Also of a process that was hit since, and may not have come to know what it lost."""
        return self.excuse is not None or self.process.dead or self.process.was_hit_since(self.began)


class Ledger:
    def __init__(self, hub: Hub, server: Server, child_deaths: Callable[[], float]) -> None:
        self._hub = hub
        self._server = server
        self._child_deaths = child_deaths
        self.acknowledged: dict[JobId, float] = {}
        self.maybe: set[JobId] = set()
        """Enqueued without an answer: they may exist."""
        self.runs: dict[JobId, list[SimulatedRun]] = defaultdict(list)
        self.lines: list[str] = []
        self.clocks_agree = True
        """Unless the primary's clock is stepped: then nobody can say what a second is."""
        self._attempts: dict[JobId, int] = {}
        self._paced: set[JobId] = set()
        """Jobs with a rate that are held."""
        self._given_at_a_rate = 0
        self._first_paced_at = float("inf")

    def note(self, what: str) -> None:
        self.lines.append(f"{self._hub.now:9.3f} {what}")

    @property
    def calm(self) -> bool:
        return not self._child_deaths()

    def child_dies(self) -> bool:
        return self._hub.chance(self._child_deaths())

    def started(self, job: HeldJob, worker: str, process: Process, since: datetime) -> SimulatedRun:
        document = decode(job.raw)
        run = SimulatedRun(job.id, document["task"], worker, process, since, self._hub.now)
        self.note(f"{worker} starts {job.id}")
        self.runs[job.id].append(run)
        if run.task == "once" and len(self.runs[job.id]) > 1:
            raise Violation(f"job {job.id} is at most once, and started {len(self.runs[job.id])} times")
        return run

    def ended(self, run: SimulatedRun) -> None:
        run.ended = self._hub.now

    # -- while it runs -------------------------------------------------------------------------------------------------

    def check(self, changed: list[tuple[str, Any]]) -> None:
        """After every write that others can see."""
        waiting, ended = self._collection("scheduled"), self._collection("archived")
        for name, key in changed:
            if name in ("scheduled", "archived"):
                if key in waiting and key in ended:
                    raise Violation(f"job {key} waits and has ended at once")
                if key not in waiting and key not in ended:
                    raise Violation(f"job {key} is nowhere")
                self._check_attempts(key, waiting.get(key) or ended[key])
                if name == "scheduled" and key in waiting and waiting[key]["task"] == "paced":
                    self._first_paced_at = min(self._first_paced_at, self._hub.now)
        if any(name == "roster" for name, _ in changed):
            self._check_holds(waiting)

    def _check_attempts(self, id: JobId, document: dict[str, Any]) -> None:
        """Neither a progress mark that comes late nor anything else forgets an attempt."""
        attempts = int(document.get("attempts") or 0)
        if attempts < self._attempts.get(id, 0):
            raise Violation(f"job {id} had {self._attempts[id]} attempts, and has {attempts}")
        self._attempts[id] = attempts

    def _check_holds(self, waiting: dict[Any, Any]) -> None:
        held: Counter[Any] = Counter()
        for entry in self._collection("roster").values():
            held.update(job for job in set(entry["assigned"]) if job in waiting)
        for job, holders in held.items():
            if holders > 1:
                raise Violation(f"job {job} is held by {holders} workers")
        limited = [job for job in held if waiting[job]["task"] == "limited"]
        if len(limited) > 1:
            raise Violation(f"{len(limited)} limited jobs are held at once, 1 may be")
        self._check_rate({job for job in held if waiting[job]["task"] == "paced"})

    def _check_rate(self, held: set[Any]) -> None:
        """Whatever became of the leaders, and however late their writes came, not more were given than the rate allows
        for the time since the first one was there. (A leader that stands still between the count and the write gives
        late what it has counted early, so that a single window may have more.)"""
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
        self._check_recovered({**waiting, **ended})
        self._check_occurrences(urn, {**waiting, **ended})
        self._check_counts(ended)

    def _check_runs(self, id: JobId, document: dict[str, Any], runs: list[SimulatedRun]) -> None:
        attempts = int(document.get("attempts") or 0)
        unexcused = [run for run in runs if not run.excused]
        if len(unexcused) > attempts:
            raise Violation(
                f"job {id} ran {len(runs)} times, {attempts} attempts are recorded, {len(unexcused)} should"
            )
        finished = attempts - int(document.get("crashes") or 0)  # a crash may be blamed on one that did not start
        if finished > len(runs):
            raise Violation(f"job {id} ran {len(runs)} times, and {finished} attempts are recorded as finished")
        if document["done"] and document.get("result") != document["args"].get("n"):
            raise Violation(f"job {id} ended with the result {document.get('result')!r}")

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
        documents = self._collection("statistics").values()
        counts = [each for document in documents for each in document.get("counts", {0: document}).values()]
        counted = sum(number for each in counts for number in each.get("ended", {}).values())
        if counted != len(ended):
            raise Violation(f"{len(ended)} jobs have ended, and {counted} are counted")
