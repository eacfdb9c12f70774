"""One entry of the roster, past the validator, must not stop the leader: what it found, each by itself."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from bson import Int64

from recruiter.clock import Clock
from recruiter.domain.planning.workers import RosterWorker
from recruiter.domain.policy_registry import PolicyRegistry
from recruiter.steps.assign import assign
from recruiter.steps.lead import Leadership
from recruiter.steps.rescue import MAX_RETIRED_PER_TRANSACTION, Rescue, Retired
from recruiter.store.database import Store
from tests.conftest import eventually
from tests.samples import NOW, a_job, facts_of_a_worker, insert


def enter(store: Store, worker: str, **fields: Any) -> None:
    """A worker that is ready, with some fields as nobody should write them."""
    store.roster.join(worker, facts_of_a_worker(seen_at=store.clock.now()))
    store.roster.become_ready(worker, 0)
    store.roster.collection.update_one({"_id": worker}, {"$set": fields}, bypass_document_validation=True)


@pytest.mark.parametrize("field", [{"given": "x"}, {"given": None}, {"given": Int64(2**63 - 1)}, {"metered": None}])
def test_an_entry_that_cannot_be_given_jobs_does_not_stop_assignment(store: Store, field: dict[str, Any]) -> None:
    # given a fake worker whose document cannot take a job, beside a good one
    enter(store, "fake", **field)
    enter(store, "good")
    insert(store, *(a_job() for _ in range(4)))

    # when
    round = assign(store, 1, NOW)

    # then
    assert round.assigned > 0
    assert [entry.id for entry in round.unreadable] == ["'fake'"]
    assert list(store.roster.holders()["good"]) != []


@pytest.mark.parametrize("term", [Int64(2**53), Int64(2**53 - 1), Int64(2**52), Int64(2**62)])
def test_no_term_on_the_roster_makes_the_lease_unreadable(store: Store, term: Int64) -> None:
    # given
    enter(store, "fake", term=term)

    # when a leader takes one term after the other
    leadership = Leadership(store, store.clock, 5.0)
    for _ in range(3):
        assert leadership.attend()
        leadership.doubt()

    # then
    lease = store.leases.read()
    assert lease is not None
    assert lease.holder is not None


def test_pausing_reaches_the_others(store: Store) -> None:
    # given
    enter(store, "fake", pauses="x")
    enter(store, "good")

    # when
    store.roster.tell_of_pauses()

    # then
    good = store.roster.collection.find_one({"_id": "good"})
    assert good is not None
    assert good["pauses"] == 1


class TestAQuietWorker:
    def rescue(self, store: Store, clock: Clock) -> Rescue:
        return Rescue(store, clock, 15.0, PolicyRegistry())

    def test_one_that_nobody_saw_move_is_given_nothing_until_it_moves(self, store: Store) -> None:
        # given an entry of an hour ago
        rescue = self.rescue(store, store.clock)
        enter(store, "fake", seen_at=store.clock.now() - timedelta(hours=1))
        insert(store, a_job())

        # then it is given nothing
        assert assign(store, 1, NOW, is_quiet=rescue.is_quiet).assigned == 0
        rescue.retire_silent(store.roster.read())
        assert assign(store, 1, NOW, is_quiet=rescue.is_quiet).assigned == 0

        # until its counter moves
        store.roster.collection.update_one({"_id": "fake"}, {"$inc": {"beats": 1}})
        assert assign(store, 1, NOW, is_quiet=rescue.is_quiet).assigned == 1

    def test_many_are_retired_together(self, store: Store) -> None:
        # given more than one transaction takes
        rescue = Rescue(store, store.clock, 0.0, PolicyRegistry())
        for number in range(MAX_RETIRED_PER_TRANSACTION + 5):
            enter(store, f"fake-{number}", **({"groups": 5} if number % 2 else {}))
        roster = store.roster.read()

        # when
        retired: list[Retired] = []

        def all_retired() -> bool:
            retired.extend(rescue.retire_silent(roster, roster.unreadable))
            return len(retired) >= MAX_RETIRED_PER_TRANSACTION + 5

        eventually(all_retired)

        # then
        assert len(retired) == MAX_RETIRED_PER_TRANSACTION + 5
        assert [worker for worker in store.roster.read() if isinstance(worker, RosterWorker)] == []
