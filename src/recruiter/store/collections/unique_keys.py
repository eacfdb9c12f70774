"""`unique_keys`: the last job of each key of unique, debounced and throttled jobs.

    {_id: "unique:resize/picture:7", job: id, created_at, scheduled_at, forget_at}

A producer reads the key, decides (domain/uniqueness.py) and writes it, in the transaction that inserts the job; two
producers that do so at once conflict on the key, and one of them decides again. Nobody removes a key when its job
starts or ends: the next producer looks whether the job is still there. So only producers of unique jobs pay, and
nothing is added to the way of a job through the queue. From `forget_at` on, the cleaner removes a key whose job is
no longer there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Collection as Ids
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from pymongo import ASCENDING, DeleteOne, IndexModel, UpdateOne
from pymongo.collection import Collection

from recruiter.domain.job import JobId
from recruiter.domain.retry.decision import after
from recruiter.domain.uniqueness import Uniqueness
from recruiter.domain.unreadable import Unreadable
from recruiter.errors import UnreadableDocument
from recruiter.store import fields as field
from recruiter.store.codec import RAW, Document, this_document
from recruiter.store.errors import store_call
from recruiter.store.reading import parsed

NAME = "unique_keys"
FORGOTTEN = "forgotten"
INDEXES = [IndexModel([("forget_at", ASCENDING)], name=FORGOTTEN)]
VALIDATOR: Document = {
    "$jsonSchema": {
        "required": ["job", "created_at", "scheduled_at", "forget_at"],
        "properties": {
            "_id": {"bsonType": "string"},
            "created_at": {"bsonType": "date"},
            "scheduled_at": {"bsonType": "date"},
            "forget_at": {"bsonType": "date"},
        },
    }
}

KEPT = timedelta(days=1)
"""How long a key is kept when it has done its work, at least."""

_DATE: Document = {"$gte": field.FIRST_MOMENT, "$lte": field.LAST_MOMENT}
_SOUND: Document = {
    "_id": {"$type": "string"},
    "job": {"$type": ["objectId", "string", "int", "long", "binData"], "$not": {"$type": "array"}},
    **dict.fromkeys(("created_at", "scheduled_at", "forget_at"), _DATE),
}
"""What the server can tell of a key that can be read."""


class UniqueKey(NamedTuple):
    """The last job of a key."""

    key: str
    job: JobId
    created_at: datetime
    scheduled_at: datetime


def key_from(document: Mapping[str, Any]) -> UniqueKey | None:
    """None for what was written by hand and makes no sense: the next job of that key writes it anew."""
    try:
        return _key(document)
    except UnreadableDocument:
        return None


def _key(document: Mapping[str, Any]) -> UniqueKey:
    """The parser."""
    return UniqueKey(
        field.text(document, "_id"),
        field.job_id("job", document.get("job")),
        field.moment(document, "created_at"),
        field.moment(document, "scheduled_at"),
    )


class UniqueKeys:
    def __init__(self, collection: Collection[Document]) -> None:
        self.collection = collection
        self._raw: Collection[Any] = collection.with_options(codec_options=RAW)

    @store_call
    def forget(self, now: datetime, waiting: Callable[[list[JobId]], Ids[JobId]], batch: int) -> int:
        """Removes up to a batch of keys that are old, and whose jobs are no longer there; `waiting` says which are.
        Returns how many it has looked at."""
        old = self._raw.find({"forget_at": {"$lt": now}}, {"job": 1}, hint=FORGOTTEN, limit=batch)
        keys = parsed(NAME, old, lambda document: (document["_id"], document.get("job")))
        there = waiting([job for _, job in keys if field.is_job_id(job)]) if keys else ()
        writes: list[DeleteOne | UpdateOne] = [DeleteOne(this_document(key.raw)) for key in keys.unreadable]
        for key, job in keys:
            same = {"_id": key, "job": job, "forget_at": {"$lt": now}}  # no producer has used it since
            gone = not (field.is_job_id(job) and job in there)
            writes.append(DeleteOne(same) if gone else UpdateOne(same, {"$set": {"forget_at": now + KEPT}}))
        if writes:
            self.collection.bulk_write(writes, ordered=False)
        return len(writes)

    @store_call
    def unreadable(self, limit: int, within: float) -> Sequence[Unreadable]:
        """Up to so many. For reports only, it reads all of the collection; raises StoreUnreachable if that takes longer
        than so many seconds."""
        found = self._raw.find({"$nor": [_SOUND]}, limit=limit, max_time_ms=int(within * 1000))
        return parsed(NAME, found, lambda document: (_key(document), field.moment(document, "forget_at"))).unreadable


def key_document(key: str, job: JobId, created_at: datetime, scheduled_at: datetime, wanted: Uniqueness) -> Document:
    last = max(after(created_at, timedelta(seconds=wanted.seconds)), scheduled_at)
    return {
        "_id": key,
        "job": job,
        "created_at": created_at,
        "scheduled_at": scheduled_at,
        "forget_at": after(last, KEPT),
    }
