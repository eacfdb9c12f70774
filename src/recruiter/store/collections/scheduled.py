"""`scheduled`: the jobs that wait or run.

Assigning a job does not change its document: the roster records which worker holds it. The worker of a job that runs
for long, or reports progress, marks the document for people to see (`mark_progress`).

Two kinds of documents live here. With a `lane` it is a job of full shape (the validator sees to it) and in the due
index. Without one it was inserted by some other program: it waits in the *inbox* until the leader adopts it or sets it
aside. So no foreign document can reach, damage or slow the index that everything depends on.
"""

from __future__ import annotations

from collections.abc import Collection as Ids
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, cast
from uuid import UUID

import pymongo
from pymongo import ASCENDING, DESCENDING, IndexModel, UpdateOne
from pymongo.client_session import ClientSession
from pymongo.errors import BulkWriteError, DuplicateKeyError

from recruiter.domain.job import MOST_SIGNAL_BYTES, MOST_SIGNALS, Job, JobId
from recruiter.domain.names import ASIDE, CANCELLED_LANE
from recruiter.domain.retry.decision import MOST_ATTEMPTS
from recruiter.domain.state import State
from recruiter.domain.unreadable import Parsed, Unreadable
from recruiter.errors import DocumentRefused
from recruiter.store.batches import bulk_write_unlocked, first_batch
from recruiter.store.codec import (
    LARGEST_JOB,
    Document,
    decode_leniently,
    encode,
    id_of,
    job_from,
    split_batch,
    this_document,
)
from recruiter.store.collections.inbox import not_adopted, unlocked
from recruiter.store.errors import DUPLICATE_KEY, is_about_a_document, store_call
from recruiter.store.fields import FIRST_MOMENT, LAST_MOMENT, LONGEST_ID, job_id, text, validator
from recruiter.store.job_fields import (
    FROM_PROTOCOL,
    LOCK,
    MAY_EXPIRE,
    NOT_BEGUN,
    NULLABLE,
    UNKNOWN_TASK_PAUSE,
    WAITS_FOR_SIGNAL,
)
from recruiter.store.reading import JobCollection, parse_one, parsed, readable

NAME = "scheduled"

DUE, POSTPONED, INBOX, EXPIRING = "due", "postponed", "inbox", "expiring"
BY_URN, BY_TAG, BY_OWNER = "turn_by_urn", "turn_by_tag", "turn_by_owner"
BY_FLOW, BY_DEPENDENCY = "step_by_flow", "step_by_dependency"
HAS_LANE = {"lane": {"$gt": ""}}
_NOT_CANCELLED = {"lane": {"$gt": "", "$ne": CANCELLED_LANE}}
MAX_LANE_BYTES = 20_000
"""Bytes; the longest names, needs and key make less."""
TURN = (("priority", DESCENDING), ("scheduled_at", ASCENDING), ("_id", ASCENDING))
"""The order in which jobs get their turn, in their lane or merged over several."""
TEXT: Document = {"$gt": ""}


def _in_turn(field: str, name: str, there: Document) -> IndexModel:
    """Jobs that have this field, in the order in which they get their turn."""
    return IndexModel([(field, ASCENDING), *TURN], name=name, partialFilterExpression={field: there})


def _sparse(name: str, *fields: str) -> IndexModel:
    """Jobs with one of these fields. Other jobs cost almost nothing, even when they are deleted: to delete a job,
    MongoDB searches every partial index for its key, whether or not the filter matches, which takes over 2 µs for each
    index. A sparse index has no key for it. It must have no field that every job has."""
    return IndexModel([(field, ASCENDING) for field in fields], name=name, sparse=True)


INDEXES = [
    _in_turn("lane", DUE, TEXT),
    # Only for postponed jobs: most jobs are due immediately and do not pay for a second index.
    IndexModel([("scheduled_at", ASCENDING)], name=POSTPONED, partialFilterExpression={"postponed": True}),
    _sparse(EXPIRING, "expires_at"),
    IndexModel([("lane", ASCENDING)], name=INBOX, partialFilterExpression={"lane": None}),
    _in_turn("urn", BY_URN, TEXT),
    _in_turn("tags", BY_TAG, {"$exists": True}),
    _in_turn("username", BY_OWNER, TEXT),
    # Steps of flows, and the steps that each of them waits for.
    _sparse(BY_FLOW, "flow.id", "flow.step"),
    _sparse(BY_DEPENDENCY, "flow.after"),
]

_DATE = {"$gte": FIRST_MOMENT, "$lte": LAST_MOMENT}
_SIZE_OF_ID = {"$cond": [{"$eq": [{"$type": "$_id"}, "binData"]}, {"$binarySize": "$_id"}, 16]}
_NUMBER = {"$gte": float("-inf")}
_SOUND = {"created_at": _DATE, "scheduled_at": _DATE, "priority": _NUMBER, "$expr": {"$eq": [_SIZE_OF_ID, 16]}}
"""Conditions that a schema cannot express: dates that Python can read, no NaN, and UUIDs of 16 bytes."""

_COUNTER = {"bsonType": ["int", "long"], "minimum": 0, "maximum": MOST_ATTEMPTS}
_JOB_SCHEMA = validator(
    "task args group lane priority created_at scheduled_at attempts",
    _id={"bsonType": ["objectId", "string", "int", "long", "binData"], "maxLength": LONGEST_ID},
    task="string",
    args="object array",
    group="string",
    lane={"bsonType": "string", "pattern": "/", "maxLength": MAX_LANE_BYTES},
    priority="int long double",
    created_at="date",
    scheduled_at="date",
    attempts=_COUNTER,
    crashes=_COUNTER,
    postponed="bool",
    cancel="object",
)["$jsonSchema"]
_SCHEMA: Document = {"$jsonSchema": {"anyOf": [{"properties": {"lane": {"bsonType": "null"}}}, _JOB_SCHEMA]}}
VALIDATOR: Document = {"$and": [_SCHEMA, {"$or": [{"lane": None}, _SOUND]}]}

_BY_TIME = [("scheduled_at", ASCENDING), ("priority", DESCENDING), ("created_at", ASCENDING), ("_id", ASCENDING)]
_MARK_TIMEOUT_SECONDS = 5.0
"""For a write that nothing depends on, but that settling waits for."""
NOT_A_PROGRESS_MARK = {"updateDescription.updatedFields.reported_at": {"$exists": False}}
"""For change streams: progress marks are for people only, and need not wake a process."""


@dataclass(frozen=True, slots=True)
class ProgressMark:
    """The progress of a running job, for people to see: its worker, its start, and its report."""

    id: JobId
    attempts: int
    was_locked_by: str | None
    """`locked_by` when its worker fetched it: an old mark that locks nothing."""
    worker: str
    since: datetime
    fields: Document


@dataclass(frozen=True, slots=True)
class Marked:
    """The at-most-once and debounced jobs that may start, and the at-most-once jobs that were started before. The other
    jobs are cancelled, postponed, or not held."""

    may_start: frozenset[JobId] = frozenset()
    started_before: frozenset[JobId] = frozenset()
    fresh: Mapping[JobId, bytes] = field(default_factory=dict)
    """The documents of the debounced jobs after the mark."""


class Scheduled(JobCollection):
    """The jobs that have not ended, and the foreign documents in the inbox."""

    name = NAME

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

    @store_call
    def whole(self, document: Unreadable) -> Unreadable | None:
        """The same document with all its fields; None when it no longer exists."""
        found = self._raw.find_one(this_document(document.raw))
        return None if found is None else replace(document, raw=bytes(found.raw))

    @store_call
    def first(self, but: Ids[JobId], until: datetime | None = None) -> tuple[JobId, str] | None:
        """The id and task of the job whose time is first (then priority, then age), except these; only of jobs that are
        due by then, if a time is given. It sorts all jobs: for the tests of users, not for a full queue."""
        query: Document = {"lane": {"$gt": "", "$nin": list(ASIDE)}, "_id": {"$nin": list(but)}}
        if until is not None:
            query["scheduled_at"] = {"$lte": until}
        for found in self._raw.find(query, {"task": 1}, sort=_BY_TIME):
            first = parse_one(NAME, bytes(found.raw), lambda job: (id_of_document(job), text(job, "task")))
            if not isinstance(first, Unreadable):
                return first
        return None

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

    def adopt(self, foreign: Sequence[tuple[Document, Document]]) -> dict[int, str | None]:
        """Turns foreign documents into jobs: for each the document that was read, and its new fields. A document that
        was cancelled or locked since stays in the inbox. Returns the reasons of MongoDB's refusals, by position; None
        for a document that an open transaction has written."""
        writes = []
        for read, new in foreign:
            unchanged = {name: {"$eq": read.get(name)} for name in ("cancel", "locked_by", "locked_at")}
            writes.append(UpdateOne({"_id": read["_id"], "lane": None, **unchanged}, _adoption(read, new)))
        try:
            return dict.fromkeys(bulk_write_unlocked(self.collection, writes))
        except DocumentRefused as error:
            failures = error.__cause__.details["writeErrors"] if isinstance(error.__cause__, BulkWriteError) else ()
            if not failures or not all(is_about_a_document(failure["code"]) for failure in failures):
                raise
            return {failure["index"]: f"MongoDB refuses it as a job: {failure['errmsg']}" for failure in failures}

    @store_call
    def count_inbox(self) -> int:
        return self.collection.count_documents({"lane": None}, hint=INBOX)

    # -- executing ---------------------------------------------------------------------------------------------

    @store_call
    def fetch(self, ids: Sequence[JobId]) -> list[tuple[JobId, bytes]]:
        """These jobs as bytes, in the order of the ids; jobs that no longer exist are left out."""
        batches = self.collection.find_raw_batches({"_id": {"$in": list(ids)}}, batch_size=len(ids) + 1)
        found = {id_of(raw): raw for batch in batches for raw in split_batch(cast(bytes, batch))}
        return [(id, raw) for id in ids if (raw := found.get(id)) is not None]

    def mark_started(self, ids: Sequence[JobId], worker: str, at: datetime, session: ClientSession) -> Marked:
        """Inside a transaction that proves the hold: writes that these at-most-once jobs are about to start here.

        A job that is marked already was started by a worker that died: it must not start again. A cancelled job is in
        neither set: it must be handed back.
        """
        self.collection.update_many(
            {"_id": {"$in": list(ids)}, "started_by": None, "lane": {"$ne": CANCELLED_LANE}},
            {"$set": {"started_by": worker, "started_at": at}, "$min": {"begun_at": at}},
            session=session,
        )
        fields = {"started_by": 1}
        found = list(self.collection.find({"_id": {"$in": list(ids)}, "started_by": TEXT}, fields, session=session))
        mine = frozenset(d["_id"] for d in found if d["started_by"] == worker)
        return Marked(mine, frozenset(d["_id"] for d in found) - mine)

    def mark_debounced(
        self, jobs: Mapping[JobId, datetime], worker: str, at: datetime, session: ClientSession
    ) -> dict[JobId, bytes]:
        """Inside a transaction that proves the hold: writes that these debounced jobs are about to start here, unless
        they have been postponed or cancelled since they were fetched with this `scheduled_at`. From now on no producer
        changes them. Returns their new documents."""
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
        """Stores a checkpoint on the job of this run, once; the job no longer waits. False when the run has lost the
        job."""
        fresh = {"_id": id, "token": token, "checkpoints.name": {"$ne": checkpoint["name"]}}
        update = {"$push": {"checkpoints": checkpoint}, "$unset": {"waits_for": ""}}
        if self.collection.update_one(fresh, update).matched_count:
            return True
        return self.collection.find_one({"_id": id, "token": token}, {"_id": 1}) is not None  # kept before

    @store_call
    def checkpoints_of(self, ids: Ids[JobId]) -> dict[JobId, Any]:
        """The checkpoints of these jobs; jobs without any are left out."""
        found = self.collection.find({"_id": {"$in": list(ids)}, "checkpoints": {"$exists": True}}, {"checkpoints": 1})
        return {document["_id"]: document["checkpoints"] for document in found}

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
        with pymongo.timeout(_MARK_TIMEOUT_SECONDS):
            bulk_write_unlocked(self.collection, writes)

    @store_call
    def clear_progress(self, marks: Sequence[ProgressMark]) -> None:
        """Takes the locks off jobs that are about to be handed back; their progress stays."""
        unlock = {"$unset": dict.fromkeys(LOCK, "")}
        bulk_write_unlocked(
            self.collection, [UpdateOne(_mine(mark), {"$set": mark.fields, **unlock}) for mark in marks]
        )

    # -- repeating ---------------------------------------------------------------------------------------------

    def busy(self, urns: Sequence[str], session: ClientSession) -> set[str]:
        """Inside a transaction: the urns among these that have a job that waits, runs or is retried."""
        found = self.collection.find({"urn": {"$in": list(urns), "$gt": ""}}, {"urn": 1}, hint=BY_URN, session=session)
        return {document["urn"] for document in found}

    @store_call
    def flag_all(self, urns: Sequence[str], flag: Document, session: ClientSession | None = None) -> int:
        """Raises the cancel flag on every job of these urns that has none."""
        query = {"urn": {"$in": list(urns), "$gt": ""}, **_NOT_CANCELLED}
        update = {"$set": {"cancel": flag, "lane": CANCELLED_LANE}}
        return self.collection.update_many(query, update, hint=BY_URN, session=session).modified_count

    @store_call
    def of_urn(self, urn: str) -> Parsed[Job]:
        """The jobs of this urn that have not ended, in the order of their time."""
        found = self._parsed(job_from, {"urn": urn, **HAS_LANE}, hint=BY_URN)
        return Parsed(sorted(found, key=lambda job: job.scheduled_at), found.unreadable)

    @store_call
    def not_begun(self, urn: str) -> list[JobId]:
        """The jobs of this urn that have not begun; a worker may hold them."""
        query = {"urn": urn, **_NOT_CANCELLED, **NOT_BEGUN}
        return list(self._parsed(id_of_document, query, {"_id": 1}, hint=BY_URN))

    @store_call
    def change(self, ids: Sequence[JobId], fields: Document, unset: Sequence[str]) -> int:
        """Changes the jobs among these that have not begun."""
        query = {"_id": {"$in": list(ids)}, **_NOT_CANCELLED, **NOT_BEGUN}
        update: Document = {"$set": fields}
        if unset:
            update["$unset"] = dict.fromkeys(unset, "")
        return self.collection.update_many(query, update).modified_count

    # -- control and views -------------------------------------------------------------------------------------

    @store_call
    def flag_cancelled(self, id: JobId, at: datetime, by: str | None, reason: str | None) -> bool:
        """Flags a job as cancelled, and takes it out of its lane so that no worker receives it. The leader archives it,
        or its holder stops it. False when there is no such job; a second flag changes nothing."""
        flag: Document = {"cancel": {"at": at, "by": by, "reason": reason}}
        moved = {"$set": {**flag, "lane": CANCELLED_LANE}}
        cases = (
            ({"_id": id, **_NOT_CANCELLED}, moved),
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
        """Raises the flag on the jobs among these that match the conditions and have none; returns the number."""
        query = {"$and": [{"_id": {"$in": list(ids)}}, _NOT_CANCELLED, *conditions]}
        update = {"$set": {"cancel": flag, "lane": CANCELLED_LANE}}
        return self.collection.update_many(query, update).modified_count

    @store_call
    def any_expired(self, now: datetime) -> bool:
        """Whether there are expired jobs, held or not."""
        query = {"expires_at": {"$lte": now}, **MAY_EXPIRE}
        return self.collection.find_one(query, {"_id": 1}, hint=EXPIRING) is not None

    @store_call
    def expired(self, now: datetime, limit: int, held: Ids[JobId] = ()) -> Parsed[Document]:
        """Expired jobs that no worker holds; one batch."""
        query = {"expires_at": {"$lte": now}, **MAY_EXPIRE, **HAS_LANE, "_id": {"$nin": list(held)}}
        return parsed(NAME, first_batch(self._raw.find(query, hint=EXPIRING, limit=limit)), _with_an_id)

    @store_call
    def flagged(self, limit: int, held: Ids[JobId] = ()) -> Parsed[Document]:
        """Cancelled jobs that no worker holds; one batch."""
        query = {"lane": CANCELLED_LANE, "_id": {"$nin": list(held)}}
        return parsed(NAME, first_batch(self._raw.find(query, hint=DUE, limit=limit)), _with_an_id)

    @store_call
    def unopened(self, now: datetime, limit: int) -> list[Document]:
        """Jobs that a worker could not open and that wait for another worker, with their tasks and the reasons."""
        query = {"postponed": True, "scheduled_at": {"$lte": now + UNKNOWN_TASK_PAUSE}, "unopened": TEXT}
        return list(self.collection.find(query, {"task": 1, "unopened": 1}, hint=POSTPONED, limit=limit))

    @store_call
    def flags(self, limit: int) -> dict[JobId, Document]:
        """The flags of cancelled jobs that have not ended."""
        return self._flags({"lane": CANCELLED_LANE}, hint=DUE, limit=limit)

    @store_call
    def flags_among(self, ids: Ids[JobId]) -> dict[JobId, Document]:
        return self._flags({"_id": {"$in": list(ids)}, "lane": CANCELLED_LANE})

    def _flags(self, query: Document, **options: Any) -> dict[JobId, Document]:
        jobs = self._parsed(_with_an_id, query, {"cancel": 1}, **options)
        return {job["_id"]: job["cancel"] if isinstance(job.get("cancel"), dict) else {} for job in jobs}

    @store_call
    def get(self, id: JobId) -> Job | None:
        """The job, if it has not ended. Raises UnreadableDocument, and StoreError if it is not adopted yet."""
        document = self._raw.find_one({"_id": id})
        if document is None:
            return None
        if decode_leniently(bytes(document.raw)).get("lane") is None:
            raise not_adopted(id)
        return readable(parse_one(NAME, bytes(document.raw), job_from))

    @store_call
    def get_many(self, ids: Ids[JobId]) -> dict[JobId, Job]:
        """The jobs among these that have not ended and are adopted."""
        return {job.id: job for job in self._parsed(job_from, {"_id": {"$in": list(ids)}, **HAS_LANE})}

    @store_call
    def count_before(self, document: Document, now: datetime, held: Ids[JobId]) -> int:
        """The number of due jobs of its lane that no worker holds and that come before it; at most a thousand."""
        alike = {name: document[name] for name in ("priority", "scheduled_at")}
        sooner = {
            "lane": document["lane"],
            "_id": {"$nin": list(held)},
            "$or": [
                {"priority": {"$gt": document["priority"]}, "scheduled_at": {"$lte": now}},
                {"priority": document["priority"], "scheduled_at": {"$lt": document["scheduled_at"]}},
                # Outside of $expr, $lt finds ids of the same type only; the index orders ids of all types.
                {**alike, "$expr": {"$lt": ["$_id", {"$literal": document["_id"]}]}},
            ],
        }
        return self.collection.count_documents(sooner, limit=1000, hint=DUE)

    @store_call
    def waiting(self) -> list[Job]:
        """Every job, in the order of their time; for tests, where there are few."""
        return list(self._parsed(job_from, HAS_LANE, sort=_BY_TIME))

    @store_call
    def count_by(self, field: str, held: Ids[JobId]) -> list[tuple[str, State, int]]:
        """The number of jobs with each value of this field, held and not; for reports only."""
        rows = self._raw.aggregate(
            [
                {"$match": {field: {"$exists": True}, "lane": {"$gt": "", "$nin": list(ASIDE)}}},
                {"$unwind": f"${field}"},
                {"$group": {"_id": {"name": f"${field}", "held": {"$in": ["$_id", list(held)]}}, "jobs": {"$sum": 1}}},
            ]
        )
        return list(parsed(NAME, rows, _counted))

    @store_call
    def neither_job_nor_foreign(self, limit: int, within: float) -> list[Unreadable]:
        """Documents whose lane is neither null nor text: no process ever reads them. For reports only: it reads the
        whole collection. Raises StoreUnreachable if that takes longer than `within` seconds."""
        query = {"lane": {"$exists": True, "$ne": None, "$not": {"$gt": ""}}}
        found = self._parsed(
            lambda document: text(document, "lane"), query, {"lane": 1}, limit=limit, max_time_ms=int(within * 1000)
        )
        return list(found.unreadable)


def signalling(id: JobId, name: str, data: Any, at: datetime, by: str | None = None) -> tuple[Document, list[Document]]:
    """The query and the update that send a signal to a job: in one step, so that no signal is lost between a check and
    a wait."""
    size = len(encode({"name": name, "at": at, "data": data}))
    signals = {"$bsonSize": {"signals": {"$ifNull": ["$signals", []]}}}
    fits = [{"$lte": [signals, MOST_SIGNAL_BYTES - size]}, {"$lte": [{"$bsonSize": "$$ROOT"}, LARGEST_JOB - size]}]
    query = {"_id": id, **HAS_LANE, f"signals.{MOST_SIGNALS - 1}": {"$exists": False}, "$expr": {"$and": fits}}
    signal = {"name": {"$literal": name}, "at": at, "data": {"$literal": data}}
    if by is not None:
        signal["by"] = {"$literal": by}
    several = {"$cond": [{"$isArray": "$waits_for.any"}, "$waits_for.any", ["$waits_for.signal"]]}
    waits = {"$and": [{"$in": [{"$literal": name}, several]}, WAITS_FOR_SIGNAL]}
    update = {
        "signals": {"$concatArrays": [{"$ifNull": ["$signals", []]}, [signal]]},
        "scheduled_at": {"$cond": [waits, at, "$scheduled_at"]},
        "postponed": {"$cond": [waits, False, "$postponed"]},
    }
    return query, [{"$set": update}]


def id_of_document(document: Document) -> JobId:
    return job_id("_id", document["_id"])


def _with_an_id(document: Document) -> Document:
    id_of_document(document)
    return document


def _counted(row: Document) -> tuple[str, State, int]:
    return text(row["_id"], "name"), State.RUNNING if row["_id"]["held"] else State.WAITING, row["jobs"]


def _mine(mark: ProgressMark) -> Document:
    return {
        "_id": mark.id,
        "attempts": mark.attempts,
        "locked_by": {"$in": [None, mark.worker, *filter(None, [mark.was_locked_by])]},
        "transaction": None,
    }


def _adoption(read: Document, fields: Document) -> Document:
    nothing = [name for name, value in read.items() if value is None and name in NULLABLE]
    unbelieved = {name: "" for name in (*FROM_PROTOCOL, *nothing, "postponed") if name not in fields}
    if fields["lane"] != CANCELLED_LANE:
        unbelieved["cancel"] = ""
    return {"$set": fields, "$unset": unbelieved}
