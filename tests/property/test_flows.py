"""Random flows of up to 200 steps on a real MongoDB: steps fail, are recovered, cancelled and added, the flow is
paused, leaders depose each other, and workers die with jobs in their hands.

Whatever happens: a step starts only after those it waits for have ended as asked; it waits or runs once at any time,
and succeeds once; when nothing is left to do, each step has the state that follows from the others, and so has the
flow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from recruiter import FlowHandle, FlowState, JobNotFound, Recruiter, Step
from recruiter.domain.flow.step import FlowStep, StepState
from recruiter.domain.job import JobId
from recruiter.store.codec import decode, flow_of
from tests.flows import Stage

_CHECKS = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
_PHASES = [Phase.explicit, Phase.reuse, Phase.generate]  # shrinking takes longer than reading the seed


@pytest.fixture
def recruiter(target: str, store: object) -> Iterator[Recruiter]:
    del store  # prepared
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
        flow = stage.recruiter.flow("random")
        self.steps: list[Step[Any]] = []
        for _ in range(size):
            self.steps.append(flow.add("work", *self.arguments(), **self.dependencies()))
        for end in ("on_success", "on_failure", "on_end"):
            getattr(flow, end)("work", end, [])
        self.handle: FlowHandle = flow.start()

    def dependencies(self) -> dict[str, Any]:
        few = self.steps[-10:] if self.rng.random() < 0.7 else self.steps
        count = self.rng.choice((0, 1, 1, 2, 3, len(few)))
        chosen = self.rng.sample(few, min(count, len(few)))
        anyhow = [step for step in chosen if self.rng.random() < 0.25]
        return {"after": [step for step in chosen if step not in anyhow], "after_any": anyhow}

    def arguments(self) -> tuple[str, list[Any]]:
        chosen = self.rng.sample(self.steps[-5:], min(len(self.steps), self.rng.choice((0, 0, 1, 2))))
        return str(len(self.steps)), [step.result for step in chosen]

    # -- what happens --------------------------------------------------------------------------------------------

    def happens(self) -> None:
        action = self.rng.choices(
            (
                self.work,
                self.stage.look,
                self.archive,
                self.cancel,
                self.recover,
                self.add,
                self.depose,
                self.die,
                self.pause,
            ),
            (40, 30, 8, 4, 8, 5, 3, 3, 2),
        )[0]
        action()

    def work(self, fails: float = 0.25) -> None:
        ready = self.stage.ready()
        some = self.rng.sample(ready, min(len(ready), self.rng.randint(1, 12)))
        for id, raw in self.store.scheduled.fetch(some):
            place = flow_of(decode(raw))
            assert place is not None
            self.check_may_start(place)
            self.runs[id] += 1
        failing = [id for id in some if self.rng.random() < fails]
        for id, arguments in (self.stage.run(*some, fails=failing) if some else {}).items():
            assert None not in arguments["results"] or self.takes_from_a_failure(id)

    def check_may_start(self, place: FlowStep) -> None:
        """Those that had to succeed have; of the others there is a job that has ended."""
        states = self.store.flow_steps.states(place.flow, place.after)
        for other in place.after:
            if other not in place.any:
                assert states[other] is StepState.SUCCEEDED, f"{place.step} started before {other} had succeeded"
            else:
                ended = self.store.archived.collection.count_documents({"flow.id": place.flow, "flow.step": other})
                assert ended, f"{place.step} started before {other} had ended"

    def takes_from_a_failure(self, id: JobId) -> bool:
        ended = self.store.archived.get(id)
        assert ended is not None
        assert ended.flow is not None
        return not set(ended.flow.takes).isdisjoint(ended.flow.any)

    def archive(self) -> None:
        self.stage.archive_cancelled()

    def cancel(self) -> None:
        step = self.rng.choice(self.steps)
        with suppress(JobNotFound):  # it has ended
            self.stage.recruiter.cancel(step.id)

    def recover(self) -> None:
        query = {"flow.id": self.handle.id, "done": False}
        failed = [document["_id"] for document in self.store.archived.collection.find(query, {"_id": 1})]
        if failed:
            with suppress(JobNotFound):  # it was recovered before
                self.stage.recruiter.recover(self.rng.choice(failed))

    def add(self) -> None:
        if len(self.steps) < self.most:
            self.steps.append(self.handle.add("work", *self.arguments(), **self.dependencies()))

    def depose(self) -> None:
        self.stage.take_the_lead()

    def die(self) -> None:
        """The worker dies with jobs that it has not ended: they are free again."""
        ready = self.stage.ready()
        if ready:
            self.stage.give(*ready[:3])
        self.stage.dies()

    def pause(self) -> None:
        self.handle.pause()
        self.stage.look()
        assert self.stage.ready() == [] or all(self.is_end(id) for id in self.stage.ready())
        self.handle.resume()

    def is_end(self, id: JobId) -> bool:
        flow = self.stage.recruiter.find(id).flow
        return flow is not None and flow.on is not None

    # -- in the end ----------------------------------------------------------------------------------------------

    def comes_to_rest(self) -> None:
        """From here on nothing fails any more."""
        self.stage.settle_down()
        while self.stage.ready():
            self.work(fails=0.0)
            self.stage.settle_down()

    def check(self) -> None:
        flow, ended = self.handle.id, self.store.archived.collection
        assert self.store.scheduled.collection.count_documents({}) == 0, "a step is stuck"
        assert self.store.flows.markers.count_documents({}) == 0
        ids = [step.id for step in self.steps]
        states = self.store.flow_steps.states(flow, ids)
        assert set(states) == set(ids), "a step is lost"
        for document in ended.find({"flow.id": flow, "recovered_as": None, "why": "dependency-failed"}):
            place = flow_of(document)
            assert place is not None
            assert any(states[other] is StepState.FAILED for other in place.after if other not in place.any)
        succeeded = Counter(each["flow"]["step"] for each in ended.find({"flow.id": flow, "done": True}))
        assert not succeeded or max(succeeded.values()) == 1, "a step succeeded twice"
        assert not self.runs or max(self.runs.values()) == 1, "a job ran twice"
        all_succeeded = all(state is StepState.SUCCEEDED for state in states.values())
        assert self.handle.report().state is (FlowState.SUCCEEDED if all_succeeded else FlowState.FAILED)
        ends = Counter(each["flow"]["on"] for each in ended.find({"flow.on": {"$ne": None}, "recovered_from": None}))
        assert ends["end"] == 1
        assert max(ends.values()) == 1, "a step at the end of the flow ran twice"
        assert ends["success" if all_succeeded else "failure"] == 1


def lives(recruiter: Recruiter, rng: Random, size: int) -> None:
    store = recruiter.store
    store.empty()
    world = World(Stage(recruiter), rng, size)
    for _ in range(min(40 + size, 120)):
        world.happens()
    world.comes_to_rest()
    world.check()


@settings(max_examples=8, suppress_health_check=_CHECKS, phases=_PHASES)
@given(seed=st.integers(0, 2**32), size=st.integers(1, 30))
def test_small_flows(recruiter: Recruiter, seed: int, size: int) -> None:
    lives(recruiter, Random(seed), size)


@settings(max_examples=2, suppress_health_check=_CHECKS, phases=_PHASES)
@given(seed=st.integers(0, 2**32))
def test_a_flow_of_200_steps(recruiter: Recruiter, seed: int) -> None:
    lives(recruiter, Random(seed), 200)
