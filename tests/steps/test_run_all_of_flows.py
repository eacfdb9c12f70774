"""`run_all` waits for steps of flows that the leader is about to release; and what wakes an idle leader."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from recruiter import Recruiter
from recruiter.domain.job import JobId
from recruiter.domain.names import CANCELLED_LANE
from recruiter.processes.recruiter import _is_unusual
from recruiter.store.change_stream import Change
from recruiter.store.collections import flows, scheduled, schedulers
from recruiter.store.database import Store
from recruiter.views.find import anything_to_do
from tests.flows import Stage
from tests.samples import a_job, hold, on_the_roster

PAST = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.fixture
def stage(recruiter: Recruiter) -> Stage:
    @recruiter.task
    def work(name: str) -> str:
        return name

    stage = Stage(recruiter)
    on_the_roster(stage.store, "free", stage.lease.term, tasks=["work"], slots=20)
    return stage


def chain(stage: Stage, count: int = 1) -> list[JobId]:
    """Given a step that has ended, and so many that have waited for it."""
    flow = stage.recruiter.flow("f")
    first = flow.add("work", "first")
    others = flow.add_many("work", [("other",)] * count, after=first)
    flow.start()
    stage.run(first.id)
    return [other.id for other in others]


def test_run_all_waits_until_the_leader_has_looked_at_a_flow_that_had_ended(stage: Stage) -> None:
    """Given a flow that has ended, and a marker that came later, then the flow is reported as running, and there is
    something to do until the leader has looked."""
    (last,) = chain(stage)
    stage.settle_down()
    stage.run(last)
    stage.settle_down()
    (flow,) = stage.recruiter.flows.latest()
    stage.recruiter.flows.find(flow.id).resume()

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
def test_an_idle_leader_skips_checks_that_can_find_nothing(
    store: Store, collection: str, lane: str | None, unusual: bool
) -> None:
    """A round that finds no room does not look for what was cancelled, and one that finds some not for schedulers."""
    assert _is_unusual(store, Change(store.name_of(collection), lane)) is unusual


def test_a_job_that_goes_back_while_the_worker_asks_is_still_to_do(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a job that this worker holds, when it hands it back between two questions, then there is work to do."""
    (id,) = hold(store, a_job(scheduled_at=PAST, created_at=PAST))
    find_due = store.due_jobs.due

    def hand_back_and_find(*arguments: Any) -> Any:
        store.transactions.hand_back("w1", [id])
        return find_due(*arguments)

    monkeypatch.setattr(store.due_jobs, "due", hand_back_and_find)

    assert anything_to_do(store, "w1", {a_job().task}, store.clock.now())
