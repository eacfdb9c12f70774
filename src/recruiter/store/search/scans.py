"""Scans along an index, in its order, page by page, with a bounded number of documents per query.

A *scan* is a query that one index answers in the wanted order: equalities on its first fields (several values
are merged by MongoDB, not sorted), then the fields that order. Where a page ends is a *position*, the values of the
ordering fields of its last document; the next page continues after it, whatever was inserted or removed meanwhile.

"After this position" over several fields is not one range of an index; as one condition it would make MongoDB read
everything before it. So it becomes several ranges:

    order (priority, time, id), after (5, 12:00, x)        priority = 5, time = 12:00, id > x
                                                           priority = 5, time > 12:00
                                                           priority < 5

Conditions that no index answers (`residual`) are checked within a window: one query finds the end of the window (from
the index alone), the next reads the matching documents in it. No query reads more than the window.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cmp_to_key
from typing import Any
from uuid import UUID

from bson import ObjectId
from bson.datetime_ms import DatetimeMS
from pymongo import ASCENDING
from pymongo.collection import Collection

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

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class IndexRange:
    """A part of an order that is one range of an index: fields that are fixed, a range of the next, and the rest."""

    conditions: tuple[Document, ...]
    order: Order


@dataclass(frozen=True, slots=True)
class Scan:
    index: str
    order: Order
    alternatives: tuple[Document, ...] = ({},)
    """Equalities on the first fields of the index. Each is one query that merges up to MOST_MERGED ranges."""
    bounds: tuple[Document, ...] = ()
    """Ranges of ordering fields."""
    residual: tuple[Document, ...] = ()
    """Conditions that the index does not answer."""

    def query(self, alternative: Document, part: IndexRange, *, residual: bool = True) -> Document:
        parts = [alternative, *self.bounds, *part.conditions, *(self.residual if residual else ())]
        parts = [part for part in parts if part]
        return {"$and": parts} if parts else {}


@dataclass(frozen=True, slots=True)
class Found:
    documents: list[tuple[Position, Document]]
    """In order, each with where it stands."""
    reached: Position | None
    """The position to continue after; None at the end."""
    looked_at: int
    """Number of documents read: the window, or without one the documents found."""


@dataclass(frozen=True, slots=True)
class Walk:
    """A scan of a collection."""

    collection: Collection[Document]
    scan: Scan

    @store_call
    def page(self, after: Position | None, limit: int, window: int, fields: Mapping[str, Any] | None = None) -> Found:
        """Up to `limit` documents after this position. With a residual condition it may find none and not be at the
        end."""
        upto = self._end_of_window(after, window) if self.scan.residual else None
        documents = self._read(index_ranges(self.scan.order, after, upto), limit, fields)
        found = [(position(self.scan.order, document), document) for document in documents]
        reached = found[-1][0] if len(found) == limit else upto
        return Found(found, reached, len(found) if upto is None else window)

    @store_call
    def count(self, after: Position | None, most: int | None, window: int) -> tuple[int, Position | None]:
        """The number of documents after this position, up to `most`, and the position to continue after. Without a
        residual condition the index alone answers."""
        upto = self._end_of_window(after, window) if self.scan.residual else None
        number = 0
        for part in index_ranges(self.scan.order, after, upto):
            for alternative in self.scan.alternatives:
                if most is None or number < most:
                    number += self._count(self.scan.query(alternative, part), most and most - number)
        return number, upto

    def _read(self, parts: Iterable[IndexRange], limit: int, fields: Mapping[str, Any] | None) -> list[Document]:
        found: list[Document] = []
        for part in parts:
            wanted = limit - len(found)
            some = [self._find(alternative, part, wanted, fields) for alternative in self.scan.alternatives]
            found.extend(_merged(some, self.scan.order)[:wanted])
            if len(found) == limit:
                break
        return found

    def _find(
        self, alternative: Document, part: IndexRange, limit: int, fields: Mapping[str, Any] | None
    ) -> list[Document]:
        query = self.scan.query(alternative, part)
        # batch_size: without it the server answers with 101 and has to be asked again
        cursor = self._raw.find(query, fields, limit=limit, batch_size=limit + 1, hint=self.scan.index)
        return [decode_leniently(bytes(document.raw)) for document in cursor.sort(list(part.order))]

    @property
    def _raw(self) -> Collection[Any]:
        return self.collection.with_options(codec_options=RAW)

    def _end_of_window(self, after: Position | None, window: int) -> Position | None:
        """The position `window` documents further on, from the index alone; None if there are fewer."""
        each = max(1, window // len(self.scan.alternatives))
        fields = {"_id": 1, **dict.fromkeys((name for name, _ in self.scan.order), 1)}
        for part in index_ranges(self.scan.order, after, None):
            ends = []
            for alternative in self.scan.alternatives:
                query = self.scan.query(alternative, part, residual=False)
                cursor = self._raw.find(query, fields, skip=each - 1, limit=1, hint=self.scan.index)
                found = cursor.sort(list(part.order))
                ends.append([decode_leniently(bytes(document.raw)) for document in found])
            for nearest in _merged(ends, self.scan.order):
                return position(self.scan.order, nearest)
        return None

    def _count(self, query: Document, limit: int | None) -> int:
        """Uses the command `count`: unlike `count_documents` it can read keys only."""
        command: Document = {"count": self.collection.name, "query": query, "hint": self.scan.index}
        if limit is not None:
            command["limit"] = limit
        return int(self.collection.database.command(command, codec_options=OPTIONS)["n"])


def position(order: Order, document: Mapping[str, Any]) -> Position:
    return tuple(document.get(name) for name, _ in order)


def index_ranges(order: Order, after: Position | None, upto: Position | None) -> Iterator[IndexRange]:
    """The ranges from one position (exclusive) to another (inclusive), in order."""
    return _index_ranges(order, after, upto, ())


def _index_ranges(
    order: Order, after: Position | None, upto: Position | None, fixed: tuple[Document, ...]
) -> Iterator[IndexRange]:
    (name, direction), rest = order[0], order[1:]
    if after is not None and upto is not None and after[0] == upto[0] and rest:
        yield from _index_ranges(rest, after[1:], upto[1:], (*fixed, {name: {"$eq": after[0]}}))
        return
    if after is not None and rest:
        yield from _index_ranges(rest, after[1:], None, (*fixed, {name: {"$eq": after[0]}}))
    ranges = []
    if after is not None:
        ranges.append(_compared(name, "$gt" if direction == ASCENDING else "$lt", after[0]))
    if upto is not None:
        ranges.append(_compared(name, ("$lt" if direction == ASCENDING else "$gt") + ("" if rest else "e"), upto[0]))
    yield IndexRange((*fixed, *ranges), order)
    if upto is not None and rest:
        yield from _index_ranges(rest, None, upto[1:], (*fixed, {name: {"$eq": upto[0]}}))


def _compared(name: str, operator: str, value: Any) -> Document:
    if name == "_id":  # of several types perhaps, and only an expression compares across types
        return {"$expr": {operator: ["$_id", {"$literal": value}]}}
    return {name: {operator: value}}


def _merged(lists: Sequence[list[Document]], order: Order) -> list[Document]:
    """Sorted lists as one. Most of the time there is only one."""
    if len(lists) == 1:
        return lists[0]
    everything = [document for some in lists for document in some]
    return sorted(everything, key=lambda document: sort_key(order, position(order, document)))


def compare(order: Order, one: Position, other: Position) -> int:
    """Below zero if the one comes first, above if the other does."""
    for (_, direction), mine, theirs in zip(order, map(_rank, one), map(_rank, other), strict=True):
        if mine != theirs:
            return direction if mine > theirs else -direction
    return 0


def sort_key(order: Order, position: Position) -> Any:
    """For Python's `sorted`."""
    return _in_order((order, position))


def _compared_in_order(one: tuple[Order, Position], other: tuple[Order, Position]) -> int:
    return compare(one[0], one[1], other[1])


_in_order = cmp_to_key(_compared_in_order)


def _rank(value: Any) -> tuple[int, Any]:
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
            return 6, (value - _EPOCH) // _MILLISECOND
        case DatetimeMS():
            return 6, int(value)
        case _:
            return 7, 0
