"""Turns documents into values: each document becomes a value, or an `Unreadable` with the reason.

Each collection has one parser, a function from a decoded document to a value. It takes fields only with the functions
of fields.py, which name the field in what they raise. `parsed` runs the parser on each document by itself: what is
wrong with one, also that the driver cannot decode it, never keeps the others from being read. The caller gets both and
decides: set aside, retire, show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import bson
from bson import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo.collection import Collection

from recruiter.domain.text import cut, shown
from recruiter.domain.unreadable import Parsed, Unreadable
from recruiter.errors import RecruiterError, UnreadableDocument
from recruiter.store.codec import OPTIONS, Document, decode_leniently, this_document

T = TypeVar("T")

_LONGEST_REASON = 300


def parsed(
    collection: str,
    found: Iterable[RawBSONDocument],
    parse: Callable[[Document], T],
    options: CodecOptions[Document] = OPTIONS,
) -> Parsed[T]:
    """Each document by itself."""
    values: list[T] = []
    unreadable: list[Unreadable] = []
    for document in found:
        value = parse_one(collection, bytes(document.raw), parse, options)
        if isinstance(value, Unreadable):
            unreadable.append(value)
        else:
            values.append(value)
    return Parsed(values, unreadable)


def parse_one(
    collection: str, raw: bytes, parse: Callable[[Document], T], options: CodecOptions[Document] = OPTIONS
) -> T | Unreadable:
    try:
        return parse(bson.decode(raw, options))
    except Exception as error:  # whatever is wrong with it: this is the place where that is found out
        return unreadable(collection, raw, error)


def unreadable(collection: str, raw: bytes, error: Exception | str) -> Unreadable:
    reason = str(error) if isinstance(error, str | RecruiterError) else f"{type(error).__name__}: {error}"
    reason = " ".join(cut(reason, _LONGEST_REASON).split())
    return Unreadable(collection, shown(decode_leniently(raw).get("_id")), reason, raw)


def delete_these(collection: Collection[Document], found: Iterable[RawBSONDocument]) -> int:
    """Deletes documents by their `_id`s, whatever these are; returns how many there were."""
    ids: list[Any] = []
    deleted = 0
    for document in found:
        id = parse_one(collection.name, bytes(document.raw), lambda fields: fields["_id"])
        if isinstance(id, Unreadable):
            deleted += collection.delete_one(this_document(id.raw)).deleted_count
        else:
            ids.append(id)
    return deleted + (collection.delete_many({"_id": {"$in": ids}}).deleted_count if ids else 0)


def readable(value: T | Unreadable) -> T:
    """The value. Raises UnreadableDocument."""
    if isinstance(value, Unreadable):
        raise UnreadableDocument(str(value))
    return value
