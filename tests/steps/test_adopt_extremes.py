"""Adopt: documents that MongoDB takes, and that are hard to keep, to move or to read."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import bson
import pytest
from bson.regex import Regex

from recruiter.store.codec import decode
from recruiter.store.database import Store
from tests.inbox import Leader, by_hand
from tests.samples import NOW, places

MEGABYTE = 1024 * 1024


@pytest.fixture
def leader(store: Store) -> Leader:
    return Leader(store)


def _nested(depth: int) -> Any:
    value: Any = "bottom"
    for _ in range(depth):
        value = {"n": value}
    return value


class TestExtreme:
    """Documents that MongoDB takes and that are still hard to keep, move or read."""

    def adopts_all_but(self, leader: Leader, reason: str) -> None:
        by_hand(leader.store, {"_id": "good", "task": "add"})
        adoption = leader.adopts()
        assert adoption.adopted == 1
        assert [said for _, said in adoption.set_aside if reason in said], adoption.set_aside
        assert leader.store.scheduled.inbox(10, NOW) == []
        assert leader.store.scheduled.get("good") is not None

    def test_a_megabyte_of_nested_junk(self, store: Store, leader: Leader) -> None:
        by_hand(store, {"_id": "x", "junk": [_nested(80) for _ in range(1000)], "more": "x" * MEGABYTE})

        self.adopts_all_but(leader, "task is missing")

    def test_as_deep_as_a_document_may_be(self, store: Store, leader: Leader) -> None:
        """Given junk that does not fit into another document for its depth, then it is kept as bytes."""
        by_hand(store, {"_id": "x", "junk": _nested(179)})

        self.adopts_all_but(leader, "task is missing")

        kept = store.archived.collection.find_one({"_id": "x"})
        assert kept is not None
        assert bson.decode(bytes(kept["original"]))["junk"] == _nested(179)

    def test_junk_as_large_as_a_document_may_be(self, store: Store, leader: Leader) -> None:
        by_hand(store, {"_id": "x", "junk": "x" * (16 * MEGABYTE - 100)})

        self.adopts_all_but(leader, "bytes")

    def test_a_job_so_large_that_nothing_can_be_added_to_it(self, store: Store, leader: Leader) -> None:
        """Given a good job of 16 MB, then it is set aside: its lane and its outcome would not fit."""
        by_hand(store, {"_id": "x", "task": "add", "args": {"a": "x" * (16 * MEGABYTE - 100)}})

        self.adopts_all_but(leader, "bytes")

    @pytest.mark.parametrize("field", ["task", "group"])
    def test_megabytes_where_a_name_should_be(self, store: Store, leader: Leader, field: str) -> None:
        """Given a reason that could repeat megabytes, then it does not: it must fit beside what was inserted."""
        by_hand(store, {"_id": "x", "task": "add", field: [b"\x00" * (10 * MEGABYTE)]})

        self.adopts_all_but(leader, f"{field} must be one text")

    @pytest.mark.parametrize("place", ["note", "task", "group", "args"])
    def test_text_that_is_not_utf8_never_reaches_a_worker(self, store: Store, leader: Leader, place: str) -> None:
        """Given bytes that are no text in some field, when adopted, then a worker can read the job, or it is aside."""
        marker = "broken!"
        raw = bson.encode({"_id": "x", "task": "add", "group": "mail", "args": {}, "note": "", place: marker})
        if place == "args":
            raw = bson.encode({"_id": "x", "task": "add", "args": {"a": marker}})
        by_hand(store, raw.replace(marker.encode(), b"br\xff\xfeen!"))

        leader.adopts()

        for _, fetched in store.scheduled.fetch(["x"]):
            decoded = decode(fetched)
            assert store.scheduled.due([f"{decoded['group']}/{decoded['task']}"], NOW, 1, set()) == ["x"]
        assert places(store, ["x"])["x"] in ("scheduled", "archived")
        assert store.scheduled.inbox(10, NOW) == []

    def test_fields_of_the_protocol_are_not_believed(self, store: Store, leader: Leader) -> None:
        """Given a document that claims to have been started, ended or cancelled, then it is a fresh job or aside."""
        lies = {"started_by": "w9", "cancel": "now", "original": 1, "result": 42, "why": "done", "done": True}
        by_hand(store, {"_id": "x", "task": "add", **lies})

        leader.adopts()

        left = store.scheduled.collection.find_one({"_id": "x"}) or {}
        assert lies.keys().isdisjoint(left)

    def test_a_date_at_the_edge_of_what_python_knows(self, store: Store, leader: Leader) -> None:
        by_hand(store, {"_id": "x", "task": "add", "scheduled_at": datetime(9999, 12, 31, 23, 59, tzinfo=UTC)})

        leader.adopts()

        assert store.scheduled.next_due(NOW) == datetime(9999, 12, 31, 23, 59, tzinfo=UTC)

    def test_a_regular_expression_in_place_of_a_name(self, store: Store, leader: Leader) -> None:
        by_hand(store, {"_id": "x", "task": Regex(".*")})

        self.adopts_all_but(leader, "task must be one text")
