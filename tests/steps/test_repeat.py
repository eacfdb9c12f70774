"""Repeat: every occurrence once, at the right time, whatever happens."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from recruiter import EveryMinutes, Recruiter, RepeatableJob, SchedulePolicy
from recruiter.clock import StoppedClock
from recruiter.domain.schedule.scheduler import Late
from recruiter.errors import SchedulerNotFound, Superseded
from recruiter.steps.cancel import archive_cancelled
from recruiter.steps.lead import Leadership
from recruiter.steps.repeat import Repetition, repeat
from recruiter.store.database import Store
from recruiter.views.health import overdue
from tests.killed import exit_code_of
from tests.killed_leader import repeat_and_die
from tests.samples import done

SIX = datetime(2030, 1, 1, 6, tzinfo=UTC)


@dataclass
class Leading:
    """An application with a stopped clock, and the lead."""

    recruiter: Recruiter
    clock: StoppedClock
    lead: Leadership = field(init=False)

    def __post_init__(self) -> None:
        self.lead = Leadership(self.recruiter.store, self.clock, 5.0)
        assert self.lead.attend()

    def repeat(self) -> Repetition:
        return repeat(
            self.recruiter.store, self.recruiter.schedules, self.lead.term, self.lead.holder, self.clock.now()
        )

    def after(self, **duration: float) -> Repetition:
        self.clock.move(timedelta(**duration))
        return self.repeat()

    def instants(self) -> list[datetime]:
        """The moments of the occurrences that wait."""
        return [job.scheduled_at for job in self.recruiter.store.scheduled.waiting()]

    def job(self, policy: SchedulePolicy | None = None) -> RepeatableJob:
        return self.recruiter.job("tick").repeat_with_policy(policy or EveryMinutes(10)).with_urn("tick")

    def finish(self, *, well: bool = True) -> None:
        """What waits is run by somebody, and archived."""
        for job in self.recruiter.store.scheduled.waiting():
            assert well
            self.recruiter.store.transactions.archive_new(job.id, done(job))
            self.recruiter.store.scheduled.collection.delete_one({"_id": job.id})


@pytest.fixture
def leading(target: str, store: Store) -> Iterator[Leading]:
    recruiter = Recruiter(target)
    clock = StoppedClock(SIX)
    recruiter.store.clock = clock

    @recruiter.task
    def tick() -> None: ...

    yield Leading(recruiter, clock)
    recruiter.close()


class TestOccurrences:
    def test_a_leader_that_was_deposed_makes_none(self, leading: Leading) -> None:
        leading.job().create()
        leading.recruiter.store.leases.collection.update_one({}, {"$inc": {"term": 1}, "$set": {"holder": "other"}})

        with pytest.raises(Superseded):
            leading.after(minutes=10)

        assert leading.instants() == []

    def test_a_clock_that_steps_back_makes_none_again(self, leading: Leading) -> None:
        leading.job().create()
        leading.after(minutes=10)
        leading.finish()

        leading.clock.move(timedelta(minutes=-9))
        assert leading.repeat().made == 0
        assert leading.after(minutes=9).made == 0  # the same instant once more
        assert leading.after(minutes=10).made == 1

    def test_one_that_is_removed_and_made_again_while_a_clock_went_back(self, leading: Leading) -> None:
        scheduler = leading.job().create()
        leading.after(minutes=10)
        leading.finish()
        scheduler.remove()
        leading.clock.move(timedelta(minutes=-5))
        leading.job().create()

        leading.after(minutes=5)

        assert leading.instants() == []  # it exists: it is in the archive
        assert leading.recruiter.store.archived.collection.count_documents({}) == 1


class TestTwoLeaders:
    def test_both_act_at_once_and_each_occurrence_exists_once(self, leading: Leading) -> None:
        """Given two who believe in the same term, when they repeat at the same moment, again and again."""
        for number in range(20):
            leading.job().with_urn(f"s{number}").create()
        together = threading.Barrier(2)
        made: list[int] = []

        def act() -> None:
            store = Store(leading.recruiter.store.target)
            for step in range(1, 6):
                together.wait()
                now = SIX + timedelta(minutes=10 * step)
                found = repeat(store, leading.recruiter.schedules, leading.lead.term, leading.lead.holder, now)
                made.append(found.made)
            store.close()

        threads = [threading.Thread(target=act) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        leading.clock.move(timedelta(minutes=50))
        leading.repeat()

        # then there is each of the hundred, once
        ids = {job.id for job in leading.recruiter.store.scheduled.waiting()}
        assert len(ids) == leading.recruiter.store.scheduled.collection.count_documents({}) == 100
        assert sum(scheduler.made for scheduler in leading.recruiter.schedulers()) == 100


class TestKilled:
    @pytest.mark.parametrize("moment", ["before", "after"])
    def test_after_every_single_write_no_occurrence_is_missing_or_doubled(self, leading: Leading, moment: str) -> None:
        """Given a leader that is killed at its n-th command, for every n, when the next one repeats."""
        leading.job().create()
        leading.job().with_urn("other").unique().create()
        leading.lead.resign()
        target = leading.recruiter.store.target.uri
        deaths = 0
        for fatal in range(1, 50):
            now = SIX + timedelta(minutes=10 * fatal)
            # when it is killed there
            code = exit_code_of(repeat_and_die, target, fatal, moment, now)
            # then the next leader makes what is missing, and no more
            leading.clock.move(now - leading.clock.now())
            leading.lead._acquire(leading.recruiter.store.leases.read())
            leading.repeat()
            assert leading.instants() == [now, now], f"killed at {fatal}"
            leading.finish()
            if code == 0:
                break
            assert code == -signal.SIGKILL
            deaths += 1
        assert deaths >= 6  # find, fence, busy, advance, two looks for the same ids, insert, commit
        assert leading.recruiter.store.archived.collection.count_documents({}) == 2 * (deaths + 1)


class TestLate:
    @pytest.mark.parametrize(
        ("late", "down", "made"),
        [
            ("skip", 20, []),
            ("latest", 20, [20]),
            ("all", 20, [5, 10, 15, 20]),
            ("skip", 40, []),
            ("latest", 40, [40]),
            ("all", 40, [15, 20, 25, 30, 35, 40]),
            ("skip", 3 * 24 * 60, []),
            ("latest", 3 * 24 * 60, [4320]),
            ("all", 3 * 24 * 60, [4295, 4300, 4305, 4310, 4315, 4320]),
        ],
    )
    def test_each_late_policy_makes_its_occurrences_after_downtime(
        self, leading: Leading, late: str, down: int, made: list[int]
    ) -> None:
        leading.job(EveryMinutes(5)).when_late(late).create()

        leading.after(minutes=down, seconds=90)

        assert leading.instants() == [SIX + timedelta(minutes=minutes) for minutes in made]
        assert leading.after(minutes=3, seconds=30).made == 1  # and it goes on


class TestOverlap:
    def test_unique_skips_while_an_earlier_one_waits_runs_or_is_retried(self, leading: Leading) -> None:
        leading.job().unique().create()
        leading.after(minutes=10)
        # waiting
        assert leading.after(minutes=10) == Repetition(made=0, skipped=1)
        # being retried, later
        collection = leading.recruiter.store.scheduled.collection
        retry = {"attempts": 1, "postponed": True, "scheduled_at": SIX + timedelta(days=1)}
        collection.update_one({}, {"$set": retry})
        assert leading.after(minutes=10).made == 0
        # ended
        leading.finish()
        assert leading.after(minutes=10).made == 1

        assert leading.recruiter.scheduler("tick").find().skipped == 2

    def test_replace_cancels_the_earlier_one(self, leading: Leading) -> None:
        leading.job().replacing().create()
        leading.after(minutes=10)
        leading.after(minutes=10)

        store = leading.recruiter.store
        (cancelled,) = archive_cancelled(store, leading.clock, leading.lead.term, leading.lead.holder)
        assert cancelled == "tick@2030-01-01T06:10:00Z"
        assert leading.instants() == [SIX + timedelta(minutes=20)]
        ended = store.archived.get(cancelled)
        assert ended is not None
        assert (ended.why, ended.reason) == ("cancelled", "replaced by the next occurrence")

    @pytest.mark.parametrize("overlap", [RepeatableJob.unique, RepeatableJob.replacing])
    def test_two_that_are_late_do_not_overlap_each_other(
        self, leading: Leading, overlap: Callable[[RepeatableJob], RepeatableJob]
    ) -> None:
        overlap(leading.job(EveryMinutes(5)).when_late(Late.ALL)).create()

        leading.after(minutes=20)

        assert leading.instants() == [SIX + timedelta(minutes=20)]


class TestDefinition:
    def test_another_schedule_begins_now(self, leading: Leading) -> None:
        leading.job(EveryMinutes(10)).create()
        leading.clock.move(timedelta(minutes=12))
        leading.job(EveryMinutes(7)).create()

        leading.after(minutes=10)

        assert all(moment > SIX + timedelta(minutes=12) for moment in leading.instants())
        assert leading.recruiter.scheduler("tick").find().schedule["parameters"] == {"n": 7}

    def test_an_occurrence_that_waits_changes_with_it(self, leading: Leading) -> None:
        leading.job().in_group("old").tagged_as("old").create()
        leading.after(minutes=10)
        leading.job().in_group("new").with_priority(5).create()

        (waiting,) = leading.recruiter.store.scheduled.waiting()
        assert (waiting.group, waiting.priority, waiting.tags, waiting.lane) == ("new", 5, (), "new/tick")

    def test_one_that_has_been_tried_stays_as_it_was(self, leading: Leading) -> None:
        leading.job().in_group("old").create()
        leading.after(minutes=10)
        leading.recruiter.store.scheduled.collection.update_one({}, {"$set": {"attempts": 1}})

        leading.job().in_group("new").create()

        assert leading.recruiter.store.scheduled.waiting()[0].group == "old"


class TestControl:
    def test_removed_its_waiting_occurrence_goes_too(self, leading: Leading) -> None:
        scheduler = leading.job().create()
        leading.after(minutes=10)

        assert scheduler.remove() == 1

        store = leading.recruiter.store
        assert archive_cancelled(store, leading.clock, leading.lead.term, leading.lead.holder)
        assert leading.after(minutes=10).made == 0
        for call in (scheduler.find, scheduler.remove, scheduler.resume, scheduler.pause, scheduler.next_runs):
            with pytest.raises(SchedulerNotFound, match="tick"):
                call()

    def test_a_scheduler_shows_the_result_of_its_last_job(self, leading: Leading) -> None:
        scheduler = leading.job().create()
        assert scheduler.last() is None
        leading.after(minutes=10)
        leading.finish()

        last = scheduler.last()
        assert last is not None
        assert (last.id, last.done) == ("tick@2030-01-01T06:10:00Z", True)


class TestBroken:
    def test_a_policy_that_nobody_here_knows_is_told_and_holds_up_nobody(self, leading: Leading) -> None:
        @leading.recruiter.schedules.register
        @dataclass(frozen=True)
        class FullMoon(SchedulePolicy):
            def next_after(self, moment: datetime) -> datetime:
                return moment.replace(microsecond=0) + timedelta(minutes=1)

        leading.job(FullMoon()).with_urn("moon").create()
        leading.job().create()
        leading.recruiter.schedules._classes.pop("FullMoon")

        repetition = leading.after(minutes=10)

        assert repetition.made == 1
        ((urn, reason),) = repetition.broken
        assert (urn, "FullMoon" in reason) == ("moon", True)
        assert leading.recruiter.scheduler("moon").find().broken == reason
        assert leading.repeat().broken == ()  # not again at once
        leading.recruiter.schedules.register(FullMoon)
        assert leading.after(minutes=1).made == 1  # known again, it goes on
        assert leading.recruiter.scheduler("moon").find().broken is None

    def test_a_document_that_somebody_wrote_by_hand(self, leading: Leading) -> None:
        leading.job().create()
        template = {"task": ["no", "name"]}
        leading.recruiter.store.schedulers.collection.update_one({}, {"$set": {"job": template}})
        leading.job().with_urn("good").create()

        repetition = leading.after(minutes=10)

        assert repetition.made == 1
        assert "task must be one text" in repetition.broken[0][1]


class TestPromises:
    def test_one_that_has_not_succeeded_for_too_long_is_overdue(self, leading: Leading) -> None:
        store = leading.recruiter.store
        leading.job().must_succeed_within("25 minutes").create()
        leading.after(minutes=10)
        leading.finish()
        store.archived.collection.update_many({}, {"$set": {"archived_at": leading.clock.now()}})

        leading.clock.move(timedelta(minutes=25))
        assert overdue(store, leading.clock.now()) == {}
        store.archived.collection.delete_many({})  # the cleaner was here; the success is remembered
        leading.clock.move(timedelta(seconds=1))
        late = overdue(store, leading.clock.now())

        assert list(late) == ["tick"]
        assert "every 25m" in late["tick"]
        assert "2030-01-01 06:10:00" in late["tick"]


def test_declared_with_a_decorator_it_is_stored_when_somebody_says_so(leading: Leading) -> None:
    recruiter = leading.recruiter

    @recruiter.every("0 6 * * *", tz="Europe/Rome", urn="report:rome", unique=True, must_succeed_within="25h")
    @recruiter.task(group="reports")
    def report() -> int:
        return 5

    assert report() == 5
    assert recruiter.schedulers() == []
    recruiter.create_schedulers()

    (scheduler,) = recruiter.schedulers()
    assert (scheduler.urn, scheduler.template.group, scheduler.overlap) == ("report:rome", "reports", "unique")
    assert scheduler.must_succeed_within == timedelta(hours=25)
    assert scheduler.next_at == datetime(2030, 1, 2, 5, tzinfo=UTC)
