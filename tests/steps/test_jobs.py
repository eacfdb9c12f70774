"""`recruiter.jobs`: many jobs by a filter, listed, counted, cancelled, recovered and removed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from recruiter import JobFilter, Recruiter
from recruiter.clock import StoppedClock
from recruiter.domain.job import Execution, JobId
from recruiter.domain.retry.decision import Archive
from recruiter.errors import InvalidFilter
from recruiter.steps.assign import assign
from recruiter.store import outcomes
from recruiter.store.codec import job_document
from recruiter.store.database import Store
from recruiter.store.search.search import JobSearch
from tests.samples import NOW, a_job, done, insert, on_the_roster

HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few jobs are several batches."""
    monkeypatch.setattr("recruiter.jobs._PAGE_JOBS", 7)


@pytest.fixture
def recruiter(target: str, store: Store) -> Iterator[Recruiter]:
    with Recruiter(target) as recruiter:
        recruiter.store.clock = StoppedClock(NOW)
        yield recruiter


def ended(store: Store, number: int = 1, why: str | None = None, **options: Any) -> list[JobId]:
    """Jobs that have succeeded, or ended for this reason."""
    jobs = [a_job(**options) for _ in range(number)]
    for job in jobs:
        if why is None:
            store.transactions.archive_new(job.id, done(job))
        else:
            failure = Execution(NOW, NOW, "w1", exception="ValueError", message="no", trace="…")
            outcome = outcomes.failed(job_document(job), failure, NOW, Archive(why))
            assert isinstance(outcome, outcomes.ToArchive)
            store.transactions.archive_new(job.id, outcome)
    return [job.id for job in jobs]


class TestListing:
    def test_jobs_are_iterated_in_an_event_loop(
        self, recruiter: Recruiter, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("recruiter.store.search.search.LOOKS_AT", 1)
        ended(store, 20)

        async def all_of_them() -> int:
            return len({job.id async for job in recruiter.jobs.aiterate(state="succeeded", args={"a": 1})})

        assert asyncio.run(all_of_them()) == 20

    def test_words_or_a_filter(self, recruiter: Recruiter, store: Store) -> None:
        mails = insert(store, *(a_job(group="mail") for _ in range(3)))
        insert(store, a_job())

        assert {job.id for job in recruiter.jobs.list(group="mail")} == set(mails)
        assert recruiter.jobs.list(JobFilter(group="mail")) == recruiter.jobs.list(group="mail")
        with pytest.raises(InvalidFilter, match="not both"):
            recruiter.jobs.list(JobFilter(), group="mail")
        with pytest.raises(InvalidFilter, match="give a JobFilter"):
            recruiter.jobs.list({"group": "mail"})  # type: ignore[arg-type]

    def test_iterate_gives_every_job_once(self, recruiter: Recruiter, store: Store) -> None:
        insert(store, *(a_job() for _ in range(20)))
        ended(store, 20)

        assert len({job.id for job in recruiter.jobs.iterate()}) == 40
        assert recruiter.jobs.count() == (40, True)
        assert int(recruiter.jobs.count(state="succeeded")) == 20


class TestCancelling:
    def test_running_jobs_that_are_cancelled_are_left_to_their_worker(self, recruiter: Recruiter, store: Store) -> None:
        held, waiting = insert(store, a_job(), a_job())
        on_the_roster(store, "w1")
        store.roster.assign({"w1": [held]}, 1)

        assert recruiter.jobs.cancel(task="add") == 2

        assert store.scheduled.flags(10).keys() == {held, waiting}
        assert {job.id for job in recruiter.jobs.list(minimal=True) if job.cancelling} == {held, waiting}

    def test_one_that_is_given_away_meanwhile_is_cancelled_all_the_same(
        self, recruiter: Recruiter, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Given a waiting job that was found, when the leader assigns it first, then its holder sees the flag."""
        (id,) = insert(store, a_job())
        on_the_roster(store, "w1")
        found = JobSearch.ids

        def and_then(*args: Any, **options: Any) -> Any:
            page = found(*args, **options)
            assign(store, 1, NOW)
            return page

        monkeypatch.setattr(JobSearch, "ids", and_then)

        assert recruiter.jobs.cancel(state="waiting") == 1
        assert store.roster.held() == {id}
        assert store.scheduled.flags(10).keys() == {id}

    def test_it_does_not_run_after_a_producer_for_ever(
        self, recruiter: Recruiter, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Given a producer that is as quick, then what it makes much later is not cancelled, and the call returns. A
        job whose date lies in the future, by somebody's mistake, is."""
        insert(store, *(a_job() for _ in range(19)), a_job(created_at=NOW + 1000 * HOUR))
        flag_some, clock = store.scheduled.flag_some, recruiter.clock
        made: list[JobId] = []

        def and_more(*args: Any) -> int:
            clock.move(timedelta(minutes=2))  # type: ignore[attr-defined]
            made.extend(insert(store, *(a_job(created_at=clock.now(), scheduled_at=NOW) for _ in range(7))))
            return flag_some(*args)

        monkeypatch.setattr(recruiter.store.scheduled, "flag_some", and_more)

        assert recruiter.jobs.cancel(task="add") == 20
        assert not store.scheduled.flags(100).keys() & set(made)


class TestRecovering:
    def test_four_recoveries_at_the_same_time_recover_each_job_once(self, recruiter: Recruiter, store: Store) -> None:
        ended(store, 40, "tried-too-many-times")

        with ThreadPoolExecutor(4) as pool:
            numbers = list(pool.map(lambda _: recruiter.jobs.recover(state="failed"), range(4)))

        assert sum(numbers) == 40
        assert len({job.recovered_from for job in recruiter.jobs.iterate(state="waiting")}) == 40


class TestWhatIsRefused:
    @pytest.mark.parametrize("verb", ["cancel", "recover", "remove"])
    def test_everything_must_be_said_aloud(self, recruiter: Recruiter, store: Store, verb: str) -> None:
        insert(store, a_job())
        ended(store, 1, "lost")

        for nothing in ({}, {"filter": JobFilter()}):
            with pytest.raises(InvalidFilter, match="give everything=True if you mean all jobs"):
                getattr(recruiter.jobs, verb)(**nothing)
        with pytest.raises(InvalidFilter, match="everything=True goes with no filter"):
            getattr(recruiter.jobs, verb)(task="add", everything=True)
        assert getattr(recruiter.jobs, verb)(everything=True) == 1
