"""The jobs that a worker holds: each in one state, and each way from one to the next has one owner."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
from bson import ObjectId

from recruiter.domain.flow import FlowStep
from recruiter.domain.job import JobId
from recruiter.processes.worker.held_jobs import HeldJob, HeldJobs, HeldState
from recruiter.store.codec import encode, job_document
from recruiter.store.outcomes import Rescheduled
from recruiter.store.roster_fields import Holding
from tests.samples import NOW, a_job

ASSIGNED, FETCHED, QUEUED = HeldState.ASSIGNED, HeldState.FETCHED, HeldState.QUEUED
STARTED, ENDED, SETTLING = HeldState.STARTED, HeldState.ENDED, HeldState.SETTLING


def a_held_job(id: JobId, **changes: Any) -> HeldJob:
    return HeldJob(id, encode(job_document(a_job(id, **changes))))


def named(*ids: JobId, settled: int = 0, given: int = 1) -> Holding:
    return Holding(list(ids), settled, given)


@pytest.fixture
def held() -> HeldJobs:
    return HeldJobs("w1")


def fetch(held: HeldJobs, *jobs: HeldJob) -> bool:
    held.hear(named(*(job.id for job in jobs)))
    return held.fetched(held.to_fetch(), jobs)


def accepted(held: HeldJobs) -> list[JobId]:
    first, last = held.accept()
    return [job.id for job in [*first, *last]]


def settle(held: HeldJobs, holding: Holding) -> list[JobId]:
    outcomes = held.to_settle()
    held.settled(outcomes, holding)
    return [id for id, _ in outcomes]


def test_the_way_of_a_job(held: HeldJobs) -> None:
    job = a_held_job("a")

    assert held.hear(named("a"))
    assert held.state("a") is ASSIGNED
    held.fetched(held.to_fetch(), [job])
    assert held.state("a") is FETCHED
    assert accepted(held) == ["a"]
    assert held.state("a") is QUEUED
    held.saw([(job, NOW)], NOW, 1.0)
    assert held.state("a") is STARTED
    held.ended([("a", b"done")])
    assert held.state("a") is ENDED
    assert held.to_settle() == [("a", b"done")]
    assert held.state("a") is SETTLING
    held.settled([("a", b"done")], named(settled=1))
    assert held.state("a") is None
    assert held.all_settled


def test_an_outcome_that_could_not_be_written_is_written_next_time(held: HeldJobs) -> None:
    fetch(held, a_held_job("a"), a_held_job("b"))
    held.ended([("a", b"1"), ("b", b"2")])
    outcomes = held.to_settle()

    held.not_settled(outcomes)

    assert (held.state("a"), held.results) == (ENDED, ["a", "b"])
    assert held.to_settle() == [("a", b"1"), ("b", b"2")]


class TestAnswers:
    def test_an_old_one_does_not_bring_back_what_was_released(self, held: HeldJobs) -> None:
        fetch(held, a_held_job("a"))
        held.ended([("a", b"")])
        settle(held, named(settled=1))

        assert not held.hear(named("a", settled=0))

        assert held.state("a") is None

    def test_a_job_that_is_named_twice_is_fetched_once(self, held: HeldJobs) -> None:
        """Given a list that names a job twice, because a write on it was doubled, then it starts once."""
        held.hear(named("a", "b", "a"))

        assert held.to_fetch() == ["a", "b"]

    def test_a_job_is_known_until_its_release_is_answered(self, held: HeldJobs) -> None:
        """Given a release of unknown outcome, when a newer list does not name the job, then it is settled again."""
        fetch(held, a_held_job("a"))
        held.ended([("a", b"")])
        held.not_settled(held.to_settle())

        held.hear(named(settled=1))

        assert settle(held, named(settled=2)) == ["a"]

    def test_one_that_comes_while_a_job_is_released_does_not_bring_it_back(self, held: HeldJobs) -> None:
        fetch(held, a_held_job("a"))
        held.ended([("a", b"")])
        held.to_settle()

        held.hear(named("a", settled=0))

        assert held.to_fetch() == []

    def test_a_job_that_comes_again_is_fetched_again(self, held: HeldJobs) -> None:
        fetch(held, a_held_job("a"))
        held.ended([("a", None)])
        settle(held, named(settled=1))

        held.hear(named("a", settled=1, given=2))

        assert held.to_fetch() == ["a"]

    @pytest.mark.parametrize("state", [ASSIGNED, FETCHED, QUEUED, STARTED])
    def test_what_is_no_longer_in_the_list_is_recalled(self, held: HeldJobs, state: HeldState) -> None:
        """Given a job that a failover took off the list, then it does not start, and its outcome is not written."""
        recalled: list[JobId] = []
        held.on_recall(recalled.extend)
        lost, kept = a_held_job("lost"), a_held_job("kept")
        held.hear(named("lost", "kept"))
        if state is not ASSIGNED:
            held.fetched(held.to_fetch(), [lost, kept])
        if state in (QUEUED, STARTED):
            held.accept()
        if state is STARTED:
            held.saw([(lost, NOW)], NOW, 1.0)
        assert held.state("lost") is state

        held.hear(named("kept", given=2))

        assert recalled == ["lost"]
        assert held.state("lost") is None
        held.fetched(["lost"], [lost])
        held.ended([("lost", b"done")])
        assert "lost" not in accepted(held)
        assert (held.to_settle(), held.state("kept") is not None) == ([], True)

    def test_an_answer_from_before_an_assignment_recalls_nothing(self, held: HeldJobs) -> None:
        recalled: list[JobId] = []
        held.on_recall(recalled.extend)
        held.hear(named("a", "b", given=2))

        held.hear(named("a", given=1))

        assert (recalled, held.state("b")) == ([], ASSIGNED)


class TestFetching:
    def test_what_is_gone_is_released(self, held: HeldJobs) -> None:
        held.hear(named("gone", "there"))

        assert held.fetched(held.to_fetch(), [a_held_job("there")])

        assert held.to_settle() == [("gone", None)]
        assert accepted(held) == ["there"]

    def test_a_cancelled_job_goes_back_before_it_starts(self, held: HeldJobs) -> None:
        raw = a_held_job("a").raw
        cancelled = HeldJob("a", encode_job_in_lane("a", "/cancelled"))
        assert cancelled.cancelled
        assert not HeldJob("a", raw).cancelled

        assert fetch(held, cancelled)

        assert accepted(held) == []
        assert held.to_settle() == [("a", None)]

    def test_a_job_that_only_mentions_the_lane_is_not_cancelled(self) -> None:
        assert not a_held_job("a", tags=("/cancelled",)).cancelled

    def test_when_it_fails_it_is_tried_again(self, held: HeldJobs) -> None:
        held.hear(named("a", "b"))
        held.not_fetched(held.to_fetch())

        assert held.to_fetch() == ["a", "b"]


class TestAtMostOnce:
    def test_no_more_are_marked_than_can_start(self, held: HeldJobs) -> None:
        jobs = [a_held_job(name, at_most_once=True) for name in "abc"]
        fetch(held, *jobs)
        assert accepted(held) == []

        first = held.to_mark(slots=2)
        held.marked(first)

        assert [job.id for job in first] == ["a", "b"]
        assert held.to_mark(slots=2) == []
        assert accepted(held) == ["a", "b"]

    def test_marked_ones_come_first(self, held: HeldJobs) -> None:
        once, other = a_held_job("once", at_most_once=True), a_held_job("other")
        fetch(held, other, once)
        held.marked(held.to_mark(1))

        assert held.accept() == ([once], [other])

    def test_one_whose_mark_failed_is_marked_again(self, held: HeldJobs) -> None:
        fetch(held, a_held_job("a", at_most_once=True), a_held_job("b", at_most_once=True))
        first = held.to_mark(slots=1)

        held.not_marked(first)

        assert held.to_mark(slots=1) == first
        assert held.to_mark(slots=1) == []

    @pytest.mark.parametrize("answered", [True, False])
    def test_one_that_goes_back_loses_its_mark(self, held: HeldJobs, answered: bool) -> None:
        """Also if nobody knows whether it was marked."""
        fetch(held, a_held_job("a", at_most_once=True))
        jobs = held.to_mark(1)
        (held.marked if answered else held.not_marked)(jobs)

        held.ended([("a", None)])

        ((_, move),) = held.to_settle()
        assert isinstance(move, Rescheduled)
        assert move.unset == ("started_by", "started_at")

    def test_one_that_was_never_marked_is_only_released(self, held: HeldJobs) -> None:
        fetch(held, a_held_job("a", at_most_once=True))

        held.ended([(id, None) for id in held.not_begun()])

        assert held.to_settle() == [("a", None)]
        assert held.to_mark(1) == []


class TestSurplus:
    """Jobs that turn out to take longer than those before them."""

    def test_the_last_go_back(self, held: HeldJobs) -> None:
        """Given jobs in every state before their start, when it will end only five of them soon, then five stay."""
        recalled: list[JobId] = []
        held.on_recall(recalled.extend)
        fetch(held, *(a_held_job(number) for number in range(50)))
        accepted(held)
        held.hear(named(*range(100)))
        held.fetched(held.to_fetch()[:30], [a_held_job(number) for number in range(50, 80)])

        held.hand_back_all_but(5)

        assert set(recalled) == set(range(5, 50))
        assert {id for id, outcome in held.to_settle() if outcome is None} == set(range(50, 100))
        assert held.to_fetch() == []

    def test_a_little_more_than_that_stays(self, held: HeldJobs) -> None:
        fetch(held, *(a_held_job(number) for number in range(40)))

        held.hand_back_all_but(5)

        assert held.to_settle() == []


class TestPausing:
    def test_what_was_fetched_goes_back_and_what_is_queued_is_recalled(self, held: HeldJobs) -> None:
        recalled: list[Collection[JobId]] = []
        held.on_recall(recalled.append)
        queued, mail, other = a_held_job("queued", group="mail"), a_held_job("mail", group="mail"), a_held_job("other")
        fetch(held, queued)
        held.accept()
        held.hear(named("queued", "mail", "other", given=2))
        held.fetched(held.to_fetch(), [mail, other])

        assert held.allow(lambda job: job.group != "mail")

        assert (held.to_settle(), recalled) == ([("mail", None)], [{"queued"}])
        assert accepted(held) == ["other"]

    def test_what_comes_later_goes_back_until_it_is_allowed(self, held: HeldJobs) -> None:
        held.allow(lambda job: job.group != "mail")
        assert fetch(held, a_held_job("a", group="mail"))
        assert settle(held, named(settled=1)) == ["a"]

        held.allow(lambda _: True)
        held.hear(named("b", settled=1, given=2))
        held.fetched(held.to_fetch(), [a_held_job("b", group="mail")])

        assert accepted(held) == ["b"]


def test_handing_back_takes_everything_that_the_workplace_has_not_seen(held: HeldJobs) -> None:
    fetch(held, a_held_job("queued"))
    held.accept()
    held.hear(named("queued", "fetched", given=2))
    held.fetched(held.to_fetch(), [a_held_job("fetched")])
    held.hear(named("queued", "fetched", "assigned", given=3))

    assert held.not_begun() == ["fetched", "assigned"]

    assert (held.to_fetch(), accepted(held)) == ([], [])


def encode_job_in_lane(id: JobId, lane: str) -> bytes:
    return encode({**job_document(a_job(id)), "lane": lane})


def test_a_step_that_is_fetched_while_pauses_are_asked_for_goes_back(held: HeldJobs) -> None:
    """Given a step and a plain job that were read before their flow was paused, when they are noted after the heartbeat
    has asked which flows are paused, then the step goes back, and the other one starts."""
    step, plain = a_held_job("step", flow=FlowStep(ObjectId(), "step")), a_held_job("plain")
    later = a_held_job("later", flow=FlowStep(ObjectId(), "later"))
    held.hear(named("step", "plain"))
    ids = held.to_fetch()

    assert held.flows() == set()
    held.fetched(ids, [step, plain])

    assert held.to_settle() == [("step", None)]
    held.hear(named("step", "plain", "later", given=2))
    held.fetched(held.to_fetch(), [later])
    assert accepted(held) == ["plain", "later"], "one that is read after that says itself whether its flow is paused"
