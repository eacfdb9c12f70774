"""The roster is the lock table: who may write on it, and when a write no longer matches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from recruiter.domain.planning.workers import RosterWorker
from recruiter.errors import Superseded
from recruiter.store.database import Store
from tests.samples import beat, facts_of_a_worker, on_the_roster


def held_by(store: Store, worker: str) -> list[object]:
    holding = store.roster.holding(worker)
    assert holding is not None
    return list(holding.assigned)


class TestJoining:
    def test_a_worker_that_joined_is_not_ready(self, store: Store) -> None:
        """Given a worker that has not read the term, when a leader assigns, then nothing is written."""
        store.roster.join("w1", facts_of_a_worker())

        assert not store.roster.assign({"w1": ["a"]}, term=7)

        assert held_by(store, "w1") == []
        assert [worker.ready for worker in store.roster.read()] == [False]

    def test_it_becomes_ready_with_the_newest_term(self, store: Store) -> None:
        store.roster.join("w1", facts_of_a_worker(groups=["mail"], tasks=["add", "sub"], slots=3, prefetch=9))

        assert store.roster.become_ready("w1", term=4)

        expected = RosterWorker(
            "w1", frozenset({"mail"}), frozenset({"add", "sub"}), 3, 9, holds=0, beats=1, host="here"
        )
        assert [replace(worker, seen_at=None) for worker in store.roster.read()] == [expected]
        assert not store.roster.assign({"w1": ["a"]}, term=3)
        assert store.roster.assign({"w1": ["a"]}, term=4)

    def test_becoming_ready_never_lowers_the_term(self, store: Store) -> None:
        """Given a leader that raised the term after the worker read it, then the newer one stays."""
        store.roster.join("w1", facts_of_a_worker())
        store.roster.raise_term(9)

        store.roster.become_ready("w1", term=4)

        assert not store.roster.assign({"w1": ["a"]}, term=8)
        assert store.roster.assign({"w1": ["a"]}, term=9)


class TestAssigning:
    def test_an_older_term_is_refused_and_writes_nothing(self, store: Store) -> None:
        on_the_roster(store, "w1", term=5)

        assert not store.roster.assign({"w1": ["a"]}, term=4)

        assert held_by(store, "w1") == []

    def test_a_raised_term_shuts_every_older_leader_out(self, store: Store) -> None:
        workers = [on_the_roster(store, f"w{number}", term=number) for number in range(3)]

        store.roster.raise_term(10)
        store.roster.raise_term(10)
        store.roster.raise_term(9)

        for worker in workers:
            assert not store.roster.assign({worker: ["a"]}, term=9)
            assert store.roster.assign({worker: [f"job of {worker}"]}, term=10)
            assert held_by(store, worker) == [f"job of {worker}"]


class TestHolding:
    def test_a_heartbeat_of_a_retired_worker_is_refused(self, store: Store) -> None:
        assert beat(store, "nobody", {}) is None
        assert store.roster.holding("nobody") is None
        assert store.roster.hand_back("nobody", ["a"]) is None
        assert store.roster.collection.count_documents({}) == 0

    def test_every_release_has_its_number(self, store: Store) -> None:
        """Answers can overtake each other: the one with the smaller number is older."""
        on_the_roster(store, "w1")
        store.roster.assign({"w1": ["a", "b"]}, term=1)

        first = store.transactions.hand_back("w1", ["a"])
        second = store.transactions.hand_back("w1", ["b"])

        assert (first.settled, second.settled) == (1, 2)

    def test_handing_back_from_off_the_roster_is_superseded(self, store: Store) -> None:
        with pytest.raises(Superseded, match="w1"):
            store.transactions.hand_back("w1", ["a"])


class TestLease:
    def test_one_of_two_takes_it(self, store: Store) -> None:
        assert store.leases.acquire(None, "one", {"host": "h"}) is not None
        assert store.leases.acquire(None, "two", {"host": "h"}) is None
        seen = store.leases.read()
        assert seen is not None
        assert (seen.term, seen.holder, seen.host) == (1, "one", "h")

    def test_a_lease_that_moved_since_it_was_seen_is_not_taken(self, store: Store) -> None:
        store.leases.acquire(None, "one", {})
        seen = store.leases.read()
        assert store.leases.renew(1, "one")

        assert store.leases.acquire(seen, "two", {}) is None

        after = store.leases.read()
        assert after is not None
        assert (after.term, after.holder) == (1, "one")
