"""The jobs that a worker holds: each in one state, and each way from one to the next has one owner."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
from bson import ObjectId

from recruiter.domain.flow import FlowStep
from recruiter.domain.job import JobId
from recruiter.processes.worker.held_job import HeldJob
from recruiter.processes.worker.held_jobs import HeldJobs, HeldState
from recruiter.store.codec import encode, job_document
from recruiter.store.outcomes import Rescheduled
from recruiter.store.roster_fields import Assignment, Holding, assignment_of
from tests.samples import a_job, done

ASSIGNED, FETCHED, TAKEN = HeldState.ASSIGNED, HeldState.FETCHED, HeldState.TAKEN
ENDED, SETTLING = HeldState.ENDED, HeldState.SETTLING
DONE = done(a_job())


def a_held_job(id: JobId, **changes: Any) -> HeldJob:
    return HeldJob.read(id, encode(job_document(a_job(id, **changes))))


def named(*ids: JobId, settled: int = 0, given: int = 1) -> Holding:
    return Holding(list(ids), settled, given)


@pytest.fixture
def held() -> HeldJobs:
    return HeldJobs("w1")


def fetch(held: HeldJobs, *jobs: HeldJob) -> None:
    held.hear(named(*(job.id for job in jobs)))
    held.fetched(held.to_fetch(), jobs)


def taken(held: HeldJobs) -> list[JobId]:
    return [job.id for job in held.take(1000)]


def settle(held: HeldJobs, holding: Holding) -> list[JobId]:
    outcomes = held.to_settle()
    held.settled(outcomes, holding)
    return [id for id, _ in outcomes]


def test_an_urgent_job_overtakes_the_jobs_that_were_prefetched_before_it(held: HeldJobs) -> None:
    fetch(held, a_held_job("a"), a_held_job("b"))
    held.hear(named("a", "b", "urgent", "c", given=2))
    held.fetched(held.to_fetch(), [a_held_job("urgent", priority=5), a_held_job("c")])

    assert taken(held) == ["urgent", "a", "b", "c"]


class TestLists:
    def test_an_old_one_does_not_bring_back_a_released_job(self, held: HeldJobs) -> None:
        fetch(held, a_held_job("a"))
        held.ended([("a", DONE)])
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
        held.ended([("a", DONE)])
        held.not_settled(held.to_settle())

        held.hear(named(settled=1))

        assert settle(held, named(settled=2)) == ["a"]

    def test_one_that_comes_while_a_job_is_released_does_not_bring_it_back(self, held: HeldJobs) -> None:
        fetch(held, a_held_job("a"))
        held.ended([("a", DONE)])
        held.to_settle()

        held.hear(named("a", settled=0))

        assert held.to_fetch() == []

    @pytest.mark.parametrize("state", [ASSIGNED, FETCHED, TAKEN])
    def test_a_job_that_it_no_longer_names_is_recalled(self, held: HeldJobs, state: HeldState) -> None:
        """Given a job that was taken off the list, then it does not start, and its outcome is not written."""
        recalled: list[JobId] = []
        held.on_recall(recalled.extend)
        lost, kept = a_held_job("lost"), a_held_job("kept")
        held.hear(named("lost", "kept"))
        if state is not ASSIGNED:
            held.fetched(held.to_fetch(), [lost, kept])
        if state is TAKEN:
            taken(held)
        assert held.state("lost") is state

        held.hear(named("kept", given=2))

        assert recalled == ["lost"]
        assert held.state("lost") is None
        held.fetched(["lost"], [lost])
        held.put_back([lost])
        held.ended([("lost", DONE)])
        assert "lost" not in taken(held)
        assert (held.to_settle(), held.state("kept") is not None) == ([], True)

    def test_one_from_before_an_assignment_recalls_nothing(self, held: HeldJobs) -> None:
        held.on_recall(lambda ids: pytest.fail(f"{ids} were recalled"))
        held.hear(named("a", "b", given=2))
        held.hear_event(Assignment("w1", 3, ["c"]))

        held.hear(named("a", given=1))
        held.hear(named("a", "b", given=2))

        assert [held.state(id) for id in "abc"] == [ASSIGNED] * 3


class TestEvents:
    def test_one_that_was_overtaken_by_the_end_of_its_job_is_ignored(self, held: HeldJobs) -> None:
        """Given a job that was learned from the list, run and released, when its event comes, then it stays ended."""
        fetch(held, a_held_job("a"))
        held.ended([("a", DONE)])
        settle(held, named(settled=1))

        held.hear_event(Assignment("w1", 1, ["a"]))

        assert held.state("a") is None

    def test_one_of_a_former_registration_is_ignored(self, held: HeldJobs) -> None:
        held.hear_event(Assignment("w0", 5, ["a"]))

        assert held.state("a") is None

    def test_the_answer_to_a_release_that_it_overtook_still_counts(self, held: HeldJobs) -> None:
        fetch(held, a_held_job("a"))
        held.ended([("a", DONE)])
        outcomes = held.to_settle()
        held.hear_event(Assignment("w1", 2, ["b"]))

        held.settled(outcomes, named(settled=1, given=1))

        assert (held.state("a"), held.state("b")) == (None, ASSIGNED)
        held.hear(named("a", settled=0))
        assert held.state("a") is None, "a list from before the release"

    def test_its_document_names_the_assignment(self) -> None:
        def event(**updated: object) -> dict[str, object]:
            return {"documentKey": {"_id": "w1"}, "updateDescription": {"updatedFields": updated}}

        assert assignment_of(event(given=1, assigned=["a", "b"])) == Assignment("w1", 1, ["a", "b"])
        more = event(**{"given": 3, "assigned.1": "b", "assigned.2": "c", "given_at": None})
        assert assignment_of(more) == Assignment("w1", 3, ["b", "c"])
        for other in (event(beats=2), event(given=2), event(given=2, assigned=[None]), event(given="2")):
            assert assignment_of(other) is None

    def test_it_names_the_jobs_to_fetch(self, held: HeldJobs) -> None:
        held.hear(named(given=0))

        held.hear_event(Assignment("w1", 1, ["a"]))

        assert held.to_fetch() == ["a"]
        held.hear_event(Assignment("w1", 1, ["a"]))
        assert held.to_fetch() == [], "a second time it says nothing"


class TestFetching:
    def test_a_document_that_cannot_be_read_is_left_to_the_child(self) -> None:
        job = HeldJob.read("x", b"nonsense")

        assert (job.task, job.needs_mark, job.facts("w1")) == (None, False, {"job": "x", "worker": "w1"})

    def test_when_it_fails_it_is_tried_again(self, held: HeldJobs) -> None:
        held.hear(named("a", "b"))
        held.not_fetched(held.to_fetch())

        assert held.to_fetch() == ["a", "b"]


class TestMarking:
    def test_no_more_are_marked_than_can_start_and_they_come_first(self, held: HeldJobs) -> None:
        fetch(held, a_held_job("other"), *(a_held_job(name, at_most_once=True) for name in "abc"))

        first = held.to_mark(slots=2)
        held.marked(first)

        assert [job.id for job in first] == ["a", "b"]
        assert held.to_mark(slots=2) == []
        assert taken(held) == ["a", "b", "other"]

    def test_one_whose_mark_failed_is_marked_again(self, held: HeldJobs) -> None:
        fetch(held, a_held_job("a", at_most_once=True), a_held_job("b", at_most_once=True))
        first = held.to_mark(slots=1)

        held.not_marked(first)

        assert held.to_mark(slots=1) == first
        assert held.to_mark(slots=1) == []

    @pytest.mark.parametrize("answered", [True, False])
    def test_one_that_goes_back_loses_its_mark(self, held: HeldJobs, answered: bool) -> None:
        """Also if the outcome of the mark is unknown."""
        fetch(held, a_held_job("a", at_most_once=True))
        jobs = held.to_mark(1)
        (held.marked if answered else held.not_marked)(jobs)

        held.hand_back_untaken()

        ((_, move),) = held.to_settle()
        assert isinstance(move, Rescheduled)
        assert move.updates[0].update == {"$unset": {"started_by": "", "started_at": ""}}


class TestGoingBack:
    def test_if_jobs_take_longer_than_those_before_them_the_last_go_back(self, held: HeldJobs) -> None:
        fetch(held, *(a_held_job(number) for number in range(50)))
        held.hear(named(*range(100), given=2))

        held.hand_back_all_but(20)
        assert held.to_settle() == [], "that is not far more"
        held.hand_back_all_but(5)

        assert {id for id, _ in held.to_settle()} == set(range(5, 100))
        assert (held.to_fetch(), taken(held)) == ([], [0, 1, 2, 3, 4])


class TestPausing:
    def test_fetched_jobs_go_back_and_taken_ones_are_recalled(self, held: HeldJobs) -> None:
        recalled: list[Collection[JobId]] = []
        held.on_recall(recalled.append)
        sent, mail, other = a_held_job("sent", group="mail"), a_held_job("mail", group="mail"), a_held_job("other")
        fetch(held, sent)
        taken(held)
        held.hear(named("sent", "mail", "other", given=2))
        held.fetched(held.to_fetch(), [mail, other])

        held.allow(lambda job: job.group != "mail")

        assert (held.to_settle(), recalled) == ([("mail", None)], [{"sent"}])
        held.put_back([sent])
        assert (held.to_settle(), taken(held)) == ([("sent", None)], ["other"])

    def test_a_job_that_comes_later_goes_back_until_it_is_allowed(self, held: HeldJobs) -> None:
        held.allow(lambda job: job.group != "mail")
        fetch(held, a_held_job("a", group="mail"))
        assert settle(held, named(settled=1)) == ["a"]

        held.allow(lambda _: True)
        held.hear(named("b", settled=1, given=2))
        held.fetched(held.to_fetch(), [a_held_job("b", group="mail")])

        assert taken(held) == ["b"]

    def test_a_step_that_is_fetched_while_pauses_are_asked_for_goes_back(self, held: HeldJobs) -> None:
        """Given a step and a plain job that were read before their flow was paused, when they are noted after the
        heartbeat has asked which flows are paused, then the step goes back, and the other one starts."""
        step, plain = a_held_job("step", flow=FlowStep(ObjectId(), "step")), a_held_job("plain")
        later = a_held_job("later", flow=FlowStep(ObjectId(), "later"))
        held.hear(named("step", "plain"))
        ids = held.to_fetch()

        assert held.flows_to_ask_about() == set()
        held.fetched(ids, [step, plain])

        assert held.to_settle() == [("step", None)]
        held.hear(named("step", "plain", "later", given=2))
        held.fetched(held.to_fetch(), [later])
        assert taken(held) == ["plain", "later"]
