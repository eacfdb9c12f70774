"""Adopt: each document of the inbox stands for itself; whatever is wrong with one, the others do not wait for it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import bson
import pytest
from bson import Code
from bson.binary import Binary
from bson.datetime_ms import DatetimeMS

from recruiter.doctor import examine
from recruiter.steps.adopt import set_aside
from recruiter.store import reading
from recruiter.store.collections.inbox import unlocked
from recruiter.store.database import Store
from tests.inbox import Leader, by_hand
from tests.samples import NOW


@pytest.fixture
def leader(store: Store) -> Leader:
    return Leader(store)


def not_utf_8() -> bytes:
    raw = bson.encode({"_id": "ZZZZ", "task": "add"})
    return raw.replace(b"ZZZZ", b"\xff\xfe\xff\xfe")


HOSTILE: dict[str, dict[str, Any] | bytes] = {
    "an id that is code": {"_id": Code("x"), "task": "add"},
    "an id that is a UUID of three bytes": {"_id": Binary(b"abc", 4), "task": "add"},
    "an id that is an old UUID of three bytes": {"_id": Binary(b"abc", 3), "task": "add"},
    "an id that is not UTF-8": not_utf_8(),
    "an id that is a document": {"_id": {"a": 1}, "task": "add"},
    "an id of a megabyte": {"_id": "x" * 2**20, "task": "add"},
    "an id that is null": {"_id": None, "task": "add"},
    "a UUID of three bytes among the arguments": {"_id": "x", "task": "add", "args": {"a": Binary(b"abc", 4)}},
    "a date before the first": {"_id": "x", "task": "add", "scheduled_at": DatetimeMS(-(2**60))},
    "a date on the first day": {"_id": "x", "task": "add", "created_at": datetime(1, 1, 1, tzinfo=UTC)},
    "a priority that is no number": {"_id": "x", "task": "add", "priority": float("nan")},
}


@pytest.mark.parametrize("document", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_document_is_set_aside_and_the_next_one_is_adopted(
    store: Store, leader: Leader, document: dict[str, Any] | bytes
) -> None:
    by_hand(store, document, {"_id": "good", "task": "add"})

    adoption = leader.adopts()

    assert adoption.adopted == 1
    assert len(adoption.set_aside) == 1
    assert [each["_id"] for each in store.scheduled.collection.find()] == ["good"]
    assert [job.why for job in store.archived.set_aside(10)] == ["malformed"]


@pytest.mark.parametrize("name", ["crashes", "attempts", "snoozes", "tags", "timeout", "created_at", "key", "method"])
def test_null_is_as_good_as_nothing(store: Store, leader: Leader, name: str) -> None:
    """Given a field that is null, which a validator would refuse in a job, then the document is a job without it."""
    by_hand(store, {"_id": "x", "task": "add", name: None})

    assert leader.adopts().adopted == 1

    assert store.scheduled.get("x") is not None


def test_a_hundred_bad_ones_do_not_block_the_good_one_behind_them(store: Store, leader: Leader) -> None:
    by_hand(store, *({"_id": number, "task": "add", "cancel": {"at": NOW}, "crashes": -1} for number in range(150)))
    by_hand(store, {"_id": "good", "task": "add"})

    while leader.adopts().set_aside:
        pass

    assert store.scheduled.get("good") is not None
    assert store.archived.collection.count_documents({}) == 150


def test_an_id_whose_archived_twin_cannot_be_read(store: Store, leader: Leader) -> None:
    twin = {"_id": "x", "task": "a", "group": "g", "priority": 0, "created_at": NOW, "scheduled_at": NOW, "tags": 5}
    store.archived.collection.insert_one({**twin, "done": True, "why": "done", "archived_at": NOW})
    by_hand(store, {"_id": "x", "task": "add"}, {"_id": "good", "task": "add"})

    adoption = leader.adopts()

    assert adoption.adopted == 1
    assert [reason for _, reason in adoption.set_aside] == ["a job with this _id has ended already; use another _id"]


def test_a_document_that_is_locked_meanwhile_is_not_set_aside(store: Store) -> None:
    """Given a bad document, when another program locks it after it was read, then it stays where it is."""
    by_hand(store, {"_id": "x", "task": 7})
    Leader(store)
    (raw,) = store.scheduled.inbox(10, NOW)
    store.scheduled.collection.update_one({"_id": "x"}, {"$set": {"locked_by": "other:1", "locked_at": NOW}})

    aside = set_aside(store, 1, "me", NOW, [reading.unreadable("scheduled", raw, "bad")], unlocked(NOW))

    assert aside == ()
    assert store.scheduled.exists("x")
    assert store.archived.collection.count_documents({}) == 0


def test_doctor_counts_what_has_not_been_adopted(store: Store) -> None:
    by_hand(store, {"_id": "x", "task": "add"}, {"_id": "y", "task": 7})

    findings = [finding.text for finding in examine(store) if "adopted" in finding.text]

    assert findings
    assert "2 documents" in findings[0]
