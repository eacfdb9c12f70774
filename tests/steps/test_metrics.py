"""Metrics: what a scraper is told is what counting says, goes on growing, and has a bounded number of labels."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from bson import ObjectId
from prometheus_client import CollectorRegistry, generate_latest

from recruiter import Every, Recruiter, RetryLater, RetryManyTimes
from recruiter.domain.flow import FlowStep
from recruiter.domain.job import Execution, Job
from recruiter.domain.retry.decision import Retry
from recruiter.domain.statistics import Spread
from recruiter.metrics import RecruiterCollector
from recruiter.steps.assign import recount
from recruiter.steps.clean import COUNTS_KEPT, clean_counts
from recruiter.store import outcomes
from recruiter.store.codec import job_document
from recruiter.store.collections import due_jobs
from recruiter.store.database import Store
from recruiter.store.outcomes import OutcomeBatch
from tests.samples import a_job, give, hold, insert, on_the_roster


def scraped(recruiter: Recruiter, **options: int) -> CollectorRegistry:
    """A fresh collector, which keeps no earlier answer."""
    registry = CollectorRegistry()
    registry.register(RecruiterCollector(recruiter, **options))
    return registry


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, labels)


def ended(store: Store, job: Job, at: datetime, took: float = 1.0) -> None:
    began = at - timedelta(seconds=took)
    raw = outcomes.succeeded(job_document(replace(job, scheduled_at=began)), Execution(began, at, "w1"), at, None)
    store.transactions.archive_new(job.id, raw)


ADD = {"group": "generic", "task": "add"}


class TestCounters:
    def test_they_keep_growing_when_minutes_are_folded_and_forgotten(self, store: Store, recruiter: Recruiter) -> None:
        """Given jobs that ended, when their minutes are folded and later removed, then no counter has gone back: to
        Prometheus that would be a restart, and everything counted anew."""
        now = store.clock.now()
        for age in (timedelta(days=40), timedelta(minutes=10), timedelta()):
            for _ in range(3):
                ended(store, a_job(), now - age)
        told = [value(scraped(recruiter), "recruiter_jobs_ended_total", **ADD, outcome="succeeded")]

        while store.transactions.fold_statistics(now):
            told.append(value(scraped(recruiter), "recruiter_jobs_ended_total", **ADD, outcome="succeeded"))
        clean_counts(store, now, timedelta(days=5))
        told.append(value(scraped(recruiter), "recruiter_jobs_ended_total", **ADD, outcome="succeeded"))

        assert told == [9.0] * len(told)
        assert len(told) >= 3
        assert store.statistics.collection.count_documents({"_id.hour": {"$lt": now - COUNTS_KEPT}}) == 0

    def test_attempts_that_do_not_end_their_job_are_starts_and_retries(self, recruiter: Recruiter) -> None:
        tries: list[str] = []

        @recruiter.task(retry=RetryManyTimes(2, "0s"))
        def flaky() -> None:
            tries.append("flaky")
            raise OSError("no")

        @recruiter.task
        def patient() -> None:
            tries.append("patient")
            if tries.count("patient") == 1:
                raise RetryLater("0s")

        flaky.enqueue()
        patient.enqueue()
        recruiter.run_all(flaky)
        recruiter.run_all(patient)

        registry, of = scraped(recruiter), {"group": "generic"}
        assert tries.count("flaky") == 3
        assert value(registry, "recruiter_job_starts_total", **of, task="flaky") == 3
        assert value(registry, "recruiter_job_retries_total", **of, task="flaky") == 2
        assert value(registry, "recruiter_jobs_ended_total", **of, task="flaky", outcome="failed") == 1
        assert value(registry, "recruiter_job_snoozes_total", **of, task="patient") == 1
        assert value(registry, "recruiter_job_starts_total", **of, task="patient") == 2
        assert value(registry, "recruiter_job_retries_total", **of, task="patient") == 0

    def test_settling_the_same_retry_again_counts_it_once(self, store: Store, recruiter: Recruiter) -> None:
        """After an unknown outcome a worker settles again."""
        job, now = a_job(), store.clock.now()
        hold(store, job)
        again = outcomes.failed(job_document(job), Execution(now, now, "w1"), now, Retry(now))
        for _ in range(2):
            store.transactions.settle("w1", OutcomeBatch.of([(job.id, again)]), {})
        assert value(scraped(recruiter), "recruiter_job_retries_total", **ADD) == 1

    def test_the_rounds_of_leaders_add_up(self, store: Store, recruiter: Recruiter) -> None:
        for seconds in (0.002, 0.3):
            spread = Spread()
            spread.add(seconds)
            store.statistics.count_rounds(spread, 5)
        registry = scraped(recruiter)
        assert value(registry, "recruiter_assigned_jobs_total") == 10
        assert value(registry, "recruiter_assignment_round_seconds_count") == 2
        assert value(registry, "recruiter_assignment_round_seconds_sum") == pytest.approx(0.302)

    def test_rounds_that_somebody_has_overwritten_begin_anew(self, store: Store, recruiter: Recruiter) -> None:
        store.statistics.collection.insert_one({"_id": {"rounds": "leader"}, "rounds": "many", "assigned": "all"})
        assert value(scraped(recruiter), "recruiter_assigned_jobs_total") == 0
        for _ in range(2):
            spread = Spread()
            spread.add(0.1)
            store.statistics.count_rounds(spread, 1)
        assert value(scraped(recruiter), "recruiter_assigned_jobs_total") == 1


class TestTheOldestDueJob:
    @pytest.mark.parametrize("short", [0, 10**9], ids=["lane by lane", "in one walk"])
    def test_it_is_found_whatever_its_priority_and_lane_and_not_among_those_that_run(
        self, store: Store, recruiter: Recruiter, monkeypatch: pytest.MonkeyPatch, short: int
    ) -> None:
        monkeypatch.setattr(due_jobs, "_JOBS_PER_SEEK", short)
        now = datetime.now(UTC)
        minutes = {9: 30, 0: 60, -3: 90, 5: 10}
        for priority, age in minutes.items():
            insert(store, a_job(priority=priority, scheduled_at=now - timedelta(minutes=age), created_at=now))
        insert(
            store, a_job(group="mail", limited_by="customer:7", scheduled_at=now - timedelta(minutes=5), created_at=now)
        )
        insert(store, a_job(group="later", scheduled_at=now + timedelta(minutes=5), created_at=now))
        give(store, *insert(store, a_job(scheduled_at=now - timedelta(minutes=500), created_at=now)))

        registry = scraped(recruiter)

        ages = {
            group: value(registry, "recruiter_oldest_due_job_age_seconds", group=group)
            for group in ("generic", "mail", "later")
        }
        assert ages == {"generic": pytest.approx(5400, abs=60), "mail": pytest.approx(300, abs=60), "later": 0.0}

    @pytest.mark.parametrize("short", [0, 10**9], ids=["lane by lane", "in one walk"])
    def test_a_step_of_an_old_flow_is_as_old_as_its_release(
        self, store: Store, recruiter: Recruiter, monkeypatch: pytest.MonkeyPatch, short: int
    ) -> None:
        monkeypatch.setattr(due_jobs, "_JOBS_PER_SEEK", short)
        now = datetime.now(UTC)
        step = a_job(flow=FlowStep(ObjectId(), "step"), scheduled_at=now - timedelta(hours=1), created_at=now)
        insert(store, step)
        store.scheduled.collection.update_one({"_id": step.id}, {"$set": {"flow.due": now - timedelta(minutes=1)}})

        age = value(scraped(recruiter), "recruiter_oldest_due_job_age_seconds", group="generic")

        assert age == pytest.approx(60, abs=30)


class TestHowThingsAre:
    def test_jobs_workers_limits_pauses_and_schedules(self, store: Store, recruiter: Recruiter) -> None:
        now = datetime.now(UTC)
        hold(store, a_job(created_at=now, scheduled_at=now))
        on_the_roster(store, "w2", seen_at=now - timedelta(hours=1))
        insert(store, a_job(created_at=now, scheduled_at=now), a_job(created_at=now, scheduled_at=now))
        insert(store, a_job(created_at=now, scheduled_at=now + timedelta(hours=1)))
        recruiter.controls.set_limit("task:add", 7, count=50, per="1m")
        recount(store, 1, store.limits.read(), now)  # as the leader does within a second
        recruiter.controls.pause_group("generic", reason="a test")
        registry = scraped(recruiter)
        states = {s: value(registry, "recruiter_jobs", **ADD, state=s) for s in ("queued", "postponed", "running")}
        assert states == {"queued": 2, "postponed": 1, "running": 1}
        assert value(registry, "recruiter_workers", state="works") == 1
        assert value(registry, "recruiter_workers", state="silent") == 1
        assert value(registry, "recruiter_workers", state="drained") == 0
        assert (value(registry, "recruiter_slots"), value(registry, "recruiter_slots_used")) == (4, 1)
        assert value(registry, "recruiter_limit_used", limit="task:add") == 1
        assert value(registry, "recruiter_limit_allowed", limit="task:add") == 7
        assert value(registry, "recruiter_limit_starts_allowed", limit="task:add") == 50
        assert value(registry, "recruiter_group_paused", group="generic") == 1
        assert value(registry, "recruiter_leader_present") == 0

    def test_schedules_by_state_and_how_late_the_latest_is(self, store: Store, recruiter: Recruiter) -> None:
        @recruiter.task
        def report() -> None: ...

        for urn in ("on:time", "late", "paused", "broken", "overdue"):
            from_ = report.job().repeat_with_policy(Every("1 hour")).with_urn(urn)
            (from_.must_succeed_within("1 minute") if urn == "overdue" else from_).create()
        recruiter.scheduler("paused").pause()
        late = store.clock.now() - timedelta(minutes=10)
        change = store.schedulers.collection.update_one
        assert change({"_id": "late"}, {"$set": {"next_at": late}}).matched_count
        assert change({"_id": "broken"}, {"$set": {"broken": "no such policy"}}).matched_count
        assert change({"_id": "overdue"}, {"$set": {"created_at": late}}).matched_count
        registry = scraped(recruiter)
        for state in ("on_time", "late", "paused", "broken", "overdue"):
            assert value(registry, "recruiter_schedules", state=state) == 1, state
        assert value(registry, "recruiter_schedule_lateness_seconds") == pytest.approx(600, abs=60)


class TestBounds:
    def test_kinds_beyond_the_bound_share_a_label_and_the_first_keep_theirs(
        self, store: Store, recruiter: Recruiter
    ) -> None:
        now = store.clock.now()
        for number in range(12):
            ended(store, a_job(task=f"task{number:02}", group=f"group{number:02}"), now - timedelta(hours=12 - number))
        while store.transactions.fold_statistics(now):
            pass
        registry, other = scraped(recruiter, kinds=5), {"group": "_other", "task": "_other"}
        assert value(registry, "recruiter_job_starts_total", **other) == 7
        ended(store, a_job(task="aaa", group="aaa"), now)  # one more, whose name comes first
        again = scraped(recruiter, kinds=5)
        for number in range(5):
            own = {"group": f"group{number:02}", "task": f"task{number:02}"}
            assert value(registry, "recruiter_job_starts_total", **own) == 1
            assert value(again, "recruiter_job_starts_total", **own) == 1
        assert value(again, "recruiter_job_starts_total", **other) == 8

    def test_many_scrapes_at_once_are_one_look_at_mongodb(self, recruiter: Recruiter) -> None:
        registry = scraped(recruiter)
        with ThreadPoolExecutor(8) as scrapers:
            told = list(scrapers.map(lambda _: generate_latest(registry), range(16)))
        assert len(set(told)) == 1  # how long the look took is in it, to the microsecond

    def test_without_mongodb_it_says_so_and_nothing_else(self) -> None:
        with Recruiter("mongodb://127.0.0.1:9/nowhere", server_timeout="200ms") as recruiter:
            registry = scraped(recruiter)
            assert value(registry, "recruiter_up") == 0
            assert value(registry, "recruiter_leader_present") is None
