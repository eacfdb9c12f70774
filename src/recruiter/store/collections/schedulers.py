"""`schedulers`: the templates of repeatable jobs, one document for each urn.

    {_id: "report:daily", job: {task, args, group, …}, schedule: {class, parameters}, overlap, late, window,
     handled, next_at, paused: {at, by, reason}, last_at, made, skipped, …}

`handled` is the instant up to which occurrences are done. Every change of a scheduler requires that `handled` has not
changed since it was read. The leader moves it in the transaction that stores the jobs (`Transactions.repeat`). So each
occurrence is created exactly once, no matter which process dies or takes over.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from bson.raw_bson import RawBSONDocument
from pymongo import ASCENDING, IndexModel, UpdateOne
from pymongo.client_session import ClientSession
from pymongo.errors import DuplicateKeyError

from recruiter.domain.duration import LONGEST_SECONDS
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
from recruiter.store.reading import ParsedCollection, readable

NAME = "schedulers"

NEXT = "next"
INDEXES = [IndexModel([("paused", ASCENDING), ("next_at", ASCENDING)], name=NEXT)]

VALIDATOR = field.validator(
    "job schedule overlap late window created_at handled next_at",
    _id="string",
    job="object",
    schedule="object",
    overlap={"enum": [overlap.value for overlap in Overlap]},
    late={"enum": [late.value for late in Late]},
    window={"bsonType": ["int", "long", "double"], "minimum": 0, "maximum": LONGEST_SECONDS},
    created_at="date",
    handled="date",
    next_at="date null",
    must_succeed_within="int long double null",
    paused="object null",
    made="int long",
    skipped="int long",
)
_DEFINITION = ("job", "schedule", "overlap", "late", "window", "must_succeed_within")
_EARLIEST = datetime.min.replace(year=1970)


class Schedulers(ParsedCollection):
    """The schedulers of repeatable jobs."""

    name = NAME

    @store_call
    def put(self, scheduler: Scheduler) -> Scheduler | None:
        """Creates a scheduler, or changes the scheduler with this urn; returns the previous one.

        Many processes may call this at the same time: one creates it, the others find it. A changed scheduler starts
        again: its next occurrence is the first after now. An unreadable one is replaced.
        """
        document = _document(scheduler)
        while True:
            found = self._parsed_one(_scheduler, {"_id": scheduler.urn})
            if isinstance(found, Unreadable):
                same = {"$expr": {"$eq": ["$$ROOT", {"$literal": RawBSONDocument(found.raw, RAW)}]}}
                if self.collection.replace_one({"_id": scheduler.urn, **same}, document).matched_count:
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

    @store_call
    def get(self, urn: str) -> Scheduler | None:
        """Raises UnreadableDocument."""
        return readable(self._parsed_one(_scheduler, {"_id": urn}))

    @store_call
    def exists(self, urn: str) -> bool:
        return self._raw.find_one({"_id": urn}, {"_id": 1}) is not None

    @store_call
    def all(self) -> Parsed[Scheduler]:
        return self._parsed(_scheduler, sort=[("_id", 1)])

    @store_call
    def remove(self, urn: str) -> bool:
        return self.collection.delete_one({"_id": urn}).deleted_count == 1

    @store_call
    def pause(self, urn: str, pause: Pause) -> bool:
        """Stops its occurrences. A second pause changes only the reason."""
        stored = {"at": pause.at, "by": pause.by, "reason": pause.reason}
        return self.collection.update_one({"_id": urn}, {"$set": {"paused": stored}}).matched_count == 1

    @store_call
    def resume(self, seen: Scheduler, handled: datetime, next_at: datetime | None) -> bool:
        """Skips the occurrences during the pause. False when the scheduler has changed since it was read."""
        update = {"$set": {"paused": None, "handled": handled, "next_at": next_at}}
        return self.collection.update_one(_as(seen), update).matched_count == 1

    # -- the leader's side -------------------------------------------------------------------------------------

    @store_call
    def due(self, now: datetime, limit: int) -> Parsed[Scheduler]:
        """Schedulers with a due occurrence, the longest due first."""
        query = {"paused": None, "next_at": {"$lte": now}}
        return self._parsed(_scheduler, query, hint=NEXT, limit=limit, sort=[("next_at", 1)])

    @store_call
    def next_at(self) -> datetime | None:
        """The time of the next occurrence of all schedulers."""
        query = {"paused": None, "next_at": {"$gt": _EARLIEST, "$lte": LAST_MOMENT}}
        found = self.collection.find_one(query, {"_id": 0, "next_at": 1}, sort=[("next_at", 1)], hint=NEXT)
        return None if found is None else found["next_at"]

    @store_call
    def set_aside(self, seen: Scheduler | Unreadable, reason: str, until: datetime) -> None:
        """Postpones a scheduler that is unreadable, or whose policy fails. No occurrence is lost."""
        query = this_document(seen.raw) if isinstance(seen, Unreadable) else _as(seen)
        self.collection.update_one(query, {"$set": {"broken": reason, "next_at": until}})

    @store_call
    def promising(self) -> Parsed[Scheduler]:
        """Schedulers with `must_succeed_within`."""
        return self._parsed(_scheduler, {"must_succeed_within": {"$gt": 0}})

    @store_call
    def note_success(self, urn: str, at: datetime) -> None:
        self.collection.update_one({"_id": urn}, {"$max": {"succeeded_at": at}})

    def advance(self, plans: list[Plan], session: ClientSession) -> bool:
        """Inside a transaction: moves these schedulers on; false when one of them has changed since it was read."""
        writes = []
        for plan in plans:
            values: Document = {"handled": plan.handled, "next_at": plan.next_at}
            if plan.instants:
                values["last_at"] = plan.instants[-1]
            counts = {"made": len(plan.instants), "skipped": plan.skipped}
            update = {"$set": values, "$inc": counts, "$unset": {"broken": ""}}
            writes.append(UpdateOne({**_as(plan.scheduler), "paused": None}, update))
        return self.collection.bulk_write(writes, session=session).matched_count == len(plans)


def _as(seen: Scheduler) -> Document:
    """The query for the scheduler, if no process has changed it or handled its occurrences since it was read."""
    return {"_id": seen.urn, "handled": seen.handled, "revision": seen.revision or {"$in": [None, 0]}}


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
    """The parser. An invalid job makes the scheduler broken, not unreadable."""
    created_at = field.moment(document, "created_at")
    within = field.number(document, "must_succeed_within", None, least=0, most=LONGEST_SECONDS)
    paused = field.mapping(document, "paused", None)
    template, broken = _template(document, created_at)
    return Scheduler(
        urn=field.text(document, "_id"),
        template=template,
        schedule=field.mapping(document, "schedule"),
        created_at=created_at,
        handled=field.moment(document, "handled"),
        next_at=field.moment(document, "next_at", None),
        overlap=Overlap(field.text(document, "overlap")),
        late=Late(field.text(document, "late")),
        window=timedelta(seconds=field.number(document, "window", least=0, most=LONGEST_SECONDS)),
        must_succeed_within=timedelta(seconds=within) if within is not None else None,
        paused=_pause(paused, created_at) if paused else None,
        broken=broken or field.text(document, "broken", None),
        last_at=field.moment(document, "last_at", None),
        made=field.whole(document, "made", 0),
        skipped=field.whole(document, "skipped", 0),
        succeeded_at=field.moment(document, "succeeded_at", None),
        revision=field.whole(document, "revision", 0),
    )


def _pause(paused: Document, created_at: datetime) -> Pause:
    at = field.moment(paused, "at", created_at)
    return Pause(at, field.text(paused, "by", None), field.text(paused, "reason", None))


def _template(document: Mapping[str, Any], created_at: datetime) -> tuple[Job, str | None]:
    """The job that is repeated, and the error in it."""
    place = {"_id": document["_id"], "urn": document["_id"], "created_at": created_at, "scheduled_at": created_at}
    defaults = {"group": DEFAULT_GROUP, "priority": 0}
    try:
        field.mapping(document, "job")
        adopted_fields({**document["job"], "_id": document["_id"]}, created_at)
        return job_from({**defaults, **document["job"], **place}), None
    except (RecruiterError, KeyError, TypeError) as error:
        return Job(document["_id"], "", {}, created_at, created_at), f"its job cannot be one: {error}"
