"""Adopt: what other programs insert becomes a job, or is set aside with its reason, and nothing stops the rest."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import bson
import pytest
from bson import Binary
from bson.datetime_ms import DatetimeMS

from recruiter.clock import StoppedClock
from recruiter.domain.state import State
from recruiter.errors import Superseded
from recruiter.steps.adopt import MAX_ADOPTED_PER_PASS, Adoption, set_aside
from recruiter.store import reading
from recruiter.store.codec import adopted_fields
from recruiter.store.collections.inbox import unlocked
from recruiter.store.database import Store
from recruiter.views.explain import explain
from recruiter.views.find import find
from tests.inbox import Leader, by_hand
from tests.samples import NOW, a_job, document, done, places

MEGABYTE = 1024 * 1024


@pytest.fixture
def leader(store: Store) -> Leader:
    return Leader(store)


class TestGood:
    def test_hostile_keys_stay_data(self, store: Store, leader: Leader) -> None:
        args = {"$where": "sleep(1000)", "a.b": {"$ne": None}, "": 1, "__class__": "os.system"}
        by_hand(store, {"_id": 1, "task": "add", "args": args})

        leader.adopts()

        assert document(store, 1)["args"] == args

    def test_an_adopted_document_keeps_its_own_fields(self, store: Store, leader: Leader) -> None:
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


def nested(depth: int) -> Any:
    return {"n": nested(depth - 1)} if depth else "bottom"


def not_utf_8(document: dict[str, Any]) -> bytes:
    return bson.encode(document).replace(b"ZZZZ", b"\xff\xfe\xff\xfe")


BAD: dict[str, tuple[dict[str, Any] | bytes, str]] = {
    "no task": ({"args": {}}, "task is missing"),
    "a task that is an operator": ({"task": {"$gt": ""}}, "task must be one text"),
    "a task that leaves its lane": ({"task": "mail/add"}, "is not a name"),
    "arguments that are a text": ({"task": "add", "args": "rm -rf"}, "args is str"),
    "a time that is a list": ({"task": "add", "scheduled_at": [NOW, NOW]}, "scheduled_at is list"),
    "a time before year 1": ({"task": "add", "created_at": DatetimeMS(-(2**60))}, "created_at is DatetimeMS"),
    "a priority that is no number": ({"task": "add", "priority": float("nan")}, "priority"),
    "attempts that are a fraction": ({"task": "add", "attempts": 1.5}, "attempts is float"),
    "tags that hold a number": ({"task": "add", "tags": ["a", 5]}, "tags"),
    "a policy that is a name": ({"task": "add", "retry_policy": "forever"}, "retry_policy is str"),
    "executions that hold a text": ({"task": "add", "executions": ["often"]}, "executions"),
    "an id that is a document": ({"_id": {"a": 1}, "task": "add"}, "_id is dict"),
    "an id that is a UUID of three bytes": ({"_id": Binary(b"abc", 4), "task": "add"}, "cannot be read"),
    "an id that is not UTF-8": (not_utf_8({"_id": "ZZZZ", "task": "add"}), "cannot be read"),
    "an id of a megabyte": ({"_id": "x" * MEGABYTE, "task": "add"}, "_id is str"),
    "arguments that are not UTF-8": (not_utf_8({"_id": "x", "task": "add", "args": {"a": "ZZZZ"}}), "cannot be read"),
    "megabytes where a name should be": ({"task": [b"\x00" * (10 * MEGABYTE)]}, "task must be one text"),
    "as deep as a document may be": ({"_id": "x", "junk": nested(179)}, "task is missing"),
    "as large as a document may be": ({"_id": "x", "task": "add", "junk": "x" * (16 * MEGABYTE - 100)}, "bytes"),
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
        assert set(store.due_jobs.due(["generic/add"], NOW, 10, set())) == {"before", "after"}
        (aside,) = store.archived.jobs_set_aside(10)
        assert (aside.done, aside.why, aside.archived_at) == (False, "malformed", NOW)
        assert reason in (aside.reason or "")
        assert leader.adopts() == Adoption(0, ())
        plan = store.scheduled.collection.find({"lane": {"$in": ["generic/add"]}}, {"_id": 1}).hint("due").explain()
        assert "'isMultiKey': True" not in str(plan), "a list in a date spoils the index for every query"

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

    def test_only_the_leader_may(self, store: Store, leader: Leader) -> None:
        by_hand(store, {"_id": "x"})
        seen = store.leases.read()
        store.leases.acquire(seen, "somebody else", {})

        with pytest.raises(Superseded):
            leader.adopts()

        assert places(store, ["x"]) == {"x": "scheduled"}


MINUTE = timedelta(minutes=1)


class TestLocked:
    """Another program may hold what it has inserted: it is left alone, for a quarter of an hour."""

    @pytest.fixture(autouse=True)
    def stopped(self, store: Store) -> StoppedClock:
        store.clock = StoppedClock(NOW)
        return store.clock

    def test_a_foreign_lock_that_is_renewed_is_respected(self, store: Store, leader: Leader) -> None:
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
        by_hand(
            store, *({"task": "add", **lock} for _ in range(MAX_ADOPTED_PER_PASS + 1)), {"_id": "good", "task": "add"}
        )

        assert leader.adopts().adopted == 1
        assert store.due_jobs.due(["generic/add"], NOW, 10, set()) == ["good"]

    def test_people_see_who_holds_it(self, store: Store, leader: Leader) -> None:
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


def test_fields_of_the_protocol_are_not_believed(store: Store, leader: Leader) -> None:
    """Given a document that claims to have been started, ended or cancelled, then it is a fresh job or aside."""
    lies = {"started_by": "w9", "cancel": "now", "original": 1, "result": 42, "why": "done", "done": True}
    by_hand(store, {"_id": "x", "task": "add", **lies})

    leader.adopts()

    left = store.scheduled.collection.find_one({"_id": "x"}) or {}
    assert lies.keys().isdisjoint(left)


def test_a_document_that_is_locked_meanwhile_is_not_set_aside(store: Store, leader: Leader) -> None:
    """Given a bad document, when another program locks it after it was read, then it stays where it is."""
    by_hand(store, {"_id": "x", "task": 7})
    (raw,) = store.scheduled.inbox(10, NOW)
    store.scheduled.collection.update_one({"_id": "x"}, {"$set": {"locked_by": "other:1", "locked_at": NOW}})

    aside = set_aside(store, 1, "me", NOW, [reading.unreadable("scheduled", raw, "bad")], unlocked(NOW))

    assert aside == ()
    assert store.scheduled.exists("x")
    assert store.archived.collection.count_documents({}) == 0
