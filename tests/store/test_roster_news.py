"""A worker asks the roster only for what it has not seen; and an assignment is in its change event."""

from __future__ import annotations

import pytest

from recruiter.domain.job import JobId
from recruiter.errors import Superseded
from recruiter.store.collections.roster import ASSIGNMENT_FIELDS
from recruiter.store.database import Store
from recruiter.store.outcomes import OutcomeBatch
from recruiter.store.roster_fields import Assignment, Holding, Seen, assignment_of
from tests.samples import a_job, done, hold, insert, on_the_roster, places


def seen(store: Store, worker: str = "w1") -> Seen:
    """What a worker knows that has just read its list."""
    found = store.roster.holding(worker)
    assert found is not None
    return Seen(found.settled, found.given, found.count)


def assign(store: Store, *ids: JobId) -> None:
    assert store.roster.assign({"w1": list(ids)}, 1)


class TestNews:
    def test_nothing_when_nothing_was_assigned(self, store: Store) -> None:
        hold(store, a_job("a"))

        assert store.roster.news("w1", seen(store)) is None

    def test_only_what_was_assigned_since(self, store: Store) -> None:
        hold(store, a_job("a"), a_job("b"))
        before = seen(store)
        assign(store, "c", "d")

        assert store.roster.news("w1", before) == Holding(["c", "d"], before.settled, before.given + 1, behind=2)

    def test_all_of_it_when_something_was_released_since(self, store: Store) -> None:
        hold(store, a_job("a"), a_job("b"))
        before = seen(store)
        store.transactions.hand_back("w1", ["a"])
        assign(store, "c")

        assert store.roster.news("w1", before) == Holding(["b", "c"], before.settled + 1, before.given + 1)

    def test_nothing_of_a_worker_that_is_gone(self, store: Store) -> None:
        hold(store, a_job("a"))
        before = seen(store)
        store.roster.leave("w1")

        assert store.roster.news("w1", before) is None


class TestSettling:
    def test_the_answer_has_only_what_was_assigned_since(self, store: Store) -> None:
        first, second = a_job("a"), a_job("b")
        hold(store, first, second)
        before = seen(store)
        assign(store, "c")

        answer = store.transactions.settle("w1", OutcomeBatch({"a": done(first)}), {}, before)

        assert answer == Holding(["c"], before.settled + 1, before.given + 1, behind=1)
        assert places(store, ["a", "b"]) == {"a": "archived", "b": "scheduled"}
        assert store.roster.news("w1", Seen(answer.settled, answer.given, answer.count)) is None

    def test_after_another_release_the_list_is_read_and_nothing_is_written_that_is_not_held(self, store: Store) -> None:
        """Given a settlement that was written without an answer, when it comes again as if nothing were known of it,
        then it writes nothing."""
        job, other = a_job("a"), a_job("b")
        hold(store, job, other)
        before, batch = seen(store), OutcomeBatch({"a": done(job)})
        store.transactions.settle("w1", batch, {}, before)

        answer = store.transactions.settle("w1", batch, {}, before)

        assert answer == Holding(["b"], before.settled + 2, before.given)
        assert places(store, ["a", "b"]) == {"a": "archived", "b": "scheduled"}

    def test_a_worker_that_was_retired_settles_nothing(self, store: Store) -> None:
        job = a_job("a")
        hold(store, job)
        before = seen(store)
        store.roster.leave("w1")

        with pytest.raises(Superseded):
            store.transactions.settle("w1", OutcomeBatch({"a": done(job)}), {}, before)

        assert places(store, ["a"]) == {"a": "scheduled"}

    def test_handing_back_likewise(self, store: Store) -> None:
        hold(store, a_job("a"), a_job("b"), a_job("c"))
        before = seen(store)

        answer = store.transactions.hand_back("w1", ["a"], before)
        assert answer == Holding([], before.settled + 1, before.given, behind=2)

        assert store.transactions.hand_back("w1", ["b"], before).assigned == ["c"], "what was seen is old by now"


class TestEvents:
    @pytest.mark.parametrize("held_before", [0, 1, 3])
    def test_an_event_names_the_assignment(self, store: Store, held_before: int) -> None:
        on_the_roster(store, "w1")
        insert(store, *(a_job(id) for id in "abcdef"))
        if held_before:
            assign(store, *"xyz"[:held_before])
        before = seen(store)
        pipeline = [{"$match": {"operationType": "update"}}, {"$project": {"_id": 1, **ASSIGNMENT_FIELDS}}]
        with store.roster._agreed.watch(pipeline) as stream:
            assign(store, "a", "b", "c")
            event = stream.try_next() or next(stream)

        assert assignment_of(event) == Assignment("w1", before.given + 1, ["a", "b", "c"])

    def test_a_release_is_no_assignment(self, store: Store) -> None:
        hold(store, a_job("a"), a_job("b"))
        with store.roster._agreed.watch() as stream:
            store.transactions.hand_back("w1", ["a"])
            event = stream.try_next() or next(stream)

        assert assignment_of(event) is None
