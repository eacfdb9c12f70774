"""`limits`: what may run at once or start in a time, what is paused, and how much has started lately.

    {_id: "task:resize", at_once: 2, rate: {count, seconds}, floating, by, at}      a limit
    {_id: "declared:task:resize", at_once, rate, at}                                the same, said in the application
    {_id: "paused:group:mail", at, by, reason}   {_id: "paused:fleet", …}           what is paused
    {_id: "starts:task:resize", log: [[moment, count], …], term}                    for rates; only the leader writes it

There are few of them. The leader reads them all about once a second. A limit that somebody has set is in force instead
of the one that the application declares. Each worker declares those of the tasks it knows before it joins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pymongo.collection import Collection
from pymongo.errors import DuplicateKeyError

from recruiter.domain.limits import TASK, Limit, Rate, Start
from recruiter.domain.scheduler import Pause
from recruiter.errors import RecruiterError, Superseded
from recruiter.store.codec import Document
from recruiter.store.leases import HIGHEST_TERM
from recruiter.store.translate import store_call

NAME = "limits"
VALIDATOR = {
    "$jsonSchema": {
        "properties": {
            "_id": {"bsonType": "string"},
            "at_once": {"bsonType": ["int", "long", "double", "null"]},
            "rate": {"bsonType": ["object", "null"]},
            "log": {"bsonType": "array"},
        }
    }
}

FLEET = "fleet"
_OF_A_LEADER: Document = {"term": {"$type": ["int", "long"], "$lte": HIGHEST_TERM}}
_PAUSED, _STARTS, _DECLARED = "paused:", "starts:", "declared:"
LEARNT_WITHIN = 1.5
"""Seconds after which every leader that leads has read what is in force."""
_AFTER_PAUSED = "paused;"


@dataclass(frozen=True, slots=True)
class Rules:
    """What is in force."""

    limits: tuple[Limit, ...] = ()
    """Those that were set, and those declared for a subject for which none was set."""
    declared: Mapping[str, Limit] = field(default_factory=dict)
    """What the application says in code, by subject."""
    set_by: Mapping[str, str | None] = field(default_factory=dict)
    """Who has set a limit, by subject."""
    paused: Mapping[str, Pause] = field(default_factory=dict)
    """By `group:NAME`, or `fleet` for all."""
    starts: Mapping[str, Sequence[Start]] = field(default_factory=dict)

    @property
    def blocked(self) -> bool:
        """Nothing at all may start."""
        return FLEET in self.paused

    def pauses(self, group: str) -> Pause | None:
        return self.paused.get(FLEET) or self.paused.get(f"group:{group}")


class Limits:
    def __init__(self, collection: Collection[Document]) -> None:
        self.collection = collection

    @store_call
    def read(self) -> Rules:
        """Everything that is in force; what somebody wrote by hand and makes no sense is passed over."""
        limits: dict[str, Limit] = {}
        declared: dict[str, Limit] = {}
        set_by: dict[str, str | None] = {}
        paused: dict[str, Pause] = {}
        starts: dict[str, Sequence[Start]] = {}
        for document in self.collection.find():
            name = str(document["_id"])
            if name.startswith(_PAUSED):
                paused[name.removeprefix(_PAUSED)] = _pause(document)
            elif name.startswith(_STARTS):
                starts[name.removeprefix(_STARTS)] = _log(document)
            elif name.startswith(_DECLARED):
                if (limit := limit_of(document, name.removeprefix(_DECLARED))) is not None:
                    declared[limit.subject] = limit
            elif (limit := limit_of(document, name)) is not None:
                limits[limit.subject] = limit
                set_by[limit.subject] = document.get("by")
        return Rules(tuple({**declared, **limits}.values()), declared, set_by, paused, starts)

    @store_call
    def paused(self) -> frozenset[str]:
        """What may not start now: `group:NAME`, or `fleet` for everything."""
        found = self.collection.find({"_id": {"$gte": _PAUSED, "$lt": _AFTER_PAUSED}}, {"_id": 1})
        return frozenset(str(document["_id"]).removeprefix(_PAUSED) for document in found)

    @store_call
    def set(self, limit: Limit, by: str | None, at: datetime) -> None:
        fields = {**limit_fields(limit), "by": by, "at": at}
        self.collection.update_one({"_id": limit.subject}, {"$set": fields}, upsert=True)

    @store_call
    def declare(self, tasks: Iterable[str], limits: Iterable[Limit], at: datetime) -> bool:
        """Writes down what an application that knows these tasks says of them: the limits it declares, and that the
        others have none. True when that is news."""
        wanted = {f"{_DECLARED}{limit.subject}": limit for limit in limits}
        found = self.collection.find({"_id": {"$regex": f"^{_DECLARED}"}})
        known = {document["_id"]: limit_of(document, document["_id"].removeprefix(_DECLARED)) for document in found}
        news = {id: limit for id, limit in wanted.items() if known.get(id) != limit}
        gone = [id for task in tasks if (id := f"{_DECLARED}{TASK}:{task}") in known and id not in wanted]
        for id, limit in news.items():
            self.collection.update_one({"_id": id}, {"$set": {**limit_fields(limit), "at": at}}, upsert=True)
        if gone:
            self.collection.delete_many({"_id": {"$in": gone}})
        return bool(news or gone)

    @store_call
    def remove(self, subject: str) -> bool:
        return self.collection.delete_one({"_id": subject}).deleted_count == 1

    @store_call
    def pause(self, what: str, pause: Pause) -> None:
        """`group:NAME` or `fleet`."""
        fields = {"at": pause.at, "by": pause.by, "reason": pause.reason}
        self.collection.update_one({"_id": f"{_PAUSED}{what}"}, {"$set": fields}, upsert=True)

    @store_call
    def resume(self, what: str) -> bool:
        return self.collection.delete_one({"_id": f"{_PAUSED}{what}"}).deleted_count == 1

    @store_call
    def highest_term(self) -> int:
        """The highest term of a leader that has counted starts here; what no leader can have written is passed over."""
        query = {"_id": {"$gt": _STARTS, "$lt": f"{_STARTS}\U0010ffff"}, **_OF_A_LEADER}
        found = self.collection.find_one(query, {"term": 1}, sort=[("term", -1)])
        return int(found["term"]) if found else 0

    @store_call
    def note_starts(self, logs: Mapping[str, Sequence[Start]], term: int) -> None:
        """Written before the jobs are given: if that fails, fewer start than might have, never more.

        Raises Superseded when a newer leader has written here.
        """
        for bucket, log in logs.items():
            stored = [[moment, count] for moment, count in log]
            query = {"_id": f"{_STARTS}{bucket}", "$or": [{"term": {"$lte": term}}, {"$nor": [_OF_A_LEADER]}]}
            try:
                self.collection.update_one(query, {"$set": {"log": stored, "term": term}}, upsert=True)
            except DuplicateKeyError:
                raise Superseded(f"term {term} is over; a newer leader counts the starts of {bucket}") from None


def limit_fields(limit: Limit) -> Document:
    rate = {"count": limit.rate.count, "seconds": limit.rate.seconds} if limit.rate is not None else None
    return {"at_once": limit.at_once, "rate": rate, "floating": limit.floating}


def limit_of(document: Document, subject: str) -> Limit | None:
    """None for one that somebody wrote by hand and that makes no sense."""
    rate = document.get("rate") or {}
    try:
        return Limit(
            subject,
            document.get("at_once"),
            Rate(rate["count"], rate["seconds"]) if rate else None,
            bool(document.get("floating")),
        )
    except (RecruiterError, KeyError, TypeError):
        return None


def _pause(document: Mapping[str, Any]) -> Pause:
    return Pause(document.get("at"), document.get("by"), document.get("reason"))  # type: ignore[arg-type]


def _log(document: Mapping[str, Any]) -> list[Start]:
    entries = (entry for entry in document.get("log") or () if isinstance(entry, list) and len(entry) == 2)
    return [(moment, count) for moment, count in entries if isinstance(moment, datetime) and isinstance(count, int)]
