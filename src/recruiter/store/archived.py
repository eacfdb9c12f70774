"""`archived`: the jobs that have ended, and everything that happened to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta

from pymongo import ASCENDING, DESCENDING, IndexModel
from pymongo.collection import Collection

from recruiter.domain.job import ArchivedJob, JobId
from recruiter.domain.state import State
from recruiter.domain.why import Why
from recruiter.store.codec import LENIENT, Document, archived_from
from recruiter.store.translate import store_call

NAME = "archived"

BY_AGE, BY_WHY = "by_end", "by_why"
BY_URN, BY_TAG, BY_OWNER, BY_KEY = "end_by_urn", "end_by_tag", "end_by_owner", "end_by_key"
BY_ERROR, BY_ATTEMPTS, SET_ASIDE = "end_by_error", "end_by_attempts", "set_aside"
FAILED, KEPT = "failed", "kept_failed"
_SET_ASIDE = {"why": {"$in": [Why.MALFORMED.value, Why.CRASHED_TOO_MANY_TIMES.value]}}
_END = (("archived_at", ASCENDING), ("_id", ASCENDING))
_TEXT: Document = {"$gt": ""}
_LONGEST = 1e10
"""Seconds, three hundred years: no job is older."""


def _by_end(field: str, name: str, there: Document) -> IndexModel:
    """Jobs that have this field, in the order in which they ended; the others pay nothing."""
    return IndexModel([(field, ASCENDING), *_END], name=name, partialFilterExpression={field: there})


INDEXES = [
    IndexModel(list(_END), name=BY_AGE),
    IndexModel([("why", ASCENDING), ("group", ASCENDING), ("task", ASCENDING), *_END], name=BY_WHY),
    _by_end("urn", BY_URN, _TEXT),
    _by_end("tags", BY_TAG, {"$exists": True}),
    _by_end("username", BY_OWNER, _TEXT),
    _by_end("key", BY_KEY, _TEXT),
    _by_end("last_execution.class", BY_ERROR, _TEXT),
    _by_end("attempts", BY_ATTEMPTS, {"$gt": 1}),
    IndexModel([("archived_at", ASCENDING)], name=FAILED, partialFilterExpression={"done": False}),
    # Those that say how long to keep them if they do not succeed: a few lengths of time, each in order of age.
    IndexModel(
        [("keep_failed", ASCENDING), *_END],
        name=KEPT,
        partialFilterExpression={"done": False, "keep_failed": {"$gt": 0}},
    ),
    # Few, and somebody has to look at each: they must be found among millions.
    IndexModel([("archived_at", DESCENDING)], name=SET_ASIDE, partialFilterExpression=_SET_ASIDE),
]

VALIDATOR = {
    "$jsonSchema": {
        "required": ["done", "why", "archived_at"],
        "properties": {
            "done": {"bsonType": "bool"},
            "why": {"bsonType": "string"},
            "archived_at": {"bsonType": "date"},
        },
    }
}


class Archived:
    def __init__(self, collection: Collection[Document]) -> None:
        self.collection = collection
        # What was set aside is kept as it was, readable or not; looking at it must not fail.
        self._readable = collection.with_options(codec_options=LENIENT)

    @store_call
    def get(self, id: JobId) -> ArchivedJob | None:
        document = self._readable.find_one({"_id": id})
        return archived_from(document) if document else None

    @store_call
    def get_many(self, ids: Iterable[JobId]) -> dict[JobId, ArchivedJob]:
        return {d["_id"]: archived_from(d) for d in self._readable.find({"_id": {"$in": list(ids)}})}

    @store_call
    def get_some(self, ids: Iterable[JobId], conditions: Sequence[Document]) -> list[ArchivedJob]:
        """Those of these jobs that fulfil the conditions."""
        found = self._readable.find({"$and": [{"_id": {"$in": list(ids)}}, *conditions]})
        return [archived_from(document) for document in found]

    @store_call
    def which_exist(self, ids: Iterable[JobId]) -> set[JobId]:
        return {d["_id"] for d in self.collection.find({"_id": {"$in": list(ids)}}, {"_id": 1})}

    @store_call
    def latest(self, urn: str, *, done: bool | None = None) -> ArchivedJob | None:
        """The job of this urn that ended last; or that succeeded, or failed, last."""
        query: Document = {"urn": urn} if done is None else {"urn": urn, "done": done}
        document = self._readable.find_one(query, sort=[("archived_at", -1)], hint=BY_URN)
        return archived_from(document) if document else None

    @store_call
    def count_by(self, field: str, since: datetime, until: datetime) -> list[tuple[str, State, int]]:
        """How many jobs of each value of this field have ended in that time, and how; for reports only."""
        ended = {"archived_at": {"$gte": since, "$lt": until}, field: {"$exists": True}}
        kind = {"name": f"${field}", "done": "$done", "why": "$why"}
        rows = self.collection.aggregate(
            [{"$match": ended}, {"$unwind": f"${field}"}, {"$group": {"_id": kind, "jobs": {"$sum": 1}}}], hint=BY_AGE
        )
        return [(r["_id"]["name"], State.at_the_end(r["_id"]["done"], r["_id"]["why"]), r["jobs"]) for r in rows]

    @store_call
    def set_aside(self, limit: int, since: datetime | None = None) -> list[ArchivedJob]:
        """What could not become a job, or has taken its process down too often; newest first, each with its reason."""
        query = {**_SET_ASIDE, "archived_at": {"$gte": since}} if since is not None else _SET_ASIDE
        found = self._readable.find(query, hint=SET_ASIDE).sort("archived_at", -1).limit(limit)
        return [archived_from(document) for document in found]

    @store_call
    def remove(self, ids: Sequence[JobId], conditions: Sequence[Document] = ()) -> int:
        """Removes those of these jobs that fulfil the conditions; returns how many."""
        return self.collection.delete_many({"$and": [{"_id": {"$in": list(ids)}}, *conditions]}).deleted_count

    @store_call
    def remove_succeeded(self, than: datetime, batch: int, since: datetime | None = None) -> int:
        """Removes up to a batch of the jobs that succeeded before then; returns how many. Those that did not succeed
        may be kept for longer: `since` says from where on to look, past all of them."""
        age = {"$lt": than} if since is None else {"$gte": since, "$lt": than}
        return self._remove_some({"done": True, "archived_at": age}, BY_AGE, batch)

    @store_call
    def remove_failed(self, than: datetime, batch: int) -> int:
        """The same for jobs that did not succeed, and do not say how long they are kept."""
        return self._remove_some({"done": False, "keep_failed": None, "archived_at": {"$lt": than}}, FAILED, batch)

    @store_call
    def remove_kept(self, now: datetime, batch: int) -> int:
        """The same for jobs that did not succeed and say how long they are kept."""
        removed = 0
        for seconds in self._lengths():
            old = now - timedelta(seconds=min(seconds, _LONGEST))
            query: Document = {"done": False, "keep_failed": seconds, "archived_at": {"$lt": old}}
            removed += self._remove_some(query, KEPT, batch - removed)
            if removed >= batch:
                break
        return removed

    def _lengths(self) -> Iterator[float]:
        """For how long jobs are to be kept: few different lengths, however many jobs."""
        last: float = 0
        while True:
            query = {"done": False, "keep_failed": {"$gt": last}}
            found = self.collection.find_one(query, {"keep_failed": 1}, sort=[("keep_failed", 1)], hint=KEPT)
            if found is None:
                return
            last = found["keep_failed"]
            yield last

    def _remove_some(self, query: Document, index: str, batch: int) -> int:
        old = self.collection.find(query, {"_id": 1}, hint=index).sort("archived_at", 1).limit(batch)
        ids = [document["_id"] for document in old]
        return self.collection.delete_many({"_id": {"$in": ids}}).deleted_count if ids else 0
