"""Batches of documents for one transaction or one write: bounded in number and in bytes. If MongoDB refuses a batch,
its halves are written, until the document at fault is alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from bson.raw_bson import RawBSONDocument
from pymongo.collection import Collection

from recruiter.domain.job import JobId
from recruiter.errors import DocumentLocked, DocumentRefused
from recruiter.store.errors import store_call

T = TypeVar("T")

MAX_BATCH_BYTES = 8 * 1024 * 1024
"""One transaction of this size takes MongoDB a few tenths of a second, in which other processes get their turn."""


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
def ids_in_batches(collection: Collection[Any], ids: Sequence[JobId], most: int) -> list[list[JobId]]:
    """The ids of stored documents, in batches by the size of these documents; ids of no document are left out."""
    found = collection.find({"_id": {"$in": list(ids)}}, {"size": {"$bsonSize": "$$ROOT"}})
    sizes: Mapping[JobId, int] = {document["_id"]: document["size"] for document in found}
    return list(in_batches((id for id in ids if id in sizes), sizes.__getitem__, most))


def write_split(
    items: Sequence[T],
    write: Callable[[Sequence[T]], Any],
    alone: Callable[[T, DocumentRefused | DocumentLocked], Any],
) -> Any:
    """Writes a batch, or raises what `write` does. If MongoDB refuses a document, or another transaction holds it, the
    halves are written; the item at fault is given to `alone`. Returns the last answer."""
    try:
        return write(items)
    except (DocumentRefused, DocumentLocked) as error:
        if len(items) == 1:
            return alone(items[0], error)
        half = len(items) // 2
        write_split(items[:half], write, alone)
        return write_split(items[half:], write, alone)
