"""Producers and people: they create and control jobs at any time, with the real steps."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

from bson import ObjectId
from pymongo.errors import PyMongoError

from recruiter.domain.flow import FlowStep, On
from recruiter.domain.job import Job, JobId
from recruiter.domain.policy_registry import PolicyRegistry
from recruiter.domain.retry.policies import RetryManyTimes
from recruiter.domain.uniqueness import UniqueKind, Uniqueness
from recruiter.errors import JobNotFound, RecruiterError, StoreError
from recruiter.steps.cancel import cancel
from recruiter.steps.clean import forget_flows
from recruiter.steps.control_flow import cancel_flow, pause_flow, resume_flow, retry_flow
from recruiter.steps.recover import job_anew
from recruiter.store.codec import encode_job, job_document
from recruiter.store.collections.flows import StoredFlow
from recruiter.store.in_session import InSession, UniqueJob, in_callers_session, in_own_transaction
from tests.simulator.jobs import SIGNAL, step_job
from tests.simulator.ledger import Ledger
from tests.simulator.process import Process
from tests.simulator.rules import PERIOD

_RETRIES = PolicyRegistry().dump(RetryManyTimes(5, "0.2 seconds"))
_USUAL = ("plain", "plain", "flaky", "once", "limited")
_KEYS = {
    "unique": Uniqueness(UniqueKind.ENDED),
    "started": Uniqueness(UniqueKind.STARTED),
    "debounced": Uniqueness(UniqueKind.DEBOUNCE, seconds=PERIOD),
    "throttled": Uniqueness(UniqueKind.THROTTLE, seconds=PERIOD),
}
_KEPT_FLOWS = timedelta(seconds=2)
THEMES = ("jobs", "jobs", "jobs", "flows", "flows", "keys", "durable", "all")
"""The kinds of jobs in a world. With one kind, more of its jobs and calls meet."""


class Person:
    """A process that asks for something now and then."""

    def __init__(self, process: Process, ledger: Ledger, theme: str, *, many_lanes: bool) -> None:
        self._process = process
        self._store, self._clock, self._hub = process.store, process.clock, process.hub
        self._random = process.hub.random
        self._server = process.outside.server
        self._ledger = ledger
        self._theme = theme
        self._many_lanes = many_lanes
        self._left_alone: set[ObjectId] = set()
        """The flows that are not recovered again."""

    def act(self) -> None:
        every: dict[Callable[[], None], int] = {self._insert_foreign: 1, self._cancel: 2, self._recover: 1}
        themes = {
            "jobs": {self._enqueue: 8},
            "flows": {self._start_flow: 4, self._control_flow: 5, self._enqueue: 1},
            "keys": {self._enqueue_with_key: 9},
            "durable": {self._enqueue_durable: 3, self._signal: 9, self._enqueue: 1},
        }
        for theme, acts in themes.items():
            if self._theme in (theme, "all"):
                every |= acts
        (act,) = self._random.choices(list(every), list(every.values()))
        with suppress(RecruiterError, PyMongoError):
            act()

    def _own(self, write: Callable[[InSession], Any]) -> Any:
        return in_own_transaction(self._store, write)

    def _job(self, task: str, **fields: Any) -> Job:
        now, n = self._clock.now(), next(self._ledger.numbers)
        of_job: dict[str, Any] = {"id": n, "args": {"n": n}, "created_at": now, "scheduled_at": now, **fields}
        return Job(task=task, **of_job)

    def _some_job(self, collection: str) -> JobId | None:
        there = list(self._server.collections.get(collection, ()))
        return self._random.choice(there) if there else None

    # -- jobs ----------------------------------------------------------------------------------------------------------

    def _enqueue(self) -> None:
        crowd = self._many_lanes and self._random.random() < 0.5  # more than there is room for, and nothing to plan
        tasks = ("paced",) if self._random.random() < 0.12 else ("plain", "flaky", "once") if crowd else _USUAL
        jobs = []
        for _ in range(self._random.choice((4, 9)) if crowd else self._random.choice((1, 1, 3))):
            task = self._random.choice(tasks)
            job = self._job(task, at_most_once=task == "once", retry_policy=_RETRIES if task == "flaky" else None)
            delay = timedelta(seconds=self._random.choice((0, 0, 0, 2)))
            group = f"g{int(job.args['n']) % 3}" if crowd else job.group  # type: ignore[call-overload]
            jobs.append(replace(job, scheduled_at=job.created_at + delay, group=group))
        self._insert(jobs)

    def _enqueue_durable(self) -> None:
        jobs = [self._job(self._random.choice(("counted", "durable", "durable"))) for _ in range(3)]
        for number, job in enumerate(jobs):
            if job.task == "durable":
                waits = {"waits": self._random.choice((0, 1, 2)), "patient": self._random.random() < 0.3}
                jobs[number] = replace(job, args={"n": job.id, **waits})
        self._insert(jobs)

    def _insert(self, jobs: list[Job]) -> None:
        self._sent([job.id for job in jobs], list(map(encode_job, jobs)))

    def _insert_foreign(self) -> None:
        n = next(self._ledger.numbers)
        self._sent([n], [{"_id": n, "task": "plain", "args": {"n": n}}])

    def _sent(self, ids: list[JobId], documents: list[Any]) -> None:
        try:
            errors = self._store.scheduled.insert(documents)
        except StoreError:
            self._ledger.maybe.update(ids)
            raise
        assert errors == {}, errors
        for id in ids:
            self._ledger.acknowledged[id] = self._hub.now

    def _cancel(self) -> None:
        id = self._some_job("scheduled")
        if id is not None:
            with suppress(JobNotFound):
                cancel(self._store, self._clock, id)

    def _recover(self) -> None:
        ended = list(self._server.collections.get("archived", {}))
        if ended:
            id = self._random.choice((ended[0], self._random.choice(ended)))  # two people want the same one
            job = replace(job_anew(self._store, id, self._clock.now(), None, again=True), id=next(self._ledger.numbers))
            if self._own(lambda here: here.recover({id: encode_job(job)}, cancelled=True)) and job.flow is None:
                self._ledger.acknowledged[job.id] = self._hub.now

    # -- keys ----------------------------------------------------------------------------------------------------------

    def _enqueue_with_key(self) -> None:
        task, key, call = self._random.choice(list(_KEYS)), self._random.choice("aab"), next(self._ledger.numbers)
        wanted, began = _KEYS[task], self._hub.now
        job = self._job(task, debounced=wanted.needs_start)
        args = {"n": job.id, "key": key, "call": call}
        unique = UniqueJob(replace(job, args=args), f"{task}/{key}", wanted, lambda _owner: args)
        (produced,) = self._own(lambda here: here.enqueue_unique([unique]))
        assert not isinstance(produced, RecruiterError), produced
        id, created = produced
        if created:
            self._ledger.acknowledged[id] = self._hub.now
        self._ledger.met(id, call, task, began, created=created)

    # -- signals -------------------------------------------------------------------------------------------------------

    def _signal(self) -> None:
        durable = [id for id, job in self._server.collections.get("scheduled", {}).items() if job["task"] == "durable"]
        held = {id for entry in self._server.collections.get("roster", {}).values() for id in entry["assigned"]}
        run = [id for id in durable if id in held]  # the signal may come while the job decides to wait for it
        if durable:
            self.signal(self._random.choice(run or durable))

    def signal(self, id: JobId) -> None:
        data, at = next(self._ledger.numbers), self._clock.now()

        def send(here: InSession) -> bool:
            return here.signal(id, SIGNAL, data, at)

        is_sent = self._own(send) if self._random.random() < 0.6 else self._slowly(send)
        if is_sent:
            self._ledger.signals[id].append(data)

    def _slowly(self, write: Callable[[InSession], bool]) -> bool:
        """In a transaction of a user, which stays open for a while, and locks the job."""
        with self._store.client.start_session() as session:

            def act(session: Any) -> bool:
                answer = in_callers_session(self._store, session, write)
                self._hub.sleep(self._random.choice((0.0, 0.4, 1.5)))
                return answer

            return session.with_transaction(act)

    # -- flows ---------------------------------------------------------------------------------------------------------

    def _start_flow(self) -> None:
        flow = ObjectId(self._random.randbytes(12))
        jobs: list[Job] = []
        for number in range(self._random.randint(2, 5)):
            after = [job.id for job in jobs if self._random.random() < 0.6] if number else []
            kinds = {id: self._random.choice(("needed",) * 5 + ("any", "failed")) for id in after}
            jobs.append(self._step(flow, tuple(after), kinds))
        ends = [self._job("plain") for _ in On]
        placed = {on: replace(job, flow=FlowStep(flow, job.id, on=on)) for on, job in zip(On, ends, strict=True)}
        stored = StoredFlow(
            flow, "flow", jobs[0].created_at, ends=tuple((on, job_document(job)) for on, job in placed.items())
        )
        steps = {job.id for job in jobs}
        self._ledger.rules.maybe[flow] = steps
        self._own(lambda here: here.start_flow(stored, jobs, own_ids=True))
        self._ledger.rules.steps[flow] |= steps

    def _step(self, flow: ObjectId, after: tuple[JobId, ...], kinds: dict[JobId, str]) -> Job:
        any, failed = (frozenset(id for id in after if kinds[id] == kind) for kind in ("any", "failed"))
        task = self._random.choice(("step", "step", "step", "counted"))
        job = self._job(task)
        args: dict[str, Any] = {"n": job.id}
        if task == "step":
            adds = next(self._ledger.numbers) if self._random.random() < 0.2 else None
            args |= {"fails": self._random.random() < 0.2, "adds": adds, "before": self._random.random() < 0.5}
        place = FlowStep(flow, job.id, after, any, failed=failed)
        return replace(job, args=args, flow=place, blocked=bool(after))

    def _control_flow(self) -> None:
        flows = [flow for flow in self._ledger.rules.steps if flow in self._server.collections.get("flows", {})]
        if not flows:
            return
        flow, now = self._random.choice(flows), self._clock.now()
        match self._random.choice(("pause", "pause", "resume", "resume", "cancel", "retry", "retry", "add", "add")):
            case "pause":
                pause_flow(self._store, flow, now, None, None)
            case "resume":
                resume_flow(self._store, flow)
            case "cancel":
                cancel_flow(self._store, flow, now, None, None)
            case "retry":
                retry_flow(self._store, flow, now, lost=True)
            case "add":
                after = (self._random.choice(sorted(self._ledger.rules.steps[flow])),)
                job = self._job("step")
                added = step_job(flow, job.id, job, after)
                self._own(lambda here: here.add_steps(flow, [added], own_ids=True))
                self._ledger.added(flow, job.id)

    def forget_old_flows(self) -> None:
        with suppress(RecruiterError):
            forget_flows(self._store, self._clock.now(), _KEPT_FLOWS)

    # -- at the end ----------------------------------------------------------------------------------------------------

    def let_all_end(self) -> None:
        """Resumes paused flows, recovers some of the failed flows once, and sends signals: at least to jobs that wait
        without a timeout."""
        for flow in list(self._server.collections.get("flows", {}).values()):
            with suppress(RecruiterError):
                if "paused" in flow:
                    resume_flow(self._store, flow["_id"])
                if "ended" in flow and flow["_id"] not in self._left_alone:
                    self._left_alone.add(flow["_id"])
                    if self._random.random() < 0.5:
                        retry_flow(self._store, flow["_id"], self._clock.now(), lost=False)
        for job in list(self._server.collections.get("scheduled", {}).values()):
            is_patient = "waits_for" in job and job["waits_for"].get("until") is None
            if is_patient or (job["task"] == "durable" and self._random.random() < 0.3):
                with suppress(RecruiterError, PyMongoError):
                    self.signal(job["_id"])
