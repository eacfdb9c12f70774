"""The rules of releasing steps, each with what goes wrong without it: the same story is told once as it is, and once
with the rule taken away, and then it must end badly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from math import inf
from typing import Any

import pytest

from recruiter import FlowHandle, InvalidFlow, Recruiter, Step, Superseded
from recruiter.domain.job import JobId
from recruiter.domain.names import CANCELLED_LANE
from recruiter.domain.retry.decision import Retry
from recruiter.processes.worker.fetcher import fetch
from recruiter.processes.worker.held_jobs import HeldJob, HeldJobs
from recruiter.steps import release as step
from recruiter.steps.clean import clean
from recruiter.steps.settle import settle
from recruiter.store import flow_steps, transactions
from recruiter.store.codec import decode
from recruiter.store.collections import archived, flows
from recruiter.store.collections.flows import Flows, Marker
from recruiter.store.flow_steps import TAIL, Candidates, FlowSteps, Free
from recruiter.store.job_fields import MOST_INDEXED
from recruiter.store.roster_fields import Holding
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
    with pytest.raises(InvalidFlow):
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


def a_step_is_added_while_the_one_runs_that_it_waits_for(stage: Stage) -> None:
    """Given a step that runs, and that names the one that waits for it, when another is added that waits for it too,
    and it succeeds, then both may start."""
    (a, b), handle = chain_of(stage, "a", "b")
    stage.give(a.id)
    c = handle.add("work", "c", after=a)
    stage.settle_down()
    stage.settle(a.id)
    stage.settle_down()
    assert stage.ready() == [b.id, c.id]


def waits_for_two(stage: Stage) -> tuple[Step[Any], Step[Any], Step[Any]]:
    """A step that waits for three, the first of which has ended; and the two others."""
    flow = stage.recruiter.flow("f")
    first, second, third = (flow.add("work", name) for name in ("a", "b", "c"))
    last = flow.add("work", "d", after=[first, second, third])
    flow.start()
    stage.run(first.id)
    stage.settle_down()
    return second, third, last


def others_end_one_by_one(stage: Stage) -> None:
    """Given a step that waits for two, when these end one by one, in either order, then it may start after both."""
    for order in (0, 1):
        second, third, last = waits_for_two(stage)
        for each in (second, third) if order else (third, second):
            assert last.id not in stage.ready()
            stage.run(each.id)
            stage.settle_down()
        assert last.id in stage.ready()


def one_fails_while_another_runs(stage: Stage) -> None:
    """Given a step that waits for two, when one fails, then it is archived immediately, whatever the other does."""
    second, _, last = waits_for_two(stage)
    stage.run(second.id, fails=[second.id])
    stage.settle_down()
    assert stage.why(last.id) == "dependency-failed"


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


def a_flow_is_paused_before_its_steps_are_fetched(stage: Stage) -> None:
    """Given a step that was assigned to a worker, when its flow is paused before the worker has read the step, then the
    worker does not start it; it starts after the flow was resumed."""
    (a,), handle = chain_of(stage, "a")
    stage.give(a.id)
    handle.pause()
    held = HeldJobs(stage.worker)
    held.hear(Holding([a.id], settled=0))
    held.fetched(held.to_fetch(), fetch(stage.store, [a.id]))
    _, starts = held.accept()
    assert list(starts) == []
    stage.store.transactions.hand_back(stage.worker, [a.id])
    handle.resume()
    stage.settle_down()
    assert stage.ready() == [a.id]


def one_fails_and_is_put_off(stage: Stage, group: str | None = None) -> None:
    """Given a step that runs while its flow is paused and resumed, when it fails and is put off while the leader looks,
    then it starts when its policy says, and not before."""
    parts = runs_in_a_flow_that_was_paused_and_resumed(stage)
    later = stage.store.clock.now() + timedelta(hours=1)
    look = FlowSteps._look

    def meanwhile(self: FlowSteps, *given: Any, ended: bool) -> Any:
        found = look(self, *given, ended=ended)
        patch.undo()
        ((id, raw),) = stage.store.scheduled.fetch(parts[:1])
        settle(stage.store, stage.worker, [(id, stage.outcome(decode(raw), Retry(later, group=group)))], {})
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FlowSteps, "_look", meanwhile)
        stage.look()
    stage.settle_down()
    job = stage.store.scheduled.get(parts[0])
    assert job is not None
    assert job.scheduled_at >= later - timedelta(milliseconds=1)
    assert stage.lane(parts[0]) == f"{group or 'generic'}/work"


def one_fails_and_moves(stage: Stage) -> None:
    """The same, and its policy says that it goes on in another group."""
    one_fails_and_is_put_off(stage, "other")


def what_it_waited_for_is_removed(stage: Stage) -> None:
    """Given steps that run while their flow is paused and resumed, when somebody removes the job that they waited for,
    then they are not archived while they run."""
    parts = runs_in_a_flow_that_was_paused_and_resumed(stage)
    stage.store.archived.collection.delete_many({})
    stage.look()
    assert stage.why(parts[0]) is None
    stage.settle(*parts)
    assert {stage.why(id) for id in parts} == {"done"}


def one_is_removed_and_one_added(stage: Stage) -> None:
    """Given a step that waits for very many, when one of these is removed by hand, and another step is added to the
    flow and succeeds, then it does not start, although as many have succeeded as the flow had."""
    flow = stage.recruiter.flow("f")
    many = flow.add_many("work", [("part",)] * (TAIL + 1))
    last = flow.add("work", "last", after=many)
    handle = flow.start()
    stage.run(*(step.id for step in many[:-1]), handle.add("work", "another").id)
    stage.settle_down()
    stage.store.archived.collection.delete_one({"_id": many[0].id})
    stage.run(many[-1].id)
    stage.settle_down()
    assert stage.why(last.id) == "dependency-failed"


def one_of_very_many_has_failed_and_one_is_added(stage: Stage) -> None:
    """Given a step that waits for very many, of which the first has failed and the others have succeeded, when a step
    is added before the leader decides, then it does not start, although as many succeeded or wait as the flow had."""
    flow = stage.recruiter.flow("f")
    many = flow.add_many("work", [("part",)] * (TAIL + 1))
    last = flow.add("work", "last", after=many)
    handle = flow.start()
    stage.run(*(step.id for step in many), fails=[many[0].id])
    with after_reading(lambda: handle.add("work", "another")):
        stage.look()
    stage.settle_down()
    assert stage.why(last.id) == "dependency-failed"


def one_of_very_many_fails(stage: Stage) -> None:
    """Given a step that waits for very many, when one of the first of them fails, then it is archived at once, and not
    when all the others have ended."""
    flow = stage.recruiter.flow("f")
    many = flow.add_many("work", [("part",)] * (TAIL + 2))
    last = flow.add("work", "last", after=many)
    flow.start()
    stage.run(many[1].id)
    stage.settle_down()
    stage.run(many[0].id, fails=[many[0].id])
    stage.settle_down()
    assert stage.why(last.id) == "dependency-failed"


def one_of_very_many_is_recovered(stage: Stage) -> None:
    """Given a step that waits for very many and was archived because one of them failed, when that one is recovered,
    then it waits again, and starts when all have succeeded."""
    flow = stage.recruiter.flow("f")
    many = flow.add_many("work", [("part",)] * (MOST_INDEXED + 1))
    last = flow.add("work", "last", after=many)
    flow.start()
    stage.run(*(step.id for step in many[1:]))
    stage.run(many[0].id, fails=[many[0].id])
    stage.settle_down()
    again = stage.recruiter.recover(many[0].id)
    stage.settle_down()
    assert "it was recovered" in (stage.recruiter.explain(last.id) or "")
    stage.run(again.id)
    stage.settle_down()
    assert len(stage.ready()) == 1


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
    patch.setattr(flows, "Marker", lambda *given, **named: Marker(*given, **{**named, "added": frozenset()}))


def without_markers_of_recoveries(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Flows, "go_on", lambda _self, steps, *_, **__: {step.flow: 0 for step in steps})


def recovered_unmarked(patch: pytest.MonkeyPatch) -> None:
    whole = Transactions.recover_in

    def recover(self: Transactions, session: Any, *given: Any, **named: Any) -> int:
        done = whole(self, session, *given, **named)
        self._archived.collection.update_many({}, {"$unset": {"recovered_as": ""}}, session=session)
        return done

    patch.setattr(Transactions, "recover_in", recover)


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


def paused_ones_start(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HeldJob, "is_paused", False)


def releases_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    whole = step.released_fields
    patch.setattr(step, "released_fields", lambda some, place, now: whole(replace(some, released=False), place, now))


def lanes_of_others_are_written(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(step, "_UNCHANGED", ("priority",))


def looks_are_not_repeated(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(step._Look, "must_repeat", property(lambda _: False, lambda *_: None), raising=False)


def what_runs_is_archived(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(step._Look, "_runs", lambda *_: False)


def counted_by_the_flow(patch: pytest.MonkeyPatch) -> None:
    """Whether all of very many have succeeded is counted by the flow, and not by their names."""

    def place_after_success(self: FlowSteps, each: Candidates, session: Any) -> Any:
        query = {"flow.id": each.place.flow}
        succeeded = self._archived.count_documents({**query, "done": True}, session=session)
        waiting = self._scheduled.count_documents(query, session=session)
        return each.place if succeeded + waiting >= TAIL + 2 else None

    patch.setattr(FlowSteps, "place_after_success", place_after_success)


def only_the_last_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FlowSteps, "failed_before", lambda *_: False)


def found_by_what_they_wait_for(patch: pytest.MonkeyPatch) -> None:
    """Those that wait for very many are not looked for by their flow."""
    whole = flow_steps._queries

    def queries(marker: Marker) -> Iterator[Any]:
        for query, *indexes in whole(marker):
            yield ({**query, "flow.many": None} if "flow.after" in query else query), *indexes

    patch.setattr(flow_steps, "_queries", queries)


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
    (others_end_one_by_one, without_markers_of_ends),
    (one_fails_while_another_runs, without_markers_of_ends),
    (one_of_very_many_fails, only_the_last_looked_at),
    (one_of_very_many_fails, found_by_what_they_wait_for),
    (one_of_very_many_is_recovered, found_by_what_they_wait_for),
    (a_step_is_added_while_the_one_runs_that_it_waits_for, without_markers_of_ends),
    (one_is_removed_and_one_added, counted_by_the_flow),
    (one_of_very_many_has_failed_and_one_is_added, counted_by_the_flow),
    (a_flow_is_paused_before_its_steps_are_fetched, paused_ones_start),
    (one_fails_and_is_put_off, releases_are_forgotten),
    (one_fails_and_moves, lanes_of_others_are_written),
    (one_fails_and_moves, looks_are_not_repeated),
    (what_it_waited_for_is_removed, what_runs_is_archived),
]


@stories_of(RULES)
def test_a_story_ends_well(stage: Stage, story: Story) -> None:
    story(stage)


@without_its_rule(RULES)
def test_without_its_rule_it_ends_badly(stage: Stage, story: Story, mutant: Mutant) -> None:
    ends_badly(stage, story, mutant)


def test_only_those_are_looked_at_that_wait_for_what_has_ended(stage: Stage) -> None:
    """Given two steps that wait for very many others each, when one of these ends, then only the step is looked at that
    waits for it."""
    flow = stage.recruiter.flow("f")
    some, others = (flow.add_many("work", [("part",)] * (MOST_INDEXED + 1)) for _ in range(2))
    last, _ = flow.add("work", "last", after=some), flow.add("work", "other", after=others)
    flow.start()

    found = stage.store.flow_steps.candidates(Marker(flow.id, ended=frozenset({some[3].id})))

    assert [id for part in found for each in part for id in each.ids] == [last.id]


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
