"""`archived`: the jobs that have ended, and everything that happened to them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

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
_SET_ASIDE = {"why": {"$in": [Why.MALFORMED.value, Why.CRASHED_TOO_MANY_TIMES.value]}}
_END = (("archived_at", ASCENDING), ("_id", ASCENDING))
_TEXT: Document = {"$gt": ""}


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
    def remove_older(self, than: datetime, batch: int) -> int:
        """Removes up to a batch of the oldest jobs; returns how many."""
        old = self.collection.find({"archived_at": {"$lt": than}}, {"_id": 1}, hint=BY_AGE).sort("archived_at", 1)
        ids = [document["_id"] for document in old.limit(batch)]
        return self.collection.delete_many({"_id": {"$in": ids}}).deleted_count if ids else 0
