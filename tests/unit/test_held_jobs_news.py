"""What a worker hears of its list: all of it, only what is new, or from a change event."""

from __future__ import annotations

import pytest

from recruiter.domain.job import JobId
from recruiter.processes.worker.held_jobs import LARGEST_FETCH, HeldJob, HeldJobs, HeldState
from recruiter.store.codec import encode, job_document
from recruiter.store.roster_fields import Assignment, Holding, Seen, assignment_of
from tests.samples import a_job


@pytest.fixture
def held() -> HeldJobs:
    return HeldJobs("w1")


def ended(held: HeldJobs, *ids: JobId) -> None:
    held.fetched(held.to_fetch(), [HeldJob(id, encode(job_document(a_job(id)))) for id in ids])
    held.accept()
    held.ended([(id, b"done") for id in ids])


def released(held: HeldJobs, answer: Holding) -> None:
    held.settled(held.to_settle(), answer)


class TestTheNewPart:
    def test_nothing_is_known_at_first(self, held: HeldJobs) -> None:
        assert (held.seen, held.missed_some) == (None, False)

    def test_it_follows_what_is_known(self, held: HeldJobs) -> None:
        held.hear(Holding(["a", "b"], 0, 1))
        assert held.seen == Seen(0, 1, 2)

        assert held.hear(Holding(["c"], 0, 2, behind=2))

        assert held.to_fetch() == ["a", "b", "c"]
        assert held.seen == Seen(0, 2, 3)

    def test_it_recalls_nothing(self, held: HeldJobs) -> None:
        held.on_recall(lambda ids: pytest.fail(f"{ids} were recalled"))
        held.hear(Holding(["a"], 0, 1))

        held.hear(Holding(["b"], 0, 2, behind=1))

        assert held.state("a") is HeldState.ASSIGNED

    def test_the_answer_to_a_release_brings_it_too(self, held: HeldJobs) -> None:
        held.hear(Holding(["a", "b"], 0, 1))
        ended(held, "a", "b")

        released(held, Holding(["c"], 1, 2, behind=0))

        assert (held.to_fetch(), held.seen) == (["c"], Seen(1, 2, 1))

    def test_one_from_before_a_release_is_ignored(self, held: HeldJobs) -> None:
        held.hear(Holding(["a"], 0, 1))
        ended(held, "a")
        released(held, Holding([], 1, 2, behind=0))

        assert not held.hear(Holding(["b"], 0, 2, behind=1))

        assert held.seen == Seen(1, 2, 0)

    def test_after_a_release_of_unknown_outcome_all_must_be_read(self, held: HeldJobs) -> None:
        held.hear(Holding(["a"], 0, 1))
        ended(held, "a")
        held.not_settled(held.to_settle())
        assert held.seen is None

        held.hear(Holding([], 1, 1))
        assert held.seen is None, "it was written; but nobody has heard so"
        released(held, Holding([], 2, 1))

        assert held.seen == Seen(2, 1, 0)

    def test_after_a_list_without_a_job_that_has_ended_too(self, held: HeldJobs) -> None:
        """Given that somebody has taken it off the list by hand, then it is asked for before its outcome is written."""
        held.hear(Holding(["a", "b"], 0, 1))
        ended(held, "a", "b")

        held.hear(Holding(["b"], 0, 1))

        assert held.seen is None


class TestEvents:
    def test_it_names_what_is_to_be_fetched(self, held: HeldJobs) -> None:
        held.hear(Holding([], 0, 0))

        assert held.hear_event(Assignment("w1", 1, ["a"]))

        assert (held.to_fetch(), held.seen, held.missed_some) == (["a"], Seen(0, 1, 1), False)

    def test_a_second_time_it_says_nothing(self, held: HeldJobs) -> None:
        held.hear_event(Assignment("w1", 1, ["a"]))
        held.to_fetch()

        assert not held.hear_event(Assignment("w1", 1, ["a"]))

    def test_one_that_was_overtaken_by_the_end_of_its_job_is_ignored(self, held: HeldJobs) -> None:
        """Given a job that was heard of from the list, run and released, when its event comes, then it stays ended."""
        held.hear(Holding(["a"], 0, 1))
        ended(held, "a")
        released(held, Holding([], 1, 1))

        assert not held.hear_event(Assignment("w1", 1, ["a"]))

        assert held.state("a") is None

    def test_one_of_a_former_registration_is_ignored(self, held: HeldJobs) -> None:
        assert not held.hear_event(Assignment("w0", 5, ["a"]))

        assert held.state("a") is None

    def test_while_the_outcome_of_a_release_is_unknown_the_job_stays_ended(self, held: HeldJobs) -> None:
        held.hear(Holding(["a"], 0, 1))
        ended(held, "a")
        held.not_settled(held.to_settle())

        assert not held.hear_event(Assignment("w1", 1, ["a"]))

        assert held.state("a") is HeldState.ENDED

    def test_a_gap_is_a_reason_to_read_the_list(self, held: HeldJobs) -> None:
        held.hear(Holding([], 0, 0))

        assert held.hear_event(Assignment("w1", 2, ["b"]))
        assert (held.missed_some, held.seen) == (True, None)

        held.hear(Holding(["a", "b"], 0, 2))
        assert (held.to_fetch(), held.missed_some) == (["b", "a"], False)

    def test_an_older_list_recalls_nothing(self, held: HeldJobs) -> None:
        held.on_recall(lambda ids: pytest.fail(f"{ids} were recalled"))
        held.hear_event(Assignment("w1", 2, ["b"]))

        held.hear(Holding(["a"], 0, 1))

        assert held.state("b") is HeldState.ASSIGNED

    def test_the_answer_to_a_release_that_it_overtook_still_counts(self, held: HeldJobs) -> None:
        held.hear(Holding(["a"], 0, 1))
        ended(held, "a")
        outcomes = held.to_settle()
        held.hear_event(Assignment("w1", 2, ["b"]))

        held.settled(outcomes, Holding([], 1, 1, behind=0))

        assert (held.state("a"), held.state("b"), held.seen) == (None, HeldState.ASSIGNED, None)
        held.hear(Holding(["a"], 0, 1))
        assert held.state("a") is None, "a list from before the release"


class TestParsing:
    def event(self, **updated: object) -> dict[str, object]:
        return {"documentKey": {"_id": "w1"}, "updateDescription": {"updatedFields": updated}}

    def test_the_list_was_empty(self) -> None:
        assert assignment_of(self.event(given=1, assigned=["a", "b"])) == Assignment("w1", 1, ["a", "b"])

    def test_the_list_was_not(self) -> None:
        event = self.event(**{"given": 3, "assigned.1": "b", "assigned.2": "c", "given_at": None})

        assert assignment_of(event) == Assignment("w1", 3, ["b", "c"])

    @pytest.mark.parametrize("updated", [{"beats": 2}, {"given": 2}, {"given": 2, "assigned": [None]}, {"given": "2"}])
    def test_something_else(self, updated: dict[str, object]) -> None:
        assert assignment_of(self.event(**updated)) is None


def test_a_large_assignment_is_fetched_in_parts(held: HeldJobs) -> None:
    ids: list[JobId] = list(range(LARGEST_FETCH + 3))
    held.hear(Holding(ids, 0, 1))

    parts = [held.to_fetch(), held.to_fetch(), held.to_fetch()]

    assert parts == [ids[:LARGEST_FETCH], ids[LARGEST_FETCH:], []]
