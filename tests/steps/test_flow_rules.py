"""The rules of releasing steps (see `tests/protocol_model/flow_release.py`), each with a story that needs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

from recruiter import FlowHandle, Step, Superseded
from recruiter.domain.job import JobId
from recruiter.domain.retry.decision import Retry
from recruiter.processes.worker.held_job import HeldJob
from recruiter.processes.worker.held_jobs import HeldJobs
from recruiter.steps import release as step
from recruiter.steps.clean import clean
from recruiter.steps.settle import settle
from recruiter.store.codec import decode
from recruiter.store.collections.flows import Marker
from recruiter.store.flow_steps import LAST_AFTER, FlowSteps
from recruiter.store.job_fields import MOST_INDEXED
from recruiter.store.roster_fields import Holding
from recruiter.store.transactions import Transactions
from tests.flows import Stage


def chain_of(stage: Stage, *names: str) -> tuple[list[Step[Any]], FlowHandle]:
    """Steps that wait for each other, in this order."""
    flow = stage.recruiter.flow("f")
    steps: list[Step[Any]] = []
    for name in names:
        steps.append(flow.add("work", name, after=steps[-1:]))
    return steps, flow.start()


def test_a_step_is_set_aside(stage: Stage) -> None:
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


def test_a_step_is_added(stage: Stage) -> None:
    (a,), handle = chain_of(stage, "a")
    stage.run(a.id)
    stage.settle_down()
    b = handle.add("work", "b", after=a)
    stage.settle_down()
    assert stage.ready() == [b.id]


def test_a_step_ends_while_the_leader_looks(stage: Stage) -> None:
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


def test_a_step_is_cancelled_while_the_leader_looks(stage: Stage) -> None:
    (a, b), _ = chain_of(stage, "a", "b")
    stage.run(a.id)
    with after_reading(lambda: stage.recruiter.cancel(b.id)):
        stage.look()
    assert stage.ready() == []
    stage.settle_down()
    assert stage.why(b.id) == "cancelled"


def test_an_old_leader_wakes(stage: Stage) -> None:
    """Given a leader that has read everything, when another takes over before it writes, then it writes nothing."""
    (a, b), _ = chain_of(stage, "a", "b")
    stage.run(a.id, fails=[a.id])
    old = stage.lease
    with after_reading(stage.take_the_lead), pytest.raises(Superseded):
        stage.look(old)
    assert stage.why(b.id) is None


def test_an_archive_is_cleaned(stage: Stage) -> None:
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


def test_a_worker_dies_with_steps_of_a_paused_flow(stage: Stage) -> None:
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


@pytest.mark.parametrize("when", ["before it decides", "after it has decided"])
def test_a_flow_is_paused_while_the_leader_looks(stage: Stage, when: str) -> None:
    """Given a leader that has read which steps may start, when the flow is paused before it decides, or before it
    releases them, then none of them can start; and they do when it is resumed."""
    flow = stage.recruiter.flow("f")
    a = flow.add("work", "a")
    flow.add_many("work", [("b",)] * 3, after=a)
    handle = flow.start()
    stage.run(a.id)
    with after_reading(handle.pause) if when == "before it decides" else before_releasing(handle.pause):
        stage.look()
    assert stage.ready() == []
    handle.resume()
    stage.settle_down()
    assert len(stage.ready()) == 3


def test_a_pause_comes_late(stage: Stage) -> None:
    """Given a process that pauses a flow and freezes, when the flow is resumed meanwhile, then its steps start."""
    (a,), handle = chain_of(stage, "a")
    whole = FlowSteps.hold

    def late(self: FlowSteps, *given: Any) -> list[JobId]:
        patch.undo()
        handle.resume()
        stage.settle_down()
        return whole(self, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FlowSteps, "hold", late)
        handle.pause()
    stage.settle_down()
    assert stage.ready() == [a.id]


def test_a_step_is_added_while_the_one_runs_that_it_waits_for(stage: Stage) -> None:
    """Given a step that runs, and that names the one that waits for it, when another is added that waits for it too,
    and it succeeds, then both may start."""
    (a, b), handle = chain_of(stage, "a", "b")
    stage.give(a.id)
    c = handle.add("work", "c", after=a)
    stage.settle_down()
    stage.settle(a.id)
    stage.settle_down()
    assert stage.ready() == [b.id, c.id]


def runs_in_a_flow_that_was_paused_and_resumed(stage: Stage) -> list[JobId]:
    """Steps that run, and are in the lane of blocked steps, because their flow was paused; nobody has looked since it
    was resumed."""
    flow = stage.recruiter.flow("f")
    first = flow.add("work", "first")
    parts = [part.id for part in flow.add_many("work", [("part",)] * 3, after=first)]
    handle = flow.start()
    stage.run(first.id)
    stage.settle_down()
    stage.give(*parts)
    handle.pause()
    stage.settle_down()
    handle.resume()
    return parts


def test_a_flow_is_paused_before_its_steps_are_fetched(stage: Stage) -> None:
    """Given a step that was assigned to a worker, when its flow is paused before the worker has read the step, then the
    worker does not start it; it starts after the flow was resumed."""
    (a,), handle = chain_of(stage, "a")
    stage.give(a.id)
    handle.pause()
    held = HeldJobs(stage.worker)
    held.hear(Holding([a.id], settled=0))
    held.fetched(held.to_fetch(), [HeldJob.read(*found) for found in stage.store.scheduled.fetch([a.id])])
    assert held.take(1) == []
    stage.store.transactions.hand_back(stage.worker, [a.id])
    handle.resume()
    stage.settle_down()
    assert stage.ready() == [a.id]


@pytest.mark.parametrize("group", [None, "other"])
def test_one_fails_and_is_put_off(stage: Stage, group: str | None) -> None:
    """Given a step that runs while its flow is paused and resumed, when it fails and is put off while the leader looks,
    then it starts when and where its policy says."""
    parts = runs_in_a_flow_that_was_paused_and_resumed(stage)
    later = stage.store.clock.now() + timedelta(hours=1)

    def meanwhile() -> None:
        ((id, raw),) = stage.store.scheduled.fetch(parts[:1])
        settle(stage.store, stage.worker, [(id, stage.outcome(decode(raw), Retry(later, group=group)))], {})

    with after_reading(meanwhile):
        stage.look()
    stage.settle_down()
    job = stage.store.scheduled.get(parts[0])
    assert job is not None
    assert job.scheduled_at >= later - timedelta(milliseconds=1)
    assert stage.lane(parts[0]) == f"{group or 'generic'}/work"


def test_steps_survive_the_removal_of_their_dependency(stage: Stage) -> None:
    """Given steps that run while their flow is paused and resumed, when somebody removes the job that they waited for,
    then they are not archived while they run."""
    parts = runs_in_a_flow_that_was_paused_and_resumed(stage)
    stage.store.archived.collection.delete_many({})
    stage.look()
    assert stage.why(parts[0]) is None
    stage.settle(*parts)
    assert {stage.why(id) for id in parts} == {"done"}


def test_one_is_removed_and_one_added(stage: Stage) -> None:
    """Given a step that waits for very many, when one of these is removed by hand, and another step is added to the
    flow and succeeds, then it does not start, although as many have succeeded as the flow had."""
    flow = stage.recruiter.flow("f")
    many = flow.add_many("work", [("part",)] * (LAST_AFTER + 1))
    last = flow.add("work", "last", after=many)
    handle = flow.start()
    stage.run(*(step.id for step in many[:-1]), handle.add("work", "another").id)
    stage.settle_down()
    stage.store.archived.collection.delete_one({"_id": many[0].id})
    stage.run(many[-1].id)
    stage.settle_down()
    assert stage.why(last.id) == "dependency-failed"


def test_one_of_very_many_fails(stage: Stage) -> None:
    """Given a step that waits for very many, when one of the first of them fails, then it is archived at once, and not
    when all the others have ended."""
    flow = stage.recruiter.flow("f")
    many = flow.add_many("work", [("part",)] * (LAST_AFTER + 2))
    last = flow.add("work", "last", after=many)
    flow.start()
    stage.run(many[1].id)
    stage.settle_down()
    stage.run(many[0].id, fails=[many[0].id])
    stage.settle_down()
    assert stage.why(last.id) == "dependency-failed"


def test_only_those_are_looked_at_that_wait_for_what_has_ended(stage: Stage) -> None:
    """Given two steps that wait for very many others each, when one of these ends, then only the step is looked at that
    waits for it."""
    flow = stage.recruiter.flow("f")
    some, others = (flow.add_many("work", [("part",)] * (MOST_INDEXED + 1)) for _ in range(2))
    last, _ = flow.add("work", "last", after=some), flow.add("work", "other", after=others)
    flow.start()

    found = stage.store.flow_steps.dependents(Marker(flow.id, ended=frozenset({some[3].id})))

    assert [dependent.id for batch in found for dependent in batch] == [last.id]


@contextmanager
def after_reading(happens: Callable[[], object]) -> Iterator[None]:
    """Something happens once, after the leader has read markers and states and before it writes or removes anything."""
    whole = step._FlowPass._undecided

    def undecided(self: step._FlowPass, *given: Any) -> Any:
        found = whole(self, *given)
        patch.undo()
        happens()
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step._FlowPass, "_undecided", undecided)
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


def test_a_decision_that_can_change_is_written_at_once(stage: Stage) -> None:
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
