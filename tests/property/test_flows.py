"""Random flows of up to 200 steps on a real MongoDB: steps run, fail, are tried again, recovered, cancelled and added,
also by steps that run, after them or before their dependents; some run only after a failure. The whole flow is paused,
resumed, cancelled, retried and forgotten while workers hold some of its steps; leaders depose each other, and workers
die in the middle of jobs. `RANDOM_FLOWS=N`: N small ones.

Whatever happens: a step starts only after those it waits for have ended as asked, and not while the flow is paused; it
waits or runs once at any time, runs once for each attempt that is counted or cut off, and succeeds once; when nothing
is left to do, each step has the state that follows from the others, and so has the flow.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from recruiter import FlowHandle, FlowNotFound, FlowState, InvalidFlow, JobNotFound, Recruiter, Step
from recruiter.domain.flow import FlowStep, StepState
from recruiter.domain.job import JobId
from recruiter.steps.clean import forget_flows
from recruiter.store import flow_steps, job_fields
from recruiter.store.codec import decode, flow_of
from tests.depth import examples
from tests.flows import Stage

_CHECKS = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
_PHASES = [Phase.explicit, Phase.reuse, Phase.generate]  # shrinking takes longer than reading the seed


@pytest.fixture
def recruiter(target: str, store: object) -> Iterator[Recruiter]:
    with Recruiter(target) as recruiter:

        @recruiter.task
        def work(name: str, results: list[Any]) -> str:
            return f"{name}: {results}"

        yield recruiter


class World:
    """One flow, and all that happens to it."""

    def __init__(self, stage: Stage, rng: Random, size: int) -> None:
        self.stage = stage
        self.store = stage.store
        self.rng = rng
        self.most = size + size // 4
        self.runs: Counter[JobId] = Counter()
        self.cut_off: Counter[JobId] = Counter()
        """Runs that ended with their worker and are not counted as attempts."""
        self.held: list[JobId] = []
        self.paused = False
        self.forgotten = False
        flow = stage.recruiter.flow("random")
        self.steps: list[Step[Any]] = []
        for _ in range(size):
            arguments, options = self.step()
            self.steps.append(flow.add("work", *arguments, **options))
        for end in ("on_success", "on_failure", "on_end"):
            getattr(flow, end)("work", end, [])
        self.handle: FlowHandle = flow.start()

    def step(self) -> tuple[tuple[str, list[Any]], dict[str, Any]]:
        """The arguments and the dependencies of a new step."""
        few = self.steps[-10:] if self.rng.random() < 0.7 else self.steps
        count = self.rng.choice((0, 1, 1, 2, 3, len(few)))
        taken = self.rng.sample(self.steps[-5:], min(len(self.steps), self.rng.choice((0, 0, 1, 2))))
        options: dict[str, Any] = {"after": [], "after_any": [], "after_failure": []}
        for step in self.rng.sample(few, min(count, len(few))):
            chance = self.rng.random()
            way = "after_any" if chance < 0.25 else "after_failure" if chance < 0.4 and step not in taken else "after"
            options[way].append(step)
        arguments = str(len(self.steps)), [step.result for step in taken]
        return arguments, {way: steps for way, steps in options.items() if steps}

    # -- what happens --------------------------------------------------------------------------------------------

    def happens(self) -> None:
        actions: dict[Callable[[], object], int] = {
            self.begin: 60,
            self.finish: 40,
            self.stage.look: 30,
            self.stage.archive_cancelled: 8,
            self.cancel: 4,
            self.recover: 8,
            self.add: 5,
            self.depose: 3,
            self.die: 3,
            self.pause_or_resume: 3,
            self.cancel_all: 1,
            self.retry_all: 2,
            self.clean: 2,
        }
        try:
            self.rng.choices(list(actions), list(actions.values()))[0]()
        except FlowNotFound:
            self.forgotten = True

    def clean(self) -> None:
        """The cleaner forgets what has ended, as if it was old."""
        forget_flows(self.store, self.store.clock.now() + timedelta(days=2), timedelta(days=1))

    def begin(self) -> None:
        """The worker is given some of the steps, and starts them."""
        ready = self.stage.ready()
        some = self.rng.sample(ready, min(len(ready), self.rng.randint(1, 12)))
        if some:
            self.stage.give(*some)
            self.starts(some)

    def starts(self, some: list[JobId]) -> None:
        assert not set(some).intersection(self.held), "a step is given twice"
        for id, raw in self.store.scheduled.fetch(some):
            place = flow_of(decode(raw))
            assert place is not None
            assert not self.paused or place.on is not None, f"{place.step} starts while the flow is paused"
            self.check_may_start(place)
            self.runs[id] += 1
            self.held.append(id)

    def finish(self, fails: float = 0.25) -> None:
        """Some of those that run end: they succeed, fail, or are to be tried again."""
        some = self.rng.sample(self.held, self.rng.randint(0, len(self.held)))
        failing = [id for id in some if self.rng.random() < fails]
        again = [id for id in failing if self.rng.random() < 0.3]
        self.held = [id for id in self.held if id not in some]
        arguments = self.stage.settle(*some, fails=failing, again=again) if some else {}
        for id, values in arguments.items():
            assert id in again or None not in values["results"] or self.takes_from_a_failure(id)

    def check_may_start(self, place: FlowStep) -> None:
        """Those that had to succeed have; of the others there is a job that has ended, and of those that had to fail
        one that has failed."""
        states, failures = self.store.flow_steps.states(place.flow, place.after), 0
        for other in place.after:
            if other not in place.any and other not in place.failed:
                assert states[other] is StepState.SUCCEEDED, f"{place.step} started before {other} had succeeded"
                continue
            ended = list(self.store.archived.collection.find({"flow.id": place.flow, "flow.step": other}))
            assert ended, f"{place.step} started before {other} had ended"
            failures += other in place.failed and any(not job["done"] and job["why"] != "not-needed" for job in ended)
        assert failures or not place.failed, f"{place.step} started, and no step had failed"

    def takes_from_a_failure(self, id: JobId) -> bool:
        ended = self.store.archived.get(id)
        assert ended is not None
        assert ended.flow is not None
        return not set(ended.flow.takes).isdisjoint(ended.flow.any)

    def cancel(self) -> None:
        step = self.rng.choice(self.steps)
        with suppress(JobNotFound):  # it has ended
            self.stage.recruiter.cancel(step.id)

    def recover(self) -> None:
        query = {"flow.id": self.handle.id, "done": False}
        failed = [document["_id"] for document in self.store.archived.collection.find(query, {"_id": 1})]
        if failed:
            with suppress(InvalidFlow):  # it was recovered before
                self.stage.recruiter.recover(self.rng.choice(failed))

    def add(self) -> None:
        """From outside; or a step that runs adds one that waits for it, or one before its dependents."""
        if len(self.steps) >= self.most:
            return
        arguments, options = self.step()
        handle, running = self.handle, [step for step in self.steps if step.id in self.held]
        if running and self.rng.random() < 0.7:
            current = self.rng.choice(running)
            if self.rng.random() < 0.5:
                options = {"after": [current]}
            else:
                options["before_dependents"] = True
            handle = FlowHandle(self.stage.recruiter, self.handle.id, current)
        with suppress(InvalidFlow):  # it was cancelled
            self.steps.append(handle.add("work", *arguments, **options))

    def depose(self) -> None:
        self.stage.take_the_lead()

    def die(self) -> None:
        """The worker dies with the jobs that it holds, some of which run; another one joins."""
        running = self.rng.sample(self.held, self.rng.randint(0, len(self.held)))
        attempts = self.attempts()
        self.stage.dies(*running)
        for id in self.held:
            if self.attempts().get(id) == attempts[id]:  # no crash of its own
                self.cut_off[id] += 1
        self.held = []

    def attempts(self) -> dict[JobId, int]:
        """The attempts that are counted of each job of the flow."""
        query, fields = {"flow.id": self.handle.id}, {"attempts": 1}
        both = self.store.scheduled.collection, self.store.archived.collection
        return {job["_id"]: job["attempts"] for jobs in both for job in jobs.find(query, fields)}

    def pause_or_resume(self) -> None:
        if self.paused:
            self.handle.resume()
        else:
            try:
                self.handle.pause()
            except InvalidFlow:
                return  # it has ended
        self.paused = not self.paused

    def cancel_all(self) -> None:
        with suppress(InvalidFlow):  # it has ended
            self.handle.cancel()

    def retry_all(self) -> None:
        with suppress(InvalidFlow):  # it is being cancelled
            self.handle.retry()

    # -- in the end ----------------------------------------------------------------------------------------------

    def comes_to_rest(self) -> None:
        """From here on nothing fails any more, and nobody holds the flow up."""
        if self.paused:
            with suppress(FlowNotFound):  # it was forgotten
                self.pause_or_resume()
        self.stage.settle_down()
        while self.held or self.stage.ready():
            self.begin()
            self.finish(fails=0.0)
            self.stage.settle_down()

    def check(self) -> None:
        if self.forgotten or self.store.flows.get(self.handle.id) is None:
            left = self.store.scheduled.collection, self.store.archived.collection, self.store.flows.markers
            assert [collection.count_documents({}) for collection in left] == [0, 0, 0], "a step outlives its flow"
            return
        flow, ended = self.handle.id, self.store.archived.collection
        assert self.store.scheduled.collection.count_documents({}) == 0, "a step is stuck"
        assert self.store.flows.markers.count_documents({}) == 0
        ids = [step.id for step in self.steps]
        states = self.store.flow_steps.states(flow, ids)
        assert set(states) == set(ids), "a step is lost"
        for document in ended.find({"flow.id": flow, "recovered_as": None, "why": "dependency-failed"}):
            place = flow_of(document)
            assert place is not None
            required = [states[other] for other in place.after if other not in place.any | place.failed]
            assert StepState.FAILED in required
        for document in ended.find({"flow.id": flow, "recovered_as": None, "why": "not-needed"}):
            place = flow_of(document)
            assert place is not None
            required = [states[other] for other in place.after if other not in place.any | place.failed]
            assert StepState.SKIPPED in required or (
                place.failed and not any(states[other] is StepState.FAILED for other in place.failed)
            )
        succeeded = Counter(each["flow"]["step"] for each in ended.find({"flow.id": flow, "done": True}))
        assert not succeeded or max(succeeded.values()) == 1, "a step succeeded twice"
        attempts = self.attempts()
        for id, count in self.runs.items():
            assert count == attempts[id] + self.cut_off[id], f"job {id} ran too often"
        all_succeeded = all(state in (StepState.SUCCEEDED, StepState.SKIPPED) for state in states.values())
        stored = self.store.flows.get(flow)
        assert stored is not None
        outcomes = {FlowState.SUCCEEDED} if all_succeeded else {FlowState.FAILED}
        if not all_succeeded and stored.cancel is not None:
            outcomes = {FlowState.CANCELLED}
        assert self.handle.report().state in outcomes
        ends = Counter(each["flow"]["on"] for each in ended.find({"flow.on": {"$ne": None}, "recovered_from": None}))
        assert ends["end"] == 1
        assert max(ends.values()) == 1, "a step at the end of the flow ran twice"
        assert ends["success" if all_succeeded else "failure"] == 1


def lives(recruiter: Recruiter, rng: Random, size: int) -> None:
    store = recruiter.store
    store.empty()
    with pytest.MonkeyPatch.context() as patch:
        # as if there were more of them
        most = flow_steps.MAX_STEPS_PER_TRANSACTION
        patch.setattr(flow_steps, "MAX_STEPS_PER_TRANSACTION", rng.choice((3, most)))
        patch.setattr(flow_steps, "LAST_AFTER", rng.choice((2, flow_steps.LAST_AFTER)))
        patch.setattr(job_fields, "MOST_INDEXED", rng.choice((2, job_fields.MOST_INDEXED)))
        world = World(Stage(recruiter), rng, size)
        for _ in range(min(60 + size, 160)):
            world.happens()
            if world.forgotten:
                break
        world.comes_to_rest()
    world.check()


@settings(max_examples=int(os.environ.get("RANDOM_FLOWS", examples(12))), suppress_health_check=_CHECKS, phases=_PHASES)
@given(seed=st.integers(0, 2**32), size=st.integers(1, 30))
def test_small_flows(recruiter: Recruiter, seed: int, size: int) -> None:
    lives(recruiter, Random(seed), size)


@settings(max_examples=1, suppress_health_check=_CHECKS, phases=_PHASES)
@given(seed=st.integers(0, 2**32))
def test_a_flow_of_many_steps(recruiter: Recruiter, seed: int) -> None:
    lives(recruiter, Random(seed), examples(200))
