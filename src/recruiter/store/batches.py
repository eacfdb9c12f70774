"""Batches of documents for one transaction or one write: bounded in number and in bytes. If MongoDB refuses a batch,
its halves are written, until the document at fault is alone.

A write outside of a transaction waits in MongoDB while an open transaction has written the same document. That
transaction may belong to a user and stay open for a minute. So each such write of the leader, a worker or the cleaner
on a document that users can write goes through `write_unlocked`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import pymongo
from bson.raw_bson import RawBSONDocument
from pymongo import DeleteOne, UpdateOne
from pymongo.client_session import ClientSession
from pymongo.collection import Collection as MongoCollection

from recruiter.domain.job import JobId
from recruiter.errors import DocumentLocked, DocumentRefused, StoreUnreachable
from recruiter.store.errors import store_call
from recruiter.store.sessions import LOCKED_FOR_SECONDS, run_transaction

T = TypeVar("T")
R = TypeVar("R")

MAX_BATCH_BYTES = 8 * 1024 * 1024
MAX_JOBS_PER_TRANSACTION = 500
"""One transaction of this size takes MongoDB a few tenths of a second, in which other processes get their turn."""
_MAX_PER_TRANSACTION, _MAX_IN_TRANSACTIONS = 500, 1000
"""Number of documents that one transaction and one call of `write_unlocked` write beside a locked document."""


def in_batches(items: Iterable[T], size_of: Callable[[T], int], most: int) -> Iterator[list[T]]:
    """The items in order, in batches of at most `most` items and MAX_BATCH_BYTES. A larger item is alone."""
    batch: list[T] = []
    room = MAX_BATCH_BYTES
    for item in items:
        size = size_of(item)
        if batch and (size > room or len(batch) == most):
            yield batch
            batch, room = [], MAX_BATCH_BYTES
        batch.append(item)
        room -= size
    if batch:
        yield batch


def first_batch(found: Iterable[RawBSONDocument]) -> Iterator[RawBSONDocument]:
    """As much of an answer as fits into one batch; the rest is not read."""
    room = MAX_BATCH_BYTES
    for document in found:
        yield document
        room -= len(document.raw)
        if room <= 0:
            return


@store_call
def ids_in_batches(collection: MongoCollection[Any], ids: Sequence[JobId], most: int) -> list[list[JobId]]:
    """The ids of stored documents, in batches by the size of these documents; ids of no document are left out."""
    found = collection.find({"_id": {"$in": list(ids)}}, {"size": {"$bsonSize": "$$ROOT"}})
    sizes: Mapping[JobId, int] = {document["_id"]: document["size"] for document in found}
    return list(in_batches((id for id in ids if id in sizes), sizes.__getitem__, most))


def write_split(
    items: Sequence[T], write: Callable[[Sequence[T]], Any], alone: Callable[[T, DocumentRefused | DocumentLocked], Any]
) -> Any:
    """Writes a batch; returns the last answer. If MongoDB refuses a document, or another transaction holds it, the
    halves of the batch are written separately, until the item at fault is alone: it is given to `alone`."""
    try:
        return write(items)
    except (DocumentRefused, DocumentLocked) as error:
        if len(items) == 1:
            return alone(items[0], error)
        half = len(items) // 2
        write_split(items[:half], write, alone)
        return write_split(items[half:], write, alone)


def write_first_accepted(forms: Iterable[T], write: Callable[[T], R], refused: DocumentRefused | None = None) -> R:
    """Writes the first of these forms that MongoDB accepts. If it accepts none, raises the last refusal."""
    for form in forms:
        try:
            return write(form)
        except DocumentRefused as error:
            refused = error
    assert refused is not None
    raise refused


def write_unlocked(
    collection: MongoCollection[Any],
    write: Callable[[Collection[Any] | None, ClientSession | None], int],
    ids: Callable[[], Sequence[Any]],
) -> tuple[int, list[Any]]:
    """Changes documents without waiting for another transaction that has written some of them. Returns the number of
    changed documents, and the ids of the documents that cannot be written now.

    First it runs `write(None, None)`, which changes all documents and returns their number. If that takes long, it is
    interrupted and not counted. Then `write(chosen, session)` changes the chosen `ids` in transactions, because a
    transaction does not wait: halves of them, until each locked document is alone.
    """
    to_write: Sequence[Any] | None = None
    while True:
        try:
            with pymongo.timeout(LOCKED_FOR_SECONDS):
                return write(None, None), []
        except StoreUnreachable as error:
            if not getattr(error.__cause__, "timeout", False):
                raise
        before, to_write = to_write, ids()
        if len(to_write) <= _MAX_IN_TRANSACTIONS or (before is not None and len(to_write) >= len(before)):
            break  # otherwise there are only very many, and the next call continues
    left = list(to_write[_MAX_IN_TRANSACTIONS:])
    numbers: list[int] = []
    with collection.database.client.start_session() as session:

        @store_call
        def write_chosen(chosen: Sequence[Any]) -> None:
            numbers.append(run_transaction(session, lambda session: write(chosen, session), locked_for=0.0))

        for batch in in_batches(to_write[:_MAX_IN_TRANSACTIONS], lambda _: 0, _MAX_PER_TRANSACTION):
            write_split(batch, write_chosen, lambda id, _: left.append(id))
    return sum(numbers), left


def bulk_write_unlocked(collection: MongoCollection[Any], writes: Sequence[UpdateOne | DeleteOne]) -> list[int]:
    """Makes these changes, each of one document, except of documents that another transaction has written. Returns the
    positions of the changes that were not made."""

    @store_call
    def write(places: Collection[int] | None, session: ClientSession | None) -> int:
        chosen = writes if places is None else [writes[place] for place in places]
        collection.bulk_write(chosen, ordered=False, session=session)
        return len(chosen)

    return write_unlocked(collection, write, lambda: range(len(writes)))[1] if writes else []


def delete_unlocked(collection: MongoCollection[Any], ids: Sequence[Any]) -> int:
    """Deletes these documents, except documents that another transaction has written; returns the number."""

    @store_call
    def delete(chosen: Collection[Any] | None, session: ClientSession | None) -> int:
        query = {"_id": {"$in": list(ids if chosen is None else chosen)}}
        return collection.delete_many(query, session=session).deleted_count

    return write_unlocked(collection, delete, lambda: ids)[0] if ids else 0
