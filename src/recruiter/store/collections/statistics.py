"""`statistics`: how many jobs have ended, by minute, group and task; how long they waited, and how long they took.

The counts are written in the transaction that moves jobs into the archive (`transactions.py`), from the very documents
that are moved, so they are exact. Each process writes to documents of its own, so that no two ever wait for each other;
the leader adds them up when a minute is over (`fold`): into one of the minute, and one of the hour.

    _id: {at: minute, group, task, writer}      writer: the session of the process; none once it is folded
    _id: {at: minute, page, writer}             the same for many groups and tasks at once, in `counts`
    _id: {hour, group, task}                    all of the hour that is folded; MongoDB puts these after the others
    _id: {total: true, group, task}             all that was ever folded, for counters that only grow
    _id: {rounds: "leader"}                     how long the rounds of leaders took, and how many jobs they assigned

A transaction that ends jobs of many groups would have to change a document for nearly each of them. Instead it writes
one *page*: all that its process has counted in this minute so far. Only that process writes it, so it knows what is in
it, and writes the sum of that and of what has ended now. The page has a version, which proves that the process is right
about that. If it is not, because a transaction was aborted, or nobody knows what became of it, or the page has been
folded, then the process leaves this page alone from now on and begins another. So no version is ever written twice.

Beside them are documents of what waits and waited (`queues.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice
from typing import Any
from uuid import UUID

from bson import MaxKey, ObjectId
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument
from pymongo import ASCENDING, IndexModel, UpdateOne
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.errors import WriteError

from recruiter.domain.state import State
from recruiter.domain.statistics import (
    Again,
    Attempted,
    Counts,
    PeriodCounts,
    Spread,
    hour_of,
    minute_of,
    whole_hours,
)
from recruiter.domain.unreadable import Parsed, Unreadable
from recruiter.errors import UnreadableDocument
from recruiter.store import fields as field
from recruiter.store.codec import RAW, Document, decode, encode
from recruiter.store.errors import store_call
from recruiter.store.fields import is_text
from recruiter.store.reading import delete_these, parse_one, parsed

NAME = "statistics"

TO_FOLD = "to_fold"
INDEXES = [
    IndexModel([("_id.writer", ASCENDING)], name=TO_FOLD, partialFilterExpression={"_id.writer": {"$exists": True}})
]
VALIDATOR: Document = {"$jsonSchema": {"properties": {"_id": {"bsonType": "object", "minProperties": 1}}}}

FOLDED_AT_ONCE = 500
MANY_KINDS = 32
"""Groups and tasks, of one minute, that a transaction counts one by one."""
_ROOMY, _LARGEST_PAGE = 4, 10_000
_EPOCH = datetime.fromtimestamp(0, UTC)
_LATE = timedelta(minutes=1)
"""How long after its end a minute is still likely to be written to."""

_TOTALS: Document = {"_id": {"$gte": {"total": True}, "$lt": {"total": True, "group": MaxKey()}}}
_ROUNDS: Document = {"_id": {"rounds": "leader"}}

_Key = tuple[int, str, str]
"""Minute since 1970, group, task."""
_Kind = tuple[str, str]
"""Group, task."""
_Kinds = dict[_Kind, Counts]

_TAIL = b"\x02task\x00"
_FIGURES = struct.Struct("<13sq9sd16sd")
_NAMES = (b"\x09archived_at\x00", b"\x01latency\x00", b"\x01execution_time\x00")


class Statistics:
    def __init__(self, collection: Collection[Document]) -> None:
        self.collection = collection
        self._raw: Collection[Any] = collection.with_options(codec_options=RAW)
        self._page: _Page | None = None
        """The last one that was written, by a transaction that may have been aborted since."""

    def count(
        self,
        documents: Iterable[bytes | Document],
        attempted: Iterable[Attempted],
        writer: UUID,
        session: ClientSession,
    ) -> None:
        """Inside the transaction that archives these documents and reschedules the jobs of these attempts: counts
        them."""
        minutes: dict[int, _Kinds] = {}
        for (minute, group, task), counts in tally(documents, attempted).items():
            minutes.setdefault(minute, {})[group, task] = counts
        few: list[UpdateOne] = []
        for minute, kinds in minutes.items():
            if len(kinds) > MANY_KINDS:
                self._write_page(minute, kinds, writer, session)
            else:
                few += [_counting((minute, *kind), counts, writer) for kind, counts in kinds.items()]
        if few:
            self.collection.bulk_write(few, ordered=False, session=session)

    def _write_page(self, minute: int, kinds: _Kinds, writer: UUID, session: ClientSession) -> None:
        page, self._page = self._page, None
        if page is not None and page.takes(minute, kinds, writer):
            query = {"_id": page.id, "version": page.version}
            page.add(kinds)
            if self.collection.update_one(query, {"$set": page.content}, session=session).matched_count:
                self._page = page
                return
        page = _Page(minute, writer)
        page.add(kinds)
        self.collection.insert_one({"_id": page.id, **page.content}, session=session)
        self._page = page

    def fold(self, now: datetime, session: ClientSession) -> int:
        """Inside a transaction: adds up what processes have counted in minutes that are over; returns how many of
        their counts are gone."""
        query = {"_id.writer": {"$exists": True}, "_id.at": {"$lt": minute_of(now - _LATE)}}
        # A document that cannot be read stays where it is, and does not keep the rest from being read.
        all_ = (
            parse_one(NAME, bytes(document.raw), _with_id)
            for document in self._raw.find(query, hint=TO_FOLD, session=session)
        )
        ids: list[Document] = []
        found: list[PeriodCounts] = []
        for id, some in (each for each in all_ if not isinstance(each, Unreadable)):
            ids.append(id)
            found += some
            if len(found) >= FOLDED_AT_ONCE:
                break
        if not ids:
            return 0
        sums: dict[tuple[str, datetime, str, str], Counts] = {}
        for each in found:
            for span, at in (("at", each.at), ("hour", hour_of(each.at))):
                sums.setdefault((span, at, each.group, each.task), Counts()).merge(each.counts)
        writes = [
            UpdateOne({"_id": {span: at, "group": group, "task": task}}, _increment(counts), upsert=True)
            for (span, at, group, task), counts in sums.items()
        ]
        writes += [_of_all_time(each) for each in _by_kind(found)]
        self.collection.bulk_write(writes, ordered=False, session=session)
        self.collection.delete_many({"_id": {"$in": ids}}, session=session)
        return len(found)

    @store_call
    def totals(self) -> Parsed[PeriodCounts]:
        """All that was ever counted, by group and task, each with its first minute: numbers that only grow. A kind of
        which nothing has ended for as long as counts are kept begins anew."""
        return _flat(parsed(NAME, self._read_totals(), _all_counted))

    def _read_totals(self) -> Iterator[RawBSONDocument]:
        with self.collection.database.client.start_session(snapshot=True) as session:
            yield from self._raw.find(_TOTALS, hint="_id_", session=session)
            yield from self._raw.find({"_id.writer": {"$exists": True}}, hint=TO_FOLD, session=session)

    # -- the leader's rounds -------------------------------------------------------------------------------------

    @store_call
    def count_rounds(self, rounds: Spread, assigned: int) -> None:
        """Counts rounds of the leader: how long each took, and how many jobs were assigned in all of them."""
        increments, longest = _spread_increments("rounds", rounds)
        update = {"$inc": {**increments, "assigned": assigned}, "$max": longest}
        try:
            self.collection.update_one(_ROUNDS, update, upsert=True)
        except WriteError:  # somebody has written there: the counts begin anew
            self.collection.delete_one(_ROUNDS)

    @store_call
    def rounds(self) -> tuple[Spread, int]:
        """All of them since there is this database."""
        found = self._raw.find_one(_ROUNDS)
        read = None if found is None else parse_one(NAME, bytes(found.raw), _rounds)
        return (Spread(), 0) if read is None or isinstance(read, Unreadable) else read

    @store_call
    def read(self, since: datetime, until: datetime, group: str | None, task: str | None) -> Parsed[PeriodCounts]:
        """What was counted in these minutes, of all groups and tasks or of this; if it is long ago, by the hour."""
        only: Document = {} if group is None else {"_id.group": group}
        only |= {} if task is None else {"_id.task": task}
        if only:
            only = {"$or": [only, {"_id.page": {"$exists": True}}]}
        found = _flat(parsed(NAME, self._read(since, until, only), _all_counted))
        wanted = (each for each in found if group in (None, each.group) and task in (None, each.task))
        return Parsed(wanted, found.unreadable)

    @store_call
    def unreadable(self, limit: int) -> list[Unreadable]:
        """Up to so many; it reads all of the collection, which is a month of counts."""
        query = {f"_id.{other}": {"$exists": False} for other in ("queues", "rounds", "depth")}
        all_ = (parse_one(NAME, bytes(document.raw), _all_counted) for document in self._raw.find(query))
        return list(islice((each for each in all_ if isinstance(each, Unreadable)), limit))

    def _read(self, since: datetime, until: datetime, only: Document) -> Iterator[RawBSONDocument]:
        first, last = whole_hours(since, until)
        queries = [(_span("at", since, until), "_id_")]
        if first < last:
            unfolded = {"_id.writer": {"$exists": True}, "_id.at": {"$gte": first, "$lt": last}}
            queries = [(_span("at", since, first), "_id_"), (_span("at", last, until), "_id_")]
            queries += [(_span("hour", first, last), "_id_"), (unfolded, TO_FOLD)]
        # All of one moment: what is folded meanwhile would be told twice, or not at all.
        with self.collection.database.client.start_session(snapshot=True) as session:
            for query, index in queries:
                yield from self._raw.find({**query, **only}, hint=index, session=session)

    @store_call
    def remove_older(self, than: datetime, batch: int) -> int:
        """Removes up to a batch of the oldest counts; returns how many."""
        old: list[RawBSONDocument] = []
        for span in ("at", "hour", "depth"):
            found = self._raw.find(_span(span, _EPOCH, than), {"_id": 1}, hint="_id_").sort("_id", 1)
            old += found.limit(batch - len(old)) if len(old) < batch else []
        if len(old) < batch:
            idle = {**_TOTALS, "last_at": {"$lt": than}}
            old += self._raw.find(idle, {"_id": 1}, hint="_id_").limit(batch - len(old))
        return delete_these(self.collection, old)


def counting(
    documents: Iterable[bytes | Document], writer: UUID, attempted: Iterable[Attempted] = ()
) -> list[UpdateOne]:
    """The writes that count these documents and attempts."""
    return [_counting(key, counts, writer) for key, counts in tally(documents, attempted).items()]


def _counting(key: _Key, counts: Counts, writer: UUID) -> UpdateOne:
    return UpdateOne({"_id": _id(key, writer)}, _increment(counts), upsert=True)


class _Page:
    """What this process has counted in a minute, in one document."""

    def __init__(self, minute: int, writer: UUID) -> None:
        self._minute, self._writer = minute, writer
        self.id: Document = {"at": _moment(minute), "page": ObjectId(), "writer": writer}
        self.version = 0
        self._counts: _Kinds = {}
        self._encoded: dict[_Kind, bytes] = {}
        """The same, as they are stored: most of a page does not change from one version to the next."""

    def takes(self, minute: int, kinds: _Kinds, writer: UUID) -> bool:
        """Whether these go here. A page must not be much larger than what is added: all of it is written again."""
        together = len(self._counts.keys() | kinds.keys())
        return (minute, writer) == (self._minute, self._writer) and together <= min(_ROOMY * len(kinds), _LARGEST_PAGE)

    def add(self, kinds: _Kinds) -> None:
        self.version += 1
        for kind, counts in kinds.items():
            if kind in self._counts:
                self._counts[kind].merge(counts)
            else:
                self._counts[kind] = counts
            self._encoded[kind] = encode(_row(*kind, self._counts[kind]))

    @property
    def content(self) -> Document:
        rows = [b"\x03%d\x00%b" % numbered for numbered in enumerate(self._encoded.values())]
        size = 5 + sum(map(len, rows))
        counts = RawBSONDocument(b"".join((struct.pack("<i", size), *rows, b"\x00")), RAW)
        return {"version": self.version, "counts": counts}


def _row(group: str, task: str, counts: Counts) -> Document:
    row: Document = {"group": group, "task": task, "ended": counts.ended, "again": counts.again}
    for name, spread in (("latency", counts.latency), ("execution_time", counts.execution_time)):
        if spread.count:
            buckets = {str(bucket): count for bucket, count in spread.buckets.items()}
            row[name] = {
                "count": spread.count,
                "total": spread.total,
                "longest": spread.longest,
                "spread": buckets,
            }
    return row


def tally(documents: Iterable[bytes | Document], attempted: Iterable[Attempted] = ()) -> dict[_Key, Counts]:
    """The counts of these archived documents and attempts. What was set aside because it is no job is not counted."""
    tallied: dict[_Key, Counts] = {}
    for document in documents:
        read = _read_tail(document) if isinstance(document, bytes) else _read(document)
        if read is not None:
            key, state, latency, execution_time = read
            counts = tallied.get(key)
            if counts is None:
                counts = tallied[key] = Counts()
            counts.add(state, latency, execution_time)
    for each in attempted:
        again = tallied.setdefault((_minute(each.at), each.group, each.task), Counts()).again
        again[each.again] = again.get(each.again, 0) + 1
    return tallied


def _read_tail(raw: bytes) -> tuple[_Key, str, float | None, float | None] | None:
    """What is counted of a job, from the last fields of its document, which `archived_document` puts there in this
    order. A worker reads this for each job it settles; decoding the whole of it would take ten times as long."""
    start = raw.rfind(_TAIL)
    if start < _FIGURES.size:
        return _decoded(raw)
    at, milliseconds, waited, latency, took, execution_time = _FIGURES.unpack_from(raw, start - _FIGURES.size)
    if (at, waited, took) != _NAMES:
        return _decoded(raw)
    names = _names(raw[start:])
    if names is None:
        return _decoded(raw)
    task, group, state = names
    return (milliseconds // 60_000, group, task), state, latency, execution_time


@lru_cache(maxsize=10_000)
def _names(tail: bytes) -> tuple[str, str, str] | None:
    """Task, group and state: the rest of the document, nearly always the same."""
    try:
        document = decode(struct.pack("<i", len(tail) + 4) + tail)
    except BSONError:
        return None
    if list(document) != ["task", "group", "done", "why"]:
        return None
    if not is_text(document["task"]) or not is_text(document["group"]):
        return None  # no job that can be counted
    return document["task"], document["group"], State.at_the_end(document["done"], document["why"]).value


def _decoded(raw: bytes) -> tuple[_Key, str, float | None, float | None] | None:
    try:
        return _read(decode(raw))
    except BSONError:
        return None


def _read(document: Mapping[str, Any]) -> tuple[_Key, str, float | None, float | None] | None:
    group, task, at = (document.get(name) for name in ("group", "task", "archived_at"))
    if not is_text(group) or not is_text(task) or not isinstance(at, datetime):
        return None
    state = State.at_the_end(document["done"], document["why"]).value
    key = (_minute(at), group, task)
    return key, state, _seconds(document.get("latency")), _seconds(document.get("execution_time"))


def _minute(at: datetime) -> int:
    return int(at.timestamp()) // 60


def _by_kind(counted: Iterable[PeriodCounts]) -> list[PeriodCounts]:
    """One for each group and task, of the first minute of them."""
    kinds: dict[tuple[str, str], list[PeriodCounts]] = {}
    for each in counted:
        kinds.setdefault((each.group, each.task), []).append(each)
    sums: list[PeriodCounts] = []
    for (group, task), several in kinds.items():
        counts = Counts()
        for each in several:
            counts.merge(each.counts)
        first, last = min(each.at for each in several), max(each.at for each in several)
        sums.append(PeriodCounts(first, group, task, counts, last))
    return sums


def _of_all_time(each: PeriodCounts) -> UpdateOne:
    update = _increment(each.counts)
    update["$max"] = {**update.get("$max", {}), "last_at": each.last_at}
    id = {"total": True, "group": each.group, "task": each.task}
    return UpdateOne({"_id": id}, {**update, "$min": {"first_at": each.at}}, upsert=True)


def _seconds(value: object) -> float | None:
    return value if isinstance(value, float) else None


def _span(name: str, since: datetime, until: datetime) -> Document:
    return {"_id": {"$gte": {name: since}, "$lt": {name: until}}}


def _id(key: _Key, writer: UUID) -> Document:
    minute, group, task = key
    return {"at": _moment(minute), "group": group, "task": task, "writer": writer}


def _moment(minute: int) -> datetime:
    return datetime.fromtimestamp(minute * 60, UTC)


def _increment(counts: Counts) -> Document:
    increments: Document = {f"ended.{state}": count for state, count in counts.ended.items()}
    increments |= {f"again.{word}": count for word, count in counts.again.items()}
    longest: Document = {}
    for name, spread in (("latency", counts.latency), ("execution_time", counts.execution_time)):
        if spread.count:
            more, most = _spread_increments(name, spread)
            increments |= more
            longest |= most
    return {"$inc": increments, "$max": longest} if longest else {"$inc": increments}


def _spread_increments(name: str, spread: Spread) -> tuple[Document, Document]:
    """What to add, and what to raise to."""
    increments: Document = {f"{name}.count": spread.count, f"{name}.total": spread.total}
    increments |= {f"{name}.spread.{bucket}": count for bucket, count in spread.buckets.items()}
    return increments, {f"{name}.longest": spread.longest}


def _with_id(document: Document) -> tuple[Document, list[PeriodCounts]]:
    return document["_id"], _all_counted(document)


def _flat(found: Parsed[list[PeriodCounts]]) -> Parsed[PeriodCounts]:
    return Parsed((each for several in found for each in several), found.unreadable)


def _all_counted(document: Document) -> list[PeriodCounts]:
    """The parser."""
    id = field.mapping(document, "_id")
    if "page" not in id:
        return [_counted(document, id)]
    counts, at = field.mapping(document, "counts"), field.moment(id, "at")
    rows = (field.mapping(counts, number) for number in counts)
    return [_counted(row, {**row, "at": at}) for row in rows]


def _counted(document: Document, id: Document) -> PeriodCounts:
    at = field.moment(document, "first_at", None) or field.moment(id, "at", None) or field.moment(id, "hour")
    ended = field.mapping(document, "ended", {})
    for state in ended:
        field.whole(ended, State(state))
    again = field.mapping(document, "again", {})
    for word in again:
        field.whole(again, Again(word))
    counts = Counts(dict(ended), _spread(document, "latency"), _spread(document, "execution_time"), dict(again))
    return PeriodCounts(at, field.text(id, "group"), field.text(id, "task"), counts)


def _rounds(document: Document) -> tuple[Spread, int]:
    """The parser of the leader's rounds."""
    return _spread(document, "rounds"), field.whole(document, "assigned", 0)


def _spread(document: Document, name: str) -> Spread:
    stored = field.mapping(document, name, None)
    if stored is None:
        return Spread()
    buckets = field.mapping(stored, "spread")
    counts = {int(bucket): field.whole(buckets, bucket) for bucket in buckets}
    total, longest = field.number(stored, "total"), field.number(stored, "longest")
    if any(abs(bucket) > _LAST_BUCKET for bucket in counts):
        raise UnreadableDocument(f"{name}.spread has an unknown bucket")
    return Spread(field.whole(stored, "count"), total, longest, counts)


_LAST_BUCKET = 10_000
