"""The rules of releasing steps, each with what goes wrong without it: the same story is told once as it is, and once
with the rule taken away, and then it must end badly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from math import inf
from typing import Any

import pytest

from recruiter import FlowHandle, JobNotFound, Recruiter, Step, Superseded
from recruiter.domain.job import JobId
from recruiter.domain.names import CANCELLED_LANE
from recruiter.steps import release as step
from recruiter.steps.clean import clean
from recruiter.store import transactions
from recruiter.store.collections import archived, flows
from recruiter.store.collections.flows import Flows, Marker
from recruiter.store.flow_steps import Candidates, FlowSteps, Free
from recruiter.store.transactions import Transactions
from tests.flows import Mutant, Stage, Story, ends_badly, stories_of, without_its_rule


@pytest.fixture
def stage(recruiter: Recruiter) -> Stage:
    @recruiter.task
    def work(name: str) -> None: ...

    return Stage(recruiter)


def chain_of(stage: Stage, *names: str) -> tuple[list[Step[Any]], FlowHandle]:
    """Steps that wait for each other, in this order."""
    flow = stage.recruiter.flow("f")
    steps: list[Step[Any]] = []
    for name in names:
        steps.append(flow.add("work", name, after=steps[-1:]))
    return steps, flow.start()


# -- the stories -------------------------------------------------------------------------------------------------


def a_step_ends(stage: Stage) -> None:
    (a, b), _ = chain_of(stage, "a", "b")
    stage.run(a.id)
    stage.settle_down()
    assert stage.ready() == [b.id]


def a_step_is_cancelled(stage: Stage) -> None:
    (a, b), _ = chain_of(stage, "a", "b")
    stage.recruiter.cancel(a.id)
    stage.settle_down()
    assert stage.why(b.id) == "dependency-failed"


def a_step_is_set_aside(stage: Stage) -> None:
    """Somebody has spoiled its document."""
    (a, b), _ = chain_of(stage, "a", "b")
    broken = stage.store.scheduled.collection.find_one({"_id": a.id})
    assert broken is not None
    query = {"_id": a.id}
    record = {"_id": a.id, "done": False, "why": "malformed", "archived_at": stage.store.clock.now()}
    record["flow"] = broken["flow"]
    lease = stage.lease
    assert stage.store.transactions.set_aside(record, query, lease.term, lease.holder or "")
    stage.settle_down()
    assert stage.why(b.id) == "dependency-failed"


def a_failure_travels(stage: Stage) -> None:
    """More steps than one look follows at once: each that fails must be looked at again."""
    steps, handle = chain_of(stage, *map(str, range(6)))
    stage.run(steps[0].id, fails=[steps[0].id])
    stage.settle_down()
    assert handle.report().counts == {"failed": 6}


def a_step_is_added(stage: Stage) -> None:
    (a,), handle = chain_of(stage, "a")
    stage.run(a.id)
    stage.settle_down()
    b = handle.add("work", "b", after=a)
    stage.settle_down()
    assert stage.ready() == [b.id]


def a_step_is_recovered(stage: Stage) -> None:
    (a, _), _ = chain_of(stage, "a", "b")
    stage.run(a.id, fails=[a.id])
    stage.settle_down()
    again = stage.recruiter.recover(a.id)
    stage.settle_down()
    stage.run(again.id)
    stage.settle_down()
    assert len(stage.ready()) == 1


def two_recover(stage: Stage) -> None:
    (a,), _ = chain_of(stage, "a")
    stage.run(a.id, fails=[a.id])
    stage.recruiter.recover(a.id)
    with pytest.raises(JobNotFound):
        stage.recruiter.recover(a.id)
    stage.settle_down()
    assert len(stage.ready()) == 1


def a_step_ends_while_the_leader_looks(stage: Stage) -> None:
    """Given a step that waits for two, when the second ends after the leader has read the markers and the states, then
    the next look finds it."""
    flow = stage.recruiter.flow("f")
    a, b = flow.add("work", "a"), flow.add("work", "b")
    c = flow.add("work", "c", after=[a, b])
    flow.start()
    stage.run(a.id)
    with after_reading(lambda: stage.run(b.id)):
        stage.look()
    stage.settle_down()
    assert stage.ready() == [c.id]


def a_step_is_cancelled_while_the_leader_looks(stage: Stage) -> None:
    (a, b), _ = chain_of(stage, "a", "b")
    stage.run(a.id)
    with after_reading(lambda: stage.recruiter.cancel(b.id)):
        stage.look()
    assert stage.ready() == []
    stage.settle_down()
    assert stage.why(b.id) == "cancelled"


def an_old_leader_wakes(stage: Stage) -> None:
    """Given a leader that has read everything, when another takes over before it writes, then it writes nothing."""
    (a, b), _ = chain_of(stage, "a", "b")
    stage.run(a.id, fails=[a.id])
    old = stage.lease
    with after_reading(stage.take_the_lead), pytest.raises(Superseded):
        stage.look(old)
    assert stage.why(b.id) is None


def an_archive_is_cleaned(stage: Stage) -> None:
    """Given a step that waits for two, when the first has ended long ago, then it still counts as succeeded."""
    flow = stage.recruiter.flow("f")
    a, b = flow.add("work", "a"), flow.add("work", "b")
    c = flow.add("work", "c", after=[a, b])
    flow.start()
    stage.run(a.id)
    stage.settle_down()
    day = timedelta(days=1)
    clean(stage.store, stage.store.clock.now() + 2 * day, day)
    stage.run(b.id)
    stage.settle_down()
    assert stage.ready() == [c.id]


def a_worker_dies_with_steps_of_a_paused_flow(stage: Stage) -> None:
    """Given a worker that runs two steps of a flow, when the flow is paused and the worker dies, then they wait until
    the flow is resumed."""
    flow = stage.recruiter.flow("f")
    steps = [flow.add("work", name).id for name in ("a", "b")]
    handle = flow.start()
    stage.give(*steps)
    handle.pause()
    stage.settle_down()
    stage.dies(*steps)
    assert stage.ready() == []
    handle.resume()
    stage.settle_down()
    assert stage.ready() == steps


def a_leader_freezes_after_its_decision(stage: Stage) -> None:
    """Given a leader that has decided that steps may start, when it freezes before it releases them, and the flow is
    paused meanwhile, then none of them can start; and they do when it is resumed."""
    flow = stage.recruiter.flow("f")
    a = flow.add("work", "a")
    flow.add_many("work", [("b",)] * 3, after=a)
    handle = flow.start()
    stage.run(a.id)

    def meanwhile() -> None:
        handle.pause()
        stage.take_the_lead()
        stage.settle_down()

    with before_releasing(meanwhile):
        stage.look()
    assert stage.ready() == []
    handle.resume()
    stage.settle_down()
    assert len(stage.ready()) == 3


def a_pause_comes_late(stage: Stage) -> None:
    """Given a process that pauses a flow and freezes, when the flow is resumed meanwhile, then its steps start."""
    (a,), handle = chain_of(stage, "a")
    whole = FlowSteps.hold

    def late(self: FlowSteps, *given: Any) -> int:
        patch.undo()
        handle.resume()
        stage.settle_down()
        return whole(self, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FlowSteps, "hold", late)
        handle.pause()
    stage.settle_down()
    assert stage.ready() == [a.id]


def a_decision_could_change(stage: Stage) -> None:
    """Given a step that any end of another will do for, when that has failed, then it is released with the decision:
    the other may be recovered in the next moment, and then it must wait again."""
    flow = stage.recruiter.flow("f")
    a = flow.add("work", "a")
    b = flow.add("work", "b", after_any=a)
    flow.start()
    stage.run(a.id, fails=[a.id])
    ready: list[JobId] = []
    with before_releasing(lambda: ready.extend(stage.ready())):
        stage.look()
    assert ready == [b.id]


# -- without the rule --------------------------------------------------------------------------------------------


def without_markers_of_ends(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Flows, "mark_ended", lambda *_: None)


def without_markers_of_what_the_leader_archives(patch: pytest.MonkeyPatch) -> None:
    whole = Transactions.lead

    def lead(self: Transactions, *given: Any) -> Any:
        with pytest.MonkeyPatch.context() as inside:
            inside.setattr(Flows, "mark_ended", lambda *_: None)
            return whole(self, *given)

    patch.setattr(Transactions, "lead", lead)
    patch.setattr(step, "STEPS_AT_ONCE", 1)


def without_markers_of_additions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(flows, "Marker", lambda *given, **_: Marker(*given))


def without_markers_of_recoveries(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Flows, "go_on", lambda *_: None)


def recovered_unmarked(patch: pytest.MonkeyPatch) -> None:
    whole = Transactions._recover

    def recover(self: Transactions, jobs: Any, again: bool, session: Any) -> int:
        done = whole(self, jobs, again, session)
        self._archived.collection.update_many({}, {"$unset": {"recovered_as": ""}}, session=session)
        return done

    patch.setattr(Transactions, "_recover", recover)


def failed_stay(patch: pytest.MonkeyPatch) -> None:
    whole = FlowSteps.candidates

    def candidates(self: FlowSteps, marker: Marker) -> Iterator[list[Candidates]]:
        for some in whole(self, marker):
            yield [each for each in some if not each.ended]

    patch.setattr(FlowSteps, "candidates", candidates)


def all_markers_removed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Flows, "remove_markers", lambda self, *_: self.markers.delete_many({}))


def released_unguarded(patch: pytest.MonkeyPatch) -> None:
    """Neither read again in the transaction nor matched by its lane."""

    def release(self: FlowSteps, released: Sequence[Free], *_: Any) -> int:
        for each in released:
            self._scheduled.update_many({"_id": {"$in": list(each.ids)}}, {"$set": each.fields})
        return sum(len(each.ids) for each in released)

    whole = FlowSteps.whole

    def unguarded(self: FlowSteps, candidates: Sequence[Candidates], session: Any = None) -> Any:
        with pytest.MonkeyPatch.context() as inside:
            inside.setattr("recruiter.store.flow_steps.BLOCKED_LANE", {"$exists": True})
            return whole(self, candidates, session)

    patch.setattr(FlowSteps, "release", release)
    patch.setattr(FlowSteps, "whole", unguarded)


def unfenced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Transactions, "_prove", lambda *_: None)


def steps_forgotten_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(archived, "NO_STEP", {})


def back_to_their_lanes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(transactions, "ASIDE", (CANCELLED_LANE,))


def released_although_held(patch: pytest.MonkeyPatch) -> None:
    whole = FlowSteps.release
    patch.setattr(FlowSteps, "release", lambda self, released, _, *more: whole(self, released, 1_000_000, *more))


def not_looked_at_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Flows, "look_again_unless", lambda *_: None)


def all_released_later(patch: pytest.MonkeyPatch) -> None:
    whole, later = FlowSteps.release, []

    def release(self: FlowSteps, released: Any, holds: int, session: Any = None) -> float:
        later.extend(released)
        if session is None:
            whole(self, later, holds)
            later.clear()
        return inf

    patch.setattr(FlowSteps, "release", release)


RULES: list[tuple[Story, Mutant]] = [
    (a_step_ends, without_markers_of_ends),
    (a_step_is_cancelled, without_markers_of_ends),
    (a_step_is_set_aside, without_markers_of_ends),
    (a_failure_travels, without_markers_of_what_the_leader_archives),
    (a_step_is_added, without_markers_of_additions),
    (a_step_is_recovered, without_markers_of_recoveries),
    (a_step_is_recovered, failed_stay),
    (two_recover, recovered_unmarked),
    (a_step_ends_while_the_leader_looks, all_markers_removed),
    (a_step_is_cancelled_while_the_leader_looks, released_unguarded),
    (an_old_leader_wakes, unfenced),
    (an_archive_is_cleaned, steps_forgotten_alone),
    (a_worker_dies_with_steps_of_a_paused_flow, back_to_their_lanes),
    (a_leader_freezes_after_its_decision, released_although_held),
    (a_pause_comes_late, not_looked_at_again),
    (a_decision_could_change, all_released_later),
]


@stories_of(RULES)
def test_a_story_ends_well(stage: Stage, story: Story) -> None:
    story(stage)


@without_its_rule(RULES)
def test_without_its_rule_it_ends_badly(stage: Stage, story: Story, mutant: Mutant) -> None:
    ends_badly(stage, story, mutant)


@contextmanager
def after_reading(happens: Callable[[], object]) -> Iterator[None]:
    """Something happens once, after the leader has read markers and states and before it writes or removes anything."""
    whole = step._Look._promising

    def promising(self: step._Look, *given: Any, **named: Any) -> Any:
        found = whole(self, *given, **named)
        patch.undo()
        happens()
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step._Look, "_promising", promising)
        yield


@contextmanager
def before_releasing(happens: Callable[[], object]) -> Iterator[None]:
    """Something happens once, after the transaction in which the leader decides and before it writes anything else."""
    whole = Transactions.lead

    def lead(self: Transactions, *given: Any) -> Any:
        decided = whole(self, *given)
        patch.undo()
        happens()
        return decided

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Transactions, "lead", lead)
        yield
