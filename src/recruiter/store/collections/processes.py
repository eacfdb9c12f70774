"""`processes`: the recruiters and cleaners that run, for people and probes to see. Nothing depends on it.

    {_id: "host:pid:1f3a", role, host, pid, since, seen_at, clock_offset}

Workers are on the roster. One that was killed stays here for an hour, until MongoDB itself removes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pymongo
from pymongo import ASCENDING, IndexModel, ReturnDocument
from pymongo.collection import Collection

from recruiter.domain.unreadable import Parsed
from recruiter.store import fields as field
from recruiter.store.codec import RAW, Document
from recruiter.store.errors import store_call
from recruiter.store.reading import parsed

NAME = "processes"
GONE = "gone"
_KEPT = timedelta(hours=1)
INDEXES = [IndexModel([("seen_at", ASCENDING)], name=GONE, expireAfterSeconds=int(_KEPT.total_seconds()))]
VALIDATOR = {
    "$jsonSchema": {
        "required": ["role", "host", "pid", "seen_at"],
        "properties": {
            "_id": {"bsonType": "string"},
            "role": {"enum": ["recruiter", "cleaner"]},
            "host": {"bsonType": "string"},
            "pid": {"bsonType": ["int", "long"]},
            "seen_at": {"bsonType": "date"},
        },
    }
}


@dataclass(frozen=True, slots=True)
class ProcessEntry:
    """A process that is there."""

    id: str
    role: str
    host: str
    pid: int
    seen_at: datetime
    since: datetime | None = None
    clock_offset: float | None = None
    """Seconds that the server's clock is ahead of its host's."""


class Processes:
    def __init__(self, collection: Collection[Document]) -> None:
        self.collection = collection

    @store_call
    def show(self, id: str, facts: Mapping[str, Any], within: float) -> datetime:
        """Shows life; returns the server's time."""
        with pymongo.timeout(within):
            found = self.collection.find_one_and_update(
                {"_id": id},
                {"$set": dict(facts), "$currentDate": {"seen_at": True}},
                projection={"seen_at": 1},
                upsert=True,
                return_document=ReturnDocument.AFTER,
            )
        assert found is not None  # it is inserted if it was not there
        seen_at: datetime = found["seen_at"]
        return seen_at

    @store_call
    def leave(self, id: str) -> None:
        self.collection.delete_one({"_id": id})

    @store_call
    def entries(self) -> Parsed[ProcessEntry]:
        raw: Collection[Any] = self.collection.with_options(codec_options=RAW)
        return parsed(NAME, raw.find().sort("_id", 1), _entry)


def _entry(document: Document) -> ProcessEntry:
    """The parser."""
    return ProcessEntry(
        id=field.text(document, "_id"),
        role=field.text(document, "role"),
        host=field.text(document, "host"),
        pid=field.whole(document, "pid"),
        seen_at=field.moment(document, "seen_at"),
        since=field.moment(document, "since", None),
        clock_offset=field.number(document, "clock_offset", None, least=-1e9, most=1e9),
    )
