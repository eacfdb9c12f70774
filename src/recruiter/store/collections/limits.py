"""`limits`: what may run at once or start in a time, what is paused, and how much has started lately.

    {_id: "task:resize", at_once: 2, rate: {count, seconds}, floating, by, at}      a limit
    {_id: "declared:task:resize", at_once, rate, at}                                the same, said in the application
    {_id: "paused:group:mail", at, by, reason}   {_id: "paused:fleet", …}           what is paused
    {_id: "fair:mail", by: "owner", weights: [{tenant, weight}], set_by, at}        a group that tenants share
    {_id: "starts:task:resize", log: [[moment, count], …], term}                    for rates; only the leader writes it

There are few of them. The leader reads them all about once a second. A limit that somebody has set is in force instead
of the one that the application declares. Each worker declares those of the tasks it knows before it joins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pymongo import DeleteOne
from pymongo.collection import Collection
from pymongo.errors import DuplicateKeyError

from recruiter.domain.planning.fair import FairShare
from recruiter.domain.planning.limits import Limit, Rate, Start
from recruiter.domain.planning.rules import Rules
from recruiter.domain.schedule.scheduler import Pause
from recruiter.domain.text import shown
from recruiter.domain.unreadable import Unreadable
from recruiter.errors import Superseded, UnreadableDocument
from recruiter.store import fields
from recruiter.store.codec import RAW, Document, decode_leniently
from recruiter.store.errors import store_call
from recruiter.store.fields import BELIEVED_TERM, HIGHEST_TERM
from recruiter.store.reading import parsed

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

_OF_A_LEADER: Document = {"term": {"$type": ["int", "long"], "$lte": HIGHEST_TERM}}
_PAUSED, _STARTS, _DECLARED, _FAIR = "paused:", "starts:", "declared:", "fair:"
RULES_LEARNT_WITHIN_SECONDS = 1.5
"""Seconds after which every leader that leads has read what is in force."""
_AFTER_PAUSED = "paused;"
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


class Limits:
    def __init__(self, collection: Collection[Document]) -> None:
        self.collection = collection

    @store_call
    def read(self) -> Rules:
        """Everything that is in force. What cannot be read is not, but for pauses: nothing starts that may be."""
        raw: Collection[Any] = self.collection.with_options(codec_options=RAW)
        found = parsed(NAME, raw.find(), _rule)
        limits = {rule.limit.subject: rule for rule in found if isinstance(rule, _Limited) and not rule.declared}
        declared = {rule.limit.subject: rule.limit for rule in found if isinstance(rule, _Limited) and rule.declared}
        paused = {rule.what: rule.pause for rule in found if isinstance(rule, _Paused)}
        paused |= {what: Pause(_LONG_AGO) for what in map(_paused_by, found.unreadable) if what is not None}
        starts = {rule.bucket: rule.log for rule in found if isinstance(rule, _Starts)}
        in_force = {**declared, **{subject: rule.limit for subject, rule in limits.items()}}
        set_by = {subject: rule.by for subject, rule in limits.items()}
        fair = {rule.group: rule.share for rule in found if isinstance(rule, _Fair)}
        return Rules(tuple(in_force.values()), declared, set_by, paused, starts, found.unreadable, fair)

    @store_call
    def paused(self) -> frozenset[str]:
        """What may not start now: `group:NAME`, or `fleet` for everything."""
        raw: Collection[Any] = self.collection.with_options(codec_options=RAW)
        found = raw.find({"_id": {"$gte": _PAUSED, "$lt": _AFTER_PAUSED}}, {"_id": 1})
        ids = (str(decode_leniently(bytes(document.raw))["_id"]) for document in found)
        return frozenset(id.removeprefix(_PAUSED) for id in ids)

    @store_call
    def limited(self) -> frozenset[str]:
        """The tasks and groups that have a limit: `task:NAME`, `group:NAME`."""
        raw: Collection[Any] = self.collection.with_options(codec_options=RAW)
        found = raw.find({"_id": {"$regex": f"^({_DECLARED})?(task|group):"}}, {"_id": 1})
        ids = (str(decode_leniently(bytes(document.raw))["_id"]) for document in found)
        return frozenset(id.removeprefix(_DECLARED) for id in ids)

    @store_call
    def set(self, limit: Limit, by: str | None, at: datetime) -> None:
        changes = {**limit_fields(limit), "by": by, "at": at}
        self.collection.update_one({"_id": limit.subject}, {"$set": changes}, upsert=True)

    @store_call
    def declare(self, tasks: Iterable[str], limits: Iterable[Limit], at: datetime) -> bool:
        """Writes down what an application that knows these tasks says of them: the limits it declares, and that the
        others have none. True when that is news."""
        wanted = {f"{_DECLARED}{limit.subject}": limit for limit in limits}
        raw: Collection[Any] = self.collection.with_options(codec_options=RAW)
        rules = (rule for rule in parsed(NAME, raw.find({"_id": {"$regex": f"^{_DECLARED}"}}), _rule))
        known = {f"{_DECLARED}{rule.limit.subject}": rule.limit for rule in rules if isinstance(rule, _Limited)}
        news = {id: limit for id, limit in wanted.items() if known.get(id) != limit}
        ours = set(tasks)
        gone = [id for id, limit in known.items() if limit.task in ours and id not in wanted]
        for id, limit in news.items():
            self.collection.update_one({"_id": id}, {"$set": {**limit_fields(limit), "at": at}}, upsert=True)
        if gone:
            self.collection.delete_many({"_id": {"$in": gone}})
        return bool(news or gone)

    @store_call
    def remove(self, subject: str) -> bool:
        return self.collection.delete_one({"_id": subject}).deleted_count == 1

    @store_call
    def share(self, group: str, share: FairShare, by: str | None, at: datetime) -> None:
        """Tenants share this group from now on."""
        weights = [{"tenant": tenant, "weight": weight} for tenant, weight in share.weights.items()]
        changes = {"by": str(share.by), "weights": weights, "set_by": by, "at": at}
        self.collection.update_one({"_id": f"{_FAIR}{group}"}, {"$set": changes}, upsert=True)

    @store_call
    def unshare(self, group: str) -> bool:
        return self.collection.delete_one({"_id": f"{_FAIR}{group}"}).deleted_count == 1

    @store_call
    def pause(self, what: str, pause: Pause) -> None:
        """`group:NAME` or `fleet`."""
        changes = {"at": pause.at, "by": pause.by, "reason": pause.reason}
        self.collection.update_one({"_id": f"{_PAUSED}{what}"}, {"$set": changes}, upsert=True)

    @store_call
    def resume(self, what: str) -> bool:
        return self.collection.delete_one({"_id": f"{_PAUSED}{what}"}).deleted_count == 1

    @store_call
    def highest_term(self) -> int:
        """The highest term of a leader that has counted starts here; what no leader can have written is passed over."""
        query = {
            "_id": {"$gt": _STARTS, "$lt": f"{_STARTS}\U0010ffff"},
            "term": {"$type": ["int", "long"], "$lte": BELIEVED_TERM},
        }
        found = self.collection.find_one(query, {"_id": 0, "term": 1}, sort=[("term", -1)])
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

    @store_call
    def forget_starts(self, logs: Mapping[str, Sequence[Start]]) -> int:
        """Removes the counts of starts of these buckets, if they are as they were read; returns how many."""
        gone = [
            DeleteOne({"_id": f"{_STARTS}{bucket}", "log": [[moment, count] for moment, count in log]})
            for bucket, log in logs.items()
        ]
        return self.collection.bulk_write(gone, ordered=False).deleted_count if gone else 0


def limit_fields(limit: Limit) -> Document:
    rate = {"count": limit.rate.count, "seconds": limit.rate.seconds} if limit.rate is not None else None
    return {"at_once": limit.at_once, "rate": rate, "floating": limit.floating}


def limit_of(document: Document, subject: str) -> Limit:
    """The parser of a limit, wherever it is written. Raises UnreadableDocument, or SettingsError."""
    rate = fields.mapping(document, "rate", None)
    return Limit(
        subject,
        fields.number(document, "at_once", None),
        Rate(rate.get("count"), rate.get("seconds")) if rate else None,
        bool(fields.truth(document, "floating", None)),
    )


@dataclass(frozen=True, slots=True)
class _Limited:
    limit: Limit
    by: str | None
    declared: bool


@dataclass(frozen=True, slots=True)
class _Paused:
    what: str
    pause: Pause


@dataclass(frozen=True, slots=True)
class _Fair:
    group: str
    share: FairShare


@dataclass(frozen=True, slots=True)
class _Starts:
    bucket: str
    log: list[Start]


def _rule(document: Document) -> _Limited | _Paused | _Starts | _Fair:
    """The parser."""
    name = fields.text(document, "_id")
    if name.startswith(_PAUSED):
        by, reason = fields.text(document, "by", None), fields.text(document, "reason", None)
        return _Paused(name.removeprefix(_PAUSED), Pause(fields.moment(document, "at", _LONG_AGO), by, reason))
    if name.startswith(_FAIR):
        weights = dict(fields.array(document, "weights", _weight, []))
        return _Fair(name.removeprefix(_FAIR), FairShare.of(document.get("by"), weights))
    if name.startswith(_STARTS):
        fields.whole(document, "term", None, most=HIGHEST_TERM)
        return _Starts(name.removeprefix(_STARTS), fields.array(document, "log", _start, []))
    declared = name.startswith(_DECLARED)
    limit = limit_of(document, name.removeprefix(_DECLARED))
    return _Limited(limit, fields.text(document, "by", None), declared)


def _weight(place: str, value: Any) -> tuple[str, object]:
    entry = fields.mapping({place: value}, place)
    return fields.text(entry, "tenant"), entry.get("weight")


def _start(place: str, value: Any) -> Start:
    if not isinstance(value, list) or len(value) != 2:
        raise UnreadableDocument(f"{place} is {shown(value, 60)}; it must be a date and a number")
    return fields.as_moment(place, value[0]), fields.whole({place: value[1]}, place)


def _paused_by(document: Unreadable) -> str | None:
    """What a pause is about of which nothing else can be read."""
    name = decode_leniently(document.raw).get("_id")
    return name.removeprefix(_PAUSED) if isinstance(name, str) and name.startswith(_PAUSED) else None
