"""`leases`: the current leader and its term.

    {_id: "leader", term: 7, holder: <this attempt>, beats: 412, every, host, pid, session, since, renewed_at,
     watched_at, takeovers: […]}

The term grows at every takeover and never decreases. The holder identifies one attempt to acquire the lease, not a
process: after an unknown outcome, "the holder is me" could mean an old lease of the same process. Renewing raises
`beats`. A process that wants the lease watches that counter, and writes `watched_at` to inform the holder. `every` is
the number of seconds until the holder renews the lease again.
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

from recruiter.domain.observation import SILENT
from recruiter.domain.unreadable import Unreadable
from recruiter.errors import StoreError, UnreadableDocument
from recruiter.store import fields as field
from recruiter.store.codec import RAW, Document, decode_leniently
from recruiter.store.errors import store_call
from recruiter.store.fields import BELIEVED_TERM, HIGHEST_TERM, MOST
from recruiter.store.reading import ParsedCollection, parse_one, readable
from recruiter.store.sessions import SessionId, session_id

NAME = "leases"
LEADER = "leader"
MAX_TAKEOVERS_KEPT = 20
WATCHED_SECONDS = 10.0
"""A lease counts as watched for this time after a follower has marked it."""
_MARK_TIMEOUT_SECONDS = 0.1
_MAX_INTERVAL_SECONDS = 60.0
"""The longest accepted interval between two renewals."""
_TIMEOUT_SECONDS = 5.0
"""For a read or write of the lease, including retries of the driver."""

_COUNTER = {"bsonType": ["int", "long"], "minimum": 0, "maximum": MOST}
VALIDATOR = field.validator("term holder beats", term=_COUNTER, holder="null string", beats=_COUNTER, takeovers="array")


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to lead, until another process takes it over."""

    term: int
    holder: str | None
    beats: int
    host: str = ""
    pid: int = 0
    since: datetime | None = None
    renewed_at: datetime | None = None
    session: SessionId | None = None
    """The session of the holder's transactions; see transactions.py."""
    every: float = 0.0
    """Seconds until the next renewal; 0 if the holder does not announce it."""
    takeovers: tuple[datetime, ...] = ()
    """The starts of the last terms."""

    def leads(self, now: datetime) -> bool:
        """Whether its holder has renewed it lately."""
        return self.holder is not None and now - (self.renewed_at or now) <= SILENT


class Renewed(NamedTuple):
    """The answer to a renewal."""

    watched: bool
    """Whether another recruiter watches the lease."""


class Leases(ParsedCollection):
    """The lease of the leader."""

    name = NAME

    def __init__(self, collection: Collection[Document]) -> None:
        super().__init__(collection)
        # A joining worker must not learn an old term from a primary that was deposed and does not know it yet.
        self._linearizable: Collection[Any] = self._raw.with_options(read_concern=ReadConcern("linearizable"))

    @store_call
    def read(self) -> Lease | None:
        """For reports: an unreadable lease counts as none."""
        seen = self.look()
        return None if isinstance(seen, Unreadable) else seen

    @store_call
    def look(self) -> Lease | Unreadable | None:
        with pymongo.timeout(_TIMEOUT_SECONDS):
            return self._parsed_one(_lease, {"_id": LEADER})

    @store_call
    def unreadable(self) -> Sequence[Unreadable]:
        """Documents that are not a valid lease."""
        return self._parsed(_lease, {}).unreadable

    @store_call
    def term(self) -> int:
        """The newest term of any leader, from a linearizable read. Raises StoreError while the lease is unreadable: the
        next leader replaces it."""
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
        higher than the last one and than `above`. An unreadable lease is replaced."""
        takeovers = [at] if at is not None else []
        fresh = {"holder": holder, **who}
        if isinstance(seen, Unreadable):
            return self._replace(seen, {**fresh, "takeovers": takeovers}, above)
        term = max(above, seen.term if seen is not None else 0) + 1
        with pymongo.timeout(_TIMEOUT_SECONDS):
            if seen is None:
                first = {"_id": LEADER, "term": term, "beats": 0, "takeovers": takeovers}
                try:
                    self.collection.insert_one({**first, **fresh})
                except DuplicateKeyError:
                    return None
                return Lease(term, holder, 0)
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
        """Replaces an unreadable lease, unless it has changed: it cannot be renewed, so its holder no longer leads."""
        stored = decode_leniently(seen.raw).get("term")
        last = stored if isinstance(stored, int) and 0 <= stored <= BELIEVED_TERM else 0
        document = {"_id": LEADER, "term": max(above, last) + 1, "beats": 0, **fresh}
        same = {"_id": LEADER, "$expr": {"$eq": ["$$ROOT", {"$literal": RawBSONDocument(seen.raw, RAW)}]}}
        with pymongo.timeout(_TIMEOUT_SECONDS):
            replaced = self.collection.replace_one(same, document).matched_count == 1
        return Lease(document["term"], str(document["holder"]), 0) if replaced else None

    @store_call
    def renew(self, term: int, holder: str, every: float = 0.0) -> Renewed | None:
        """Keeps the lease and announces the next renewal; None when another process has taken over."""
        query, update = _same(term, holder), {**_TOUCH, "$set": {"every": every}}
        fields = {"renewed_at": 1, "watched_at": 1}
        with pymongo.timeout(_TIMEOUT_SECONDS):
            found = self.collection.find_one_and_update(query, update, fields, return_document=ReturnDocument.AFTER)
        if found is None:
            return None
        watched_at = found.get("watched_at")  # by the server's clock, like `renewed_at`
        longest = timedelta(seconds=WATCHED_SECONDS)
        return Renewed(isinstance(watched_at, datetime) and found["renewed_at"] - watched_at < longest)

    @store_call
    def watch(self) -> None:
        """Marks the lease as watched. Raises StoreUnreachable soon if the holder has locked the lease: a holder that
        died in a transaction must not block the processes that wait for the lease."""
        with pymongo.timeout(_MARK_TIMEOUT_SECONDS):
            self.collection.update_one({"_id": LEADER}, {"$currentDate": {"watched_at": True}})

    @store_call
    def resign(self, term: int, holder: str) -> bool:
        """Releases the lease, so that the next leader need not wait until it expires. The session is removed from it:
        this process is alive and may still write, so the next leader must not end its session."""
        update = {"$set": {"holder": None}, "$unset": {"session": ""}, "$inc": {"beats": 1}}
        with pymongo.timeout(_TIMEOUT_SECONDS):
            return self.collection.update_one(_same(term, holder), update).matched_count == 1

    def fence(self, term: int, holder: str, session: ClientSession) -> bool:
        """Inside a transaction: true only while this term leads. Conflicts with a concurrent takeover."""
        return self.collection.update_one(_same(term, holder), _TOUCH, session=session).matched_count == 1


_TOUCH: Document = {"$inc": {"beats": 1}, "$currentDate": {"renewed_at": True}}


def _same(term: int, holder: str) -> Document:
    """The query for a lease whose `beats` can be counted up; others are unreadable and are replaced."""
    return {"_id": LEADER, "term": term, "holder": holder, "beats": {"$type": ["int", "long"], "$lt": MOST}}


def _term(document: Document) -> int:
    return int(field.whole(document, "term", most=HIGHEST_TERM))


def _lease(document: Document) -> Lease:
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
