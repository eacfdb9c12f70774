"""`roster`: the workers, and who holds which job. **This is the lock table.**

    {_id: "host:pid:1f3a", host, pid, groups, tasks, slots, prefetch, ready, draining, term, beats, settled, given,
     session, resources, metered: [{job, lane}], joined_at, seen_at, clock_offset, running: [{job, task, since}],
     assigned: [job ids], kept_idle: {at, by, reason}}

A worker holds exactly the jobs in its own `assigned`. Only the leader adds to it, and only while no newer term has
been written there; only the worker itself takes from it, by settling or handing back; and retiring a worker removes
the document, and with it every hold at once. So no lock can outlive its holder, and a worker that lost its document
cannot complete anything.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import pymongo
from pymongo import ReturnDocument, UpdateOne
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.errors import DuplicateKeyError

from recruiter.domain.assignment import Registration
from recruiter.domain.job import JobId
from recruiter.domain.needs import NOTHING, Needs
from recruiter.errors import InvalidJob
from recruiter.store.codec import Document
from recruiter.store.translate import store_call

NAME = "roster"

_PATIENCE = 3.0
"""Seconds that the leader waits for a document that is locked: whoever died in a transaction locks it for a minute."""

VALIDATOR = {
    "$jsonSchema": {
        "required": [
            "groups",
            "tasks",
            "slots",
            "prefetch",
            "ready",
            "draining",
            "term",
            "beats",
            "running",
            "assigned",
        ],
        "properties": {
            "_id": {"bsonType": "string"},
            "groups": {"bsonType": ["null", "array"]},
            "tasks": {"bsonType": "array"},
            "slots": {"bsonType": "int"},
            "prefetch": {"bsonType": "int"},
            "ready": {"bsonType": "bool"},
            "draining": {"bsonType": "bool"},
            "term": {"bsonType": ["int", "long"]},
            "beats": {"bsonType": ["int", "long"]},
            "running": {"bsonType": "array"},
            "assigned": {"bsonType": "array"},
        },
    }
}


_PLANNING_FIELDS: Document = {
    **dict.fromkeys(
        (
            "groups",
            "tasks",
            "slots",
            "prefetch",
            "ready",
            "draining",
            "beats",
            "session",
            "host",
            "resources",
            "metered",
            "kept_idle",
        ),
        1,
    ),
    "holds": {"$size": "$assigned"},
}
_VIEW_FIELDS: Document = {
    **_PLANNING_FIELDS,
    **dict.fromkeys(("host", "pid", "joined_at", "seen_at", "running", "clock_offset"), 1),
}

ASSIGNED_TO_ME = "updateDescription.updatedFields.given"
"""What a worker listens for on its own document; heartbeats do not change it."""

ROOM_MADE: Document = {
    "$or": [
        {"operationType": {"$in": ["insert", "delete"]}},
        {"updateDescription.updatedFields.settled": {"$exists": True}},
        {"updateDescription.updatedFields.ready": {"$exists": True}},
    ]
}
"""What the leader listens for while jobs wait that nobody can take: somebody joins, or has room again."""


@dataclass(frozen=True, slots=True)
class Holding:
    """What a worker holds, as of its n-th release. An answer with a smaller `settled` is older and must be ignored."""

    assigned: list[JobId]
    settled: int


@dataclass(frozen=True, slots=True)
class Hold:
    """That a worker holds a job, and since when it runs there as far as is known."""

    worker: str
    since: datetime | None


@dataclass(frozen=True, slots=True)
class RosterEntry:
    """A worker as people see it."""

    id: str
    host: str
    pid: int
    registration: Registration
    joined_at: datetime
    seen_at: datetime
    running: tuple[Mapping[str, Any], ...]
    leaving: bool = False
    kept_idle: Mapping[str, Any] | None = None
    """`at`, `by`, `reason`: somebody wants it to be given nothing."""
    clock_offset: float | None = None
    """Seconds that the server's clock is ahead of its host's."""


class Roster:
    def __init__(self, collection: Collection[Document]) -> None:
        self.collection = collection

    # -- the worker's side -------------------------------------------------------------------------------------

    @store_call
    def join(self, worker: str, facts: Mapping[str, Any]) -> None:
        """Inserts the worker as not ready: nobody assigns to it before it knows the newest term, `become_ready`.

        Safe to repeat after an unknown outcome: the id is this registration's own.
        """
        fresh = {"ready": False, "draining": False, "term": 0, "beats": 0, "settled": 0, "given": 0}
        with contextlib.suppress(DuplicateKeyError):
            self.collection.insert_one({"_id": worker, **facts, **fresh, "running": [], "assigned": []})

    @store_call
    def become_ready(self, worker: str, term: int) -> bool:
        update = {"$set": {"ready": True}, "$max": {"term": term}, "$inc": {"beats": 1}}
        return self.collection.update_one({"_id": worker}, update).matched_count == 1

    @store_call
    def beat(self, worker: str, facts: Mapping[str, Any], within: float) -> tuple[Holding, datetime] | None:
        """Shows life; returns what the worker holds and the server's time, or None when it is off the roster."""
        with pymongo.timeout(within):  # a connection that went dead must not cost the registration
            found = self.collection.find_one_and_update(
                {"_id": worker},
                {"$inc": {"beats": 1}, "$set": dict(facts), "$currentDate": {"seen_at": True}},
                projection={"assigned": 1, "settled": 1, "seen_at": 1},
                return_document=ReturnDocument.AFTER,
            )
        return (_holding(found), found["seen_at"]) if found else None

    @store_call
    def holding(self, worker: str) -> Holding | None:
        found = self.collection.find_one({"_id": worker}, {"assigned": 1, "settled": 1})
        return _holding(found) if found else None

    def release(
        self, worker: str, ids: Sequence[JobId], session: ClientSession | None, facts: Mapping[str, Any]
    ) -> Holding | None:
        """Takes these jobs off the worker's list; returns what it still holds, or None when it is off the roster."""
        found = self.collection.find_one_and_update(
            {"_id": worker},
            {
                "$pull": {"assigned": {"$in": list(ids)}},
                "$inc": {"beats": 1, "settled": 1},
                "$set": dict(facts),
            },
            projection={"assigned": 1, "settled": 1},
            return_document=ReturnDocument.AFTER,
            session=session,
        )
        return _holding(found) if found else None

    @store_call
    def hand_back(self, worker: str, ids: Sequence[JobId]) -> Holding | None:
        """Gives up jobs that were never started; nothing else changes for them."""
        return self.release(worker, ids, None, {})

    @store_call
    def leave(self, worker: str) -> None:
        """Off the roster: whatever it still held is free at once."""
        self.collection.delete_one({"_id": worker})

    # -- the leader's side -------------------------------------------------------------------------------------

    @store_call
    def raise_term(self, term: int) -> None:
        """From here on no older leader can assign to anybody on the roster. Safe to repeat."""
        with pymongo.timeout(_PATIENCE):
            self.collection.update_many({"term": {"$lt": term}}, {"$set": {"term": term}})

    @store_call
    def highest_term(self) -> int:
        found = self.collection.find_one({}, {"term": 1}, sort=[("term", -1)])
        return int(found["term"]) if found else 0

    @store_call
    def read(self) -> list[Registration]:
        """Who is there, and how many jobs each holds; not which: see `held`."""
        return [_registration(document) for document in self.collection.find({}, _PLANNING_FIELDS)]

    @store_call
    def held(self) -> set[JobId]:
        """Every job that somebody holds."""
        return {job for document in self.collection.find({}, {"assigned": 1}) for job in document["assigned"]}

    @store_call
    def assign(
        self,
        hands: Mapping[str, Sequence[JobId]],
        term: int,
        metered: Mapping[str, Sequence[tuple[JobId, str]]] = MappingProxyType({}),
    ) -> bool:
        """Gives jobs to workers, and notes the lanes of those that count against limits or resources. False when a
        worker is gone or has seen a newer term: look at the lease again."""
        writes = [
            UpdateOne(
                {"_id": worker, "ready": True, "term": {"$lte": term}},
                {"$set": {"term": term}, "$push": _given(jobs, metered.get(worker, ())), "$inc": {"given": 1}},
            )
            for worker, jobs in hands.items()
        ]
        with pymongo.timeout(_PATIENCE):
            return self.collection.bulk_write(writes, ordered=False).matched_count == len(writes)

    @store_call
    def meter(self, worker: str, entries: Sequence[tuple[JobId, str]], term: int) -> None:
        """Notes that jobs which this worker holds count from now on: a limit is new."""
        update = {"$push": {"metered": {"$each": _entries(entries)}}}
        self.collection.update_one({"_id": worker, "term": {"$lte": term}}, update)

    @store_call
    def forget_metered(self, worker: str, ended: Sequence[JobId], term: int) -> None:
        """These have ended. Nobody else tidies up here: settling has better things to do."""
        update = {"$pull": {"metered": {"job": {"$in": list(ended)}}}}
        self.collection.update_one({"_id": worker, "term": {"$lte": term}}, update)

    @store_call
    def holders(self) -> dict[str, list[JobId]]:
        """Every job that somebody holds, by worker."""
        return {document["_id"]: document["assigned"] for document in self.collection.find({}, {"assigned": 1})}

    def remove(self, worker: str, beats: int, session: ClientSession) -> Document | None:
        """Inside a transaction: takes the worker off the roster unless it has shown life since."""
        return self.collection.find_one_and_delete({"_id": worker, "beats": beats}, session=session)

    @store_call
    def keep_idle(self, worker: str, why: Mapping[str, Any] | None) -> bool:
        """No more jobs for this worker, or with None: jobs again. What it holds it finishes."""
        update = {"$set": {"kept_idle": dict(why)}} if why is not None else {"$unset": {"kept_idle": ""}}
        return self.collection.update_one({"_id": worker}, update).matched_count == 1

    @store_call
    def holder(self, id: JobId) -> tuple[str, datetime | None] | None:
        """Who holds this job, and since when it runs there as far as is known."""
        found = self.collection.find_one({"assigned": id}, {"running": {"$elemMatch": {"job": id}}})
        if found is None:
            return None
        return found["_id"], next((run["since"] for run in found.get("running", ())), None)

    @store_call
    def holds(self) -> dict[JobId, Hold]:
        """Every job that somebody holds, with who does."""
        found = self.collection.find({}, {"assigned": 1, "running": 1})
        return {id: hold for document in found for id, hold in _holds(document)}

    # -- views -------------------------------------------------------------------------------------------------

    @store_call
    def entries(self) -> list[RosterEntry]:
        return [
            RosterEntry(
                id=document["_id"],
                host=document["host"],
                pid=document["pid"],
                registration=_registration(document),
                joined_at=document["joined_at"],
                seen_at=document["seen_at"],
                running=tuple(document["running"]),
                leaving=document["draining"],
                kept_idle=document.get("kept_idle"),
                clock_offset=document.get("clock_offset"),
            )
            for document in self.collection.find({}, _VIEW_FIELDS).sort("_id", 1)
        ]


def _holds(document: Document) -> Iterator[tuple[JobId, Hold]]:
    since = {run["job"]: run["since"] for run in document["running"]}
    for id in document["assigned"]:
        yield id, Hold(document["_id"], since.get(id))


def _given(jobs: Sequence[JobId], metered: Sequence[tuple[JobId, str]]) -> Document:
    push: Document = {"assigned": {"$each": list(jobs)}}
    if metered:
        push["metered"] = {"$each": _entries(metered)}
    return push


def _entries(metered: Sequence[tuple[JobId, str]]) -> list[Document]:
    return [{"job": job, "lane": lane} for job, lane in metered]


def _holding(document: Document) -> Holding:
    return Holding(document["assigned"], document["settled"])


def _registration(document: Document) -> Registration:
    groups = document["groups"]
    return Registration(
        id=document["_id"],
        groups=None if groups is None else frozenset(groups),
        tasks=frozenset(document["tasks"]),
        slots=document["slots"],
        prefetch=document["prefetch"],
        holds=document["holds"],
        beats=document["beats"],
        ready=document["ready"],
        draining=document["draining"] or bool(document.get("kept_idle")),
        session=document.get("session"),
        host=document.get("host", ""),
        resources=_resources(document.get("resources")),
        metered=tuple((entry["job"], entry["lane"]) for entry in document.get("metered") or ()),
    )


@lru_cache(maxsize=1000)
def _resources(text: str | None) -> Needs:
    try:
        return Needs.parse(text or "")
    except InvalidJob:
        return NOTHING
