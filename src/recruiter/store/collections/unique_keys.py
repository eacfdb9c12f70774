"""`unique_keys`: the last job of each key of unique, debounced and throttled jobs.

    {_id: "unique:resize/picture:7", job: id, created_at, scheduled_at, forget_at}

A producer reads the key, decides (domain/uniqueness.py) and writes it, in the transaction that inserts the job; two
producers that do so at once conflict on the key, and one of them decides again. Nobody removes a key when its job
starts or ends: the next producer looks whether the job is still there. So only producers of unique jobs pay, and
nothing is added to the way of a job through the queue. From `forget_at` on, the cleaner removes a key whose job is
no longer there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Collection as Ids
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from pymongo import ASCENDING, DeleteOne, IndexModel, UpdateOne
from pymongo.collection import Collection

from recruiter.domain.job import JobId
from recruiter.domain.retry.decision import after
from recruiter.domain.uniqueness import Uniqueness
from recruiter.errors import UnreadableDocument
from recruiter.store import fields as field
from recruiter.store.codec import Document
from recruiter.store.errors import store_call

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


class UniqueKey(NamedTuple):
    """The last job of a key."""

    key: str
    job: JobId
    created_at: datetime
    scheduled_at: datetime


def key_from(document: Mapping[str, Any]) -> UniqueKey | None:
    """The parser. None for what was written by hand and makes no sense: the next job of that key writes it anew."""
    try:
        return UniqueKey(
            field.text(document, "_id"),
            field.job_id("job", document.get("job")),
            field.moment(document, "created_at"),
            field.moment(document, "scheduled_at"),
        )
    except UnreadableDocument:
        return None


class UniqueKeys:
    def __init__(self, collection: Collection[Document]) -> None:
        self.collection = collection

    @store_call
    def forget(self, now: datetime, waiting: Callable[[list[JobId]], Ids[JobId]], batch: int) -> int:
        """Removes up to a batch of keys that are old, and whose jobs are no longer there; `waiting` says which are.
        Returns how many it has looked at."""
        old = self.collection.find({"forget_at": {"$lt": now}}, {"job": 1}, hint=FORGOTTEN, limit=batch)
        keys = [(document["_id"], document.get("job")) for document in old]
        there = waiting([job for _, job in keys if field.is_job_id(job)]) if keys else ()
        writes: list[DeleteOne | UpdateOne] = []
        for key, job in keys:
            same = {"_id": key, "job": job, "forget_at": {"$lt": now}}  # no producer has used it since
            gone = not (field.is_job_id(job) and job in there)
            writes.append(DeleteOne(same) if gone else UpdateOne(same, {"$set": {"forget_at": now + KEPT}}))
        if writes:
            self.collection.bulk_write(writes, ordered=False)
        return len(writes)


def key_document(key: str, job: JobId, created_at: datetime, scheduled_at: datetime, wanted: Uniqueness) -> Document:
    last = max(after(created_at, timedelta(seconds=wanted.seconds)), scheduled_at)
    return {
        "_id": key,
        "job": job,
        "created_at": created_at,
        "scheduled_at": scheduled_at,
        "forget_at": after(last, KEPT),
    }
