"""`processes`: the running recruiters and cleaners, for people and probes. No process depends on it.

    {_id: "host:pid:1f3a", role, host, pid, since, seen_at, clock_offset}

Workers are on the roster. A killed process stays here for an hour, until MongoDB removes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pymongo
from pymongo import ASCENDING, IndexModel, ReturnDocument

from recruiter.domain.unreadable import Parsed
from recruiter.store import fields as field
from recruiter.store.codec import Document
from recruiter.store.errors import store_call
from recruiter.store.reading import ParsedCollection

NAME = "processes"
GONE = "gone"
_KEPT_SECONDS = 3600
INDEXES = [IndexModel([("seen_at", ASCENDING)], name=GONE, expireAfterSeconds=_KEPT_SECONDS)]
VALIDATOR = field.validator(
    "role host pid seen_at",
    _id="string",
    role={"enum": ["recruiter", "cleaner"]},
    host="string",
    pid="int long",
    seen_at="date",
)


@dataclass(frozen=True, slots=True)
class ProcessEntry:
    """A recruiter or a cleaner, for reports."""

    id: str
    role: str
    host: str
    pid: int
    seen_at: datetime
    since: datetime | None = None
    clock_offset: float | None = None
    """Seconds that the server's clock is ahead of its host's."""


class Processes(ParsedCollection):
    """The recruiters and cleaners that run now, for reports; workers are on the roster."""

    name = NAME

    @store_call
    def show(self, id: str, facts: Mapping[str, Any], within: float) -> datetime:
        """Writes the entry of a process; returns the server's time."""
        with pymongo.timeout(within):
            found = self.collection.find_one_and_update(
                {"_id": id},
                {"$set": dict(facts), "$currentDate": {"seen_at": True}},
                projection={"seen_at": 1},
                upsert=True,
                return_document=ReturnDocument.AFTER,
            )
        assert found is not None  # because of the upsert
        seen_at: datetime = found["seen_at"]
        return seen_at

    @store_call
    def leave(self, id: str) -> None:
        self.collection.delete_one({"_id": id})

    @store_call
    def entries(self) -> Parsed[ProcessEntry]:
        return self._parsed(_entry, sort=[("_id", 1)])


def _entry(document: Document) -> ProcessEntry:
    return ProcessEntry(
        id=field.text(document, "_id"),
        role=field.text(document, "role"),
        host=field.text(document, "host"),
        pid=field.whole(document, "pid"),
        seen_at=field.moment(document, "seen_at"),
        since=field.moment(document, "since", None),
        clock_offset=field.number(document, "clock_offset", None, least=-1e9, most=1e9),
    )
