"""`unique_keys`: the last job of each key of unique, debounced and throttled jobs.

    {_id: "unique:resize/picture:7", job: id, created_at, scheduled_at, forget_at}

A producer reads the key, decides (domain/uniqueness.py) and writes it, in the transaction that inserts the job. Two
concurrent producers conflict on the key, and one of them decides again. No process removes a key when its job starts or
ends: the next producer checks whether the job still exists. So only producers of unique jobs pay. After `forget_at` the
cleaner removes a key whose job no longer exists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Collection as Ids
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from pymongo import ASCENDING, DeleteOne, IndexModel, UpdateOne

from recruiter.domain.job import JobId
from recruiter.domain.retry.decision import after
from recruiter.domain.uniqueness import Uniqueness
from recruiter.domain.unreadable import Unreadable
from recruiter.errors import UnreadableDocument
from recruiter.store import fields as field
from recruiter.store.batches import bulk_write_unlocked
from recruiter.store.codec import Document, this_document
from recruiter.store.errors import store_call
from recruiter.store.reading import ParsedCollection

NAME = "unique_keys"
FORGOTTEN = "forgotten"
INDEXES = [IndexModel([("forget_at", ASCENDING)], name=FORGOTTEN)]
VALIDATOR: Document = field.validator(
    "job created_at scheduled_at forget_at", _id="string", created_at="date", scheduled_at="date", forget_at="date"
)
KEPT = timedelta(days=1)
"""The minimum time for which a key is kept after its last use."""

_DATE: Document = {"$gte": field.FIRST_MOMENT, "$lte": field.LAST_MOMENT}
_SOUND: Document = {
    "_id": {"$type": "string"},
    "job": {"$type": ["objectId", "string", "int", "long", "binData"], "$not": {"$type": "array"}},
    **dict.fromkeys(("created_at", "scheduled_at", "forget_at"), _DATE),
}
"""The condition that nearly every readable key fulfils."""


class UniqueKey(NamedTuple):
    """The last job of a key."""

    key: str
    job: JobId
    created_at: datetime
    scheduled_at: datetime


def key_from(document: Mapping[str, Any]) -> UniqueKey | None:
    """None for an invalid key: the next job with that key replaces it."""
    try:
        return _key(document)
    except UnreadableDocument:
        return None


def _key(document: Mapping[str, Any]) -> UniqueKey:
    return UniqueKey(
        field.text(document, "_id"),
        field.job_id("job", document.get("job")),
        field.moment(document, "created_at"),
        field.moment(document, "scheduled_at"),
    )


class UniqueKeys(ParsedCollection):
    """The keys of unique jobs, each with its last job."""

    name = NAME

    @store_call
    def forget(self, now: datetime, waiting: Callable[[list[JobId]], Ids[JobId]], batch: int) -> int:
        """Removes up to a batch of old keys whose jobs no longer exist; `waiting` returns the jobs that do. Returns the
        number of keys that were checked."""
        old = {"forget_at": {"$lt": now}}
        keys = self._parsed(lambda key: (key["_id"], key.get("job")), old, {"job": 1}, hint=FORGOTTEN, limit=batch)
        existing = waiting([job for _, job in keys if field.is_job_id(job)]) if keys else ()
        writes: list[DeleteOne | UpdateOne] = [DeleteOne(this_document(key.raw)) for key in keys.unreadable]
        for key, job in keys:
            same = {"_id": key, "job": job, **old}  # no producer has used it since
            exists = field.is_job_id(job) and job in existing
            writes.append(UpdateOne(same, {"$set": {"forget_at": now + KEPT}}) if exists else DeleteOne(same))
        bulk_write_unlocked(self.collection, writes)
        return len(writes)

    @store_call
    def unreadable(self, limit: int, within: float) -> Sequence[Unreadable]:
        """For reports: it reads the whole collection. Raises StoreUnreachable after `within` seconds."""
        return self._parsed(
            lambda document: (_key(document), field.moment(document, "forget_at")),
            {"$nor": [_SOUND]},
            limit=limit,
            max_time_ms=int(within * 1000),
        ).unreadable


def key_document(key: str, job: JobId, created_at: datetime, scheduled_at: datetime, wanted: Uniqueness) -> Document:
    last = max(after(created_at, timedelta(seconds=wanted.seconds)), scheduled_at)
    times = {"created_at": created_at, "scheduled_at": scheduled_at, "forget_at": after(last, KEPT)}
    return {"_id": key, "job": job, **times}
