"""`archived`: the jobs that have ended, with their history."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from datetime import datetime, timedelta
from itertools import chain, islice
from typing import Any

from bson.raw_bson import RawBSONDocument
from pymongo import ASCENDING, DESCENDING, IndexModel

from recruiter.domain.duration import LONGEST_SECONDS
from recruiter.domain.job import ArchivedJob, JobId
from recruiter.domain.state import State, Why
from recruiter.domain.unreadable import Parsed, Unreadable
from recruiter.store.codec import LENIENT, Document, archived_from, id_of
from recruiter.store.errors import store_call
from recruiter.store.fields import text, validator
from recruiter.store.reading import JobCollection, delete_documents, parse_one, parsed, readable

NAME = "archived"

BY_AGE, BY_WHY = "by_end", "by_why"
BY_URN, BY_TAG, BY_OWNER, BY_KEY = "end_by_urn", "end_by_tag", "end_by_owner", "end_by_key"
BY_ERROR, BY_ATTEMPTS, SET_ASIDE = "end_by_error", "end_by_attempts", "end_set_aside"
FAILED, KEPT = "failed", "kept_failed"
BY_FLOW, BY_DEPENDENCY = "step_by_outcome", "step_by_dependency"
UNREPORTED = "end_unreported"
NO_STEP: Document = {"flow.id": None}
_SET_ASIDE = {
    "why": {"$in": [Why.MALFORMED.value, Why.CRASHED_TOO_MANY_TIMES.value, Why.WORKER_DIED_TOO_MANY_TIMES.value]}
}
_END = (("archived_at", ASCENDING), ("_id", ASCENDING))
_TEXT: Document = {"$gt": ""}
_NO_DATE: tuple[Any, ...] = (None, {"$type": [-1, *range(1, 9), *range(11, 20), 127]})
"""Missing or null, and every BSON type except a date: two ranges of an index. A `$not` would scan all of it."""
_MAX_CHECKED = 10_000


def _by_end(field: str, name: str, there: Document) -> IndexModel:
    """Jobs that have this field, in the order in which they ended. Other jobs are not in the index."""
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
    # Jobs with their own `keep_failed`: a few different times, each in order of age.
    IndexModel(
        [("keep_failed", ASCENDING), *_END],
        name=KEPT,
        partialFilterExpression={"done": False, "keep_failed": {"$gt": 0}},
    ),
    # Steps of flows. The states of steps are read from this index alone.
    IndexModel(
        [("flow.id", ASCENDING), ("done", ASCENDING), ("flow.step", ASCENDING)],
        name=BY_FLOW,
        partialFilterExpression={"flow.id": {"$exists": True}},
    ),
    # Steps that never ran because a step failed, by their dependencies.
    IndexModel(
        [("flow.id", ASCENDING), ("flow.after", ASCENDING)],
        name=BY_DEPENDENCY,
        partialFilterExpression={"why": Why.DEPENDENCY_FAILED.value},
    ),
    # Few jobs, which people must check: they must be found among millions.
    IndexModel([("archived_at", DESCENDING)], name=SET_ASIDE, partialFilterExpression=_SET_ASIDE),
    IndexModel([("unreported", ASCENDING)], name=UNREPORTED, partialFilterExpression={"unreported": {"$exists": True}}),
]
VALIDATOR = validator("done why archived_at", done="bool", why="string", archived_at="date")


class Archived(JobCollection):
    """The jobs that have ended."""

    name = NAME

    @store_call
    def get(self, id: JobId) -> ArchivedJob | None:
        """Raises UnreadableDocument."""
        document = self._raw.find_one({"_id": id})
        return readable(_job(document)) if document is not None else None

    @store_call
    def about(self) -> int:
        """The approximate number of documents, from the metadata of the collection."""
        return self.collection.estimated_document_count()

    @store_call
    def raw(self, ids: Iterable[JobId]) -> dict[JobId, bytes]:
        """The stored documents of the ended jobs among these."""
        found = (bytes(document.raw) for document in self._raw.find({"_id": {"$in": list(ids)}}))
        return {id_of(raw): raw for raw in found}

    @store_call
    def get_many(self, ids: Iterable[JobId]) -> dict[JobId, ArchivedJob]:
        """Raises UnreadableDocument if a document cannot be read."""
        found = (readable(_job(document)) for document in self._raw.find({"_id": {"$in": list(ids)}}))
        return {job.id: job for job in found}

    @store_call
    def get_some(self, ids: Iterable[JobId], conditions: Sequence[Document]) -> Parsed[ArchivedJob]:
        """The jobs among these that fulfil the conditions."""
        found = self._raw.find({"$and": [{"_id": {"$in": list(ids)}}, *conditions]})
        return parsed(NAME, found, archived_from, LENIENT)

    @store_call
    def unreadable(self, since: datetime, limit: int) -> list[Unreadable]:
        """Unreadable jobs that ended since then, the newest first. Checks at most ten thousand jobs."""
        newest = self._raw.find({"archived_at": {"$gte": since}}, hint=BY_AGE).sort("archived_at", -1)
        undated = (self._raw.find({"archived_at": no_date}, hint=BY_AGE) for no_date in _NO_DATE)
        cursors = (cursor.limit(_MAX_CHECKED) for cursor in (*undated, newest))
        found = (_job(document) for document in chain.from_iterable(cursors))
        return list(islice((job for job in found if isinstance(job, Unreadable)), limit))

    @store_call
    def latest(self, urn: str, *, done: bool | None = None) -> ArchivedJob | None:
        """The last ended job of this urn; with `done`, the last job that succeeded (True) or did not (False)."""
        query: Document = {"urn": urn} if done is None else {"urn": urn, "done": done}
        found = map(_job, self._raw.find(query, sort=[("archived_at", -1)], hint=BY_URN))
        return next((job for job in found if not isinstance(job, Unreadable)), None)

    @store_call
    def count_by(self, field: str, since: datetime, until: datetime) -> list[tuple[str, State, int]]:
        """The number of jobs that ended in this period, by the value of this field and the state; for reports."""
        ended = {"archived_at": {"$gte": since, "$lt": until}, field: {"$exists": True}}
        kind = {"name": f"${field}", "done": "$done", "why": "$why"}
        rows = self._raw.aggregate(
            [{"$match": ended}, {"$unwind": f"${field}"}, {"$group": {"_id": kind, "jobs": {"$sum": 1}}}], hint=BY_AGE
        )
        return list(parsed(NAME, rows, _row))

    @store_call
    def jobs_set_aside(self, limit: int, since: datetime | None = None) -> Parsed[ArchivedJob]:
        """Malformed documents and jobs that crashed too often, each with its reason; without recovered jobs. The newest
        first."""
        query: Document = {**_SET_ASIDE, "recovered_as": None}
        if since is not None:
            query["archived_at"] = {"$gte": since}
        found = self._raw.find(query, hint=SET_ASIDE).sort("archived_at", -1).limit(limit)
        return parsed(NAME, found, archived_from, LENIENT)

    @store_call
    def claim_unreported(self, tasks: Set[str], since: datetime) -> bytes | None:
        """The stored form of a job of these tasks that ended since then without its own process; None if there is none.
        No other caller gets it."""
        query: Document = {"unreported": {"$gte": since}, "task": {"$in": list(tasks)}}
        found = self._raw.find_one_and_update(query, {"$unset": {"unreported": ""}}, hint=UNREPORTED)
        return None if found is None else bytes(found.raw)

    @store_call
    def remove(self, ids: Sequence[JobId], conditions: Sequence[Document] = ()) -> int:
        """Removes the jobs among these that fulfil the conditions; returns their number. Steps stay: other steps may
        wait for them, and a flow is removed as a whole."""
        query = {"$and": [{"_id": {"$in": list(ids)}}, NO_STEP, *conditions]}
        return self.collection.delete_many(query).deleted_count

    @store_call
    def remove_succeeded(self, than: datetime, batch: int, since: datetime | None = None) -> int:
        """Removes up to a batch of jobs that succeeded before `than`; returns their number. Jobs that ended before
        `since` are skipped: failed jobs may be kept for longer, and need not be read again."""
        age = {"$lt": than} if since is None else {"$gte": since, "$lt": than}
        return self._remove({"done": True, "archived_at": age, **NO_STEP}, BY_AGE, batch)

    @store_call
    def remove_failed(self, than: datetime, batch: int) -> int:
        """Removes up to a batch of jobs without `keep_failed` that failed before `than`; returns their number."""
        query: Document = {"done": False, "keep_failed": None, "archived_at": {"$lt": than}, **NO_STEP}
        return self._remove(query, FAILED, batch)

    @store_call
    def remove_kept(self, now: datetime, batch: int) -> int:
        """Removes up to a batch of failed jobs that were kept for their own `keep_failed`; returns their number."""
        removed = 0
        for seconds in self._keep_times():
            old = now - timedelta(seconds=min(seconds, LONGEST_SECONDS))
            query: Document = {"done": False, "keep_failed": seconds, "archived_at": {"$lt": old}, **NO_STEP}
            removed += self._remove(query, KEPT, batch - removed)
            if removed >= batch:
                break
        return removed

    def _keep_times(self) -> Iterator[float]:
        """The different values of `keep_failed`, one index seek each."""
        last: float = 0
        while True:
            query = {"done": False, "keep_failed": {"$gt": last}}
            found = self.collection.find_one(query, {"_id": 0, "keep_failed": 1}, sort=[("keep_failed", 1)], hint=KEPT)
            if found is None:
                return
            last = found["keep_failed"]
            yield last

    def _remove(self, query: Document, index: str, batch: int) -> int:
        old = self._raw.find(query, {"_id": 1}, hint=index).sort("archived_at", 1).limit(batch)
        return delete_documents(self.collection, old)


def _job(document: RawBSONDocument) -> ArchivedJob | Unreadable:
    """The original of a malformed document may contain text that is not UTF-8."""
    return parse_one(NAME, bytes(document.raw), archived_from, LENIENT)


def _row(row: Document) -> tuple[str, State, int]:
    kind = row["_id"]
    return text(kind, "name"), State.at_the_end(bool(kind.get("done")), str(kind.get("why"))), row["jobs"]
