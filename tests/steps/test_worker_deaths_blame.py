"""Whose fault it is when a whole worker dies, and where its jobs go."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from recruiter import Recruiter, Workable
from recruiter.domain.job import Job
from recruiter.steps.assign import assign
from recruiter.steps.settle import settle
from recruiter.store.database import Store
from tests.samples import NOW, a_job, beat, document, insert, on_the_roster, running, to_retry
from tests.steps.test_rescue import DEAD_AFTER, Watch

EARLIER = NOW - timedelta(hours=1)


@pytest.fixture
def watch(store: Store) -> Watch:
    return Watch(store)


def dies(store: Store, watch: Watch, ran: Sequence[Job], waited: Sequence[Job] = (), **facts: Any) -> None:
    """A worker that ran some jobs, and held others, falls silent."""
    on_the_roster(store, "w1", **facts)
    store.roster.assign({"w1": [job.id for job in [*ran, *waited]]}, 1)
    beat(store, "w1", running(*(job.id for job in ran)))
    (retired,) = watch.for_seconds(DEAD_AFTER + 3)
    assert retired.worker == "w1"


def test_a_job_whose_worker_died_keeps_its_place(store: Store, watch: Watch) -> None:
    """Given a job that came before a backlog, when its worker dies, then it is the next one."""
    first, *backlog = jobs = [a_job(scheduled_at=EARLIER + timedelta(seconds=n)) for n in range(4)]
    insert(store, *jobs)

    dies(store, watch, [first], slots=1)

    assert document(store, first.id)["scheduled_at"] == EARLIER
    on_the_roster(store, "w2", slots=1, prefetch=0)
    assign(store, 1, watch.clock.now())
    assert store.roster.held() == {first.id}
    assert document(store, backlog[0].id)["scheduled_at"] > EARLIER


def test_a_job_that_was_given_again_since_the_last_heartbeat_did_not_crash(store: Store, watch: Watch) -> None:
    """Given a job that was settled to be tried again and came back to its worker, when that dies, then no crash counts:
    nobody has seen it run again."""
    job, beside = a_job(), a_job()
    insert(store, job, beside)
    on_the_roster(store, "w1")
    store.roster.assign({"w1": [job.id, beside.id]}, 1)
    beat(store, "w1", running(job.id))
    settle(store, "w1", [(job.id, to_retry(job))], {})
    store.roster.assign({"w1": [job.id]}, 1)

    (retired,) = watch.for_seconds(DEAD_AFTER + 3)

    assert retired.ran == ()
    assert (document(store, job.id)["attempts"], document(store, job.id).get("crashes")) == (1, None)


class TestSayingHowOften:
    def test_a_task_a_job_and_a_workable_say_it(self, recruiter: Recruiter, store: Store) -> None:
        @recruiter.task(max_crashes=7)
        def fragile() -> None: ...

        class Stubborn(Workable, max_crashes=9):
            def execute(self) -> None: ...

        by_task, by_job = fragile.enqueue(), fragile.job().max_crashes(1).in_background().execute()
        by_class = Stubborn().as_job_of(recruiter).in_background().execute()

        assert [document(store, job.id)["max_crashes"] for job in (by_task, by_job, by_class)] == [7, 1, 9]
