"""Prepare: collections, indexes and validators, made by anybody at any time; and what a validator lets in."""

from __future__ import annotations

from typing import Any

import pytest
from bson import Decimal128
from pymongo.errors import WriteError

from recruiter.store.codec import job_document
from recruiter.store.database import Store
from tests.samples import NOW, a_job, on_the_roster


class TestPrepare:
    def test_a_validator_that_was_taken_away_comes_back(self, store: Store) -> None:
        store.database.command("collMod", store.scheduled.collection.name, validator={})
        store.scheduled.collection.insert_one({"_id": "unseen", "lane": "generic/add", "task": 5})

        store.prepare()

        assert store.scheduled.collection.count_documents({}) == 1

        with pytest.raises(WriteError):
            store.scheduled.collection.insert_one({"_id": "seen", "lane": "generic/add", "task": 5})


FULL = job_document(a_job("full"))


class TestValidators:
    @pytest.mark.parametrize(
        "document",
        [{"task": "add", "args": {}}, {}, {"lane": None, "scheduled_at": ["x"]}, {"task": [1], "args": "?"}],
        ids=str,
    )
    def test_without_a_lane_anything_may_be_inserted(self, store: Store, document: dict[str, Any]) -> None:
        store.scheduled.collection.insert_one(dict(document))

        assert store.scheduled.collection.count_documents({}) == 1

    @pytest.mark.parametrize(
        "change",
        [
            {"lane": ["generic/add"]},
            {"lane": 5},
            {"priority": [0, 1]},
            {"priority": "high"},
            {"priority": None},
            {"scheduled_at": [NOW, NOW]},
            {"scheduled_at": "2030-01-01"},
            {"scheduled_at": None},
            {"attempts": "1"},
            {"attempts": Decimal128("1")},
            {"args": "x"},
            {"task": ["add"]},
        ],
        ids=str,
    )
    def test_what_the_index_holds_has_its_type(self, store: Store, change: dict[str, Any]) -> None:
        with pytest.raises(WriteError):
            store.scheduled.collection.insert_one(FULL | change)

        assert store.due_jobs.lanes() == []

    @pytest.mark.parametrize("change", [{"assigned": None}, {"term": "1"}, {"beats": 1.5}, {"ready": 1}], ids=str)
    def test_the_roster_keeps_its_shape(self, store: Store, change: dict[str, Any]) -> None:
        on_the_roster(store, "w1")

        with pytest.raises(WriteError):
            store.roster.collection.update_one({"_id": "w1"}, {"$set": change})

        assert [worker.id for worker in store.roster.read()] == ["w1"]
