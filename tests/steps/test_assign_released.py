"""Steps of flows that were just released are given to workers without another round: only if nobody holds them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from math import inf
from typing import Any

import pytest

from recruiter import FlowState, Recruiter
from recruiter.domain.job import JobId
from recruiter.domain.names import CANCELLED_LANE
from recruiter.domain.planning.arrivals import Ready
from recruiter.domain.planning.freed import FreedSteps
from recruiter.domain.planning.limits import Limit
from recruiter.domain.planning.needs import Needs
from recruiter.domain.retry.decision import Retry
from recruiter.processes.recruiter import _is_unusual
from recruiter.steps.assign import Round, assign, assign_released
from recruiter.steps.release import FEW, STEPS_AT_ONCE, releasing
from recruiter.steps.settle import settle
from recruiter.store.change_stream import Change
from recruiter.store.codec import decode
from recruiter.store.collections import flows, scheduled, schedulers
from recruiter.store.collections.limits import Rules
from recruiter.views.find import anything_to_do
from tests.flows import Stage
from tests.property.test_arrivals_protocol import a_recruiter
from tests.samples import a_job, insert, on_the_roster

PAST = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.fixture
def stage(recruiter: Recruiter) -> Stage:
    @recruiter.task
    def work(name: str) -> str:
        return name

    stage = Stage(recruiter, many=3)
    on_the_roster(stage.store, "free", stage.lease.term, tasks=["work"], slots=20)
    return stage


def round_of(stage: Stage) -> Round:
    return assign(stage.store, stage.lease.term, stage.store.clock.now())


def given(stage: Stage, steps: list[Ready], round: Round, rules: Rules | None = None) -> bool:
    moment = stage.store.clock.now()
    return assign_released(stage.store, stage.lease.term, moment, steps, round, rules or Rules(), quiet_after=60.0)


def held(stage: Stage, worker: str = "free") -> list[JobId]:
    holding = stage.store.roster.holding(worker)
    assert holding is not None
    return list(holding.assigned)


def chain(stage: Stage, count: int = 1) -> list[JobId]:
    """Given a step that has ended, and so many that have waited for it."""
    flow = stage.recruiter.flow("f")
    first = flow.add("work", "first")
    others = flow.add_many("work", [("other",)] * count, after=first)
    flow.start()
    stage.run(first.id)
    return [other.id for other in others]


def test_a_step_that_may_start_is_given_at_once(stage: Stage) -> None:
    others = chain(stage, 2)
    round = round_of(stage)

    ready = stage.look().ready

    assert [step.id for step in ready] == others
    assert given(stage, ready, round)
    assert held(stage) == others


def test_not_when_room_is_kept_for_another_job(stage: Stage) -> None:
    """Given a job that waits for memory which another one takes, then no step gets the slot that it waits for."""
    others = chain(stage)
    stage.store.roster.collection.delete_many({})
    on_the_roster(stage.store, "free", stage.lease.term, tasks=["work"], slots=2, prefetch=0, resources="mem=100")
    for needed in (80, 90):
        insert(stage.store, a_job(task="work", needs=Needs.of(mem=needed), created_at=PAST, scheduled_at=PAST))
        round = round_of(stage)

    ready = stage.look().ready

    assert [step.id for step in ready] == others
    assert not given(stage, ready, round)
    assert not set(others).intersection(held(stage))


def test_one_that_a_worker_holds_is_not_given_to_another(stage: Stage) -> None:
    """Given a freed step that a worker runs while its document still says that it is blocked, when another leader
    releases it, then nobody else is given it."""
    others = chain(stage, 12)
    stage.look()
    (runs,) = stage.give_freed(1)
    stage.take_the_lead()
    stage.freed = FreedSteps(inf)
    round = round_of(stage)

    ready = stage.look().ready

    assert runs in {step.id for step in ready}
    assert not given(stage, ready, round)
    assert held(stage) == [other for other in others if other != runs]
    assert held(stage, "w1") == [runs]


def test_one_that_is_not_due_yet_waits(stage: Stage) -> None:
    flow = stage.recruiter.flow("f")
    first = flow.add("work", "first")
    flow.add(stage.recruiter.job("work", ["later"]).schedule_in("1 hour"), after=first)
    flow.start()
    stage.run(first.id)
    round = round_of(stage)

    ready = stage.look().ready

    assert len(ready) == 1
    assert not given(stage, ready, round)
    assert held(stage) == []


def test_one_under_a_limit_waits_for_a_round(stage: Stage) -> None:
    chain(stage)
    round = round_of(stage)

    ready = stage.look().ready

    assert not given(stage, ready, round, Rules((Limit("task:work", at_once=1),)))
    assert held(stage) == []


def test_very_many_are_left_to_rounds(recruiter: Recruiter, stage: Stage) -> None:
    stage = Stage(recruiter)
    chain(stage, FEW + 1)

    report = stage.look()

    assert (report.released, report.ready) == (FEW + 1, [])


def test_run_all_waits_for_a_step_that_is_about_to_be_released(stage: Stage) -> None:
    """Given a step whose dependency has ended, and a leader that has not looked yet, then there is something to do for
    those who run its task, and only for them. After the look it is a job like others, which is not due here."""
    chain(stage)
    marked = [anything_to_do(stage.store, "w1", {task}, PAST) for task in ("work", "other")]
    stage.look()

    assert (marked, anything_to_do(stage.store, "w1", {"work"}, PAST)) == ([True, False], False)


def test_one_that_is_put_off_while_the_look_goes_on_is_not_given(stage: Stage) -> None:
    """Given freed steps that run, and a leader that releases them part by part, when one of the last part fails
    meanwhile and is to be tried again later, then nobody is given it now."""
    others = chain(stage, STEPS_AT_ONCE + FEW // 2)
    stage.look()
    assert [*stage.give_freed(300), *stage.give_freed(300)] == others
    stage.freed.give_up()
    of_leader = stage.store.clock.now, stage.lease.term, stage.lease.holder or ""
    parts = releasing(stage.store, *of_leader, stage.freed, stage.waits)
    next(part for part in parts if part.released)
    late = stage.store.clock.now() + timedelta(hours=1)
    document = decode(dict(stage.store.scheduled.fetch(others[-1:]))[others[-1]])
    settle(stage.store, stage.worker, [(others[-1], stage.outcome(document, Retry(late)))], {})
    round = round_of(stage)

    last = next(part for part in parts if part.released)

    assert (last.released, round.exhausted) == (FEW // 2, True)
    given(stage, last.ready, round)
    assert held(stage) == []


def test_they_are_given_before_the_leader_archives_anything(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody holds may be archived: cancelled, expired. Only what was given before is safe from it."""
    (other,) = chain(stage)
    stage.store.leases.collection.delete_many({})
    process = a_recruiter(stage.store)
    archives, seen = process._maintenance.after_round, list[list[JobId]]()

    def archiving(*of_round: Any) -> None:
        seen.append(held(stage))
        archives(*of_round)

    monkeypatch.setattr(process._maintenance, "after_round", archiving)
    process._step()
    process._close()

    assert seen[0] == [other]


def test_run_all_waits_for_the_end_of_a_flow(stage: Stage) -> None:
    """Given a flow whose last step has ended, and a leader that has not looked yet, then there is something to do."""
    (last,) = chain(stage)
    stage.settle_down()
    stage.run(last)

    before = anything_to_do(stage.store, "w1", {"other"}, PAST)
    stage.settle_down()

    assert (before, anything_to_do(stage.store, "w1", {"other"}, PAST)) == (True, False)


class TestRunAll:
    """Steps that may start as soon as the leader has looked are not missed."""

    @pytest.fixture
    def ran(self) -> list[str]:
        return []

    @pytest.fixture
    def say(self, recruiter: Recruiter, ran: list[str]) -> Any:
        @recruiter.task
        def say(name: str) -> str:
            ran.append(name)
            if name == "fails":
                raise ValueError(name)
            return name

        return say

    def test_one_after_another(self, recruiter: Recruiter, say: Any, ran: list[str]) -> None:
        flow = recruiter.flow("f")
        first = flow.add(say, "first")
        flow.add(say, "last", after=first)
        handle = flow.start()

        recruiter.run_all(say)

        assert ran == ["first", "last"]
        assert handle.report().state is FlowState.SUCCEEDED

    @pytest.mark.parametrize("name", ["first", "fails"])
    def test_the_one_that_waits_for_the_end(self, recruiter: Recruiter, say: Any, ran: list[str], name: str) -> None:
        flow = recruiter.flow("f")
        flow.add(say, name)
        flow.on_end(say, "end")
        flow.start()

        recruiter.run_all(say)

        assert ran == [name, "end"]


@pytest.mark.parametrize(
    ("collection", "lane", "unusual"),
    [
        (scheduled.NAME, "generic/work", False),
        (flows.MARKERS, None, False),
        (scheduled.NAME, CANCELLED_LANE, True),
        (scheduled.NAME, None, True),
        (schedulers.NAME, None, True),
    ],
    ids=["released", "marked", "cancelled", "of another program", "a scheduler"],
)
def test_what_an_idle_leader_looks_around_for(collection: str, lane: str | None, unusual: bool) -> None:
    """A round that finds no room does not look for what was cancelled, and one that finds some not for schedulers."""
    assert _is_unusual(Change(collection, lane)) is unusual
