"""`scheduled`: the jobs that wait or run.

A job document is not touched while it is assigned or run for a moment: who holds it is written on the roster. Of a job
that runs for long, or says something, its worker marks the document for people to see (`mark_progress`).

Two kinds of documents live here. With a `lane` it is a job of full shape (the validator sees to it) and in the due
index. Without one it was inserted by some other program: it waits in the *inbox* until the leader adopts it or sets it
aside. So whatever is inserted by hand cannot reach, spoil or slow the index that everything depends on.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Collection as Ids
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from math import inf
from operator import itemgetter
from typing import Any, cast
from uuid import UUID

import pymongo
from bson import ObjectId
from pymongo import ASCENDING, DESCENDING, IndexModel, UpdateOne
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.cursor import Cursor
from pymongo.errors import BulkWriteError, DuplicateKeyError

from recruiter.domain.job import MOST_SIGNAL_BYTES, MOST_SIGNALS, Job, JobId
from recruiter.domain.lane import Lane
from recruiter.domain.names import ASIDE, BLOCKED_LANE, CANCELLED_LANE, MARKED_LANE
from recruiter.domain.planning.pack import Candidate
from recruiter.domain.state import State
from recruiter.domain.unreadable import Parsed, Unreadable
from recruiter.store import reading
from recruiter.store.batches import first_batch
from recruiter.store.codec import (
    LARGEST_JOB,
    RAW,
    Document,
    decode_leniently,
    encode,
    id_of,
    job_from,
    lane_of,
    split_batch,
    this_document,
)
from recruiter.store.collections.inbox import not_adopted, unlocked
from recruiter.store.errors import is_about_a_document, store_call
from recruiter.store.fields import FIRST_MOMENT, LAST_MOMENT, LONGEST_ID, job_id, moment, text
from recruiter.store.job_fields import (
    FROM_PROTOCOL,
    LOCK,
    MAY_EXPIRE,
    MOST_ATTEMPTS,
    NOT_BEGUN,
    NULLABLE,
    WAITS_FOR_SIGNAL,
    priority_of,
)
from recruiter.store.reading import parse_one, parsed, readable

NAME = "scheduled"

DUE, POSTPONED, INBOX, EXPIRING = "due", "postponed", "inbox", "expiring"
BY_URN, BY_TAG, BY_OWNER = "turn_by_urn", "turn_by_tag", "turn_by_owner"
BY_FLOW, BY_DEPENDENCY = "step_by_flow", "step_by_dependency"
_HAS_LANE = {"lane": {"$gt": ""}}
LONGEST_LANE = 20_000
"""Bytes; the longest names, needs and key make less."""
TURN = (("priority", DESCENDING), ("scheduled_at", ASCENDING), ("_id", ASCENDING))
"""The order in which jobs get their turn, in their lane or merged over several."""
_TEXT: Document = {"$gt": ""}


def _in_turn(field: str, name: str, there: Document) -> IndexModel:
    """Jobs that have this field, in the order in which they get their turn."""
    return IndexModel([(field, ASCENDING), *TURN], name=name, partialFilterExpression={field: there})


def _sparse(name: str, *fields: str) -> IndexModel:
    """Jobs that have one of these fields. The others pay next to nothing, also when they are deleted: to delete a job,
    MongoDB looks for its key in every partial index, whether or not the filter matches, which takes over 2 µs an index.
    A sparse index has no key for it. It must have no field that every job has."""
    return IndexModel([(field, ASCENDING) for field in fields], name=name, sparse=True)


INDEXES = [
    _in_turn("lane", DUE, _TEXT),
    # Only for jobs that wait for their time: the many that are due at once need not pay for it twice.
    IndexModel([("scheduled_at", ASCENDING)], name=POSTPONED, partialFilterExpression={"postponed": True}),
    _sparse(EXPIRING, "expires_at"),
    IndexModel([("lane", ASCENDING)], name=INBOX, partialFilterExpression={"lane": None}),
    _in_turn("urn", BY_URN, _TEXT),
    _in_turn("tags", BY_TAG, {"$exists": True}),
    _in_turn("username", BY_OWNER, _TEXT),
    # Steps of flows, and what each of them waits for: nothing, if it is a first one.
    _sparse(BY_FLOW, "flow.id", "flow.step"),
    _sparse(BY_DEPENDENCY, "flow.after"),
]

_DATE = {"$gte": FIRST_MOMENT, "$lte": LAST_MOMENT}
_SIZE_OF_ID = {"$cond": [{"$eq": [{"$type": "$_id"}, "binData"]}, {"$binarySize": "$_id"}, 16]}
_NUMBER = {"$gte": float("-inf")}
_SOUND = {"created_at": _DATE, "scheduled_at": _DATE, "priority": _NUMBER, "$expr": {"$eq": [_SIZE_OF_ID, 16]}}
"""What a schema cannot say of a job: dates that Python knows, no NaN, and UUIDs that are as long as one."""

_SCHEMA: Document = {
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
                    "_id": {"bsonType": ["objectId", "string", "int", "long", "binData"], "maxLength": LONGEST_ID},
                    "task": {"bsonType": "string"},
                    "args": {"bsonType": ["object", "array"]},
                    "group": {"bsonType": "string"},
                    "lane": {"bsonType": "string", "pattern": "/", "maxLength": LONGEST_LANE},
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
VALIDATOR: Document = {"$and": [_SCHEMA, {"$or": [{"lane": None}, _SOUND]}]}

_BY_TIME = [("scheduled_at", ASCENDING), ("priority", DESCENDING), ("created_at", ASCENDING), ("_id", ASCENDING)]
LANES_A_QUERY = 100
"""MongoDB merges up to 200 sorted scans; beyond that it would sort in memory."""
_SPARE_A_QUERY = 16
"""Jobs that are asked for beyond a portion: most portions are not quite even."""

_LANES_A_BATCH = 10_000
_PRIORITIES = 20
_UNITED = 50
"""Lanes that are asked for in one aggregation, each by itself."""
_KEYS_A_LANE = 200
"""To look into a lane takes about as long as to walk past so many jobs."""
_PLANNED = {"_id": 1, "priority": 1, "scheduled_at": 1, "lane": 1}
_RANKED = {"_id": 1, "priority": 1, "scheduled_at": 1}
_OF_LANE = dict.fromkeys(("lane", "group", "task", "key", "worker_deaths", "proc", "mem", "resources"), 1)

DUPLICATE_KEY = 11000
_MARKED_WITHIN = 5.0
"""Seconds for a write that nothing depends on, but that settling waits for."""
NOT_A_PROGRESS_MARK = {"updateDescription.updatedFields.reported_at": {"$exists": False}}
"""For change streams: progress marks are for people only, and need not wake a process."""


@dataclass(frozen=True, slots=True)
class ProgressMark:
    """The progress of a running job, for people to see: its worker, since when it runs, and what it has reported."""

    id: JobId
    attempts: int
    was_locked_by: str | None
    """`locked_by` when its worker fetched it: an old mark, which locks nothing."""
    worker: str
    since: datetime
    fields: Document


@dataclass(frozen=True, slots=True)
class Marked:
    """Of at-most-once and debounced jobs that are to start: which may, and which at-most-once ones were started before.
    The others are cancelled, put off, or not held."""

    may_start: frozenset[JobId] = frozenset()
    started_before: frozenset[JobId] = frozenset()
    fresh: Mapping[JobId, bytes] = field(default_factory=dict)
    """The documents of debounced ones, as they are from now on."""


@dataclass(frozen=True, slots=True)
class _Next:
    """The next jobs of some lanes that nobody holds, each with its rank and its quick key, in order."""

    jobs: list[tuple[_Rank, object]]
    last: _Rank | None
    """Behind this one there may be more; None when these are all."""
    unreadable: list[Unreadable]


_Rank = tuple[float, float]
"""Sorted by this, jobs are in the order in which they get their turn; near enough among jobs of one millisecond."""


class Scheduled:
    def __init__(self, collection: Collection[Document], markers: str) -> None:
        """`markers` is the name of the collection with the markers of flows."""
        self.collection = collection
        self._raw: Collection[Any] = collection.with_options(codec_options=RAW)
        marked: list[Document] = [{"$limit": 1}, {"$project": {"_id": {"$literal": MARKED_LANE}}}]
        self._marked: Document = {"$unionWith": {"coll": markers, "pipeline": marked}}

    # -- producing ---------------------------------------------------------------------------------------------

    @store_call
    def insert(self, documents: Sequence[Any]) -> dict[int, str]:
        """Stores jobs; returns the errors by position. One bad or duplicate document does not stop the rest."""
        try:
            if len(documents) == 1:
                self.collection.insert_one(documents[0])
            else:
                self.collection.insert_many(documents, ordered=False)
        except DuplicateKeyError:
            return {0: "duplicate"}
        except BulkWriteError as error:
            failures = error.details["writeErrors"]
            if not failures:
                raise
            return {f["index"]: "duplicate" if f["code"] == DUPLICATE_KEY else str(f["errmsg"]) for f in failures}
        return {}

    # -- planning ----------------------------------------------------------------------------------------------

    @store_call
    def lanes(self) -> Parsed[str]:
        """The lanes that have jobs, due or not. One index seek a lane."""
        return lanes_in(self.collection, _HAS_LANE["lane"])

    @store_call
    def lanes_to_plan(self) -> Parsed[str]:
        """The same for the leader, which also learns whether there are markers of flows (`MARKED_LANE`): one query,
        asked with every round."""
        return lanes_in(self.collection, _HAS_LANE["lane"], self._marked)

    @store_call
    def in_lanes(self, unreadable: Iterable[Unreadable], limit: int) -> list[Unreadable]:
        """Jobs in lanes that cannot be read, each with its `_id` only."""
        lanes = [this_document(lane.raw, "lane") for lane in unreadable]
        size = {"$cond": [{"$eq": [{"$type": "$lane"}, "string"]}, {"$strLenBytes": "$lane"}, LONGEST_LANE + 1]}
        query = {**_HAS_LANE, "$or": [{"$expr": {"$gt": [size, LONGEST_LANE]}}, *lanes]}
        found = self._raw.find(query, {"_id": 1}, hint=DUE, limit=limit)
        return [reading.unreadable(NAME, bytes(document.raw), _LONG_LANE) for document in found]

    @store_call
    def whole(self, document: Unreadable) -> Unreadable | None:
        """The same with everything that is in it; None when it is gone."""
        found = self._raw.find_one(this_document(document.raw))
        return None if found is None else replace(document, raw=bytes(found.raw))

    @store_call
    def due(self, lanes: Sequence[str], now: datetime, limit: int, held: Ids[JobId]) -> Parsed[JobId]:
        """The next due jobs of these lanes that are not held, by priority, then time."""
        if len(lanes) > LANES_A_QUERY:
            return self._due_in_many(lanes, now, limit, held)
        batches = self._due(self.collection.find_raw_batches, {"_id": 1}, lanes, now, limit, held)
        return _ids(raw for batch in batches for raw in split_batch(cast(bytes, batch)))

    def _due_in_many(self, lanes: Sequence[str], now: datetime, limit: int, held: Ids[JobId]) -> Parsed[JobId]:
        """Asks some lanes at a time for their portion and a little more. If one of these answers ends before the last
        job that is wanted, there may be others in between, and these lanes are asked for more.

        The held jobs are left out here: MongoDB would make a copy of their ids for each lane of a query."""
        parts = [lanes[start : start + LANES_A_QUERY] for start in range(0, len(lanes), LANES_A_QUERY)]
        enough = limit + len(held)
        most = min(enough, enough // len(parts) * 5 // 4 + _SPARE_A_QUERY)
        but = {_quick_key(id) for id in held}
        answers = [self._next_in(part, now, most, but) for part in parts]
        while True:
            found = sorted((job for answer in answers for job in answer.jobs), key=itemgetter(0))[:limit]
            last = found[-1][0] if len(found) == limit else (inf, inf)
            short = [at for at, answer in enumerate(answers) if answer.last is not None and answer.last < last]
            if not short or most == enough:
                break
            most = min(enough, 4 * most)
            for at in short:
                answers[at] = self._next_in(parts[at], now, most, but)
        ids = (ObjectId(key) if type(key) is bytes else cast(JobId, key) for _, key in found)
        return Parsed(ids, (wrong for answer in answers for wrong in answer.unreadable))

    def _next_in(self, lanes: Sequence[str], now: datetime, most: int, but: Ids[object]) -> _Next:
        """So many due jobs of these lanes, and of them all but these."""
        batches = self._due(self.collection.find_raw_batches, _RANKED, lanes, now, most)
        found = [job for batch in batches for job in _ranked(cast(bytes, batch))]
        ranked = [job for job in found if not isinstance(job, Unreadable)]
        wrong = [job for job in found if isinstance(job, Unreadable)]
        last = (ranked[-1][0] if ranked else (-inf, -inf)) if len(found) == most else None
        return _Next([job for job in ranked if job[1] not in but], last, wrong)

    def _due(
        self,
        find: Callable[..., Cursor[Document]],
        fields: Document,
        lanes: Sequence[str],
        now: datetime,
        limit: int,
        held: Ids[JobId] = (),
    ) -> Cursor[Document]:
        query: Document = {"lane": {"$in": list(lanes)}, "scheduled_at": {"$lte": now}}
        if held:
            query["_id"] = {"$nin": list(held)}
        # batch_size: without it the server answers with 101 and makes the leader ask again.
        return find(query, fields, limit=limit, batch_size=limit + 1).sort(list(TURN)).hint(DUE)

    @store_call
    def first(self, but: Ids[JobId], until: datetime | None = None) -> tuple[JobId, str] | None:
        """Of all jobs but these, due by then or at all, the one whose time is first (then priority, then age), and its
        task.

        It sorts what is there: for people's tests, not for a queue that is full.
        """
        query: Document = {"lane": {"$gt": "", "$nin": list(ASIDE)}, "_id": {"$nin": list(but)}}
        if until is not None:
            query["scheduled_at"] = {"$lte": until}
        for found in self._raw.find(query, {"task": 1}, sort=_BY_TIME):
            first = parse_one(NAME, bytes(found.raw), _id_and_task)
            if not isinstance(first, Unreadable):
                return first
        return None

    @store_call
    def candidates(self, lanes: Sequence[str], now: datetime, limit: int, held: Ids[JobId]) -> Parsed[Candidate]:
        """Like `due`, with what a planner must know of each."""
        found: list[Any] = []
        for start in range(0, len(lanes), LANES_A_QUERY):
            some = lanes[start : start + LANES_A_QUERY]
            found.extend(self._due(self._raw.find, _PLANNED, some, now, limit, held))
        return parsed(NAME, found, _candidate)

    @store_call
    def candidates_of_each(self, lanes: Mapping[str, int], now: datetime, held: Ids[JobId]) -> Parsed[Candidate]:
        """Of every lane as many as it says, so that the pile of one does not hide the others."""
        found: list[Any] = []
        each = [_next_of(lane, count, now, held) for lane, count in lanes.items()]
        for start in range(0, len(each), _UNITED):
            found.extend(self._united(each[start : start + _UNITED]))
        return parsed(NAME, found, _candidate)

    @store_call
    def oldest_due(self, lanes: Iterable[str], now: datetime, held: Ids[JobId]) -> dict[str, datetime]:
        """Since when the oldest due job of each lane that nobody holds has been due, where there is one.

        The due index has the oldest job of each priority first. So it is one seek for each priority of a lane; of more
        than 20 priorities, the highest ones are looked at. Where most lanes are short (one for each customer), it is
        quicker to walk the index once.
        """
        below: dict[str, int | float | None] = dict.fromkeys(lanes)
        if self.collection.estimated_document_count() < _KEYS_A_LANE * len(below):
            return {lane: since for lane, since in self._oldest_of_all(now, held) if lane in below}
        oldest: dict[str, datetime] = {}
        for _ in range(_PRIORITIES):
            first = [_oldest_of(lane, priority, now, held) for lane, priority in below.items()]
            found = [row for start in range(0, len(first), _UNITED) for row in self._united(first[start:][:_UNITED])]
            below = {}
            for each in parsed(NAME, found, _candidate):
                lane = str(each.lane)
                oldest[lane] = min(each.scheduled_at, oldest.get(lane, each.scheduled_at))
                below[lane] = each.priority
            if not below:
                break
        return oldest

    def _oldest_of_all(self, now: datetime, held: Ids[JobId]) -> Parsed[tuple[str, datetime]]:
        match = {**_HAS_LANE, "scheduled_at": {"$lte": now}, "_id": {"$nin": list(held)}}
        group = {"_id": "$lane", "since": {"$min": "$scheduled_at"}}
        found = self._raw.aggregate([{"$match": match}, {"$group": group}, {"$set": {"_id": _SHORT_LANE}}], hint=DUE)
        return parsed(NAME, found, lambda row: (text(row, "_id", longest=LONGEST_LANE), moment(row, "since")))

    def _united(self, pipelines: Sequence[list[Document]]) -> list[Any]:
        first, *others = pipelines
        united = [{"$unionWith": {"coll": self.collection.name, "pipeline": pipeline}} for pipeline in others]
        return list(self._raw.aggregate([*first, *united], hint=DUE))

    @store_call
    def owners(self) -> list[str]:
        """Whoever has jobs, due or not. One index seek an owner."""
        match: list[Document] = [{"$match": {"username": _TEXT}}, {"$group": {"_id": "$username"}}]
        return list(parsed(NAME, self._raw.aggregate(match, hint=BY_OWNER), lambda row: text(row, "_id")))

    @store_call
    def candidates_of_owners(
        self, owners: Sequence[str], lanes: Sequence[str], now: datetime, count: int, held: Ids[JobId]
    ) -> Parsed[Candidate]:
        """The next due jobs in these lanes of each owner, so that the pile of one does not hide the others."""
        found: list[Any] = []
        due = {"lane": {"$in": list(lanes)}, "scheduled_at": {"$lte": now}, "_id": {"$nin": list(held)}}
        each: list[list[Document]] = [
            [{"$match": {"username": owner, **due}}, {"$sort": dict(TURN)}, {"$limit": count}, {"$project": _PLANNED}]
            for owner in owners
        ]
        for start in range(0, len(each), _UNITED):
            first, *others = each[start : start + _UNITED]
            united = [{"$unionWith": {"coll": self.collection.name, "pipeline": pipeline}} for pipeline in others]
            found.extend(self._raw.aggregate([*first, *united], hint=BY_OWNER))
        return parsed(NAME, found, _candidate)

    @store_call
    def owners_of(self, ids: Ids[JobId]) -> dict[JobId, tuple[str, str]]:
        """The lane and the owner of each of these jobs; an empty text for nobody."""
        found = self._raw.find({"_id": {"$in": list(ids)}, **_HAS_LANE}, {**_OF_LANE, "username": 1})
        return {
            id: (lane, owner)
            for id, lane, owner in parsed(
                NAME,
                found,
                lambda document: (_id(document), _own_lane(document), text(document, "username", None) or ""),
            )
        }

    @store_call
    def lanes_of(self, ids: Ids[JobId]) -> dict[JobId, str]:
        """The lanes of these jobs, where they have one."""
        found = self._raw.find({"_id": {"$in": list(ids)}, **_HAS_LANE}, _OF_LANE)
        return dict(parsed(NAME, found, lambda document: (document["_id"], _own_lane(document))))

    @store_call
    def outside_lanes(self, ids: Ids[JobId]) -> set[JobId]:
        """The jobs among these that no backlog counts: steps of paused flows, and jobs that are being cancelled."""
        query = {"_id": {"$in": list(ids)}, "lane": {"$in": list(ASIDE)}}
        return {document["_id"] for document in self.collection.find(query, {"_id": 1})}

    @store_call
    def kinds_aside(self) -> set[tuple[str, str]]:
        """The groups and tasks of the jobs that no worker is given; their lanes do not tell."""
        kind = {"group": "$group", "task": "$task"}
        found = self.collection.aggregate(
            [{"$match": {"lane": {"$in": list(ASIDE)}}}, {"$group": {"_id": kind}}], hint=DUE
        )
        return {(row["_id"].get("group", ""), row["_id"].get("task", "")) for row in found}

    @store_call
    def next_due(self, now: datetime) -> datetime | None:
        """When the next postponed job becomes due."""
        found = self.collection.find_one(
            {"scheduled_at": {"$gt": now, "$lte": LAST_MOMENT}, "postponed": True},
            {"_id": 0, "scheduled_at": 1},
            sort=[("scheduled_at", 1)],
            hint=POSTPONED,
        )
        return found["scheduled_at"] if found else None

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
    def adopt(self, foreign: Sequence[tuple[Document, Document]]) -> dict[int, str]:
        """Makes them jobs: of each the document that was read, and its new fields. If somebody has cancelled or locked
        it since, it stays in the inbox for the next look. Returns what MongoDB refuses, by position, with its reason.
        """
        writes = [
            UpdateOne({"_id": read["_id"], "lane": None, **_as(read)}, _adoption(read, new)) for read, new in foreign
        ]
        try:
            self.collection.bulk_write(writes, ordered=False)
        except BulkWriteError as error:
            failures = error.details["writeErrors"]
            if not failures or not all(is_about_a_document(failure["code"]) for failure in failures):
                raise
            return {failure["index"]: f"MongoDB refuses it as a job: {failure['errmsg']}" for failure in failures}
        return {}

    @store_call
    def count_inbox(self) -> int:
        """How many documents of other programs have not been adopted."""
        return self.collection.count_documents({"lane": None}, hint=INBOX)

    # -- executing ---------------------------------------------------------------------------------------------

    @store_call
    def fetch(self, ids: Sequence[JobId]) -> list[tuple[JobId, bytes]]:
        """These jobs as bytes, in the order of the ids; one that is gone is left out."""
        batches = self.collection.find_raw_batches({"_id": {"$in": list(ids)}}, batch_size=len(ids) + 1)
        found = {_quick_key_in(raw): raw for batch in batches for raw in split_batch(cast(bytes, batch))}
        return [(id, raw) for id in ids if (raw := found.get(_quick_key(id))) is not None]

    def mark_started(self, ids: Sequence[JobId], worker: str, at: datetime, session: ClientSession) -> Marked:
        """Inside a transaction that proves the hold: writes that these at-most-once jobs are about to start here.

        One that is marked already was started before, by a worker that is no more: it must not start again. One that
        has been cancelled is neither: it must be handed back.
        """
        self.collection.update_many(
            {"_id": {"$in": list(ids)}, "started_by": None, "lane": {"$ne": CANCELLED_LANE}},
            {"$set": {"started_by": worker, "started_at": at}, "$min": {"begun_at": at}},
            session=session,
        )
        fields = {"started_by": 1}
        found = list(self.collection.find({"_id": {"$in": list(ids)}, "started_by": _TEXT}, fields, session=session))
        mine = frozenset(d["_id"] for d in found if d["started_by"] == worker)
        return Marked(mine, frozenset(d["_id"] for d in found) - mine)

    def mark_debounced(
        self, jobs: Mapping[JobId, datetime], worker: str, at: datetime, session: ClientSession
    ) -> dict[JobId, bytes]:
        """Inside the same transaction: writes that these debounced jobs are about to start here, unless they have been
        put off or cancelled since they were fetched with this `scheduled_at`. From now on no producer changes them.
        Returns what they are then."""
        mark = {"$set": {"started_by": worker, "started_at": at}, "$min": {"begun_at": at}}
        writes = [
            UpdateOne({"_id": id, "scheduled_at": due, "lane": {"$ne": CANCELLED_LANE}}, mark)
            for id, due in jobs.items()
        ]
        self.collection.bulk_write(writes, ordered=False, session=session)
        found = self._raw.find({"_id": {"$in": list(jobs)}, "started_by": worker, "started_at": at}, session=session)
        return {id_of(bytes(document.raw)): bytes(document.raw) for document in found}

    def begin_run(self, id: JobId, attempts: int, fields: Document, session: ClientSession) -> bool:
        """Inside a transaction that proves the hold: leaves the token of a run on its job (see `store/runs.py`)."""
        query = {"_id": id, "attempts": attempts}
        update = {"$set": fields, "$min": {"begun_at": fields["started_at"]}}
        return self.collection.update_one(query, update, session=session).matched_count == 1

    @store_call
    def add_checkpoint(self, id: JobId, token: UUID, checkpoint: Document) -> bool:
        """Keeps a checkpoint on the job of this run, once; what the job waited for is over. False when the run has lost
        the job."""
        fresh = {"_id": id, "token": token, "checkpoints.name": {"$ne": checkpoint["name"]}}
        update = {"$push": {"checkpoints": checkpoint}, "$unset": {"waits_for": ""}}
        if self.collection.update_one(fresh, update).matched_count:
            return True
        return self.collection.find_one({"_id": id, "token": token}, {"_id": 1}) is not None  # kept before

    @store_call
    def checkpoints_of(self, ids: Ids[JobId]) -> dict[JobId, Any]:
        """The checkpoints of those of these jobs that have some."""
        found = self.collection.find({"_id": {"$in": list(ids)}, "checkpoints": {"$exists": True}}, {"checkpoints": 1})
        return {document["_id"]: document["checkpoints"] for document in found}

    @store_call
    def signal(self, id: JobId, name: str, data: Any, at: datetime, by: str | None = None) -> bool:
        """Tells a job something; one that waits for it is due now. False when there is no such job, or it has been told
        too much."""
        return self.collection.update_one(*signalling(id, name, data, at, by)).matched_count == 1

    @store_call
    def announce_transaction(self, id: JobId, token: UUID) -> bool:
        """From now on no progress is written on this job: its own transaction is about to lock it."""
        query = {"_id": id, "token": token}
        return self.collection.update_one(query, {"$set": {"transaction": True}}).matched_count == 1

    @store_call
    def mark_progress(self, marks: Sequence[ProgressMark]) -> None:
        """Writes progress marks. A mark changes nothing if a later attempt or another worker has marked the job since,
        or if the job has ended."""
        writes = []
        for mark in marks:
            lock = {"locked_by": mark.worker, "locked_at": mark.since, "started_at": mark.since}
            begun = {"$min": {"begun_at": mark.since}}
            update = {"$set": {**mark.fields, **lock}, **begun, "$currentDate": {"reported_at": True}}
            writes.append(UpdateOne(_mine(mark), update))
        with pymongo.timeout(_MARKED_WITHIN):
            self.collection.bulk_write(writes, ordered=False)

    @store_call
    def clear_progress(self, marks: Sequence[ProgressMark]) -> None:
        """Takes the locks off jobs that are about to be handed back; their progress stays."""
        unlock = {"$unset": dict.fromkeys(LOCK, "")}
        writes = [UpdateOne(_mine(mark), {"$set": mark.fields, **unlock}) for mark in marks]
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
    def of_urn(self, urn: str) -> Parsed[Job]:
        """The jobs of this urn that have not ended, in the order of their time."""
        found = parsed(NAME, self._raw.find({"urn": urn, "lane": {"$gt": ""}}, hint=BY_URN), job_from)
        return Parsed(sorted(found, key=lambda job: job.scheduled_at), found.unreadable)

    @store_call
    def not_begun(self, urn: str) -> list[JobId]:
        """The jobs of this urn that have not begun; a worker may hold them."""
        query = {"urn": urn, "lane": {"$gt": "", "$ne": CANCELLED_LANE}, **NOT_BEGUN}
        return list(parsed(NAME, self._raw.find(query, {"_id": 1}, hint=BY_URN), _id))

    @store_call
    def change(self, ids: Sequence[JobId], fields: Document, unset: Sequence[str]) -> int:
        """Other contents for those of these jobs that have not begun."""
        query = {"_id": {"$in": list(ids)}, "lane": {"$gt": "", "$ne": CANCELLED_LANE}, **NOT_BEGUN}
        update: Document = {"$set": fields}
        if unset:
            update["$unset"] = dict.fromkeys(unset, "")
        return self.collection.update_many(query, update).modified_count

    # -- control and views -------------------------------------------------------------------------------------

    @store_call
    def flag_cancelled(self, id: JobId, at: datetime, by: str | None, reason: str | None) -> bool:
        """Raises the flag, and takes the job out of its lane so that no worker is given it any more. The leader
        archives it, or its holder stops it. False when there is no such job; a second flag changes nothing."""
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
    def any_expired(self, now: datetime) -> bool:
        """Whether there are jobs that may not start any more, held or not."""
        return (
            self.collection.find_one({"expires_at": {"$lte": now}, **MAY_EXPIRE}, {"_id": 1}, hint=EXPIRING) is not None
        )

    @store_call
    def expired(self, now: datetime, limit: int, held: Ids[JobId] = ()) -> Parsed[Document]:
        """Jobs that may not start any more and have not ended, all but those that a worker holds; one batch."""
        query = {"expires_at": {"$lte": now}, **MAY_EXPIRE, **_HAS_LANE, "_id": {"$nin": list(held)}}
        return parsed(NAME, first_batch(self._raw.find(query, hint=EXPIRING, limit=limit)), _with_an_id)

    @store_call
    def flagged(self, limit: int, held: Ids[JobId] = ()) -> Parsed[Document]:
        """Jobs that have been cancelled and have not ended, all but those that a worker holds; one batch."""
        query = {"lane": CANCELLED_LANE, "_id": {"$nin": list(held)}}
        return parsed(NAME, first_batch(self._raw.find(query, hint=DUE, limit=limit)), _with_an_id)

    @store_call
    def flags(self, limit: int) -> dict[JobId, Document]:
        """The jobs that have been cancelled and have not ended, each with who wants it, and why."""
        return _flags(self._raw.find({"lane": CANCELLED_LANE}, {"cancel": 1}, hint=DUE, limit=limit))

    @store_call
    def flags_among(self, ids: Ids[JobId]) -> dict[JobId, Document]:
        """Those of these jobs that have been cancelled, likewise."""
        query = {"_id": {"$in": list(ids)}, "lane": CANCELLED_LANE}
        return _flags(self._raw.find(query, {"cancel": 1}))

    @store_call
    def get(self, id: JobId) -> Job | None:
        """Raises UnreadableDocument."""
        document = self._raw.find_one({"_id": id})
        if document is None:
            return None
        if decode_leniently(bytes(document.raw))[0].get("lane") is None:
            raise not_adopted(id)
        return readable(parse_one(NAME, bytes(document.raw), job_from))

    @store_call
    def get_many(self, ids: Ids[JobId]) -> dict[JobId, Job]:
        """Those of them that have not ended and are adopted."""
        found = self._raw.find({"_id": {"$in": list(ids)}, **_HAS_LANE})
        return {job.id: job for job in parsed(NAME, found, job_from)}

    @store_call
    def document(self, id: JobId) -> Document | None:
        """A job as it is stored, whatever is in it."""
        found = self._raw.find_one({"_id": id})
        return None if found is None else decode_leniently(bytes(found.raw))[0]

    @store_call
    def count_before(self, document: Document, now: datetime, held: Ids[JobId]) -> int:
        """How many due jobs of its lane get their turn before it, without those that are held; counts up to a
        thousand."""
        alike = {name: document[name] for name in ("priority", "scheduled_at")}
        sooner = {
            "lane": document["lane"],
            "_id": {"$nin": list(held)},
            "$or": [
                {"priority": {"$gt": document["priority"]}, "scheduled_at": {"$lte": now}},
                {"priority": document["priority"], "scheduled_at": {"$lt": document["scheduled_at"]}},
                # Outside of $expr, $lt finds ids of the same type only; the index has those of all types in one order.
                {**alike, "$expr": {"$lt": ["$_id", {"$literal": document["_id"]}]}},
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
        return list(parsed(NAME, self._raw.find(_HAS_LANE).sort(_BY_TIME), job_from))

    @store_call
    def count_by(self, field: str, held: Ids[JobId]) -> list[tuple[str, State, int]]:
        """How many jobs each value of this field has, held and not; for reports only."""
        rows = self._raw.aggregate(
            [
                {"$match": {field: {"$exists": True}, "lane": {"$gt": "", "$nin": list(ASIDE)}}},
                {"$unwind": f"${field}"},
                {"$group": {"_id": {"name": f"${field}", "held": {"$in": ["$_id", list(held)]}}, "jobs": {"$sum": 1}}},
            ]
        )
        return list(parsed(NAME, rows, _counted))

    @store_call
    def waiting_by_lane(self, at: datetime, within: float = 0.0) -> Parsed[tuple[str, int, int]]:
        """Each lane that has jobs, how many, and how many of them are not due by then. Walks the index. With `within`,
        raises StoreUnreachable if it takes longer than so many seconds."""
        later = {"$sum": {"$cond": [{"$gt": ["$scheduled_at", at]}, 1, 0]}}
        counts = {"_id": "$lane", "jobs": {"$sum": 1}, "later": later}
        rows = self._raw.aggregate(
            [{"$match": _HAS_LANE}, {"$group": counts}, {"$set": {"_id": _SHORT_LANE}}],
            hint=DUE,
            maxTimeMS=int(within * 1000),
        )
        return parsed(NAME, rows, lambda row: (text(row, "_id", longest=LONGEST_LANE), row["jobs"], row["later"]))

    @store_call
    def neither_job_nor_foreign(self, limit: int, within: float) -> list[Unreadable]:
        """Documents whose lane is neither null nor text: no process ever reads them. For reports only, it reads all of
        the collection; raises StoreUnreachable if that takes longer than so many seconds."""
        query = {"lane": {"$exists": True, "$ne": None, "$not": {"$gt": ""}}}
        found = self._raw.find(query, {"_id": 1, "lane": 1}, limit=limit, max_time_ms=int(within * 1000))
        return list(parsed(NAME, found, lambda document: text(document, "lane")).unreadable)


def signalling(id: JobId, name: str, data: Any, at: datetime, by: str | None = None) -> tuple[Document, list[Document]]:
    """The query and the update that tell a job something: in one step, so that none is told between looking and
    waiting."""
    size = len(encode({"name": name, "at": at, "data": data}))
    signals = {"$bsonSize": {"signals": {"$ifNull": ["$signals", []]}}}
    fits = [
        {"$lte": [signals, MOST_SIGNAL_BYTES - size]},
        {"$lte": [{"$bsonSize": "$$ROOT"}, LARGEST_JOB - size]},
    ]
    query = {"_id": id, **_HAS_LANE, f"signals.{MOST_SIGNALS - 1}": {"$exists": False}, "$expr": {"$and": fits}}
    signal = {"name": {"$literal": name}, "at": at, "data": {"$literal": data}}
    if by is not None:
        signal["by"] = {"$literal": by}
    waits = {"$and": [{"$eq": ["$waits_for.signal", {"$literal": name}]}, WAITS_FOR_SIGNAL]}
    update = {
        "signals": {"$concatArrays": [{"$ifNull": ["$signals", []]}, [signal]]},
        "scheduled_at": {"$cond": [waits, at, "$scheduled_at"]},
        "postponed": {"$cond": [waits, False, "$postponed"]},
    }
    return query, [{"$set": update}]


def signalled(name: str, number: int) -> Document:
    """The condition that so many signals of this name have come."""
    named = {"$filter": {"input": {"$ifNull": ["$signals", []]}, "cond": {"$eq": ["$$this.name", {"$literal": name}]}}}
    return {"$expr": {"$gte": [{"$size": named}, number]}}


def _next_of(lane: str, count: int, now: datetime, held: Ids[JobId]) -> list[Document]:
    match = {"lane": lane, "scheduled_at": {"$lte": now}, "_id": {"$nin": list(held)}}
    return [{"$match": match}, {"$sort": dict(TURN)}, {"$limit": count}, {"$project": _PLANNED}]


def _oldest_of(lane: str, below: int | float | None, now: datetime, held: Ids[JobId]) -> list[Document]:
    """The oldest due job of the highest priority below this one."""
    match: Document = {"lane": lane, "scheduled_at": {"$lte": now}, "_id": {"$nin": list(held)}}
    if below is not None:
        match["priority"] = {"$lt": below}
    return [{"$match": match}, {"$sort": dict(TURN)}, {"$limit": 1}, {"$project": _PLANNED}]


def lanes_in(collection: Collection[Document], lane: Document, *also: Document) -> Parsed[str]:
    """The lanes in this range, by one index seek each. (`distinct` answers in one document, which may be too small.)"""
    pipeline: list[Document] = [
        {"$match": {"lane": lane}},
        {"$group": {"_id": "$lane"}},
        {"$project": {"_id": _SHORT_LANE}},
        *also,
    ]
    raw: Collection[Any] = collection.with_options(codec_options=RAW)
    found = [_lane(bytes(row.raw)) for row in raw.aggregate(pipeline, hint=DUE, batchSize=_LANES_A_BATCH)]
    lanes = (lane for lane in found if isinstance(lane, str))
    return Parsed(lanes, (lane for lane in found if isinstance(lane, Unreadable)))


@lru_cache(maxsize=_LANES_A_BATCH)
def _lane(raw: bytes) -> str | Unreadable:
    """The leader reads the same ones again and again."""
    return parse_one(NAME, raw, lambda row: text(row, "_id", longest=LONGEST_LANE))


_SHORT_LANE: Document = {
    "$cond": [
        {"$eq": [{"$type": "$_id"}, "string"]},
        {"$cond": [{"$lte": [{"$strLenBytes": "$_id"}, LONGEST_LANE]}, "$_id", None]},
        None,
    ]
}
_LONG_LANE = f"lane is no text of up to {LONGEST_LANE:,} bytes"


def _ids(found: Iterable[bytes]) -> Parsed[JobId]:
    """Of documents with nothing but an `_id`. The leader asks for thousands."""
    ids: list[JobId] = []
    wrong: list[Unreadable] = []
    for raw in found:
        if raw[4] == _OBJECT_ID:
            ids.append(id_of(raw))
        elif isinstance(id := parse_one(NAME, raw, _id), Unreadable):
            wrong.append(id)
        else:
            ids.append(id)
    return Parsed(ids, wrong)


_OBJECT_ID = 0x07

_USUAL_RANKED = struct.Struct("<i10si14sq5s12sx")
_USUAL = (_USUAL_RANKED.size, b"\x10priority\x00", b"\x09scheduled_at\x00", b"\x07_id\x00")
"""What the index answers for a job with a small whole priority and an ObjectId."""


def _ranked(batch: bytes) -> list[tuple[_Rank, object] | Unreadable]:
    """Of documents with rank and `_id` only. The leader asks for thousands."""
    if len(batch) % _USUAL_RANKED.size == 0:
        rows = list(_USUAL_RANKED.iter_unpack(batch))
        if all((size, name, when, last) == _USUAL for size, name, _, when, _, last, _ in rows):
            return [((-priority, time), id) for _, _, priority, _, time, _, id in rows]
    return [parse_one(NAME, raw, _rank_and_key) for raw in split_batch(batch)]


def _rank_and_key(document: Document) -> tuple[_Rank, object]:
    return (-priority_of(document), moment(document, "scheduled_at").timestamp() * 1000), _quick_key(_id(document))


def _id(document: Document) -> JobId:
    return job_id("_id", document["_id"])


def _with_an_id(document: Document) -> Document:
    _id(document)
    return document


def _id_and_task(document: Document) -> tuple[JobId, str]:
    return _id(document), text(document, "task")


def _own_lane(document: Document) -> str:
    """The lane by its fields for a running job that is being cancelled, or is a step of a paused flow."""
    lane = text(document, "lane", longest=LONGEST_LANE)
    return lane_of(document) if lane in (BLOCKED_LANE, CANCELLED_LANE) else lane


def _candidate(document: Document) -> Candidate:
    """The parser of what is planned with."""
    lane = Lane.parse(text(document, "lane", longest=LONGEST_LANE))
    return Candidate(_id(document), lane, priority_of(document), moment(document, "scheduled_at"))


def _counted(row: Document) -> tuple[str, State, int]:
    return text(row["_id"], "name"), State.RUNNING if row["_id"]["held"] else State.WAITING, row["jobs"]


def _flags(found: Iterable[Any]) -> dict[JobId, Document]:
    return {
        _id(document): document["cancel"] if isinstance(document.get("cancel"), dict) else {}
        for document in parsed(NAME, found, _with_an_id)
    }


def _mine(mark: ProgressMark) -> Document:
    return {
        "_id": mark.id,
        "attempts": mark.attempts,
        "locked_by": {"$in": [None, mark.worker, *filter(None, [mark.was_locked_by])]},
        "transaction": None,
    }


def _as(read: Document) -> Document:
    return {name: {"$eq": read.get(name)} for name in ("cancel", "locked_by", "locked_at")}


def _adoption(read: Document, fields: Document) -> Document:
    nothing = [name for name, value in read.items() if value is None and name in NULLABLE]
    unbelieved = {name: "" for name in (*FROM_PROTOCOL, *nothing, "postponed") if name not in fields}
    if fields["lane"] != CANCELLED_LANE:
        unbelieved["cancel"] = ""
    return {"$set": fields, "$unset": unbelieved}


def _quick_key(id: JobId) -> object:
    """An ObjectId is compared and hashed by Python code; its bytes are not."""
    return id.binary if type(id) is ObjectId else id


def _quick_key_in(raw: bytes) -> object:
    return raw[9:21] if raw[4] == _OBJECT_ID else id_of(raw)
