"""`leases`: who leads, and since which term.

    {_id: "leader", term: 7, holder: <this attempt>, beats: 412, every, host, pid, session, since, renewed_at,
     watched_at, takeovers: […]}

The term grows at every takeover and never goes back. The holder is unique to an attempt to acquire the lease, not to a
process: after an unknown outcome "the holder is me" could be an old lease of mine. Renewing raises `beats`; a
process that wants the lease watches that counter, and writes `watched_at` so that the holder knows; `every` says in
how many seconds the holder means to renew it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import pymongo
from bson.raw_bson import RawBSONDocument
from pymongo import ReturnDocument
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.errors import DuplicateKeyError
from pymongo.read_concern import ReadConcern

from recruiter.domain.unreadable import Unreadable
from recruiter.errors import StoreError, UnreadableDocument
from recruiter.store import fields as field
from recruiter.store.codec import RAW, Document, decode_leniently
from recruiter.store.errors import store_call
from recruiter.store.fields import BELIEVED_TERM, HIGHEST_TERM, MOST
from recruiter.store.reading import parse_one, parsed, readable
from recruiter.store.sessions import SessionId, session_id

NAME = "leases"
LEADER = "leader"
MAX_TAKEOVERS_KEPT = 20
WATCHED_SECONDS = 10.0
"""Seconds for which a lease counts as watched after a follower has said so."""
_MARK_TIMEOUT_SECONDS = 0.1
_MAX_INTERVAL_SECONDS = 60.0
"""Seconds between two renewals at most; a lease that says more was written by hand."""
_TIMEOUT_SECONDS = 5.0
"""Seconds for a look at the lease or a write on it, retries of the driver included."""

_COUNTS: Document = {"$type": ["int", "long"], "$lt": MOST}
"""What can be counted on from; a lease with other beats cannot be read, and is written anew."""

VALIDATOR = {
    "$jsonSchema": {
        "required": ["term", "holder", "beats"],
        "properties": {
            "term": {"bsonType": ["int", "long"], "minimum": 0, "maximum": MOST},
            "holder": {"bsonType": ["null", "string"]},
            "beats": {"bsonType": ["int", "long"], "minimum": 0, "maximum": MOST},
            "takeovers": {"bsonType": "array"},
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
    """Where its transactions run; see transactions.py."""
    every: float = 0.0
    """In how many seconds the holder means to renew it again; 0 where it does not say."""
    takeovers: tuple[datetime, ...] = ()
    """When the last terms began."""


class Renewed(NamedTuple):
    """The answer to a renewal."""

    watched: bool
    """Whether another recruiter watches the lease."""


class Leases:
    def __init__(self, collection: Collection[Document]) -> None:
        self.collection = collection
        self._raw: Collection[Any] = collection.with_options(codec_options=RAW)
        # A joining worker must not learn an old term from a primary that has been deposed without knowing.
        self._linearizable: Collection[Any] = self._raw.with_options(read_concern=ReadConcern("linearizable"))

    @store_call
    def read(self) -> Lease | None:
        """For people: one that cannot be read is none, and `unreadable` tells of it."""
        seen = self.look()
        return None if isinstance(seen, Unreadable) else seen

    @store_call
    def look(self) -> Lease | Unreadable | None:
        with pymongo.timeout(_TIMEOUT_SECONDS):
            found = self._raw.find_one({"_id": LEADER})
        return parse_one(NAME, bytes(found.raw), _lease) if found is not None else None

    @store_call
    def unreadable(self) -> Sequence[Unreadable]:
        """Also what is no lease at all."""
        return parsed(NAME, self._raw.find({}), _lease).unreadable

    @store_call
    def term(self) -> int:
        """The newest term anybody leads or led with, certainly. Raises StoreError while it cannot be read: the next
        leader writes it anew."""
        found = self._linearizable.find_one({"_id": LEADER}, {"term": 1}, max_time_ms=10_000)
        term = parse_one(NAME, bytes(found.raw), _term) if found is not None else 0
        if isinstance(term, Unreadable):
            raise StoreError(f"{term}; the next leader writes a new one")
        return term

    @store_call
    def acquire(
        self,
        seen: Lease | Unreadable | None,
        holder: str,
        who: Mapping[str, Any],
        above: int = 0,
        at: datetime | None = None,
    ) -> Lease | None:
        """Takes the lease if it has not changed since `seen`; None when another process was faster. The new term is
        above the last one, and above `above`. A lease that cannot be read is replaced."""
        takeovers = [at] if at is not None else []
        fresh = {"holder": holder, **who}
        if isinstance(seen, Unreadable):
            return self._replace(seen, {**fresh, "takeovers": takeovers}, above)
        term = max(above, seen.term if seen is not None else 0) + 1
        if seen is None:
            try:
                first = {"_id": LEADER, "term": term, "beats": 0, "takeovers": takeovers}
                with pymongo.timeout(_TIMEOUT_SECONDS):
                    self.collection.insert_one({**first, **fresh})
            except DuplicateKeyError:
                return None
            return Lease(term, holder, 0)
        with pymongo.timeout(_TIMEOUT_SECONDS):
            found = self._raw.find_one_and_update(
                {"_id": LEADER, "term": seen.term, "beats": seen.beats, "holder": seen.holder},
                {
                    "$set": {**fresh, "term": term, "takeovers": [*seen.takeovers, *takeovers][-MAX_TAKEOVERS_KEPT:]},
                    "$inc": {"beats": 1},
                    "$currentDate": {"since": True, "renewed_at": True},
                },
                return_document=ReturnDocument.AFTER,
            )
        return readable(parse_one(NAME, bytes(found.raw), _lease)) if found is not None else None

    def _replace(self, seen: Unreadable, fresh: Mapping[str, Any], above: int) -> Lease | None:
        """A lease that cannot be read cannot be renewed, so its holder leads no more."""
        stored = decode_leniently(seen.raw).get("term")
        last = stored if isinstance(stored, int) and 0 <= stored <= BELIEVED_TERM else 0
        document = {"_id": LEADER, "term": max(above, last) + 1, "beats": 0, **fresh}
        same = {"_id": LEADER, "$expr": {"$eq": ["$$ROOT", {"$literal": RawBSONDocument(seen.raw, RAW)}]}}
        with pymongo.timeout(_TIMEOUT_SECONDS):
            replaced = self.collection.replace_one(same, document).matched_count == 1
        return Lease(document["term"], str(document["holder"]), 0) if replaced else None

    @store_call
    def renew(self, term: int, holder: str, every: float = 0.0) -> Renewed | None:
        """Keeps the lease, and says when it will be renewed again; None when another process has taken over."""
        query, update = _same(term, holder), {**_TOUCH, "$set": {"every": every}}
        fields = {"renewed_at": 1, "watched_at": 1}
        with pymongo.timeout(_TIMEOUT_SECONDS):
            found = self.collection.find_one_and_update(query, update, fields, return_document=ReturnDocument.AFTER)
        if found is None:
            return None
        watched_at = found.get("watched_at")  # by the server's clock, like the other
        gone = timedelta(seconds=WATCHED_SECONDS)
        return Renewed(isinstance(watched_at, datetime) and found["renewed_at"] - watched_at < gone)

    @store_call
    def watch(self) -> None:
        """Says that a recruiter watches the lease. Raises StoreUnreachable soon when the holder has locked it: one that
        died in a transaction must not block the processes that wait for it."""
        with pymongo.timeout(_MARK_TIMEOUT_SECONDS):
            self.collection.update_one({"_id": LEADER}, {"$currentDate": {"watched_at": True}})

    @store_call
    def resign(self, term: int, holder: str) -> bool:
        """Gives the lease back, so that the next one need not wait for it to run out. It leaves no session behind for
        the next one to end: this process lives, and may have more to write."""
        update = {"$set": {"holder": None}, "$unset": {"session": ""}, "$inc": {"beats": 1}}
        with pymongo.timeout(_TIMEOUT_SECONDS):
            return self.collection.update_one(_same(term, holder), update).matched_count == 1

    def fence(self, term: int, holder: str, session: ClientSession) -> bool:
        """Inside a transaction: true only while this term leads; conflicts with a takeover at the same time."""
        return self.collection.update_one(_same(term, holder), _TOUCH, session=session).matched_count == 1


_TOUCH: Document = {"$inc": {"beats": 1}, "$currentDate": {"renewed_at": True}}


def _same(term: int, holder: str) -> Document:
    return {"_id": LEADER, "term": term, "holder": holder, "beats": _COUNTS}


def _term(document: Document) -> int:
    return int(field.whole(document, "term", most=HIGHEST_TERM))


def _lease(document: Document) -> Lease:
    """The parser."""
    if document["_id"] != LEADER:
        raise UnreadableDocument(f"it is not used: the lease has the _id {LEADER!r}")
    return Lease(
        term=_term(document),
        holder=field.text(document, "holder", None),
        beats=field.whole(document, "beats", most=MOST - 1),
        host=field.text(document, "host", ""),
        pid=field.whole(document, "pid", 0),
        since=field.moment(document, "since", None),
        renewed_at=field.moment(document, "renewed_at", None),
        session=session_id("session", document.get("session")),
        every=field.number(document, "every", 0.0, least=0.0, most=_MAX_INTERVAL_SECONDS),
        takeovers=tuple(field.array(document, "takeovers", field.as_moment, ())),
    )
