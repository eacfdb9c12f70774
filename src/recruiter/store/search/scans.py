"""Scans along an index, in its order, page by page, with a bounded number of documents per query.

A *scan* is a query that one index answers in the wanted order: equalities on its first fields (MongoDB merges several
values without sorting), then the ordering fields. A page ends at a *position*, the values of the ordering fields of its
last document. The next page continues after it, no matter which documents were inserted or removed since.

"After this position" over several fields is not one range of an index; as one condition it would make MongoDB read
everything before it. So it becomes several ranges:

    order (priority, time, id), after (5, 12:00, x)        priority = 5, time = 12:00, id > x
                                                           priority = 5, time > 12:00
                                                           priority < 5

Conditions that no index answers (`residual`) are checked within a window: one query finds the end of the window (from
the index alone), the next reads the matching documents in it. No query reads more than the window.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from bson import ObjectId
from bson.datetime_ms import DatetimeMS
from pymongo import ASCENDING, DESCENDING
from pymongo.collection import Collection

from recruiter.domain.duration import MILLISECOND
from recruiter.store.codec import OPTIONS, RAW, Document, decode_leniently
from recruiter.store.errors import store_call

BY_ID = "_id_"
"""The index that every collection has."""
MOST_MERGED = 200
"""Maximum number of sorted ranges that a query merges; with more, MongoDB would sort in memory."""

Order = tuple[tuple[str, int], ...]
"""Fields, each with its direction."""
Position = tuple[Any, ...]
"""The values of the ordering fields of one document."""
IndexRange = tuple[tuple[Document, ...], Order]
"""A part of an order that is one range of an index: its conditions, and the fields that still order it."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Found:
    """The answer to one page of a scan."""

    documents: list[tuple[Position, Document]]
    """In order, each with its position."""
    reached: Position | None
    """The position to continue after; None at the end."""
    looked_at: int
    """Number of documents read: the window, or without one the documents found."""


@dataclass(frozen=True, slots=True)
class Scan:
    """A search along one index, in its order."""

    collection: Collection[Document]
    index: str
    order: Order
    alternatives: tuple[Document, ...]
    """Equalities on the first fields of the index. Each is one query that merges up to MOST_MERGED ranges."""
    bounds: tuple[Document, ...] = ()
    """Ranges of ordering fields."""
    residual: tuple[Document, ...] = ()
    """Conditions that the index does not answer."""

    @store_call
    def page(self, after: Position | None, limit: int, window: int, fields: Mapping[str, Any] | None = None) -> Found:
        """Up to `limit` documents after this position. With a residual condition, only the next `window` documents are
        read: there may be none among them, and more behind them."""
        upto = self._end_of_window(after, window) if self.residual else None
        documents: list[Document] = []
        for part in index_ranges(self.order, after, upto):
            wanted = limit - len(documents)
            queries = (self._query(alternative, part) for alternative in self.alternatives)
            # batch_size: without it the server returns 101 documents and needs a second request
            options = {"limit": wanted, "batch_size": wanted + 1}
            documents += self._merged([self._find(query, part, fields, **options) for query in queries])[:wanted]
            if len(documents) == limit:
                break
        found = [(position(self.order, document), document) for document in documents]
        reached = found[-1][0] if len(found) == limit else upto
        return Found(found, reached, len(found) if upto is None else window)

    @store_call
    def count(self, after: Position | None, most: int | None, window: int) -> tuple[int, Position | None]:
        """The number of documents after this position, up to `most`, and the position to continue after. With a
        residual condition, only the next `window` documents are read; without one, the index alone answers."""
        upto = self._end_of_window(after, window) if self.residual else None
        number = 0
        for part in index_ranges(self.order, after, upto):
            for alternative in self.alternatives:
                if most is None or number < most:
                    # The command `count`, unlike `count_documents`, can read keys only.
                    query = self._query(alternative, part)
                    command: Document = {"count": self.collection.name, "query": query, "hint": self.index}
                    if most:
                        command["limit"] = most - number
                    number += int(self.collection.database.command(command, codec_options=OPTIONS)["n"])
        return number, upto

    def _end_of_window(self, after: Position | None, window: int) -> Position | None:
        """The position `window` documents further on, from the index alone; None if there are fewer."""
        share = max(1, window // len(self.alternatives))
        fields = {"_id": 1, **dict.fromkeys((name for name, _ in self.order), 1)}
        for part in index_ranges(self.order, after, None):
            queries = (self._query(alternative, part, residual=False) for alternative in self.alternatives)
            ends = [self._find(query, part, fields, skip=share - 1, limit=1) for query in queries]
            for nearest in self._merged(ends):
                return position(self.order, nearest)
        return None

    def _query(self, alternative: Document, part: IndexRange, *, residual: bool = True) -> Document:
        conditions = [alternative, *self.bounds, *part[0], *(self.residual if residual else ())]
        conditions = [condition for condition in conditions if condition]
        return {"$and": conditions} if conditions else {}

    def _find(
        self, query: Document, part: IndexRange, fields: Mapping[str, Any] | None, **options: int
    ) -> list[Document]:
        raw: Collection[Any] = self.collection.with_options(codec_options=RAW)
        cursor = raw.find(query, fields, hint=self.index, sort=list(part[1]), **options)
        return [decode_leniently(bytes(document.raw)) for document in cursor]

    def _merged(self, lists: list[list[Document]]) -> list[Document]:
        """Sorted lists as one."""
        documents = [document for documents in lists for document in documents]
        if len(lists) > 1:
            for name, direction in reversed(self.order):
                documents.sort(key=lambda document: rank(document.get(name)), reverse=direction == DESCENDING)
        return documents


def position(order: Order, document: Mapping[str, Any]) -> Position:
    return tuple(document.get(name) for name, _ in order)


def index_ranges(
    order: Order, after: Position | None, upto: Position | None, fixed: tuple[Document, ...] = ()
) -> Iterator[IndexRange]:
    """The ranges from one position (exclusive) to another (inclusive), in order. The fields before them are `fixed`."""
    (name, direction), rest = order[0], order[1:]
    if after is not None and upto is not None and after[0] == upto[0] and rest:
        yield from index_ranges(rest, after[1:], upto[1:], (*fixed, {name: {"$eq": after[0]}}))
        return
    if after is not None and rest:
        yield from index_ranges(rest, after[1:], None, (*fixed, {name: {"$eq": after[0]}}))
    ranges = []
    if after is not None:
        ranges.append(_compared(name, "$gt" if direction == ASCENDING else "$lt", after[0]))
    if upto is not None:
        ranges.append(_compared(name, ("$lt" if direction == ASCENDING else "$gt") + ("" if rest else "e"), upto[0]))
    yield (*fixed, *ranges), order
    if upto is not None and rest:
        yield from index_ranges(rest, None, upto[1:], (*fixed, {name: {"$eq": upto[0]}}))


def _compared(name: str, operator: str, value: Any) -> Document:
    if name == "_id":  # of several types perhaps, and only an expression compares across types
        return {"$expr": {operator: ["$_id", {"$literal": value}]}}
    return {name: {operator: value}}


def rank(value: Any) -> tuple[int, Any]:
    """MongoDB's order of values; unknown types come last."""
    match value:
        case None:
            return 0, 0
        case bool():
            return 5, value
        case int() | float():
            return (1, value) if value == value else (1, float("-inf"))
        case str():
            return 2, value.encode("utf-8", "replace")
        case UUID():
            return 3, value.bytes
        case ObjectId():
            return 4, value.binary
        case datetime():
            return 6, (value - _EPOCH) // MILLISECOND
        case DatetimeMS():
            return 6, int(value)
        case _:
            return 7, 0
