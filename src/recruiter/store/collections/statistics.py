"""`statistics`: the number of ended jobs by minute, group and task; their latency and their execution time.

The counts are written in the transaction that moves jobs into the archive (`transactions.py`), so they are exact. Each
process writes to its own documents, so that no process waits for another. After each minute the leader adds these
documents up (`fold`): into one document for the minute, and one for the hour.

    _id: {at: minute, group, task, writer}      writer: the session of the process; none once it is folded
    _id: {hour, group, task}                    all of the hour that is folded; MongoDB puts these after the others
    _id: {total: true, group, task}             all that was ever folded, for counters that only grow
    _id: {rounds: "leader"}                     how long the rounds of leaders took, and how many jobs they assigned

The collection also has documents about waiting jobs (`queues.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from uuid import UUID

from bson import MaxKey
from bson.raw_bson import RawBSONDocument
from pymongo import ASCENDING, IndexModel, UpdateOne
from pymongo.client_session import ClientSession
from pymongo.errors import WriteError

from recruiter.domain.state import State
from recruiter.domain.statistics import (
    Again,
    Attempted,
    Counts,
    JobEnd,
    PeriodCounts,
    Spread,
    hour_of,
    minute_of,
    whole_hours,
)
from recruiter.domain.unreadable import Parsed, Unreadable
from recruiter.errors import UnreadableDocument
from recruiter.store import fields as field
from recruiter.store.codec import Document
from recruiter.store.errors import store_call
from recruiter.store.reading import ParsedCollection, delete_documents, parse_one, parsed

NAME = "statistics"

TO_FOLD = "to_fold"
INDEXES = [
    IndexModel([("_id.writer", ASCENDING)], name=TO_FOLD, partialFilterExpression={"_id.writer": {"$exists": True}})
]
VALIDATOR: Document = {"$jsonSchema": {"properties": {"_id": {"bsonType": "object", "minProperties": 1}}}}

FOLDED_AT_ONCE = 500
_LAST_BUCKET = 10_000
_EPOCH = datetime.fromtimestamp(0, UTC)
_LATE = timedelta(minutes=1)
"""Time after its end in which a minute is still likely to be written to."""

_TOTALS: Document = {"_id": {"$gte": {"total": True}, "$lt": {"total": True, "group": MaxKey()}}}
_ROUNDS: Document = {"_id": {"rounds": "leader"}}

_Key = tuple[datetime, str, str]
"""Minute, group, task."""


class Statistics(ParsedCollection):
    """The counts of ended jobs, by minute, hour and kind of job."""

    name = NAME

    def count(
        self, ends: Iterable[JobEnd], attempted: Iterable[Attempted], writer: UUID, session: ClientSession
    ) -> None:
        """Inside the transaction that archives these jobs and reschedules the jobs of these attempts: counts them."""
        if writes := counting(ends, writer, attempted):
            self.collection.bulk_write(writes, ordered=False, session=session)

    def fold(self, now: datetime, session: ClientSession) -> int:
        """Inside a transaction: adds up the counts that processes have written for past minutes, by minute, hour and in
        total, and removes their documents. Returns the number of these documents."""
        query = {"_id.writer": {"$exists": True}, "_id.at": {"$lt": minute_of(now - _LATE)}}
        # A document that cannot be read stays where it is, and does not keep the rest from being read.
        documents = self._raw.find(query, hint=TO_FOLD, session=session)
        readable = (
            (document["_id"], counted)
            for document in documents
            if not isinstance(counted := parse_one(NAME, bytes(document.raw), _counted), Unreadable)
        )
        folded = list(islice(readable, FOLDED_AT_ONCE))
        if not folded:
            return 0
        found = [counted for _, counted in folded]
        sums: dict[tuple[str, datetime, str, str], Counts] = {}
        for counted in found:
            for span, at in (("at", counted.at), ("hour", hour_of(counted.at))):
                sums.setdefault((span, at, counted.group, counted.task), Counts()).merge(counted.counts)
        writes = [
            UpdateOne({"_id": {span: at, "group": group, "task": task}}, _increment(counts), upsert=True)
            for (span, at, group, task), counts in sums.items()
        ]
        writes += _totals(found)
        self.collection.bulk_write(writes, ordered=False, session=session)
        self.collection.delete_many({"_id": {"$in": [id for id, _ in folded]}}, session=session)
        return len(found)

    @store_call
    def totals(self) -> Parsed[PeriodCounts]:
        """All counts ever, by group and task, each with its first minute: numbers that only grow. They start again at 0
        for a group and task without an ended job for as long as counts are kept."""
        return parsed(NAME, self._read_totals(), _counted)

    def _read_totals(self) -> Iterator[RawBSONDocument]:
        with self.collection.database.client.start_session(snapshot=True) as session:
            yield from self._raw.find(_TOTALS, hint="_id_", session=session)
            yield from self._raw.find({"_id.writer": {"$exists": True}}, hint=TO_FOLD, session=session)

    # -- the leader's rounds -------------------------------------------------------------------------------------

    @store_call
    def count_rounds(self, rounds: Spread, assigned: int) -> None:
        """Counts rounds of the leader: their durations, and the number of jobs that they assigned."""
        increments, longest = _spread_increments("rounds", rounds)
        update = {"$inc": {**increments, "assigned": assigned}, "$max": longest}
        try:
            self.collection.update_one(_ROUNDS, update, upsert=True)
        except WriteError:  # another program has written there: the counts start again
            self.collection.delete_one(_ROUNDS)

    @store_call
    def rounds(self) -> tuple[Spread, int]:
        """All of them since there is this database."""
        read = self._parsed_one(_rounds, _ROUNDS)
        return (Spread(), 0) if read is None or isinstance(read, Unreadable) else read

    @store_call
    def read(self, since: datetime, until: datetime, group: str | None, task: str | None) -> Parsed[PeriodCounts]:
        """The counts of these minutes, for all groups and tasks or for these; for long periods by the hour."""
        only: Document = {} if group is None else {"_id.group": group}
        only |= {} if task is None else {"_id.task": task}
        return parsed(NAME, self._read(since, until, only), _counted)

    @store_call
    def unreadable(self, limit: int) -> list[Unreadable]:
        """Up to so many; it reads all of the collection, which is a month of counts."""
        query = {f"_id.{other}": {"$exists": False} for other in ("queues", "rounds", "depth")}
        entries = (parse_one(NAME, bytes(document.raw), _counted) for document in self._raw.find(query))
        return list(islice((entry for entry in entries if isinstance(entry, Unreadable)), limit))

    def _read(self, since: datetime, until: datetime, only: Document) -> Iterator[RawBSONDocument]:
        """The documents of whole hours by the hour, with the minutes that were not folded into them yet; the others by
        the minute."""
        first, last = whole_hours(since, until)
        queries = [(_span("at", since, until), "_id_")]
        if first < last:
            unfolded = {"_id.writer": {"$exists": True}, "_id.at": {"$gte": first, "$lt": last}}
            queries = [(_span("at", since, first), "_id_"), (_span("at", last, until), "_id_")]
            queries += [(_span("hour", first, last), "_id_"), (unfolded, TO_FOLD)]
        # One snapshot: counts that are folded meanwhile would be read twice, or not at all.
        with self.collection.database.client.start_session(snapshot=True) as session:
            for query, index in queries:
                yield from self._raw.find({**query, **only}, hint=index, session=session)

    @store_call
    def remove_older(self, than: datetime, batch: int) -> int:
        """Removes up to a batch of the oldest counts; returns how many."""
        queries = [_span(span, _EPOCH, than) for span in ("at", "hour", "depth")]
        old: list[RawBSONDocument] = []
        for query in (*queries, {**_TOTALS, "last_at": {"$lt": than}}):
            if len(old) < batch:  # a limit of 0 would be none
                old += self._raw.find(query, {"_id": 1}, hint="_id_", sort=[("_id", 1)], limit=batch - len(old))
        return delete_documents(self.collection, old)


def counting(ends: Iterable[JobEnd], writer: UUID, attempted: Iterable[Attempted] = ()) -> list[UpdateOne]:
    """The writes that count these ends and attempts."""
    return [
        UpdateOne({"_id": {"at": at, "group": group, "task": task, "writer": writer}}, _increment(counts), upsert=True)
        for (at, group, task), counts in tally(ends, attempted).items()
    ]


def tally(ends: Iterable[JobEnd], attempted: Iterable[Attempted] = ()) -> dict[_Key, Counts]:
    tallied: dict[_Key, Counts] = {}
    for end in ends:
        if end.group is not None and end.task is not None:
            counts = tallied.setdefault((minute_of(end.at), end.group, end.task), Counts())
            counts.add(end.state, end.latency, end.execution_time)
    for attempt in attempted:
        again = tallied.setdefault((minute_of(attempt.at), attempt.group, attempt.task), Counts()).again
        again[attempt.again] = again.get(attempt.again, 0) + 1
    return tallied


def _totals(counted: Iterable[PeriodCounts]) -> Iterator[UpdateOne]:
    """The writes that add these counts to the totals of their group and task."""
    kinds: dict[tuple[str, str], list[PeriodCounts]] = {}
    for minute in counted:
        kinds.setdefault((minute.group, minute.task), []).append(minute)
    for (group, task), minutes in kinds.items():
        counts = Counts()
        for minute in minutes:
            counts.merge(minute.counts)
        update = _increment(counts)
        update["$max"] = {**update.get("$max", {}), "last_at": max(minute.at for minute in minutes)}
        update["$min"] = {"first_at": min(minute.at for minute in minutes)}
        yield UpdateOne({"_id": {"total": True, "group": group, "task": task}}, update, upsert=True)


def _span(name: str, since: datetime, until: datetime) -> Document:
    return {"_id": {"$gte": {name: since}, "$lt": {name: until}}}


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
    """The fields to increment, and the fields to raise to a maximum."""
    increments: Document = {f"{name}.count": spread.count, f"{name}.total": spread.total}
    increments |= {f"{name}.spread.{bucket}": count for bucket, count in spread.buckets.items()}
    return increments, {f"{name}.longest": spread.longest}


def _counted(document: Document) -> PeriodCounts:
    id = field.mapping(document, "_id")
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
