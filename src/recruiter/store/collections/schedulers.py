"""`schedulers`: the templates of repeatable jobs, one document a urn.

    {_id: "report:daily", job: {task, args, group, …}, schedule: {class, parameters}, overlap, late, window,
     handled, next_at, paused: {at, by, reason}, last_at, made, skipped, …}

`handled` says up to which instant occurrences have been dealt with. A change of a scheduler is made on the
condition that `handled` is what they saw, and the leader moves it in the same transaction as it makes the jobs
(`Transactions.repeat`). So no occurrence is made twice or forgotten, whichever process dies or takes over, and when.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from bson.raw_bson import RawBSONDocument
from pymongo import ASCENDING, IndexModel, UpdateOne
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.errors import DuplicateKeyError

from recruiter.domain.job import Job
from recruiter.domain.names import DEFAULT_GROUP
from recruiter.domain.schedule.scheduler import Late, Overlap, Pause, Plan, Scheduler
from recruiter.domain.unreadable import Parsed, Unreadable
from recruiter.errors import RecruiterError
from recruiter.store import fields as field
from recruiter.store.codec import RAW, Document, adopted_fields, job_document, job_from, this_document
from recruiter.store.errors import store_call
from recruiter.store.fields import LAST_MOMENT
from recruiter.store.job_fields import Use, names
from recruiter.store.reading import parse_one, parsed, readable

NAME = "schedulers"

NEXT = "next"
INDEXES = [IndexModel([("paused", ASCENDING), ("next_at", ASCENDING)], name=NEXT)]

_LONGEST = 1e10
"""Seconds: three hundred years."""
VALIDATOR = {
    "$jsonSchema": {
        "required": ["job", "schedule", "overlap", "late", "window", "created_at", "handled", "next_at"],
        "properties": {
            "_id": {"bsonType": "string"},
            "job": {"bsonType": "object"},
            "schedule": {"bsonType": "object"},
            "overlap": {"enum": [each.value for each in Overlap]},
            "late": {"enum": [each.value for each in Late]},
            "window": {"bsonType": ["int", "long", "double"], "minimum": 0, "maximum": _LONGEST},
            "created_at": {"bsonType": "date"},
            "handled": {"bsonType": "date"},
            "next_at": {"bsonType": ["date", "null"]},
            "must_succeed_within": {"bsonType": ["int", "long", "double", "null"]},
            "paused": {"bsonType": ["object", "null"]},
            "made": {"bsonType": ["int", "long"]},
            "skipped": {"bsonType": ["int", "long"]},
        },
    }
}

_DEFINITION = ("job", "schedule", "overlap", "late", "window", "must_succeed_within")


class Schedulers:
    def __init__(self, collection: Collection[Document]) -> None:
        self.collection = collection
        self._raw: Collection[Any] = collection.with_options(codec_options=RAW)

    @store_call
    def put(self, scheduler: Scheduler) -> Scheduler | None:
        """Creates it, or changes the one of this urn; returns the one that was there before, changed or not.

        Safe when many do it at once: one creates, the others find it as they want it. A changed one begins anew: its
        next occurrence is the first after now. One that cannot be read is replaced.
        """
        document = _document(scheduler)
        while True:
            found = self._look(scheduler.urn)
            if isinstance(found, Unreadable):
                if self._replace(found, document):
                    return None
                continue
            if found is None:
                try:
                    self.collection.insert_one(document)
                    return None
                except DuplicateKeyError:
                    continue
            if found.same_definition(scheduler):
                return found
            changes = {name: document[name] for name in (*_DEFINITION, "next_at")}
            changes["handled"] = max(found.handled, scheduler.handled)
            update = {"$set": changes, "$unset": {"broken": ""}, "$inc": {"revision": 1}}
            if self.collection.update_one(_as(found), update).matched_count:
                return found

    def _replace(self, seen: Unreadable, document: Document) -> bool:
        same = {"$expr": {"$eq": ["$$ROOT", {"$literal": RawBSONDocument(seen.raw, RAW)}]}}
        return self.collection.replace_one({"_id": document["_id"], **same}, document).matched_count == 1

    def _look(self, urn: str) -> Scheduler | Unreadable | None:
        document = self._raw.find_one({"_id": urn})
        return parse_one(NAME, bytes(document.raw), _scheduler) if document is not None else None

    @store_call
    def get(self, urn: str) -> Scheduler | None:
        """Raises UnreadableDocument."""
        return readable(self._look(urn))

    @store_call
    def exists(self, urn: str) -> bool:
        return self._raw.find_one({"_id": urn}, {"_id": 1}) is not None

    @store_call
    def all(self) -> Parsed[Scheduler]:
        return parsed(NAME, self._raw.find().sort("_id", 1), _scheduler)

    @store_call
    def remove(self, urn: str) -> bool:
        return self.collection.delete_one({"_id": urn}).deleted_count == 1

    @store_call
    def pause(self, urn: str, pause: Pause) -> bool:
        """No occurrences from now on. A second pause changes nothing but its reason."""
        stored = {"at": pause.at, "by": pause.by, "reason": pause.reason}
        return self.collection.update_one({"_id": urn}, {"$set": {"paused": stored}}).matched_count == 1

    @store_call
    def resume(self, seen: Scheduler, handled: datetime, next_at: datetime | None) -> bool:
        """Goes on from here; what was missed during the pause was meant to be. False when it changed meanwhile."""
        update = {"$set": {"paused": None, "handled": handled, "next_at": next_at}}
        return self.collection.update_one(_as(seen), update).matched_count == 1

    # -- the leader's side -------------------------------------------------------------------------------------

    @store_call
    def due(self, now: datetime, limit: int) -> Parsed[Scheduler]:
        """Those with an occurrence to deal with, the longest due first."""
        query = {"paused": None, "next_at": {"$lte": now}}
        return parsed(NAME, self._raw.find(query, hint=NEXT, limit=limit).sort("next_at", 1), _scheduler)

    @store_call
    def next_at(self) -> datetime | None:
        """When the next occurrence of any of them is due."""
        query = {"paused": None, "next_at": {"$gt": _EARLIEST, "$lte": LAST_MOMENT}}
        found = self.collection.find_one(query, {"_id": 0, "next_at": 1}, sort=[("next_at", 1)], hint=NEXT)
        return None if found is None else found["next_at"]

    @store_call
    def set_aside(self, seen: Scheduler, reason: str, until: datetime) -> None:
        """Its policy cannot be asked: to be looked at again then, with nothing lost."""
        self.collection.update_one(_as(seen), {"$set": {"broken": reason, "next_at": until}})

    @store_call
    def set_unreadable_aside(self, seen: Unreadable, until: datetime) -> None:
        """It cannot be read: to be looked at again then, so that it does not stand before the others."""
        self.collection.update_one(this_document(seen.raw), {"$set": {"broken": seen.reason, "next_at": until}})

    @store_call
    def promising(self) -> Parsed[Scheduler]:
        """Those that must succeed within some time."""
        return parsed(NAME, self._raw.find({"must_succeed_within": {"$gt": 0}}), _scheduler)

    @store_call
    def note_success(self, urn: str, at: datetime) -> None:
        self.collection.update_one({"_id": urn}, {"$max": {"succeeded_at": at}})

    def advance(self, plans: list[Plan], session: ClientSession) -> bool:
        """Inside a transaction: moves these schedulers on; false when one of them is no longer what was seen."""
        return self.collection.bulk_write([_advance(each) for each in plans], session=session).matched_count == len(
            plans
        )


_EARLIEST = datetime.min.replace(year=1970)


def _as(seen: Scheduler) -> Document:
    """The query for the scheduler as it was seen: nobody has changed it, or dealt with its occurrences, since."""
    return {"_id": seen.urn, "handled": seen.handled, "revision": seen.revision or {"$in": [None, 0]}}


def _advance(plan: Plan) -> UpdateOne:
    fields: Document = {"handled": plan.handled, "next_at": plan.next_at}
    if plan.instants:
        fields["last_at"] = plan.instants[-1]
    return UpdateOne(
        {**_as(plan.scheduler), "paused": None},
        {
            "$set": fields,
            "$inc": {"made": len(plan.instants), "skipped": plan.skipped},
            "$unset": {"broken": ""},
        },
    )


def _document(scheduler: Scheduler) -> Document:
    template = job_document(scheduler.template)
    for name in ("lane", *names(Use.OWN)):
        template.pop(name, None)
    within = scheduler.must_succeed_within
    return {
        "_id": scheduler.urn,
        "job": template,
        "schedule": dict(scheduler.schedule),
        "overlap": scheduler.overlap.value,
        "late": scheduler.late.value,
        "window": scheduler.window.total_seconds(),
        "must_succeed_within": within.total_seconds() if within is not None else None,
        "created_at": scheduler.created_at,
        "handled": scheduler.handled,
        "next_at": scheduler.next_at,
        "paused": None,
        "made": 0,
        "skipped": 0,
    }


def _scheduler(document: Mapping[str, Any]) -> Scheduler:
    """The parser. What is wrong with the job alone makes it a broken scheduler, not an unreadable one."""
    moment = field.moment(document, "created_at")
    within = field.number(document, "must_succeed_within", None, least=0, most=_LONGEST)
    paused = field.mapping(document, "paused", None)
    template, broken = _template(document, moment)
    return Scheduler(
        urn=field.text(document, "_id"),
        template=template,
        schedule=field.mapping(document, "schedule"),
        created_at=moment,
        handled=field.moment(document, "handled"),
        next_at=field.moment(document, "next_at", None),
        overlap=Overlap(field.text(document, "overlap")),
        late=Late(field.text(document, "late")),
        window=timedelta(seconds=field.number(document, "window", least=0, most=_LONGEST)),
        must_succeed_within=timedelta(seconds=within) if within is not None else None,
        paused=_pause(paused, moment) if paused else None,
        broken=broken or field.text(document, "broken", None),
        last_at=field.moment(document, "last_at", None),
        made=field.whole(document, "made", 0),
        skipped=field.whole(document, "skipped", 0),
        succeeded_at=field.moment(document, "succeeded_at", None),
        revision=field.whole(document, "revision", 0),
    )


def _pause(paused: Document, moment: datetime) -> Pause:
    return Pause(field.moment(paused, "at", moment), field.text(paused, "by", None), field.text(paused, "reason", None))


def _template(document: Mapping[str, Any], moment: datetime) -> tuple[Job, str | None]:
    """The job that is repeated, and what is wrong with it: somebody may have written it by hand."""
    place = {"_id": document["_id"], "urn": document["_id"], "created_at": moment, "scheduled_at": moment}
    defaults = {"group": DEFAULT_GROUP, "priority": 0}
    try:
        field.mapping(document, "job")
        adopted_fields({**document["job"], "_id": document["_id"]}, moment)
        return job_from({**defaults, **document["job"], **place}), None
    except (RecruiterError, KeyError, TypeError) as error:
        return Job(document["_id"], "", {}, moment, moment), f"its job cannot be one: {error}"
