"""`leases`: who leads, and since which term.

    {_id: "leader", term: 7, holder: <this attempt>, beats: 412, host, pid, session, since, renewed_at, takeovers: […]}

The term grows at every takeover and never goes back. The holder is unique to an attempt to acquire the lease, not to a
process: after an unknown outcome "the holder is me" could be an old lease of mine. Renewing raises `beats`; whoever
wants the lease watches that counter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pymongo
from pymongo import ReturnDocument
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.errors import DuplicateKeyError
from pymongo.read_concern import ReadConcern

from recruiter.store.codec import Document
from recruiter.store.sessions import SessionId
from recruiter.store.translate import store_call

NAME = "leases"
LEADER = "leader"
MOST_TAKEOVERS = 20
HIGHEST_TERM = 2**53
"""No fleet gets there; a term above it was written by hand."""
_WITHIN = 5.0
"""Seconds for a look at the lease or a write on it, retries of the driver included."""

VALIDATOR = {
    "$jsonSchema": {
        "required": ["term", "holder", "beats"],
        "properties": {
            "term": {"bsonType": ["int", "long"]},
            "holder": {"bsonType": ["null", "string"]},
            "beats": {"bsonType": ["int", "long"]},
        },
    }
}


@dataclass(frozen=True, slots=True)
class Lease:
    term: int
    holder: str | None
    beats: int
    host: str = ""
    pid: int = 0
    since: datetime | None = None
    renewed_at: datetime | None = None
    session: SessionId | None = None
    """Where its transactions run; see settlement.py."""
    takeovers: tuple[datetime, ...] = ()
    """When the last terms began."""


class Leases:
    def __init__(self, collection: Collection[Document]) -> None:
        self.collection = collection
        # A joining worker must not learn an old term from a primary that has been deposed without knowing.
        self._linearizable = collection.with_options(read_concern=ReadConcern("linearizable"))

    @store_call
    def read(self) -> Lease | None:
        with pymongo.timeout(_WITHIN):
            found = self.collection.find_one({"_id": LEADER})
        return _lease(found) if found else None

    @store_call
    def term(self) -> int:
        """The newest term anybody leads or led with, certainly."""
        found = self._linearizable.find_one({"_id": LEADER}, {"term": 1}, max_time_ms=10_000)
        return int(found["term"]) if found else 0

    @store_call
    def acquire(
        self,
        seen: Lease | None,
        holder: str,
        who: Mapping[str, Any],
        above: int = 0,
        at: datetime | None = None,
    ) -> Lease | None:
        """Takes the lease if it still is what was seen; None when somebody was faster. The new term is above the last
        one, and above `above`."""
        term = max(above, seen.term if seen is not None else 0) + 1
        takeovers = [at] if at is not None else []
        fresh = {"holder": holder, **who}
        if seen is None:
            try:
                first = {"_id": LEADER, "term": term, "beats": 0, "takeovers": takeovers}
                with pymongo.timeout(_WITHIN):
                    self.collection.insert_one({**first, **fresh})
            except DuplicateKeyError:
                return None
            return Lease(term, holder, 0)
        with pymongo.timeout(_WITHIN):
            found = self.collection.find_one_and_update(
                {"_id": LEADER, "term": seen.term, "beats": seen.beats, "holder": seen.holder},
                {
                    "$set": {**fresh, "term": term},
                    "$inc": {"beats": 1},
                    "$currentDate": {"since": True, "renewed_at": True},
                    "$push": {"takeovers": {"$each": takeovers, "$slice": -MOST_TAKEOVERS}},
                },
                return_document=ReturnDocument.AFTER,
            )
        return _lease(found) if found else None

    @store_call
    def renew(self, term: int, holder: str) -> bool:
        with pymongo.timeout(_WITHIN):
            return self._touch(term, holder, None)

    @store_call
    def resign(self, term: int, holder: str) -> bool:
        """Gives the lease back, so that the next one need not wait for it to run out. It leaves no session behind for
        the next one to end: this process lives, and may have more to write."""
        update = {"$set": {"holder": None}, "$unset": {"session": ""}, "$inc": {"beats": 1}}
        with pymongo.timeout(_WITHIN):
            query = {"_id": LEADER, "term": term, "holder": holder}
            return self.collection.update_one(query, update).matched_count == 1

    def fence(self, term: int, holder: str, session: ClientSession) -> bool:
        """Inside a transaction: true only while this term leads; conflicts with anybody who takes over meanwhile."""
        return self._touch(term, holder, session)

    def _touch(self, term: int, holder: str, session: ClientSession | None) -> bool:
        update = {"$inc": {"beats": 1}, "$currentDate": {"renewed_at": True}}
        query = {"_id": LEADER, "term": term, "holder": holder}
        return self.collection.update_one(query, update, session=session).matched_count == 1


def _lease(document: Document) -> Lease:
    return Lease(
        term=document["term"],
        holder=document["holder"],
        beats=document["beats"],
        host=document.get("host", ""),
        pid=document.get("pid", 0),
        since=document.get("since"),
        renewed_at=document.get("renewed_at"),
        session=document.get("session"),
        takeovers=tuple(document.get("takeovers") or ()),
    )
