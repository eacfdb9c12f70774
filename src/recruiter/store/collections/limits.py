"""`limits`: limits on running and starting jobs, pauses, fair shares, and the recent starts.

    {_id: "task:resize", at_once: 2, rate: {count, seconds}, floating, by, at}      a limit that a person has set
    {_id: "declared:task:resize", at_once, rate, at}                                a limit of the application
    {_id: "paused:group:mail", at, by, reason}   {_id: "paused:fleet", …}           a pause
    {_id: "fair:mail", by: "owner", weights: [{tenant, weight}], set_by, at}        a group that tenants share
    {_id: "starts:task:resize", log: [[moment, count], …], term}                    for rates; only the leader writes it

The collection is small, and the leader reads all of it once per second. A limit that a person has set replaces the
limit that the application declares. Each worker declares the limits of its tasks before it joins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pymongo import DeleteOne
from pymongo.errors import DuplicateKeyError

from recruiter.domain.planning.fair import FairShare
from recruiter.domain.planning.limits import Limit, Rate, Start
from recruiter.domain.planning.rules import Rules
from recruiter.domain.schedule.scheduler import Pause
from recruiter.domain.text import shown
from recruiter.errors import Superseded, UnreadableDocument
from recruiter.store import fields
from recruiter.store.codec import Document, decode_leniently
from recruiter.store.errors import store_call
from recruiter.store.fields import BELIEVED_TERM, HIGHEST_TERM
from recruiter.store.reading import ParsedCollection

NAME = "limits"
VALIDATOR = fields.validator(_id="string", at_once="int long double null", rate="object null", log="array")
RULES_LEARNT_WITHIN_SECONDS = 1.5
"""Every current leader has read the rules after this time."""
_PAUSED, _STARTS, _DECLARED, _FAIR = "paused:", "starts:", "declared:", "fair:"
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


class Limits(ParsedCollection):
    """The rules of people and applications: limits, pauses and fair shares; and the starts that count against rates."""

    name = NAME

    @store_call
    def read(self) -> Rules:
        """All rules in force. An unreadable rule is not in force, except for a pause."""
        found = self._parsed(_rule)
        limits = {rule.limit.subject: rule for rule in found if isinstance(rule, _Limited) and not rule.declared}
        declared = {rule.limit.subject: rule.limit for rule in found if isinstance(rule, _Limited) and rule.declared}
        paused = {rule.what: rule.pause for rule in found if isinstance(rule, _Paused)}
        for document in found.unreadable:
            name = decode_leniently(document.raw).get("_id")
            if isinstance(name, str) and name.startswith(_PAUSED):
                paused[name.removeprefix(_PAUSED)] = Pause(_LONG_AGO)
        return Rules(
            tuple({**declared, **{subject: rule.limit for subject, rule in limits.items()}}.values()),
            declared,
            {subject: rule.by for subject, rule in limits.items()},
            paused,
            {rule.bucket: rule.log for rule in found if isinstance(rule, _Starts)},
            found.unreadable,
            {rule.group: rule.share for rule in found if isinstance(rule, _Fair)},
        )

    @store_call
    def paused(self) -> frozenset[str]:
        """`group:NAME` of each paused group, and `fleet` if everything is paused."""
        return self._subjects(_PAUSED, {"$gte": _PAUSED, "$lt": "paused;"})

    @store_call
    def limited(self) -> frozenset[str]:
        """`task:NAME` and `group:NAME` of each task and group with a limit."""
        return self._subjects(_DECLARED, {"$regex": f"^({_DECLARED})?(task|group):"})

    def _subjects(self, prefix: str, id: Document) -> frozenset[str]:
        found = self._readable({"_id": id}, {"_id": 1})
        return frozenset(str(document["_id"]).removeprefix(prefix) for document in found)

    @store_call
    def set(self, limit: Limit, by: str | None, at: datetime) -> None:
        self._put(limit.subject, {**limit_fields(limit), "by": by, "at": at})

    @store_call
    def declare(self, tasks: Iterable[str], limits: Iterable[Limit], at: datetime) -> bool:
        """Stores the limits that an application declares for these tasks, and removes its earlier ones. True when
        something has changed."""
        wanted = {f"{_DECLARED}{limit.subject}": limit for limit in limits}
        rules = self._parsed(_rule, {"_id": {"$regex": f"^{_DECLARED}"}})
        known = {f"{_DECLARED}{rule.limit.subject}": rule.limit for rule in rules if isinstance(rule, _Limited)}
        changed = {id: limit for id, limit in wanted.items() if known.get(id) != limit}
        ours = frozenset(tasks)
        gone = [id for id, limit in known.items() if limit.task in ours and id not in wanted]
        for id, limit in changed.items():
            self._put(id, {**limit_fields(limit), "at": at})
        if gone:
            self.collection.delete_many({"_id": {"$in": gone}})
        return bool(changed or gone)

    @store_call
    def remove(self, subject: str) -> bool:
        return self.collection.delete_one({"_id": subject}).deleted_count == 1

    @store_call
    def share(self, group: str, share: FairShare, by: str | None, at: datetime) -> None:
        """From now on tenants share this group."""
        weights = [{"tenant": tenant, "weight": weight} for tenant, weight in share.weights.items()]
        self._put(f"{_FAIR}{group}", {"by": str(share.by), "weights": weights, "set_by": by, "at": at})

    def unshare(self, group: str) -> bool:
        return self.remove(f"{_FAIR}{group}")

    @store_call
    def pause(self, what: str, pause: Pause) -> None:
        """Pauses `group:NAME` or `fleet`."""
        self._put(f"{_PAUSED}{what}", {"at": pause.at, "by": pause.by, "reason": pause.reason})

    def resume(self, what: str) -> bool:
        return self.remove(f"{_PAUSED}{what}")

    def _put(self, id: str, values: Document) -> None:
        self.collection.update_one({"_id": id}, {"$set": values}, upsert=True)

    @store_call
    def highest_term(self) -> int:
        """The highest accepted term of a leader that has counted starts."""
        query = {
            "_id": {"$gt": _STARTS, "$lt": f"{_STARTS}\U0010ffff"},
            "term": {"$type": ["int", "long"], "$lte": BELIEVED_TERM},
        }
        found = self.collection.find_one(query, {"_id": 0, "term": 1}, sort=[("term", -1)])
        return int(found["term"]) if found else 0

    @store_call
    def note_starts(self, logs: Mapping[str, Sequence[Start]], term: int) -> None:
        """Stores the starts that count against rates. Call this before the jobs are assigned: if the assignment fails,
        fewer jobs start than allowed, never more. Raises Superseded when a newer leader has counted starts."""
        of_a_leader = {"term": {"$type": ["int", "long"], "$lte": HIGHEST_TERM}}
        for bucket, log in logs.items():
            query = {"_id": f"{_STARTS}{bucket}", "$or": [{"term": {"$lte": term}}, {"$nor": [of_a_leader]}]}
            try:
                self.collection.update_one(query, {"$set": {"log": list(map(list, log)), "term": term}}, upsert=True)
            except DuplicateKeyError:
                raise Superseded(f"term {term} is over; a newer leader counts the starts of {bucket}") from None

    @store_call
    def forget_starts(self, logs: Mapping[str, Sequence[Start]]) -> int:
        """Removes the counts of starts of these buckets, if they have not changed; returns the number removed."""
        gone = [DeleteOne({"_id": f"{_STARTS}{bucket}", "log": list(map(list, log))}) for bucket, log in logs.items()]
        return self.collection.bulk_write(gone, ordered=False).deleted_count if gone else 0


def limit_fields(limit: Limit) -> Document:
    rate = {"count": limit.rate.count, "seconds": limit.rate.seconds} if limit.rate is not None else None
    return {"at_once": limit.at_once, "rate": rate, "floating": limit.floating}


def limit_of(document: Document, subject: str) -> Limit:
    """The parser of a limit. Raises UnreadableDocument, SettingsError."""
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
    """The parser. The `_id` begins with the kind of the rule, except for a limit that a person has set."""
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
    limit = limit_of(document, name.removeprefix(_DECLARED))
    return _Limited(limit, fields.text(document, "by", None), name.startswith(_DECLARED))


def _weight(place: str, value: Any) -> tuple[str, object]:
    entry = fields.mapping({place: value}, place)
    return fields.text(entry, "tenant"), entry.get("weight")


def _start(place: str, value: Any) -> Start:
    if not isinstance(value, list) or len(value) != 2:
        raise UnreadableDocument(f"{place} is {shown(value, 60)}; it must be a date and a number")
    return fields.as_moment(place, value[0]), fields.whole({place: value[1]}, place)
