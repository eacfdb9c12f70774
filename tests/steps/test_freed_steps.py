"""Steps that the leader gives to workers as they are: when it does so, and the rules that make it safe, each with what
goes wrong without it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from math import inf
from typing import Any

import pytest
from bson import ObjectId

from recruiter import FlowHandle, FlowState, Recruiter, Step
from recruiter.domain.job import JobId
from recruiter.domain.names import BLOCKED_LANE
from recruiter.domain.planning.fair import By, FairShare
from recruiter.domain.planning.freed import FreedSteps
from recruiter.domain.planning.limits import Limit
from recruiter.domain.retry.decision import Retry
from recruiter.domain.schedule.scheduler import Pause
from recruiter.processes.worker import fetcher
from recruiter.processes.worker.fetcher import FreedSince, fetch
from recruiter.processes.worker.held_jobs import HeldJob
from recruiter.steps import release as step
from recruiter.steps.assign import Round, assign
from recruiter.steps.settle import settle
from recruiter.store import flow_steps
from recruiter.store.codec import decode
from recruiter.store.collections.limits import Rules
from recruiter.store.collections.roster import Roster
from recruiter.views.analytics import waiting
from tests.flows import Mutant, Stage, Story, ends_badly, stories_of, without_its_rule
from tests.samples import NOW, on_the_roster

PARTS = 6
FLOW = ObjectId()


@pytest.fixture
def stage(recruiter: Recruiter) -> Stage:
    @recruiter.task
    def work(name: str) -> str:
        return name

    @recruiter.task
    def pair(a: str, b: str) -> str:
        return a + b

    return Stage(recruiter, many=3)


def fan_out(stage: Stage, parts: int = PARTS) -> tuple[FlowHandle, list[JobId], Step[Any]]:
    """The first of a fan-out and fan-in has ended, and the leader has looked: its flow, the parts, and the last one."""
    flow = stage.recruiter.flow("f")
    first = flow.add("work", "first")
    some = flow.add_many("work", [("part",)] * parts, after=first)
    last = flow.add("work", "last", after=some)
    handle = flow.start()
    stage.run(first.id)
    stage.look()
    return handle, [part.id for part in some], last


def everything_runs(stage: Stage, handle: FlowHandle) -> None:
    stage.settle_down()
    while ready := stage.ready():
        stage.run(*ready)
        stage.settle_down()
    assert handle.report().state is FlowState.SUCCEEDED
    assert stage.store.flows.count_markers() == 0


def lanes(stage: Stage) -> set[str]:
    return set(stage.store.scheduled.collection.distinct("lane"))


# -- the stories ---------------------------------------------------------------------------------------------------


def many_are_given_as_they_are(stage: Stage) -> None:
    handle, parts, last = fan_out(stage)
    assert lanes(stage) == {BLOCKED_LANE}
    assert stage.give_freed(2) == parts[:2]
    stage.settle(*parts[:2])
    assert stage.give_freed() == parts[2:]
    stage.settle(*parts[2:])
    stage.settle_down()
    assert stage.ready() == [last.id]
    everything_runs(stage, handle)


def the_leader_dies(stage: Stage) -> None:
    """Given steps of which some were given and run, and the others only remembered, when another takes the lead, then
    it gives the others, and no other."""
    handle, parts, _ = fan_out(stage)
    stage.give_freed(2)
    stage.take_the_lead()
    stage.freed = FreedSteps(3)
    stage.look()
    assert stage.give_freed() == parts[2:]
    stage.settle(*parts)
    everything_runs(stage, handle)


def another_look_comes(stage: Stage) -> None:
    """Given freed steps, when all of their flow is looked at for another reason, then each is still given once."""
    handle, parts, _ = fan_out(stage)
    stage.give_freed(1)
    stage.settle(parts[0])
    handle.resume()
    stage.look()
    assert len(stage.freed) == PARTS - 1
    assert stage.give_freed() == parts[1:]
    stage.settle(*parts[1:])
    everything_runs(stage, handle)


def its_worker_dies(stage: Stage) -> None:
    """Given a worker that holds freed steps, when it dies, then they run all the same: those that it may have started
    and those that waited there."""
    handle, parts, _ = fan_out(stage)
    stage.give_freed()
    stage.dies(*parts[:2])
    everything_runs(stage, handle)


def it_is_paused(stage: Stage) -> None:
    """Given freed steps, when their flow is paused before the leader gives them, then none starts until it is
    resumed."""
    handle, parts, _ = fan_out(stage)
    handle.pause()
    assert stage.give_freed() == []
    stage.settle_down()
    assert stage.ready() == []
    handle.resume()
    stage.settle_down()
    assert stage.ready() == parts
    everything_runs(stage, handle)


def one_fails_and_is_put_off(stage: Stage, group: str | None = None) -> None:
    """Given a freed step that runs, when it fails and is put off while the leader looks for the last time, then it
    starts when its policy says, and not before."""
    _, parts, _ = fan_out(stage)
    stage.give_freed()
    later = stage.store.clock.now() + timedelta(hours=1)
    look = flow_steps.FlowSteps._look

    def meanwhile(self: flow_steps.FlowSteps, *given: Any, ended: bool) -> Any:
        found = look(self, *given, ended=ended)
        patch.undo()
        ((id, raw),) = stage.store.scheduled.fetch(parts[:1])
        settle(stage.store, stage.worker, [(id, stage.outcome(decode(raw), Retry(later, group=group)))], {})
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flow_steps.FlowSteps, "_look", meanwhile)
        stage.freed.give_up()
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
    """Given freed steps that run, when somebody removes the job that they waited for, then they are not archived while
    they run."""
    _, parts, _ = fan_out(stage)
    stage.give_freed()
    stage.store.archived.collection.delete_many({})
    stage.freed.give_up()
    stage.look()
    assert stage.why(parts[0]) is None
    stage.settle(*parts)
    assert {stage.why(id) for id in parts} == {"done"}


# -- without the rule ----------------------------------------------------------------------------------------------


def all_are_written(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FreedSteps, "can_take", lambda *_: False)


def markers_are_not_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FreedSteps, "keep", lambda *_: False)


def held_ones_are_freed(patch: pytest.MonkeyPatch) -> None:
    whole: Any = FreedSteps.add
    patch.setattr(FreedSteps, "add", lambda self, *given: whole(self, *given[:-2], set(), given[-1]))


def known_ones_are_freed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FreedSteps, "known", lambda *_: frozenset())


def no_last_look(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FreedSteps, "last_looks", lambda *_: set())


def paused_ones_start(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HeldJob, "is_paused", False)


def times_are_written(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(flow_steps, "_releasing", lambda fields: {"$set": fields})


def lanes_of_others_are_written(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(step, "_UNCHANGED", ("priority",))


def looks_are_not_repeated(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(step._Look, "must_repeat", property(lambda _: False, lambda *_: None), raising=False)


def what_runs_is_archived(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(step._Look, "_runs", lambda *_: False)


def a_step_at_the_end_is_recovered(stage: Stage) -> None:
    """Given a flow that was cancelled, and a step that ran at its end and failed, when that is recovered, and so the
    flow ends once more, then it may start."""
    stage.freed = FreedSteps(1)
    flow = stage.recruiter.flow("f")
    flow.add("work", "first")
    flow.on_end("work", "end")
    flow.start().cancel()
    stage.settle_down()
    (at_the_end,) = stage.ready()
    stage.run(at_the_end, fails=[at_the_end])
    again = stage.recruiter.recover(at_the_end)
    stage.settle_down()
    assert stage.ready() == [again.id]


def one_at_the_end_is_freed(patch: pytest.MonkeyPatch) -> None:
    whole = step._Look._frees

    def frees(self: step._Look, some: Any, fields: Any) -> bool:
        return whole(self, replace(some, place=replace(some.place, on=None)), fields)

    patch.setattr(step._Look, "_frees", frees)


RULES: list[tuple[Story, Mutant]] = [
    (many_are_given_as_they_are, all_are_written),
    (the_leader_dies, markers_are_not_kept),
    (the_leader_dies, held_ones_are_freed),
    (another_look_comes, known_ones_are_freed),
    (its_worker_dies, no_last_look),
    (its_worker_dies, markers_are_not_kept),
    (it_is_paused, paused_ones_start),
    (one_fails_and_is_put_off, times_are_written),
    (one_fails_and_moves, lanes_of_others_are_written),
    (one_fails_and_moves, looks_are_not_repeated),
    (what_it_waited_for_is_removed, what_runs_is_archived),
    (a_step_at_the_end_is_recovered, one_at_the_end_is_freed),
]


@stories_of(RULES)
def test_a_story_ends_well(stage: Stage, story: Story) -> None:
    story(stage)


@without_its_rule(RULES)
def test_without_its_rule_it_ends_badly(stage: Stage, story: Story, mutant: Mutant) -> None:
    ends_badly(stage, story, mutant)


# -- what is freed, and what is written ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "told",
    [
        {"after_any": True},
        {"takes": True},
        {"delay": "1h"},
        {"expires": "1h"},
        {"few": True},
    ],
    ids=lambda told: next(iter(told)),
)
def test_steps_that_need_more_are_written(stage: Stage, told: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    flow = stage.recruiter.flow("f")
    first = flow.add("work", "first")
    job = stage.recruiter.job("work", [first.result if "takes" in told else "part"])
    if "delay" in told:
        job = job.schedule_in(told["delay"])
    if "expires" in told:
        job = job.expires_in(told["expires"])
    for _ in range(2 if "few" in told else PARTS):
        flow.add(job, **{"after_any" if "after_any" in told else "after": first})
    flow.start()
    monkeypatch.setattr(step, "SMALL_RESULTS", 10)  # the result is the id of the job
    stage.run(first.id)
    stage.look()

    assert len(stage.freed) == 0
    assert lanes(stage) == {"generic/work"}


def test_their_worker_fetches_the_results_that_they_take(stage: Stage) -> None:
    flow = stage.recruiter.flow("f")
    one, two = flow.add("work", "one"), flow.add("work", "two")
    parts = flow.add_many("pair", [(one.result, two.result)] * PARTS)
    handle = flow.start()
    stage.run(one.id, two.id)
    stage.look()
    assert len(stage.freed) == PARTS

    started = stage.give_freed(4)
    given = stage.settle(*started[1:], again=started[3:])

    assert list(given.values()) == [{"a": str(one.id), "b": str(two.id)}] * 3
    assert "results" not in stage.store.archived.collection.find_one({"_id": started[1]})["flow"]  # type: ignore[index]
    # those that are left are released with them: one runs, one failed, and two were not given
    stage.settle_down()
    left = [started[0], started[3], *(part.id for part in parts[4:])]
    assert [decode(raw)["flow"]["results"][0]["value"] for _, raw in stage.store.scheduled.fetch(left)] == (
        [str(one.id)] * 4
    )
    stage.settle(started[0])
    everything_runs(stage, handle)


def test_one_whose_result_is_gone_goes_back(stage: Stage) -> None:
    """Given freed steps, when somebody removes the job whose result they take, then they do not start without it."""
    flow = stage.recruiter.flow("f")
    one = flow.add("work", "one")
    parts = flow.add_many("work", [(one.result,)] * PARTS)
    flow.start()
    stage.run(one.id)
    stage.look()
    stage.store.archived.collection.delete_many({})

    assert stage.give_freed() == []

    stage.settle_down()
    assert {stage.why(part.id) for part in parts} == {"dependency-failed"}


def test_a_step_that_is_given_so_is_due_since_it_may_start(stage: Stage) -> None:
    """Given steps that have waited for an hour, when they are given, then it does not look as if they had been late."""
    _, parts, _ = fan_out(stage)
    before = {"scheduled_at": stage.store.clock.now() - timedelta(hours=1)}
    stage.store.scheduled.collection.update_many({}, {"$set": before})

    due = {decode(job.raw)["scheduled_at"] for job in fetch(stage.store, parts)}

    assert min(due) > stage.store.clock.now() - timedelta(minutes=1)


def test_those_that_are_fetched_in_many_parts_ask_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given freed steps of one flow, when they are fetched one after the other, then the flow is not read for each."""
    monkeypatch.setattr(fetcher, "_FREED_FOR", inf)  # however busy the machine is
    _, parts, _ = fan_out(stage)
    since = FreedSince(stage.store)
    first = fetch(stage.store, parts[:1], since)
    stage.store.flows.collection.update_many({}, {"$unset": {"freed_at": ""}})

    others = fetch(stage.store, parts[1:], since)

    assert {decode(job.raw)["scheduled_at"] for job in others} == {decode(job.raw)["scheduled_at"] for job in first}


def test_those_of_another_fan_out_of_the_flow_ask_again(stage: Stage) -> None:
    """Given freed steps of one fan-out that have been fetched, when those of a second one are freed and fetched at
    once, then they are due since that, and not since the first."""
    flow = stage.recruiter.flow("f")
    first = flow.add("work", "first")
    parts = flow.add_many("work", [("part",)] * PARTS, after=first)
    second = flow.add("work", "second", after=first)
    others = flow.add_many("work", [("other",)] * PARTS, after=second)
    flow.start()
    stage.run(first.id)
    stage.look()
    since = FreedSince(stage.store)
    fetch(stage.store, [part.id for part in parts], since)
    stage.run(second.id)
    stage.look()
    later = stage.store.clock.now() + timedelta(seconds=30)
    stage.store.flows.collection.update_many({}, {"$set": {"freed_at": later}})

    due = {decode(job.raw)["scheduled_at"] for job in fetch(stage.store, [other.id for other in others], since)}

    assert abs(due.pop() - later) < timedelta(milliseconds=1)
    assert not due


def test_one_that_is_left_is_due_since_then_too(stage: Stage) -> None:
    """Given freed steps, when they are released later because other jobs came, then they do not look as if they had
    been freed only then."""
    _, parts, _ = fan_out(stage)
    flow = stage.store.flows.collection.find_one()
    assert flow is not None
    before = flow["freed_at"] + timedelta(seconds=-30)
    stage.store.flows.collection.update_many({}, {"$set": {"freed_at": before}})
    stage.store.scheduled.collection.update_many({}, {"$set": {"scheduled_at": before - timedelta(hours=1)}})

    stage.settle_down()

    assert {job.scheduled_at for job in stage.store.scheduled.get_many(parts).values()} == {before}


def test_how_many_run(stage: Stage) -> None:
    """A step that runs is not counted as blocked as well."""
    handle, _, _ = fan_out(stage)
    stage.give_freed(2)

    assert handle.report().counts == {"blocked": PARTS - 1, "running": 2, "succeeded": 1}


def test_one_that_waits_for_a_slot_says_so(stage: Stage) -> None:
    """Given freed steps and a worker whose slots are busy, then the others do not say that the leader releases them."""
    _, parts, _ = fan_out(stage)
    stage.store.roster.collection.update_one({"_id": stage.worker}, {"$set": {"tasks": ["work"]}})

    stage.give_freed(4)

    ended = "every step of flow 'f' that it waits for has ended"
    busy = "no slot is free where it could run (the one worker that serves it)"
    assert {stage.recruiter.explain(part) for part in parts[4:]} == {f"{ended}; {busy}"}


def test_those_that_run_are_counted_as_running(stage: Stage) -> None:
    """Given freed steps that run, and other jobs that wait, then neither is taken for the other."""
    fan_out(stage)
    stage.give_freed(2)
    running = waiting(stage.store, stage.store.clock.now())["generic", "work"]
    others = [stage.recruiter.job("work", ["other"]).enqueue() for _ in range(3)]
    both = waiting(stage.store, stage.store.clock.now())["generic", "work"]

    assert (running.queued, running.running) == (0, 2)
    assert (both.queued, both.running) == (len(others), 2)


def test_a_flow_has_ended_when_its_last_step_has(stage: Stage) -> None:
    """Given steps whose last look is not due, when the flow ends, then no marker says that there is more to do."""
    handle, parts, last = fan_out(stage)
    stage.freed.saw(1000)
    stage.give_freed()
    stage.settle(*parts)
    stage.look()
    stage.run(last.id)
    stage.look()

    assert handle.report().state is FlowState.SUCCEEDED
    assert stage.freed.kept == set()


# -- rounds --------------------------------------------------------------------------------------------------------


ROOM = 4


def round_of(stage: Stage, rules: Rules | None = None) -> Round:
    return assign(stage.store, stage.lease.term, stage.store.clock.now(), rules, freed=stage.freed)


def workers(stage: Stage, **served: list[str] | None) -> None:
    """Only these workers, each with room for four, and the groups that it serves."""
    stage.store.roster.collection.delete_many({})
    for worker, groups in served.items():
        facts = {"tasks": ["work"], "groups": groups, "slots": ROOM, "prefetch": 0}
        on_the_roster(stage.store, worker, stage.lease.term, **facts)


def held(stage: Stage) -> list[JobId]:
    return [job for jobs in stage.store.roster.holders().values() for job in jobs]


def test_a_round_gives_them_when_there_is_nothing_else(stage: Stage) -> None:
    _, parts, _ = fan_out(stage)
    workers(stage, w1=None)

    first = round_of(stage)
    stage.settle(*held(stage))
    second = round_of(stage)

    assert (first.assigned, first.more, first.freed) == (ROOM, True, True)
    assert (second.assigned, second.more, second.freed) == (PARTS - ROOM, False, False)
    assert held(stage) == parts[ROOM:]


def test_other_jobs_come_first_and_then_all_are_written(stage: Stage) -> None:
    """Given freed steps, when other jobs fill the room there is, then the steps take their place among them."""
    _, parts, _ = fan_out(stage)
    workers(stage, w1=None)
    others = [stage.recruiter.job("work", ["other"]).enqueue().id for _ in range(ROOM)]

    round_of(stage)

    assert held(stage) == others
    assert len(stage.freed) == 0
    stage.look()
    assert set(stage.ready()) >= set(parts)


@pytest.mark.parametrize(
    "rules",
    [
        Rules(paused={"group:generic": Pause(NOW)}),
        Rules(paused={"fleet": Pause(NOW)}),
        Rules(limits=(Limit.of("task:work", 1),)),
        Rules(fair={"generic": FairShare(By.OWNER)}),
    ],
    ids=["a pause", "no starts", "a limit", "shares"],
)
def test_a_rule_that_holds_for_them_lets_them_be_written(stage: Stage, rules: Rules) -> None:
    _, parts, _ = fan_out(stage)
    workers(stage, w1=None)

    round_of(stage, rules)

    assert held(stage) == []
    stage.look()
    assert stage.ready() == parts


def test_only_who_serves_them_is_given_them(stage: Stage) -> None:
    _, parts, _ = fan_out(stage)
    workers(stage, w1=["other"], w2=["generic"])

    round_of(stage)

    assert {worker: jobs for worker, jobs in stage.store.roster.holders().items() if jobs} == {"w2": parts[:ROOM]}


def test_a_worker_that_is_gone_costs_nothing(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given freed steps, when the worker that they are given to does not take them, then they are released."""
    _, parts, _ = fan_out(stage)
    workers(stage, w1=None)
    monkeypatch.setattr(Roster, "assign", lambda *_: False)

    assert round_of(stage).refused

    stage.look()
    assert stage.ready() == parts


def test_more_urgent_ones_first() -> None:
    steps = FreedSteps(1)
    for number, priority in enumerate((0, 5, 1)):
        steps.add(FLOW, "g/t", priority, [number], set(), NOW)

    assert steps.take(2, lambda _: True, NOW) == [1, 2]


def test_whether_all_are_given() -> None:
    steps = FreedSteps(1)
    said = [steps.all_given]
    steps.add(FLOW, "g/t", 0, [1, 2], set(), NOW)
    for _ in range(2):
        said.append(steps.all_given)
        steps.take(1, lambda _: True, NOW)

    assert [*said, steps.all_given] == [False, False, False, True]


# -- how long they are remembered ----------------------------------------------------------------------------------


def is_over(*, parts: int, given: int, at: float, after: float, holds: int = 1000) -> bool:
    """Given so many steps that were freed together, of which so many were given so many seconds later: whether their
    last look is due so many seconds after they were freed."""
    steps = FreedSteps(1)
    steps.add(FLOW, "g/t", 0, range(parts), set(), NOW)
    steps.saw(holds)
    steps.take(given, lambda _: True, NOW + timedelta(seconds=at))
    return steps.last_looks(NOW + timedelta(seconds=after)) == {FLOW}


@pytest.mark.parametrize(
    ("situation", "over"),
    [
        ({"parts": 10_000, "given": 4_000, "at": 0.4, "after": 0.5}, False),
        ({"parts": 10_000, "given": 7_000, "at": 2.0, "after": 2.0}, False),
        ({"parts": 10_000, "given": 1_000, "at": 2.0, "after": 2.0}, True),
        ({"parts": 10_000, "given": 0, "at": 0.0, "after": 1.0}, True),
        ({"parts": 10_000, "given": 10_000, "at": 1.0, "after": 1.5}, False),
        ({"parts": 10_000, "given": 10_000, "at": 1.0, "after": 2.0}, True),
        ({"parts": 10_000, "given": 10_000, "at": 1.0, "after": 1.5, "holds": 50}, True),
        ({"parts": 10_000, "given": 9_999, "at": 1.0, "after": 1.5, "holds": 50}, False),
    ],
    ids=[
        "they have just begun",
        "they will be given soon",
        "it would take too long",
        "nobody takes them",
        "the last were just given",
        "the last should have ended",
        "few jobs are held",
        "few jobs are held, and one can be given",
    ],
)
def test_until_when_they_are_remembered(situation: dict[str, Any], over: bool) -> None:
    assert is_over(**situation) is over


def test_nothing_is_remembered_in_another_term() -> None:
    steps = FreedSteps(1)
    steps.in_term(1)
    steps.add(FLOW, "g/t", 0, [1, 2], set(), NOW)
    steps.keep(FLOW, [ObjectId()])

    steps.in_term(2)

    assert (len(steps), steps.kept, steps.known(FLOW)) == (0, set(), frozenset())
