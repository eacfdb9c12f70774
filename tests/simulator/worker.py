"""A simulated worker: the real held jobs, settling and marking; only the children are made of virtual time."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from recruiter.domain.job import Execution, JobId
from recruiter.domain.policy_registry import PolicyRegistry
from recruiter.domain.retry.decision import Retry
from recruiter.errors import StoreError, Superseded
from recruiter.processes.worker.held_job import HeldJob, crashed
from recruiter.processes.worker.held_jobs import HeldJobs
from recruiter.steps.settle import settle
from recruiter.store import outcomes
from recruiter.store.codec import Document, decode
from recruiter.store.collections.scheduled import ProgressMark
from recruiter.store.outcomes import Outcome
from recruiter.store.roster_fields import Holding
from tests.simulator.ledger import Ledger, SimulatedRun
from tests.simulator.process import Process
from tests.simulator.recruiter import DEAD_AFTER

HEARTBEAT = 0.8
TASKS = ("flaky", "limited", "once", "paced", "plain")


class Worker:
    def __init__(self, process: Process, ledger: Ledger, slots: int, restless: bool) -> None:
        self._process = process
        self._store, self._clock, self._hub = process.store, process.clock, process.hub
        self._ledger = ledger
        self._slots = slots
        self._restless = restless
        """Whether it leaves the roster now and then, and comes back under another id."""
        self._policies = PolicyRegistry()
        self._registrations = 0
        self._begin()

    def start(self) -> None:
        for loop in (self._heartbeat, self._fetcher, self._settler, self._runner):
            self._process.threads.start(lambda loop=loop: self._forever(loop))  # type: ignore[misc]

    def _begin(self) -> None:
        self._registrations += 1
        self._held = HeldJobs(f"{self._process.name}.{self._registrations}")
        self._joined = False
        self._told: object = None
        self._beaten_at = self._hub.now
        self._running: dict[JobId, tuple[HeldJob, SimulatedRun]] = {}
        self._unsettled: dict[JobId, SimulatedRun] = {}

    def _lose(self, held: HeldJobs) -> None:
        """Off the roster: what runs is ended, and whatever becomes of it does not count."""
        if held is self._held:
            for run in self._unsettled.values():
                run.excuse = "its worker was retired"
            self._begin()

    def _forever(self, step: Any) -> None:
        while True:
            try:
                pause = step()
            except StoreError:
                pause = 0.3
            self._hub.sleep(pause * self._hub.random.uniform(0.5, 1.0))

    # -- the threads ---------------------------------------------------------------------------------------------------

    def _heartbeat(self) -> float:
        held = self._held
        if not self._joined:
            return self._join(held)
        if self._hub.now - self._beaten_at > DEAD_AFTER - HEARTBEAT:
            self._end_all(held)
        if self._restless and not self._ledger.calm and self._hub.chance(0.2):
            self._store.roster.leave(held.worker)
            self._lose(held)
            return 0.0
        asked_at = self._hub.now
        runs = [{"job": job.id, "task": "?", "since": run.since} for job, run in self._running.values()]
        facts = {"running": runs, "draining": False, "prefetch": self._prefetch()}
        beat = self._store.roster.beat(held.worker, facts, within=DEAD_AFTER / 3)
        if beat is None:
            self._lose(held)
            return 0.0
        self._beaten_at = asked_at
        self._clock.agree(beat.seen_at, self._hub.now - asked_at)
        held.hear(beat.holding)
        now = self._clock.now()
        held.note_running([(job, run.since) for job, run in self._running.values()], now, HEARTBEAT)
        if beat.holding.assigned:
            self._pass_on_flags(held, beat.holding)
            self._mark_progress(held)
        return 2.4 * HEARTBEAT if self._process.calm else HEARTBEAT

    def _prefetch(self) -> int:
        """Whatever it is, the plan must be right; and two leaders should not always plan the same."""
        return self._hub.random.choice((0, 1, 6))

    def _mark_progress(self, held: HeldJobs) -> None:
        """For people to see; it may come at any time and must change nothing else."""
        runs = [each for each in self._running.values() if held is self._held and self._hub.now - each[1].began > 0.2]
        documents = [(decode(job.raw), run) for job, run in runs]
        marks = [
            ProgressMark(d["_id"], d["attempts"], d.get("locked_by"), held.worker, run.since, {"progress": 0.5})
            for d, run in documents
        ]
        if marks:
            self._store.scheduled.mark_progress(marks)

    def _join(self, held: HeldJobs) -> float:
        moment = self._clock.now()
        facts = {
            "host": self._process.name,
            "pid": 1,
            "groups": None,
            "tasks": list(TASKS),
            "slots": self._slots,
            "prefetch": 0,
            "session": self._store.transactions.session_id,
            "resources": "",
            "joined_at": moment,
            "seen_at": moment,
        }
        self._store.roster.join(held.worker, facts)
        if self._store.roster.become_ready(held.worker, self._store.leases.term()):
            self._beaten_at = self._hub.now
            self._joined = held is self._held
        else:
            self._lose(held)
        return HEARTBEAT

    def _fetcher(self) -> float:
        held = self._held
        if not self._joined:
            return 0.2
        if jobs := held.to_mark(self._slots):
            self._mark(held, jobs)
            return 0.0
        if ids := held.to_fetch():
            try:
                found = [HeldJob.read(id, raw) for id, raw in self._store.scheduled.fetch(ids)]
            except StoreError:
                held.not_fetched(ids)
                raise
            held.fetched(ids, found)
            return 0.0
        if len(self._running) < self._slots and self._has_news(held):
            holding = self._store.roster.holding(held.worker)
            if holding is not None and held.hear(holding):
                return 0.0
        return 0.6

    def _has_news(self, held: HeldJobs) -> bool:
        """Whether it asks for its list. Once nothing goes wrong any more it is told when the list has changed."""
        if not self._process.calm:
            return True
        before, self._told = self._told, self._process.stored("roster", held.worker).get("assigned")
        return before is not self._told

    def _mark(self, held: HeldJobs, jobs: list[HeldJob]) -> None:
        try:
            marked = self._store.transactions.mark_started(held.worker, [job.id for job in jobs], self._clock.now())
        except Superseded:
            self._lose(held)
            return
        except StoreError:
            held.not_marked(jobs)
            raise
        held.marked(job for job in jobs if job.id in marked.may_start)
        refused = [job for job in jobs if job.id not in marked.may_start]
        lost = "started before, never ended"
        held.ended(
            (job.id, self._crash(held, job, lost) if job.id in marked.started_before else None) for job in refused
        )

    def _runner(self) -> float:
        held = self._held
        jobs = held.take(self._slots - len(self._running))
        for job in jobs:
            run = self._ledger.started(job, held.worker, self._process, self._clock.now())
            self._process.threads.start(lambda job=job, run=run: self._run(held, job, run))  # type: ignore[misc]
            self._running[job.id] = job, run
            self._unsettled[job.id] = run
        if jobs or held.waiting:
            return 0.1
        return 0.5 if self._process.calm else 0.25

    def _settler(self) -> float:
        held = self._held
        batch = held.to_settle()
        if not batch:
            return 0.4 if self._process.calm else 0.2
        try:
            facts = {"prefetch": self._prefetch(), "draining": False}
            holding = settle(self._store, held.worker, batch, facts)
        except Superseded:
            held.not_settled(batch)
            self._lose(held)
            return 0.1
        except BaseException:
            held.not_settled(batch)
            raise
        held.settled(batch, holding)
        for id, _ in batch:
            self._unsettled.pop(id, None)
        return 0.0

    # -- the jobs ------------------------------------------------------------------------------------------------------

    def _run(self, held: HeldJobs, job: HeldJob, run: SimulatedRun) -> None:
        document = decode(job.raw)
        self._hub.sleep(self._hub.random.choice((0.001, 0.05, 0.3, 1.5)))
        if self._running.get(job.id, (None, None))[1] is not run:
            return  # its child has been ended meanwhile
        del self._running[job.id]
        self._ledger.ended(run)
        held.ended([(job.id, self._outcome(held, job, document, run))])

    def _outcome(self, held: HeldJobs, job: HeldJob, document: Document, run: SimulatedRun) -> Outcome:
        if self._ledger.child_dies():
            run.excuse = "its child was killed"
            return self._crash(held, job, "killed")
        now = self._clock.now()
        execution = Execution(run.since, now, held.worker)
        if document["task"] == "flaky" and document["attempts"] < document["args"]["n"] % 3:
            failure = execution._replace(exception="ConnectionError", message="on purpose")
            return outcomes.failed(document, failure, now, Retry(now + timedelta(seconds=0.2)))
        return outcomes.succeeded(document, execution, now, document["args"]["n"])

    def _crash(self, held: HeldJobs, job: HeldJob, how: str) -> Outcome:
        outcome = crashed(job, self._policies, held.worker, self._clock.now(), how, {})
        assert outcome is not None
        return outcome

    def _end_all(self, held: HeldJobs) -> None:
        """Silent for too long: by now others may have been given what runs here."""
        running, self._running = self._running, {}
        held.hand_back_untaken()
        for job, run in running.values():
            run.excuse = "its worker was silent"
            held.ended([(job.id, self._crash(held, job, "MongoDB cannot be reached"))])

    def _pass_on_flags(self, held: HeldJobs, holding: Holding) -> None:
        flags = self._store.scheduled.flags_among(holding.assigned)
        self._cancel(held, flags)

    def _cancel(self, held: HeldJobs, flags: Mapping[JobId, Document]) -> None:
        for id, flag in flags.items():
            if id in self._running and held is self._held:
                job, run = self._running.pop(id)
                now = self._clock.now()
                self._ledger.ended(run)
                document = {**decode(job.raw), "cancel": flag}
                held.ended([(id, outcomes.cancelled(document, now, Execution(run.since, now, held.worker)))])
