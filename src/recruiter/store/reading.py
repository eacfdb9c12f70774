"""Turns documents into values. A document that cannot be parsed becomes an `Unreadable` with the reason.

Each collection has one parser, a function from a decoded document to a value. It reads fields with the functions of
fields.py, which name the field in their errors. Each document is decoded and parsed separately, so an invalid document
never hides the others. The caller gets both kinds and decides: set aside, retire, show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, TypeVar

import bson
from bson import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo.collection import Collection

from recruiter.domain.job import JobId
from recruiter.domain.text import MAX_REASON_CHARACTERS, cut, shown
from recruiter.domain.unreadable import Parsed, Unreadable
from recruiter.errors import RecruiterError, UnreadableDocument
from recruiter.store.batches import delete_unlocked
from recruiter.store.codec import OPTIONS, RAW, Document, decode_leniently, this_document
from recruiter.store.errors import store_call

T = TypeVar("T")


class ParsedCollection:
    """A collection of ours. Its documents are read as bytes and parsed one by one."""

    name: ClassVar[str]
    """Without the prefix of the database."""

    def __init__(self, collection: Collection[Document]) -> None:
        self.collection = collection
        self._raw: Collection[Any] = collection.with_options(codec_options=RAW)

    def _parsed(self, parse: Callable[[Document], T], *query: Any, **options: Any) -> Parsed[T]:
        """The documents that `find` returns for this query."""
        return parsed(self.name, self._raw.find(*query, **options), parse)

    def _parsed_one(self, parse: Callable[[Document], T], *query: Any, **options: Any) -> T | Unreadable | None:
        """The document that `find_one` returns for this query."""
        found = self._raw.find_one(*query, **options)
        return None if found is None else parse_one(self.name, bytes(found.raw), parse)

    def _readable(self, *query: Any, **options: Any) -> Iterator[Document]:
        """The documents that `find` returns for this query, each as far as it can be read."""
        return (decode_leniently(bytes(document.raw)) for document in self._raw.find(*query, **options))


class JobCollection(ParsedCollection):
    """The waiting or the ended jobs."""

    @store_call
    def document(self, id: JobId) -> Document | None:
        """The stored document, even if it cannot be read as a job."""
        return next(self._readable({"_id": id}), None)

    @store_call
    def exists(self, id: JobId) -> bool:
        return self.collection.find_one({"_id": id}, {"_id": 1}) is not None

    @store_call
    def which_exist(self, ids: Iterable[JobId]) -> set[JobId]:
        return {document["_id"] for document in self.collection.find({"_id": {"$in": list(ids)}}, {"_id": 1})}


def parsed(
    collection: str,
    found: Iterable[RawBSONDocument],
    parse: Callable[[Document], T],
    options: CodecOptions[Document] = OPTIONS,
) -> Parsed[T]:
    """Parses documents one by one. A document that cannot be read becomes an `Unreadable`, and does not stop the
    others."""
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
    except Exception as error:  # any error is an error of this document
        return unreadable(collection, raw, error)


def unreadable(collection: str, raw: bytes, error: Exception | str) -> Unreadable:
    reason = str(error) if isinstance(error, str | RecruiterError) else f"{type(error).__name__}: {error}"
    reason = " ".join(cut(reason, MAX_REASON_CHARACTERS).split())
    return Unreadable(collection, shown(decode_leniently(raw).get("_id")), reason, raw)


def delete_documents(collection: Collection[Document], found: Iterable[RawBSONDocument]) -> int:
    """Deletes documents by their `_id`s, of any type; returns the number of deleted documents."""
    ids: list[Any] = []
    deleted = 0
    for document in found:
        id = parse_one(collection.name, bytes(document.raw), lambda fields: fields["_id"])
        if isinstance(id, Unreadable):
            deleted += collection.delete_one(this_document(id.raw)).deleted_count
        else:
            ids.append(id)
    return deleted + delete_unlocked(collection, ids)


def readable(value: T | Unreadable) -> T:
    """Raises UnreadableDocument."""
    if isinstance(value, Unreadable):
        raise UnreadableDocument(str(value))
    return value
