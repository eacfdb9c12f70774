"""Analytics: what the counters say is what counting every job says, whoever settles or folds at the same time."""

from __future__ import annotations

import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import pairwise

import pytest

from recruiter import Recruiter
from recruiter.domain.job import Execution, Job
from recruiter.domain.policy_registry import PolicyRegistry
from recruiter.domain.retry.decision import Archive
from recruiter.domain.state import State
from recruiter.domain.statistics import HOUR, MINUTE, Analytics, Depth, hour_of
from recruiter.errors import DocumentLocked
from recruiter.events import Events
from recruiter.processes.cleaner import CleanerProcess
from recruiter.processes.loop import Stop
from recruiter.settings import Settings
from recruiter.steps.cancel import cancel
from recruiter.steps.clean import COUNTS_KEPT, clean_counts, sample_waiting
from recruiter.store import outcomes
from recruiter.store.codec import Document, job_document
from recruiter.store.collections import statistics
from recruiter.store.connection import Target
from recruiter.store.database import Store
from recruiter.store.outcomes import OutcomeBatch
from recruiter.views.analytics import analyse
from tests.conftest import eventually
from tests.samples import a_job, hold, insert, on_the_roster


def ended(job: Job, at: datetime, *, took: float = 1.0, why: str = "done") -> outcomes.ToArchive:
    """The job in the archive; an attempt began when it was due."""
    execution = Execution(at - timedelta(seconds=took), at, "w1")
    if why == "done":
        return outcomes.succeeded(job_document(job), execution, at, None)
    failed = outcomes.failed(job_document(job), execution, at, Archive(why))
    assert isinstance(failed, outcomes.ToArchive)
    return failed


def keep(store: Store, job: Job, outcome: outcomes.ToArchive) -> None:
    store.transactions.archive_new(job.id, outcome)


def by_brute_force(store: Store, since: datetime, until: datetime, **which: str) -> Document:
    """What counting every archived job says."""
    found = list(store.archived.collection.find({"archived_at": {"$gte": since, "$lt": until}, **which}))
    states = Counter(State.at_the_end(job["done"], job["why"]).value for job in found)
    ran = [job["last_execution"] | {"due": job["scheduled_at"]} for job in found if "last_execution" in job]
    latencies = [(each["started_at"] - each["due"]).total_seconds() for each in ran]
    times = [(each["ended_at"] - each["started_at"]).total_seconds() for each in ran]
    return {
        "ended": dict(states),
        "throughput": len(found) / ((until - since).total_seconds() / 60),
        "latency": (sum(latencies) / len(latencies), max(latencies)) if ran else (0.0, 0.0),
        "execution_time": (sum(times) / len(times), max(times)) if ran else (0.0, 0.0),
    }


def told(analytics: Analytics) -> Document:
    latency, took = analytics.latency, analytics.execution_time
    return {
        "ended": dict(analytics.ended),
        "throughput": pytest.approx(analytics.throughput.value),
        "latency": pytest.approx((latency.average, latency.longest or 0.0), rel=1e-3),
        "execution_time": pytest.approx((took.average, took.longest or 0.0), rel=1e-3),
    }


class TestCounts:
    def test_analytics_equal_a_count_of_every_job(self, store: Store, target: str) -> None:
        """Given 400 jobs that end in many ways, minutes, groups and tasks, settled by three workers at once while the
        counts are being folded, when any group or task is asked for, then the answer is that of counting each job."""
        chance = random.Random(7)
        now = store.clock.now()
        jobs = [
            a_job(
                task=chance.choice(["add", "sub"]),
                group=chance.choice(["mail", "generic"]),
                scheduled_at=now - timedelta(seconds=chance.uniform(300, 900)),
            )
            for _ in range(400)
        ]
        for number in range(3):
            hold(store, *jobs[number::3], worker=f"w{number}")

        def settle(number: int) -> None:
            mine = jobs[number::3]
            with_store = Store(Target.parse(target))
            try:
                for start in range(0, len(mine), 10):
                    some = mine[start : start + 10]
                    archive = {
                        job.id: ended(
                            job,
                            now - timedelta(seconds=chance.uniform(0, 290)),
                            took=chance.uniform(0, 5),
                            why=chance.choice(["done", "done", "done", "failed", "cancelled"]),
                        )
                        for job in some
                    }
                    with_store.transactions.settle(f"w{number}", OutcomeBatch(archive), {})
                    with suppress(DocumentLocked):  # another one folds now
                        with_store.transactions.fold_statistics(now + timedelta(hours=1))
            finally:
                with_store.close()

        with ThreadPoolExecutor(3) as threads:
            list(threads.map(settle, range(3)))

        asked: list[dict[str, str]] = [{}, {"group": "mail"}, {"task": "add"}, {"group": "generic", "task": "sub"}]
        for which in asked:
            for minutes in (0, 2, 10):
                analytics = analyse(store, now, minutes * MINUTE, **which)
                assert by_brute_force(store, analytics.since, analytics.until, **which) == told(analytics)
        whole = analyse(store, now, timedelta(minutes=10))
        assert sum(whole.ended.values()) == 400
        assert {name: sum(flow.ended.values()) for name, flow in whole.groups.items()} == Counter(
            job.group for job in jobs
        )

    def test_analytics_of_many_hours_are_the_same_folded_or_not(self, store: Store) -> None:
        """Given jobs that ended over half a day, counted, and folded but for the last hours, when the time since is
        asked for, then the answer is that of counting each job, hour by hour too."""
        chance = random.Random(8)
        now = hour_of(store.clock.now()) - timedelta(minutes=25)
        for _ in range(120):
            at = now - timedelta(seconds=chance.uniform(0, 12 * 3600))
            job = a_job(task=chance.choice(["add", "sub"]), scheduled_at=at - MINUTE)
            keep(store, job, ended(job, at, took=chance.uniform(0, 5)))
        while store.transactions.fold_statistics(now - 3 * HOUR):
            pass
        assert {("hour" in d["_id"], "writer" in d["_id"]) for d in store.statistics.collection.find()} == {
            *((True, False), (False, False), (False, True))
        }

        which: dict[str, str]
        for which in ({}, {"task": "add"}, {"group": "generic"}):
            for hours in (2, 4, 9.3, 13):
                analytics = analyse(store, now, hours * HOUR, **which)
                assert by_brute_force(store, analytics.since, analytics.until, **which) == told(analytics)
                assert (analytics.step == HOUR) == (hours > 3)
        whole = analyse(store, now, 13 * HOUR)
        begins = list(whole.series)
        assert [end - begin for begin, end in pairwise(begins)] == [25 * MINUTE, *[HOUR] * 12]
        for begin, end in pairwise([*begins, whole.until]):
            flow = whole.series[begin]
            assert flow.ended.get("succeeded", 0) == by_brute_force(store, begin, end)["ended"].get("succeeded", 0)
            assert flow.throughput.value == pytest.approx(flow.ended.get("succeeded", 0) / ((end - begin) / MINUTE))

    def test_counts_that_are_folded_during_a_read_count_once(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(statistics, "FOLDED_AT_ONCE", 1)
        now = store.clock.now()
        for minutes in range(10, 370, 6):
            job = a_job(scheduled_at=now - timedelta(minutes=minutes))
            keep(store, job, ended(job, now - timedelta(minutes=minutes)))

        with ThreadPoolExecutor(1) as threads:
            folding = threads.submit(lambda: sum(iter(lambda: store.transactions.fold_statistics(now), 0)))
            seen = {sum(analyse(store, now, 7 * HOUR).ended.values())}
            while not folding.done():
                seen.add(sum(analyse(store, now, 7 * HOUR).ended.values()))

        assert (folding.result(), seen) == (60, {60})

    def test_the_cleaner_removes_old_counts(self, store: Store) -> None:
        now = store.clock.now()
        for age in (COUNTS_KEPT * 2, timedelta(days=1)):
            job = a_job(scheduled_at=now - age)
            keep(store, job, ended(job, now - age))

        store.transactions.fold_statistics(now)

        assert clean_counts(store, now, keep_for=timedelta(days=5)) == 2

        assert [set(d["_id"]) - {"group", "task"} for d in store.statistics.collection.find()] == [
            {"at"},
            {"hour"},
            {"total"},
        ]
        assert analyse(store, now, timedelta(days=3)).ended == {"succeeded": 1}


class TestQueue:
    def queue_of(self, store: Store, **which: str) -> tuple[int, int, int, int]:
        jobs = analyse(store, store.clock.now(), MINUTE, **which).jobs
        return jobs.queued, jobs.postponed, jobs.running, jobs.zombies

    def test_a_running_job_that_is_being_cancelled_counts_for_its_own_task(self, store: Store) -> None:
        now = store.clock.now()
        running, waiting = (a_job(scheduled_at=now - MINUTE, group="mail") for _ in range(2))
        insert(store, running, waiting)
        on_the_roster(store, seen_at=now)
        store.roster.assign({"w1": [running.id]}, term=1)

        cancel(store, store.clock, running.id)

        assert self.queue_of(store) == (1, 0, 1, 0)
        assert self.queue_of(store, group="mail") == (1, 0, 1, 0)

    @pytest.mark.parametrize("which", [{}, {"group": "generic"}], ids=["all", "group"])
    def test_zombies_are_held_by_the_silent(self, store: Store, which: dict[str, str]) -> None:
        now = store.clock.now()
        held, died, again = (a_job(scheduled_at=now - MINUTE, worker_deaths=n) for n in range(3))
        insert(store, held, died, again)
        on_the_roster(store, "silent", seen_at=now - MINUTE, considered_dead_after=15.0)
        on_the_roster(store, "well", seen_at=now)
        store.roster.assign({"silent": [held.id], "well": [again.id]}, term=1)

        assert self.queue_of(store, **which) == (1, 0, 1, 1)


def test_counts_by_group_task_owner_and_tag(recruiter: Recruiter) -> None:
    """Given jobs in every state, when they are counted by each name they can have, then each is found under it."""

    @recruiter.task(name="by_name", group="mail")
    def by_name() -> None: ...

    by_name.job().tagged_as("red", "big").owned_by("ada").in_background().execute()
    by_name.job().tagged_as("red").in_background().execute()
    assert len(recruiter.run_all(by_name)) == 2
    by_name.job().tagged_as("red").owned_by("bob").schedule_in("1 hour").in_background().execute()
    held = by_name.job().tagged_as("red").in_background().execute()
    on_the_roster(recruiter.store)
    recruiter.store.roster.assign({"w1": [held.id]}, term=1)

    everything = {"succeeded": 2, "waiting": 1, "running": 1}
    assert recruiter.counts("tag") == {"red": everything, "big": {"succeeded": 1}}
    assert recruiter.counts("owner") == {"ada": {"succeeded": 1}, "bob": {"waiting": 1}}
    assert recruiter.counts("group") == {"mail": everything}
    assert recruiter.counts("task") == {"by_name": everything}


def sample(store: Store, *, always: bool = False) -> bool:
    return sample_waiting(store, store.roster.read(), always=always)


def lately(store: Store, *, hours: bool = False) -> list[Depth]:
    now = store.clock.now()
    return store.queues.depths(now - HOUR, now + MINUTE, hours=hours)


def test_what_waits_and_runs_is_kept_by_the_minute_and_the_most_by_the_hour(store: Store) -> None:
    now = store.clock.now()
    due = [a_job(scheduled_at=now - MINUTE, group=group) for group in ("mail", "mail", "images")]
    insert(store, *due, a_job(scheduled_at=now + HOUR, group="mail"))
    on_the_roster(store, seen_at=now)
    store.roster.assign({"w1": [due[0].id]}, term=1)

    assert sample(store) is True

    (depth,) = lately(store)
    slots = store.roster.read()[0].slots
    assert (depth.due, depth.running, depth.slots) == (2, 1, slots)
    assert depth.groups == {"mail": 3, "images": 1}
    assert abs(depth.at - now) < 2 * MINUTE
    store.queues.sample(Depth(now, 1, 0, slots))
    (most,) = [each for each in lately(store, hours=True) if each.at == hour_of(now)]
    assert (most.due, most.running) == (2, 1)


def test_an_idle_fleet_is_kept_only_now_and_then(store: Store) -> None:
    assert sample(store) is False
    assert lately(store) == []

    assert sample(store, always=True) is False
    assert [(each.due, each.running) for each in lately(store)] == [(0, 0)]


def test_an_hour_that_somebody_has_overwritten_begins_anew(store: Store) -> None:
    id = {"depth": hour_of(store.clock.now())}
    store.statistics.collection.insert_one({"_id": id, "due": 1, "minutes": "many"})
    assert lately(store) == []

    for _ in range(2):
        sample(store, always=True)

    assert len(lately(store)) == 1


def test_they_go_with_the_other_counts_and_are_not_taken_for_one_of_them(store: Store) -> None:
    now = store.clock.now()
    store.queues.sample(Depth(now - timedelta(days=40), 5, 1, 4, {"mail": 6}))
    sample(store, always=True)
    assert store.statistics.unreadable(10) == []

    clean_counts(store, now, timedelta(days=5))

    assert [each.due for each in store.queues.depths(now - timedelta(days=60), now + MINUTE)] == [0]


def test_the_cleaner_keeps_them(store: Store) -> None:
    insert(store, a_job(scheduled_at=store.clock.now() - MINUTE))
    stop = Stop()
    cleaner = CleanerProcess(store, Events(), stop, Settings(), PolicyRegistry())
    thread = threading.Thread(target=cleaner.run)
    thread.start()
    try:
        eventually(lambda: [each.due for each in lately(store)] == [1])
    finally:
        stop.ask()
        thread.join(10)
