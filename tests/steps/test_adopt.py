"""Adopt: what other programs insert becomes a job, or is set aside with its reason, and nothing stops the rest."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from bson import Binary, Decimal128, Int64, ObjectId
from bson.datetime_ms import DatetimeMS

from recruiter.clock import StoppedClock
from recruiter.domain.state import State
from recruiter.errors import StoreError, Superseded
from recruiter.steps.adopt import INBOX_AT_ONCE, Adoption
from recruiter.store.codec import adopted_fields, decode, job_document
from recruiter.store.database import Store
from recruiter.views.explain import explain
from recruiter.views.find import anything_to_do, find
from tests.inbox import Leader, by_hand
from tests.samples import NOW, a_job, document, done, insert, on_the_roster, places

MEGABYTE = 1024 * 1024


@pytest.fixture
def leader(store: Store) -> Leader:
    return Leader(store)


class TestGood:
    def test_a_minimal_document_becomes_a_job(self, store: Store, leader: Leader) -> None:
        """Given {task, args}, when adopted, then it is a full job that is due now."""
        by_hand(store, {"_id": 7, "task": "add", "args": {"a": 1, "b": 2}})

        assert leader.adopts() == Adoption(1, ())

        assert store.scheduled.get(7) == a_job(7)
        assert store.scheduled.due(["generic/add"], NOW, 10, set()) == [7]
        assert store.scheduled.inbox(10, NOW) == []

    def test_what_it_says_of_itself_is_kept(self, store: Store, leader: Leader) -> None:
        options = {
            "group": "mail",
            "priority": 2.5,
            "created_at": NOW - timedelta(days=1),
            "scheduled_at": NOW + timedelta(days=1),
            "attempts": 2,
            "method": "ping",
            "urn": "u",
            "at_most_once": True,
            "retry_policy": {"class": "RetryManyTimes", "parameters": {"n": 3, "seconds": 60}},
        }
        by_hand(store, {"_id": "x", "task": "add", "args": [1, 2], "tags": ["a"], "username": "ada", **options})

        leader.adopts()

        assert store.scheduled.get("x") == a_job("x", args=[1, 2], tags=("a",), owner="ada", **options)

    @pytest.mark.parametrize("id", ["text", 5, Int64(2**40), ObjectId(), UUID(int=9)], ids=lambda id: type(id).__name__)
    def test_every_kind_of_id_can_be_given_to_a_worker(self, store: Store, leader: Leader, id: Any) -> None:
        by_hand(store, {"_id": id, "task": "add"})
        on_the_roster(store, "w1")

        leader.adopts()
        (found,) = store.scheduled.due(["generic/add"], NOW, 10, set())
        store.roster.assign({"w1": [found]}, 1)

        assert found == id
        ((fetched, raw),) = store.scheduled.fetch(list(store.roster.held()))
        assert (fetched, decode(raw)["args"]) == (id, {})

    def test_nulls_count_as_not_said(self, store: Store, leader: Leader) -> None:
        by_hand(store, {"_id": 1, "task": "add", "lane": None, "priority": None, "scheduled_at": None, "tags": None})

        assert leader.adopts() == Adoption(1, ())
        assert store.scheduled.get(1) == a_job(1, args={})

    def test_adopting_twice_changes_nothing(self, store: Store, leader: Leader) -> None:
        by_hand(store, {"_id": 1, "task": "add"})
        leader.adopts()
        before = document(store, 1)

        assert leader.adopts() == Adoption(0, ())
        assert document(store, 1) == before

    def test_hostile_keys_stay_data(self, store: Store, leader: Leader) -> None:
        args = {"$where": "sleep(1000)", "a.b": {"$ne": None}, "": 1, "__class__": "os.system"}
        by_hand(store, {"_id": 1, "task": "add", "args": args})

        leader.adopts()

        assert document(store, 1)["args"] == args


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no task": ({"args": {}}, "task is missing"),
    "task is null": ({"task": None}, "task must be one text"),
    "task is a document": ({"task": {"$gt": ""}}, "task must be one text"),
    "task is a list": ({"task": ["add"]}, "task must be one text"),
    "task is empty": ({"task": ""}, "is not a name"),
    "task is an operator": ({"task": "$where"}, "is not a name"),
    "task leaves its lane": ({"task": "mail/add"}, "is not a name"),
    "task is 1 MB": ({"task": "x" * MEGABYTE}, "is not a name"),
    "group is a number": ({"task": "add", "group": 5}, "group must be one text"),
    "group is null": ({"task": "add", "group": None}, "group must be one text"),
    "group is empty": ({"task": "add", "group": ""}, "is not a name"),
    "args is a text": ({"task": "add", "args": "rm -rf"}, "args is str"),
    "args is null": ({"task": "add", "args": None}, "args is NoneType"),
    "time is a text": ({"task": "add", "scheduled_at": "2030-01-01"}, "scheduled_at is str"),
    "time is a list": ({"task": "add", "scheduled_at": [NOW, NOW]}, "scheduled_at is list"),
    "time is a number": ({"task": "add", "scheduled_at": 0}, "scheduled_at is int"),
    "time is beyond year 9999": ({"task": "add", "scheduled_at": DatetimeMS(2**60)}, "scheduled_at is DatetimeMS"),
    "time is before year 1": ({"task": "add", "created_at": DatetimeMS(-(2**60))}, "created_at is DatetimeMS"),
    "priority is a text": ({"task": "add", "priority": "high"}, "priority is str"),
    "priority is true": ({"task": "add", "priority": True}, "priority is bool"),
    "priority is a list": ({"task": "add", "priority": [1, 2]}, "priority is list"),
    "priority is a decimal": ({"task": "add", "priority": Decimal128("1")}, "priority is Decimal128"),
    "attempts is a fraction": ({"task": "add", "attempts": 1.5}, "attempts is float"),
    "tags hold a number": ({"task": "add", "tags": ["a", 5]}, "tags"),
    "tags are a text": ({"task": "add", "tags": "a"}, "tags is str"),
    "at_most_once is a text": ({"task": "add", "at_most_once": "yes"}, "at_most_once is str"),
    "policy is a name": ({"task": "add", "retry_policy": "forever"}, "retry_policy is str"),
    "executions is a number": ({"task": "add", "executions": 3}, "executions is int"),
    "executions hold a text": ({"task": "add", "executions": ["often"]}, "executions"),
    "id is a float": ({"_id": 1.5, "task": "add"}, "_id is float"),
    "id is true": ({"_id": True, "task": "add"}, "_id is bool"),
    "id is null": ({"_id": None, "task": "add"}, "_id is NoneType"),
    "id is a document": ({"_id": {"a": 1, "b": [2]}, "task": "add"}, "_id is dict"),
    "id is a date": ({"_id": NOW, "task": "add"}, "_id is datetime"),
    "id is bytes": ({"_id": b"\x00\x01", "task": "add"}, "_id is bytes"),
    "id is a strange uuid": ({"_id": Binary(b"short", 4), "task": "add"}, "cannot be read"),
}


class TestBad:
    @pytest.mark.parametrize("kind", BAD)
    def test_it_is_set_aside_with_its_reason_and_the_rest_go_on(self, store: Store, leader: Leader, kind: str) -> None:
        """Given a malformed document between two good ones, when adopted, then it alone is set aside."""
        bad, reason = BAD[kind]
        by_hand(store, {"_id": "before", "task": "add"}, bad, {"_id": "after", "task": "add"})

        adoption = leader.adopts()

        assert adoption.adopted == 2
        assert [said for _, said in adoption.set_aside if reason in said], adoption.set_aside
        assert len(adoption.set_aside) == 1
        assert store.scheduled.inbox(10, NOW) == []
        assert set(store.scheduled.due(["generic/add"], NOW, 10, set())) == {"before", "after"}
        (aside,) = store.archived.set_aside(10)
        assert (aside.done, aside.why, aside.archived_at) == (False, "malformed", NOW)
        assert reason in (aside.reason or "")
        assert leader.adopts() == Adoption(0, ())

    def test_what_was_inserted_can_be_looked_at(self, store: Store, leader: Leader) -> None:
        by_hand(store, {"_id": "x", "args": {"a": [1, {"$b": 2}]}, "note": "hello"})

        leader.adopts()

        kept = store.archived.collection.find_one({"_id": "x"})
        assert kept is not None
        assert kept["original"] == {"_id": "x", "args": {"a": [1, {"$b": 2}]}, "note": "hello"}

    def test_an_id_that_has_ended_already_is_not_run_again(self, store: Store, leader: Leader) -> None:
        job = a_job("x")
        store.transactions.archive_new(job.id, done(job))
        by_hand(store, {"_id": "x", "task": "add"}, {"_id": "y", "task": "add"})

        adoption = leader.adopts()

        assert adoption.adopted == 1
        assert "has ended already" in adoption.set_aside[0][1]
        assert places(store, ["x", "y"]) == {"x": "archived", "y": "scheduled"}
        ended = store.archived.get("x")
        assert ended is not None
        assert ended.done, "what had ended is as it was"

    def test_more_than_one_look_holds(self, store: Store, leader: Leader) -> None:
        """Given more junk than one look takes, when looked at again and again, then good ones come through."""
        by_hand(store, *({"junk": number} for number in range(INBOX_AT_ONCE + 20)), {"_id": "good", "task": "add"})

        adoptions = [leader.adopts() for _ in range(2)]

        assert sum(len(adoption.set_aside) for adoption in adoptions) == INBOX_AT_ONCE + 20
        assert places(store, ["good"]) == {"good": "scheduled"}
        assert store.scheduled.due(["generic/add"], NOW, 1, set()) == ["good"]

    def test_only_the_leader_may(self, store: Store, leader: Leader) -> None:
        by_hand(store, {"_id": "x"})
        seen = store.leases.read()
        store.leases.acquire(seen, "somebody else", {})

        with pytest.raises(Superseded):
            leader.adopts()

        assert places(store, ["x"]) == {"x": "scheduled"}


MINUTE = timedelta(minutes=1)
NOT_HELD: dict[str, dict[str, Any]] = {
    "the lock is old": {"locked_by": "other:1", "locked_at": NOW - 15 * MINUTE},
    "no date": {"locked_by": "other:1"},
    "the date is null": {"locked_by": "other:1", "locked_at": None},
    "the date is a text": {"locked_by": "other:1", "locked_at": NOW.isoformat()},
    "the date is a number": {"locked_by": "other:1", "locked_at": 1893499200},
    "the date is far ahead": {"locked_by": "other:1", "locked_at": NOW + timedelta(days=3650)},
    "the date is beyond all dates": {"locked_by": "other:1", "locked_at": DatetimeMS(2**50)},
    "nobody": {"locked_at": NOW},
    "nobody, in other words": {"locked_by": "", "locked_at": NOW},
    "no name": {"locked_by": {"pid": 7}, "locked_at": NOW},
}


class TestLocked:
    """Another program may hold what it has inserted: it is left alone, for a quarter of an hour."""

    @pytest.fixture(autouse=True)
    def stopped(self, store: Store) -> StoppedClock:
        store.clock = StoppedClock(NOW)
        return store.clock

    def test_it_is_left_to_its_holder(self, store: Store, leader: Leader) -> None:
        by_hand(store, {"_id": "x", "task": "add", "locked_by": "other:1", "locked_at": NOW - 14 * MINUTE})
        before = document(store, "x")

        assert leader.adopts() == Adoption(0, ())

        assert document(store, "x") == before
        assert not anything_to_do(store, "w1", {"add"}, NOW), "nobody waits for it"

    def test_it_is_taken_over_when_the_lock_is_old(self, store: Store, leader: Leader) -> None:
        by_hand(store, {"_id": "x", "task": "add", "locked_by": "other:1", "locked_at": NOW - 14 * MINUTE})

        later = NOW + MINUTE
        assert leader.adopts(later) == Adoption(1, (), (("x", "other:1"),))

        assert document(store, "x") == job_document(a_job("x", args={}, created_at=later, scheduled_at=later))
        assert store.scheduled.due(["generic/add"], later, 10, set()) == ["x"]

    @pytest.mark.parametrize("kind", NOT_HELD)
    def test_what_is_no_lock_is_adopted_at_once(self, store: Store, leader: Leader, kind: str) -> None:
        by_hand(store, {"_id": "x", "task": "add", **NOT_HELD[kind]})

        assert leader.adopts().adopted == 1

        found = find(store, "x")
        assert found is not None
        assert (found.locked_by, found.locked_at) == (None, None)

    def test_whoever_renews_it_keeps_it(self, store: Store, leader: Leader) -> None:
        by_hand(store, {"_id": "x", "task": "add", "locked_by": "other:1", "locked_at": NOW})
        store.scheduled.collection.update_one({"_id": "x"}, {"$set": {"locked_at": NOW + 10 * MINUTE}})

        assert leader.adopts(NOW + 20 * MINUTE).adopted == 0
        assert leader.adopts(NOW + 25 * MINUTE).adopted == 1

    def test_a_lock_that_is_taken_while_the_leader_adopts_is_respected(self, store: Store, leader: Leader) -> None:
        by_hand(store, {"_id": "x", "task": "add"})
        read = document(store, "x")

        lock = {"locked_by": "other:1", "locked_at": NOW}
        store.scheduled.collection.update_one({"_id": "x"}, {"$set": lock})
        store.scheduled.adopt([(read, adopted_fields(read, NOW))])

        assert document(store, "x") == {**read, **lock}
        assert leader.adopts().adopted == 0

    def test_many_of_them_hide_nobody(self, store: Store, leader: Leader) -> None:
        lock = {"locked_by": "other:1", "locked_at": NOW}
        by_hand(store, *({"task": "add", **lock} for _ in range(INBOX_AT_ONCE + 1)), {"_id": "good", "task": "add"})

        assert leader.adopts().adopted == 1
        assert store.scheduled.due(["generic/add"], NOW, 10, set()) == ["good"]

    def test_people_see_who_holds_it(self, store: Store, leader: Leader) -> None:
        del leader
        since = NOW - 5 * MINUTE
        by_hand(store, {"_id": "x", "task": "add", "args": [1, 2], "locked_by": "other:1", "locked_at": since})

        found = find(store, "x")

        assert found == a_job("x", args=[1, 2], locked_by="other:1", locked_at=since)
        assert found is not None
        assert found.state == State.RUNNING
        assert explain(store, "x", NOW) == (
            "another program has inserted this job and locked it: other:1 since 2030-01-01 11:55:00 UTC; "
            "the lock ends at 12:10:00 UTC"
        )

    def test_what_is_malformed_is_not_seen_before_it_is_set_aside(self, store: Store, leader: Leader) -> None:
        by_hand(store, {"_id": "x", "args": [], "locked_by": "other:1", "locked_at": NOW})

        assert leader.adopts() == Adoption(0, ())
        with pytest.raises(StoreError, match="no leader has adopted it yet"):
            find(store, "x")
        assert len(leader.adopts(NOW + 15 * MINUTE).set_aside) == 1


def test_a_job_that_waits_is_not_touched(store: Store, leader: Leader) -> None:
    (id,) = insert(store, a_job())
    before = document(store, id)

    assert leader.adopts() == Adoption(0, ())

    assert document(store, id) == before
    assert store.archived.set_aside(10) == []
