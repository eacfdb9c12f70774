"""The rules of changing a flow that others change at the same time, each with a story that needs it: cancels are
numbered, and a transaction that adds or recovers a step writes the flow that it rests on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest

from recruiter import FlowHandle, FlowNotFound, FlowState, InvalidFlow, Step, Superseded
from recruiter.domain.flow import FlowStep
from recruiter.domain.job import Cancellation, Job, JobId
from recruiter.steps import control_flow
from recruiter.steps.clean import forget_flows
from recruiter.store.collections import flows
from recruiter.store.flow_steps import FlowSteps
from recruiter.store.in_session import InSession, in_own_transaction
from tests.flows import Stage

DAY = timedelta(days=1)


def flow_of(stage: Stage, *names: str, ends: bool = True) -> tuple[FlowHandle, list[Step[Any]]]:
    """Steps side by side, and a step for each way in which the flow may end."""
    flow = stage.recruiter.flow("f")
    steps = [flow.add("work", name) for name in names]
    if ends:
        flow.on_success("work", "success").on_failure("work", "failure").on_end("work", "end")
    return flow.start(), steps


def failed_flow(stage: Stage) -> tuple[FlowHandle, Step[Any]]:
    handle, (a,) = flow_of(stage, "a")
    stage.run(a.id, fails=[a.id])
    stage.settle_down()
    run_the_ends(stage)
    assert handle.report().state is FlowState.FAILED
    return handle, a


def run_the_ends(stage: Stage) -> list[str]:
    """Runs the steps that waited for the end of a flow; returns which they were."""
    ready = stage.ready()
    arguments = stage.run(*ready) if ready else {}
    stage.settle_down()
    return [values["name"] for values in arguments.values()]


def everything_is_old(stage: Stage) -> None:
    """The cleaner removes the flows that may be forgotten."""
    while forget_flows(stage.store, stage.store.clock.now() + 2 * DAY, DAY):
        pass


@contextmanager
def before(owner: Any, name: str, happens: Callable[[], object]) -> Iterator[None]:
    """Something happens once, right before a method is called: its caller has stood still until then."""
    whole = getattr(owner, name)

    def late(*given: Any, **named: Any) -> Any:
        patch.undo()
        happens()
        return whole(*given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, late)
        yield


# -- a flow that had ended ------------------------------------------------------------------------------


def test_a_retried_flow_is_kept_from_its_last_end_on(stage: Stage) -> None:
    """Given a flow that failed long ago, when it is retried and succeeds before the leader looks, then its end is new:
    the cleaner keeps it as long as any flow that ends now."""
    handle, _ = failed_flow(stage)
    long_ago = stage.store.clock.now() - 3 * DAY
    stage.store.flows.collection.update_one({"_id": handle.id}, {"$set": {"ended.at": long_ago}})
    handle.retry()
    stage.run(*stage.store.scheduled.which_exist(ids_of_waiting(stage)))
    stage.settle_down()
    ended_at = handle.report().ended_at
    assert ended_at is not None
    assert ended_at > long_ago + DAY


def ids_of_waiting(stage: Stage) -> list[JobId]:
    return [document["_id"] for document in stage.store.scheduled.collection.find({}, {"_id": 1})]


# -- a flow that is forgotten ---------------------------------------------------------------------------


def test_a_flow_is_forgotten_while_a_step_is_added(stage: Stage) -> None:
    """Given a cleaner that has seen that a flow is over, when a step is added before it writes, then the flow is kept,
    and the step starts."""
    handle, (a,) = flow_of(stage, "a", ends=False)
    stage.run(a.id)
    stage.settle_down()
    added: list[Step[Any]] = []
    with before(flows.FlowCollection, "forget", lambda: added.append(handle.add("work", "b"))):
        everything_is_old(stage)
    stage.settle_down()
    assert stage.ready() == [added[0].id]


def test_a_flow_is_forgotten_while_a_step_is_recovered(stage: Stage) -> None:
    _, (a,) = flow_of(stage, "a", ends=False)
    stage.run(a.id, fails=[a.id])
    stage.settle_down()
    again: list[JobId] = []
    with before(flows.FlowCollection, "forget", lambda: again.append(stage.recruiter.recover(a.id).id)):
        everything_is_old(stage)
    stage.settle_down()
    assert stage.ready() == again


# -- cancels are numbered -------------------------------------------------------------------------------


def cancelled_and_retried(stage: Stage, handle: FlowHandle) -> None:
    stage.settle_down()
    run_the_ends(stage)
    assert handle.report().state is FlowState.CANCELLED
    handle.retry()


def test_a_process_stands_still_while_it_cancels(stage: Stage) -> None:
    """Given a process that has cancelled a flow and stands still, when the leader ends the flow and it is retried
    meanwhile, then the process cancels none of the new jobs."""
    handle, _ = flow_of(stage, "a", "b")
    with before(FlowSteps, "flag", lambda: cancelled_and_retried(stage, handle)):
        handle.cancel()
    stage.settle_down()
    assert len(stage.ready()) == 2


def test_a_leader_stands_still_while_it_cancels(stage: Stage) -> None:
    handle, _ = flow_of(stage, "a", "b")
    old = stage.lease

    def meanwhile() -> None:
        stage.take_the_lead()
        cancelled_and_retried(stage, handle)

    handle.cancel()
    with before(FlowSteps, "flag", meanwhile), suppress(Superseded):
        stage.look(old)
    stage.settle_down()
    assert len(stage.ready()) == 2


def test_a_step_is_recovered_before_a_late_cancel(stage: Stage) -> None:
    """The same, and one step is recovered by its id: the flow goes on with it."""
    handle, (a, _) = flow_of(stage, "a", "b")
    again: list[JobId] = []

    def meanwhile() -> None:
        stage.settle_down()
        run_the_ends(stage)
        again.append(stage.recruiter.recover(a.id).id)

    with before(FlowSteps, "flag", meanwhile):
        handle.cancel()
    stage.settle_down()
    assert stage.ready() == again


def test_a_step_is_added_before_a_late_cancel(stage: Stage) -> None:
    """The same, and a step is added to the flow that goes on."""
    handle, (a, _) = flow_of(stage, "a", "b")
    added: list[JobId] = []

    def meanwhile() -> None:
        stage.settle_down()
        run_the_ends(stage)
        stage.recruiter.recover(a.id)
        added.append(handle.add("work", "c").id)

    with before(FlowSteps, "flag", meanwhile):
        handle.cancel()
    stage.settle_down()
    assert set(added) <= set(stage.ready())


def test_a_step_is_added_before_a_late_pause(stage: Stage) -> None:
    """Given a flow that was paused and resumed, when a write of the pause arrives after a step was added, then it does
    not hold this step: no process would look at it again."""
    handle, _ = flow_of(stage, "a", "b")
    handle.pause()
    handle.resume()
    stage.settle_down()
    added = handle.add("work", "c")
    stage.settle_down()

    stage.store.flow_steps.hold(handle.id, 1, Cancellation(stage.store.clock.now(), None, None))
    stage.settle_down()

    assert added.id in stage.ready()


def test_a_cancelled_step_that_comes_back_waits_for_steps_that_were_added_before_it(stage: Stage) -> None:
    """Given a step that was cancelled, when a step is added before it and it is recovered, then it waits for both."""
    flow = stage.recruiter.flow("f")
    first = flow.add("work", "first")
    second = flow.add("work", "second", after=first)
    handle = flow.start()
    stage.recruiter.cancel(second.id)
    stage.settle_down()

    now = stage.store.clock.now()
    place = FlowStep(handle.id, "between")
    between = Job("between", "work", {"name": "between"}, now, now, flow=place, blocked=True)
    in_own_transaction(stage.store, lambda here: here.add_steps(handle.id, [between], own_ids=True, before=first.id))
    again = stage.recruiter.recover(second.id)
    stage.run(first.id)
    stage.settle_down()

    assert stage.ready() == ["between"]
    stage.run("between")
    stage.settle_down()
    assert stage.ready() == [again.id]


def test_ends_run_after_a_cancel(stage: Stage) -> None:
    """Given a flow that was cancelled and has ended, when the leader looks at it once more, then the steps that waited
    for its end are not cancelled."""
    handle, _ = flow_of(stage, "a")
    handle.cancel()
    stage.settle_down()
    handle.resume()
    stage.settle_down()
    assert sorted(run_the_ends(stage)) == ["end", "failure"]


def test_a_flow_is_cancelled_again_while_it_is_retried(stage: Stage) -> None:
    """Given a process that retries a cancelled flow batch by batch, when the flow is cancelled again after the first
    batch, then it stays cancelled."""
    handle, _ = flow_of(stage, "a", "b", "c", ends=False)
    handle.cancel()
    stage.settle_down()
    recovers = InSession.recover

    def recover(self: InSession, *given: Any, **named: Any) -> int:
        done = recovers(self, *given, **named)
        patch.setattr(InSession, "recover", then_cancelled)
        return done

    def then_cancelled(self: InSession, *given: Any, **named: Any) -> int:
        patch.setattr(InSession, "recover", recovers)
        handle.cancel()
        return recovers(self, *given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(control_flow, "_MAX_STEPS_PER_TRANSACTION", 1)
        patch.setattr(InSession, "recover", recover)
        assert handle.retry() == 1
    stage.settle_down()
    assert (handle.report().state, stage.ready()) == (FlowState.CANCELLED, [])


def test_a_flow_is_cancelled_before_its_dependents_come_back(stage: Stage) -> None:
    """Given a step that failed for its dependency, when that is recovered and the flow is cancelled before the leader
    looks, then the leader does not bring it back: the flow stays cancelled."""
    flow = stage.recruiter.flow("f")
    a = flow.add("work", "a")
    flow.add("work", "b", after=a)
    handle = flow.start()
    stage.run(a.id, fails=[a.id])
    stage.settle_down()
    stage.recruiter.recover(a.id)
    handle.cancel()
    stage.look()
    stage.settle_down()
    assert (handle.report().state, stage.ready()) == (FlowState.CANCELLED, [])


# -- what people are told --------------------------------------------------------------------------------------------


def test_cancelling_counts_the_steps_that_the_leader_has_flagged_before(stage: Stage) -> None:
    """Given a leader that comes to the marker before the process that cancels has flagged the steps, then the process
    still says how many it has cancelled."""
    handle, _ = flow_of(stage, *map(str, range(5)))

    with before(FlowSteps, "flag", stage.settle_down):
        assert handle.cancel() == 5


def test_a_step_that_was_forgotten_with_its_flow_cannot_be_recovered(stage: Stage) -> None:
    """Given a cleaner that has forgotten a flow and has not removed its jobs yet, then nothing of it comes back."""
    handle, a = failed_flow(stage)
    stage.store.flows.collection.update_one({"_id": handle.id}, {"$set": {"forgotten": True}})

    with pytest.raises(InvalidFlow, match="forgotten"):
        stage.recruiter.recover(a.id)
    with pytest.raises(FlowNotFound):
        handle.add("work", "b")

    assert stage.store.scheduled.collection.count_documents({}) == 0


def test_a_step_is_not_added_to_a_flow_that_is_cancelled_at_that_moment(stage: Stage) -> None:
    """The check is part of the transaction that adds the step."""
    handle, _ = flow_of(stage, "a")

    with (
        before(type(stage.store.flow_steps), "known", handle.cancel),
        pytest.raises(InvalidFlow, match="was cancelled"),
    ):
        handle.add(stage.recruiter.job("work", ["b"]).with_id("mine"))

    assert stage.store.scheduled.collection.count_documents({"_id": "mine"}) == 0
