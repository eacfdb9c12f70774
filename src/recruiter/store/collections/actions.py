"""`actions`: who did what to the fleet and its jobs, by hand. For people to read; nothing depends on it.

    {_id, at, by, verb: "cancel", subject: "job 42", reason, outcome: "is being cancelled", address}

An action is written down before it is done, and its outcome afterwards: one without an outcome was interrupted. MongoDB
itself removes entries after 90 days.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from bson import ObjectId
from pymongo import ASCENDING, DESCENDING, IndexModel
from pymongo.collection import Collection

from recruiter.domain.unreadable import Parsed
from recruiter.store import fields as field
from recruiter.store.codec import RAW, Document
from recruiter.store.errors import store_call
from recruiter.store.reading import parsed

NAME = "actions"
_KEPT = timedelta(days=90)
INDEXES = [IndexModel([("at", ASCENDING)], name="old", expireAfterSeconds=int(_KEPT.total_seconds()))]
VALIDATOR: Document = {
    "$jsonSchema": {
        "required": ["at", "by", "verb", "subject"],
        "properties": {
            "at": {"bsonType": "date"},
            "by": {"bsonType": "string"},
            "verb": {"bsonType": "string"},
            "subject": {"bsonType": "string"},
        },
    }
}


@dataclass(frozen=True, slots=True)
class ActionEntry:
    """An action of a person."""

    at: datetime
    by: str
    verb: str
    """`cancel`, `recover`, `remove`, `pause-group`, …"""
    subject: str
    """What it was done to, in words: a job, a filter, a group, a worker, a scheduler, a limit."""
    reason: str | None = None
    outcome: str | None = None
    """What came of it; None while it is being done, or when it was interrupted."""


class Actions:
    def __init__(self, collection: Collection[Document]) -> None:
        self.collection = collection

    @store_call
    def begin(self, entry: ActionEntry, address: str | None = None) -> ObjectId:
        """Writes down what is about to be done; returns the id for `conclude`."""
        document = {"at": entry.at, "by": entry.by, "verb": entry.verb, "subject": entry.subject}
        inserted = self.collection.insert_one({**document, "reason": entry.reason, "address": address})
        return ObjectId(str(inserted.inserted_id))

    @store_call
    def conclude(self, id: ObjectId, outcome: str) -> None:
        """What came of it."""
        self.collection.update_one({"_id": id}, {"$set": {"outcome": outcome}})

    @store_call
    def latest(self, limit: int) -> Parsed[ActionEntry]:
        """The newest first."""
        raw: Collection[Any] = self.collection.with_options(codec_options=RAW)
        return parsed(NAME, raw.find().sort("at", DESCENDING).limit(limit), _entry)


def _entry(document: Document) -> ActionEntry:
    """The parser."""
    return ActionEntry(
        at=field.moment(document, "at"),
        by=field.text(document, "by"),
        verb=field.text(document, "verb"),
        subject=field.text(document, "subject"),
        reason=field.text(document, "reason", None),
        outcome=field.text(document, "outcome", None),
    )
