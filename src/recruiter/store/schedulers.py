"""`schedulers`: the templates of repeatable jobs, one document a urn.

    {_id: "report:daily", job: {task, args, group, …}, schedule: {class, parameters}, overlap, late, window,
     handled, next_at, paused: {at, by, reason}, last_at, made, skipped, …}

`handled` says up to which instant occurrences have been dealt with. Whoever changes a scheduler does it on the
condition that `handled` is what they saw, and the leader moves it in the same transaction as it makes the jobs
(`Settlement.repeat`). So an occurrence cannot be made twice, nor be forgotten, whoever dies or steps in when.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from pymongo import ASCENDING, IndexModel, UpdateOne
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.errors import DuplicateKeyError

from recruiter.domain.job import Job
from recruiter.domain.names import DEFAULT_GROUP
from recruiter.domain.schedule import Late
from recruiter.domain.scheduler import Overlap, Pause, Plan, Scheduler
from recruiter.errors import RecruiterError
from recruiter.store.codec import Document, adopted_fields, job_document, job_from
from recruiter.store.translate import store_call

NAME = "schedulers"

NEXT = "next"
INDEXES = [IndexModel([("paused", ASCENDING), ("next_at", ASCENDING)], name=NEXT)]

VALIDATOR = {
    "$jsonSchema": {
        "required": ["job", "schedule", "overlap", "late", "window", "created_at", "handled", "next_at"],
        "properties": {
            "_id": {"bsonType": "string"},
            "job": {"bsonType": "object"},
            "schedule": {"bsonType": "object"},
            "overlap": {"enum": [each.value for each in Overlap]},
            "late": {"enum": [each.value for each in Late]},
            "window": {"bsonType": ["int", "long", "double"]},
            "created_at": {"bsonType": "date"},
            "handled": {"bsonType": "date"},
            "next_at": {"bsonType": ["date", "null"]},
            "must_succeed_within": {"bsonType": ["int", "long", "double", "null"]},
            "paused": {"bsonType": ["object", "null"]},
        },
    }
}

_DEFINITION = ("job", "schedule", "overlap", "late", "window", "must_succeed_within")


class Schedulers:
    def __init__(self, collection: Collection[Document]) -> None:
        self.collection = collection

    @store_call
    def put(self, scheduler: Scheduler) -> Scheduler | None:
        """Creates it, or changes the one of this urn; returns the one that was there before, changed or not.

        Safe when many do it at once: one creates, the others find it as they want it. A changed one begins anew: its
        next occurrence is the first after now.
        """
        document = _document(scheduler)
        while True:
            found = self.get(scheduler.urn)
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
            unchanged = {"_id": scheduler.urn, "handled": found.handled}
            if self.collection.update_one(unchanged, {"$set": changes, "$unset": {"broken": ""}}).matched_count:
                return found

    @store_call
    def get(self, urn: str) -> Scheduler | None:
        document = self.collection.find_one({"_id": urn})
        return _scheduler(document) if document else None

    @store_call
    def all(self) -> list[Scheduler]:
        return [_scheduler(document) for document in self.collection.find().sort("_id", 1)]

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
        return self.collection.update_one({"_id": seen.urn, "handled": seen.handled}, update).matched_count == 1

    # -- the leader's side -------------------------------------------------------------------------------------

    @store_call
    def due(self, now: datetime, limit: int) -> list[Scheduler]:
        """Those with an occurrence to deal with, the longest due first."""
        query = {"paused": None, "next_at": {"$lte": now}}
        found = self.collection.find(query, hint=NEXT).sort("next_at", 1).limit(limit)
        return [_scheduler(document) for document in found]

    @store_call
    def next_at(self) -> datetime | None:
        """When the next occurrence of any of them is due."""
        query = {"paused": None, "next_at": {"$gt": _EARLIEST}}
        found = self.collection.find_one(query, {"next_at": 1}, sort=[("next_at", 1)], hint=NEXT)
        return found["next_at"] if found else None

    @store_call
    def set_aside(self, seen: Scheduler, reason: str, until: datetime) -> None:
        """Its policy cannot be asked: to be looked at again then, with nothing lost."""
        query = {"_id": seen.urn, "handled": seen.handled}
        self.collection.update_one(query, {"$set": {"broken": reason, "next_at": until}})

    @store_call
    def promising(self) -> list[Scheduler]:
        """Those that must succeed within some time."""
        return [_scheduler(document) for document in self.collection.find({"must_succeed_within": {"$gt": 0}})]

    @store_call
    def note_success(self, urn: str, at: datetime) -> None:
        self.collection.update_one({"_id": urn}, {"$max": {"succeeded_at": at}})

    def advance(self, plans: list[Plan], session: ClientSession) -> bool:
        """Inside a transaction: moves these schedulers on; false when one of them is no longer what was seen."""
        return self.collection.bulk_write([_advance(each) for each in plans], session=session).matched_count == len(
            plans
        )


_EARLIEST = datetime.min.replace(year=1970)


def _advance(plan: Plan) -> UpdateOne:
    fields: Document = {"handled": plan.handled, "next_at": plan.next_at}
    if plan.instants:
        fields["last_at"] = plan.instants[-1]
    return UpdateOne(
        {"_id": plan.scheduler.urn, "handled": plan.scheduler.handled, "paused": None},
        {
            "$set": fields,
            "$inc": {"made": len(plan.instants), "skipped": plan.skipped},
            "$unset": {"broken": ""},
        },
    )


def _document(scheduler: Scheduler) -> Document:
    template = job_document(scheduler.template)
    for name in ("_id", "lane", "created_at", "scheduled_at", "attempts", "postponed", "urn", "expires_at"):
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
    moment = document["created_at"]
    within, paused = document.get("must_succeed_within"), document.get("paused")
    template, broken = _template(document, moment)
    return Scheduler(
        urn=document["_id"],
        template=template,
        schedule=document["schedule"],
        created_at=moment,
        handled=document["handled"],
        next_at=document["next_at"],
        overlap=Overlap(document["overlap"]),
        late=Late(document["late"]),
        window=timedelta(seconds=document["window"]),
        must_succeed_within=timedelta(seconds=within) if within is not None else None,
        paused=Pause(paused.get("at", moment), paused.get("by"), paused.get("reason")) if paused else None,
        broken=broken or document.get("broken"),
        last_at=document.get("last_at"),
        made=document.get("made", 0),
        skipped=document.get("skipped", 0),
        succeeded_at=document.get("succeeded_at"),
    )


def _template(document: Mapping[str, Any], moment: datetime) -> tuple[Job, str | None]:
    """The job that is repeated, and what is wrong with it: somebody may have written it by hand."""
    place = {"_id": document["_id"], "urn": document["_id"], "created_at": moment, "scheduled_at": moment}
    defaults = {"group": DEFAULT_GROUP, "priority": 0}
    try:
        adopted_fields({**document["job"], "_id": document["_id"]}, moment)
        return job_from({**defaults, **document["job"], **place}), None
    except (RecruiterError, KeyError, TypeError) as error:
        return Job(document["_id"], "", {}, moment, moment), f"its job cannot be one: {error}"
