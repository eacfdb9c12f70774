"""`scheduled`: the jobs that wait or run.

A job document is not touched while it is assigned or run for a moment: who holds it is written on the roster. Of a job
that runs for long, or says something, its worker signs the document for people to see (`sign`).

Two kinds of documents live here. With a `lane` it is a job of full shape (the validator sees to it) and in the due
index. Without one it was inserted by some other program: it waits in the *inbox* until the leader adopts it or sets it
aside. So whatever is inserted by hand cannot reach, spoil or slow the index that everything depends on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Collection as Ids
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

import pymongo
from pymongo import ASCENDING, DESCENDING, IndexModel, InsertOne, UpdateOne
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.cursor import Cursor
from pymongo.errors import BulkWriteError, DuplicateKeyError

from recruiter.domain.job import Job, JobId
from recruiter.domain.lanes import Lane
from recruiter.domain.names import CANCELLED_LANE
from recruiter.domain.packing import Candidate
from recruiter.domain.state import State
from recruiter.errors import JobExists
from recruiter.store.codec import LENIENT, LOCK, MOST_ATTEMPTS, NOT_BELIEVED, Document, id_of, job_from, split_batch
from recruiter.store.foreign import not_adopted, unlocked
from recruiter.store.translate import is_about_a_document, store_call

NAME = "scheduled"

DUE, POSTPONED, INBOX = "due", "postponed", "inbox"
BY_URN, BY_TAG, BY_OWNER = "turn_by_urn", "turn_by_tag", "turn_by_owner"
_HAS_LANE = {"lane": {"$gt": ""}}
TURN = (("priority", DESCENDING), ("scheduled_at", ASCENDING), ("_id", ASCENDING))
"""The order in which jobs get their turn, in their lane or merged over several."""
_TEXT: Document = {"$gt": ""}


def _in_turn(field: str, name: str, there: Document) -> IndexModel:
    """Jobs that have this field, in the order in which they get their turn; the others pay nothing."""
    return IndexModel([(field, ASCENDING), *TURN], name=name, partialFilterExpression={field: there})


INDEXES = [
    _in_turn("lane", DUE, _TEXT),
    # Only for jobs that wait for their time: the many that are due at once need not pay for it twice.
    IndexModel([("scheduled_at", ASCENDING)], name=POSTPONED, partialFilterExpression={"postponed": True}),
    IndexModel([("lane", ASCENDING)], name=INBOX, partialFilterExpression={"lane": None}),
    _in_turn("urn", BY_URN, _TEXT),
    _in_turn("tags", BY_TAG, {"$exists": True}),
    _in_turn("username", BY_OWNER, _TEXT),
]

VALIDATOR = {
    "$jsonSchema": {
        "anyOf": [
            {"properties": {"lane": {"bsonType": "null"}}},
            {
                "required": [
                    "task",
                    "args",
                    "group",
                    "lane",
                    "priority",
                    "created_at",
                    "scheduled_at",
                    "attempts",
                ],
                "properties": {
                    "_id": {"bsonType": ["objectId", "string", "int", "long", "binData"]},
                    "task": {"bsonType": "string"},
                    "args": {"bsonType": ["object", "array"]},
                    "group": {"bsonType": "string"},
                    "lane": {"bsonType": "string", "pattern": "/"},
                    "priority": {"bsonType": ["int", "long", "double"]},
                    "created_at": {"bsonType": "date"},
                    "scheduled_at": {"bsonType": "date"},
                    "attempts": {"bsonType": ["int", "long"], "minimum": 0, "maximum": MOST_ATTEMPTS},
                    "crashes": {"bsonType": ["int", "long"], "minimum": 0, "maximum": MOST_ATTEMPTS},
                    "postponed": {"bsonType": "bool"},
                    "cancel": {"bsonType": "object"},
                },
            },
        ]
    }
}

_BY_TIME = [("scheduled_at", ASCENDING), ("priority", DESCENDING), ("created_at", ASCENDING), ("_id", ASCENDING)]
_LANES_A_QUERY = 100
"""MongoDB merges up to 200 sorted scans; beyond that it would sort in memory."""

_UNITED = 50
"""Lanes that are asked for in one aggregation, each by itself."""
_PLANNED = {"_id": 1, "priority": 1, "scheduled_at": 1, "lane": 1}

DUPLICATE_KEY = 11000
_STORED_WITHIN = 30.0
"""Seconds in which the driver repeats an insert through any number of new primaries; without a time it does so once."""

_SIGNED_WITHIN = 5.0
"""Seconds for a write that nothing depends on, but that settling waits for."""
NOT_A_SIGN = {"updateDescription.updatedFields.reported_at": {"$exists": False}}
"""For those who listen: most changes of a job that runs mean nothing to anybody but people."""


@dataclass(frozen=True, slots=True)
class Sign:
    """A sign of life of a running job, for people to see: who runs it, since when, and what it has said."""

    id: JobId
    attempts: int
    was_locked_by: str | None
    """When its worker fetched it: a sign that somebody has left there, and nobody's lock."""
    worker: str
    since: datetime
    fields: Document


@dataclass(frozen=True, slots=True)
class Marked:
    """Of at-most-once jobs that are to start: which may, and which were started before. The others are cancelled, or
    not held."""

    may_start: frozenset[JobId]
    started_before: frozenset[JobId]


class Scheduled:
    def __init__(self, collection: Collection[Document]) -> None:
        self.collection = collection
        self._readable = collection.with_options(codec_options=LENIENT)

    # -- producing ---------------------------------------------------------------------------------------------

    @store_call
    def insert(self, documents: Sequence[Any], session: ClientSession | None = None) -> dict[int, str]:
        """Stores jobs; returns the errors by position. One bad or duplicate document does not stop the rest."""
        collection = self.collection
        if session is not None:
            # The caller's transaction lives on the caller's own client, and so must this write.
            concern = None if session.in_transaction else collection.write_concern
            collection = session.client.get_database(collection.database.name).get_collection(
                NAME, codec_options=collection.codec_options, write_concern=concern
            )
        try:
            with pymongo.timeout(_STORED_WITHIN) if session is None else nullcontext():
                if len(documents) == 1:
                    collection.insert_one(documents[0], session=session)
                else:
                    writes = [InsertOne(d) for d in documents]
                    collection.bulk_write(writes, ordered=session is not None, session=session)
        except DuplicateKeyError as error:
            if session is not None:
                taken = (error.details or {}).get("keyValue", {}).get("_id")
                raise JobExists(f"a job with id {taken!r} exists already; it was left as it is") from error
            return {0: "duplicate"}
        except BulkWriteError as error:
            failures = error.details["writeErrors"]
            of_documents = all(f["code"] == DUPLICATE_KEY or is_about_a_document(f["code"]) for f in failures)
            if not failures or not of_documents or session is not None:
                raise  # it passes; or one failure has ended the caller's whole transaction
            return {f["index"]: "duplicate" if f["code"] == DUPLICATE_KEY else str(f["errmsg"]) for f in failures}
        return {}

    # -- planning ----------------------------------------------------------------------------------------------

    @store_call
    def lanes(self) -> list[str]:
        """The lanes that have jobs, due or not. One index seek a lane."""
        lanes: list[str] = self.collection.distinct("lane", _HAS_LANE)
        return lanes

    @store_call
    def due(self, lanes: Sequence[str], now: datetime, limit: int, held: Ids[JobId]) -> list[JobId]:
        """The next due jobs of these lanes that are not held, by priority, then time."""
        if len(lanes) <= _LANES_A_QUERY:
            batches = self._due(self.collection.find_raw_batches, {"_id": 1}, lanes, now, limit, held)
            return [id_of(raw) for batch in batches for raw in split_batch(cast(bytes, batch))]
        found: list[Document] = []
        fields = {"_id": 1, "priority": 1, "scheduled_at": 1}
        for start in range(0, len(lanes), _LANES_A_QUERY):
            some = lanes[start : start + _LANES_A_QUERY]
            found.extend(self._due(self.collection.find, fields, some, now, limit, held))
        found.sort(key=lambda document: (-document["priority"], document["scheduled_at"]))
        return [document["_id"] for document in found[:limit]]

    def _due(
        self,
        find: Callable[..., Cursor[Document]],
        fields: Document,
        lanes: Sequence[str],
        now: datetime,
        limit: int,
        held: Ids[JobId],
    ) -> Cursor[Document]:
        query = {"lane": {"$in": list(lanes)}, "scheduled_at": {"$lte": now}, "_id": {"$nin": list(held)}}
        # batch_size: without it the server answers with 101 and makes the leader ask again.
        return find(query, fields, limit=limit, batch_size=limit + 1).sort(list(TURN)).hint(DUE)

    @store_call
    def first(self, but: Ids[JobId], until: datetime | None = None) -> tuple[JobId, str] | None:
        """Of all jobs but these, due by then or at all, the one whose time is first (then priority, then age), and its
        task.

        It sorts what is there: for people's tests, not for a queue that is full.
        """
        query: Document = {"lane": {"$gt": "", "$ne": CANCELLED_LANE}, "_id": {"$nin": list(but)}}
        if until is not None:
            query["scheduled_at"] = {"$lte": until}
        found = self._readable.find_one(query, {"task": 1}, sort=_BY_TIME)
        return (found["_id"], found["task"]) if found else None

    @store_call
    def candidates(self, lanes: Sequence[str], now: datetime, limit: int, held: Ids[JobId]) -> list[Candidate]:
        """Like `due`, with what a planner must know of each."""
        found: list[Document] = []
        for start in range(0, len(lanes), _LANES_A_QUERY):
            some = lanes[start : start + _LANES_A_QUERY]
            found.extend(self._due(self._readable.find, _PLANNED, some, now, limit, held))
        return [_candidate(document) for document in found]

    @store_call
    def candidates_of_each(self, lanes: Mapping[str, int], now: datetime, held: Ids[JobId]) -> list[Candidate]:
        """Of every lane as many as it says, so that the pile of one does not hide the others."""
        found: list[Document] = []
        each = [_next_of(lane, count, now, held) for lane, count in lanes.items()]
        for start in range(0, len(each), _UNITED):
            first, *others = each[start : start + _UNITED]
            united = [{"$unionWith": {"coll": NAME, "pipeline": pipeline}} for pipeline in others]
            found.extend(self._readable.aggregate([*first, *united], hint=DUE))
        return [_candidate(document) for document in found]

    @store_call
    def lanes_of(self, ids: Ids[JobId]) -> dict[JobId, str]:
        """The lanes of these jobs, where they have one."""
        found = self.collection.find({"_id": {"$in": list(ids)}, **_HAS_LANE}, {"lane": 1})
        return {document["_id"]: document["lane"] for document in found}

    @store_call
    def next_due(self, now: datetime) -> datetime | None:
        """When the next postponed job becomes due."""
        found = self.collection.find_one(
            {"scheduled_at": {"$gt": now}, "postponed": True},
            {"scheduled_at": 1},
            sort=[("scheduled_at", 1)],
            hint=POSTPONED,
        )
        upcoming = found["scheduled_at"] if found else None
        return upcoming if isinstance(upcoming, datetime) else None  # beyond year 9999 it is not a datetime

    # -- the inbox ---------------------------------------------------------------------------------------------

    @store_call
    def inbox(self, limit: int, now: datetime) -> list[bytes]:
        """Documents that other programs inserted and do not hold, still as bytes: nothing in them has been checked."""
        batches = self.collection.find_raw_batches({"lane": None, **unlocked(now)}, limit=limit, hint=INBOX)
        return [raw for batch in batches for raw in split_batch(cast(bytes, batch))]

    @store_call
    def to_adopt(self, tasks: Ids[str], now: datetime) -> bool:
        """Whether documents of these tasks wait to be adopted."""
        query = {"lane": None, "task": {"$in": list(tasks)}, **unlocked(now)}
        return self.collection.find_one(query, {"_id": 1}, hint=INBOX) is not None

    @store_call
    def adopt(self, fields: Mapping[JobId, tuple[Document, Document]]) -> None:
        """Makes them jobs, each with its fields, and the document that was read: if somebody has cancelled or locked it
        since, it stays in the inbox for the next look."""
        writes = [
            UpdateOne({"_id": id, "lane": None, **_as(read)}, _adoption(new)) for id, (new, read) in fields.items()
        ]
        self.collection.bulk_write(writes, ordered=False)

    # -- executing ---------------------------------------------------------------------------------------------

    @store_call
    def fetch(self, ids: Sequence[JobId]) -> list[tuple[JobId, bytes]]:
        """These jobs as bytes, in the order of the ids; one that is gone is left out."""
        batches = self.collection.find_raw_batches({"_id": {"$in": list(ids)}}, batch_size=len(ids) + 1)
        found = {id_of(raw): raw for batch in batches for raw in split_batch(cast(bytes, batch))}
        return [(id, found[id]) for id in ids if id in found]

    def mark_started(self, ids: Sequence[JobId], worker: str, at: datetime, session: ClientSession) -> Marked:
        """Inside a transaction that proves the hold: writes that these at-most-once jobs are about to start here.

        One that is marked already was started before, by a worker that is no more: it must not start again. One that
        has been cancelled is neither: it must be handed back.
        """
        self.collection.update_many(
            {"_id": {"$in": list(ids)}, "started_by": None, "lane": {"$ne": CANCELLED_LANE}},
            {"$set": {"started_by": worker, "started_at": at}},
            session=session,
        )
        fields = {"started_by": 1}
        found = list(self.collection.find({"_id": {"$in": list(ids)}, "started_by": _TEXT}, fields, session=session))
        mine = frozenset(d["_id"] for d in found if d["started_by"] == worker)
        return Marked(mine, frozenset(d["_id"] for d in found) - mine)

    @store_call
    def sign(self, signs: Sequence[Sign]) -> None:
        """Writes signs of life. One of a worker that has lost the job to a later attempt, or to somebody who has signed
        since, changes nothing; and none brings a job back that has ended."""
        writes = []
        for sign in signs:
            lock = {"locked_by": sign.worker, "locked_at": sign.since, "started_at": sign.since}
            update = {"$set": {**sign.fields, **lock}, "$currentDate": {"reported_at": True}}
            writes.append(UpdateOne(_mine(sign), update))
        with pymongo.timeout(_SIGNED_WITHIN):
            self.collection.bulk_write(writes, ordered=False)

    @store_call
    def unsign(self, signs: Sequence[Sign]) -> None:
        """These are about to be handed back: what they have said stays, and nobody runs them."""
        unlock = {"$unset": dict.fromkeys(LOCK, "")}
        writes = [UpdateOne(_mine(sign), {"$set": sign.fields, **unlock}) for sign in signs]
        self.collection.bulk_write(writes, ordered=False)

    # -- repeating ---------------------------------------------------------------------------------------------

    def busy(self, urns: Sequence[str], session: ClientSession) -> set[str]:
        """Inside a transaction: which of these urns have a job that waits, runs or is retried."""
        found = self.collection.find({"urn": {"$in": list(urns), "$gt": ""}}, {"urn": 1}, hint=BY_URN, session=session)
        return {document["urn"] for document in found}

    def flag_all(self, urns: Sequence[str], flag: Document, session: ClientSession | None = None) -> int:
        """Raises the cancel flag on every job of these urns that has none."""
        query = {"urn": {"$in": list(urns), "$gt": ""}, "lane": {"$gt": "", "$ne": CANCELLED_LANE}}
        update = {"$set": {"cancel": flag, "lane": CANCELLED_LANE}}
        return self.collection.update_many(query, update, hint=BY_URN, session=session).modified_count

    @store_call
    def flag_urn(self, urn: str, flag: Document) -> int:
        return self.flag_all([urn], flag)

    @store_call
    def of_urn(self, urn: str) -> list[Job]:
        """The jobs of this urn that have not ended, in the order of their time."""
        found = self._readable.find({"urn": urn, "lane": {"$gt": ""}}, hint=BY_URN)
        return sorted((job_from(document) for document in found), key=lambda job: job.scheduled_at)

    @store_call
    def not_begun(self, urn: str) -> list[JobId]:
        """The jobs of this urn that wait for their first attempt."""
        query = {"urn": urn, "lane": {"$gt": "", "$ne": CANCELLED_LANE}, "attempts": 0}
        return [document["_id"] for document in self.collection.find(query, {"_id": 1}, hint=BY_URN)]

    @store_call
    def change(self, ids: Sequence[JobId], fields: Document, unset: Sequence[str]) -> int:
        """Other contents for jobs that wait for their first attempt."""
        query = {"_id": {"$in": list(ids)}, "lane": {"$gt": "", "$ne": CANCELLED_LANE}, "attempts": 0}
        update: Document = {"$set": fields}
        if unset:
            update["$unset"] = dict.fromkeys(unset, "")
        return self.collection.update_many(query, update).modified_count

    # -- control and views -------------------------------------------------------------------------------------

    @store_call
    def flag_cancelled(self, id: JobId, at: datetime, by: str | None, reason: str | None) -> bool:
        """Raises the flag, and takes the job out of its lane so that nobody is given it any more. The leader archives
        it, or its holder stops it. False when there is no such job; a second flag changes nothing."""
        flag: Document = {"cancel": {"at": at, "by": by, "reason": reason}}
        moved = {"$set": {**flag, "lane": CANCELLED_LANE}}
        cases = (
            ({"_id": id, "lane": {"$gt": "", "$ne": CANCELLED_LANE}}, moved),
            ({"_id": id, "lane": None}, {"$set": flag}),  # not adopted yet: it goes to that lane when it is
        )
        while True:
            if any(self.collection.update_one(query, update).matched_count for query, update in cases):
                return True
            found = self.collection.find_one({"_id": id}, {"lane": 1})
            if found is None or found.get("lane") == CANCELLED_LANE:
                return found is not None
            # adopted between the two: once more

    @store_call
    def flag_some(self, ids: Sequence[JobId], conditions: Sequence[Document], flag: Document) -> int:
        """Raises the flag on those of these jobs that fulfil the conditions and have none; returns how many."""
        query = {"$and": [{"_id": {"$in": list(ids)}}, {"lane": {"$gt": "", "$ne": CANCELLED_LANE}}, *conditions]}
        update = {"$set": {"cancel": flag, "lane": CANCELLED_LANE}}
        return self.collection.update_many(query, update).modified_count

    @store_call
    def flagged(self, limit: int, held: Ids[JobId] = ()) -> list[Document]:
        """Jobs that have been cancelled and have not ended, all but those that somebody holds."""
        query = {"lane": CANCELLED_LANE, "_id": {"$nin": list(held)}}
        return list(self._readable.find(query, hint=DUE, limit=limit))

    @store_call
    def flags(self, limit: int) -> dict[JobId, Document]:
        """The jobs that have been cancelled and have not ended, each with who wants it, and why."""
        return _flags(self._readable.find({"lane": CANCELLED_LANE}, {"cancel": 1}, hint=DUE, limit=limit))

    @store_call
    def flags_among(self, ids: Ids[JobId]) -> dict[JobId, Document]:
        """Those of these jobs that have been cancelled, likewise."""
        query = {"_id": {"$in": list(ids)}, "lane": CANCELLED_LANE}
        return _flags(self._readable.find(query, {"cancel": 1}))

    @store_call
    def get(self, id: JobId) -> Job | None:
        document = self._readable.find_one({"_id": id})
        if document is None:
            return None
        if document.get("lane") is None:
            raise not_adopted(id)
        return job_from(document)

    @store_call
    def get_many(self, ids: Ids[JobId]) -> dict[JobId, Job]:
        """Those of them that have not ended and are adopted."""
        found = self._readable.find({"_id": {"$in": list(ids)}, **_HAS_LANE})
        return {document["_id"]: job_from(document) for document in found}

    @store_call
    def document(self, id: JobId) -> Document | None:
        """A job as it is stored, whatever is in it."""
        return self._readable.find_one({"_id": id})

    @store_call
    def count_before(self, document: Document) -> int:
        """How many jobs of its lane get their turn before it; counts up to a thousand."""
        sooner = {
            "lane": document["lane"],
            "$or": [
                {"priority": {"$gt": document["priority"]}, "scheduled_at": {"$lte": document["scheduled_at"]}},
                {"priority": document["priority"], "scheduled_at": {"$lt": document["scheduled_at"]}},
            ],
        }
        return self.collection.count_documents(sooner, limit=1000, hint=DUE)

    @store_call
    def which_exist(self, ids: Ids[JobId]) -> set[JobId]:
        return {document["_id"] for document in self.collection.find({"_id": {"$in": list(ids)}}, {"_id": 1})}

    @store_call
    def exists(self, id: JobId) -> bool:
        return self.collection.find_one({"_id": id}, {"_id": 1}) is not None

    @store_call
    def waiting(self) -> list[Job]:
        """Every job, in the order of their time; for tests, where there are few."""
        return [job_from(document) for document in self._readable.find(_HAS_LANE).sort(_BY_TIME)]

    @store_call
    def count_by(self, field: str, held: Ids[JobId]) -> list[tuple[str, State, int]]:
        """How many jobs each value of this field has, held and not; for reports only."""
        rows = self.collection.aggregate(
            [
                {"$match": {field: {"$exists": True}, "lane": {"$gt": "", "$ne": CANCELLED_LANE}}},
                {"$unwind": f"${field}"},
                {"$group": {"_id": {"name": f"${field}", "held": {"$in": ["$_id", list(held)]}}, "jobs": {"$sum": 1}}},
            ]
        )
        states = {False: State.WAITING, True: State.RUNNING}
        return [(row["_id"]["name"], states[row["_id"]["held"]], row["jobs"]) for row in rows]

    @store_call
    def count_by_lane(self, within: float = 0.0) -> dict[str, int]:
        """How many jobs each lane has; walks the index, for reports only. With `within`, raises StoreUnreachable if it
        takes longer than so many seconds."""
        rows = self.collection.aggregate(
            [{"$match": _HAS_LANE}, {"$group": {"_id": "$lane", "jobs": {"$sum": 1}}}],
            hint=DUE,
            maxTimeMS=int(within * 1000),
        )
        return {row["_id"]: row["jobs"] for row in rows}


def _next_of(lane: str, count: int, now: datetime, held: Ids[JobId]) -> list[Document]:
    match = {"lane": lane, "scheduled_at": {"$lte": now}, "_id": {"$nin": list(held)}}
    return [{"$match": match}, {"$sort": dict(TURN)}, {"$limit": count}, {"$project": _PLANNED}]


def _candidate(document: Document) -> Candidate:
    return Candidate(document["_id"], Lane.parse(document["lane"]), document["priority"], document["scheduled_at"])


def _flags(found: Iterable[Document]) -> dict[JobId, Document]:
    return {d["_id"]: d["cancel"] if isinstance(d.get("cancel"), dict) else {} for d in found}


def _mine(sign: Sign) -> Document:
    return {
        "_id": sign.id,
        "attempts": sign.attempts,
        "locked_by": {"$in": [None, sign.worker, *filter(None, [sign.was_locked_by])]},
    }


def _as(read: Document) -> Document:
    return {name: {"$eq": read.get(name)} for name in ("cancel", "locked_by", "locked_at")}


def _adoption(fields: Document) -> Document:
    unbelieved = {name: "" for name in (*NOT_BELIEVED, "postponed") if name not in fields}
    if fields["lane"] != CANCELLED_LANE:
        unbelieved["cancel"] = ""
    return {"$set": fields, "$unset": unbelieved}
