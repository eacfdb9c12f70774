"""Due jobs: the queries of the leader on `scheduled` that plan a round, by lane; and the facts of lanes for reports."""

from __future__ import annotations

from collections.abc import Collection as Ids
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from operator import attrgetter
from typing import Any

from pymongo.collection import Collection
from pymongo.cursor import Cursor

from recruiter.domain.job import JobId
from recruiter.domain.lane import Lane
from recruiter.domain.names import ASIDE, BLOCKED_LANE, CANCELLED_LANE, MARKED_LANE
from recruiter.domain.planning.pack import Candidate
from recruiter.domain.unreadable import Parsed, Unreadable
from recruiter.store import reading
from recruiter.store.codec import RAW, Document, lane_of, this_document
from recruiter.store.collections.scheduled import (
    BY_OWNER,
    DUE,
    HAS_LANE,
    MAX_LANE_BYTES,
    NAME,
    POSTPONED,
    TEXT,
    TURN,
    id_of_document,
)
from recruiter.store.errors import store_call
from recruiter.store.fields import LAST_MOMENT, moment, text
from recruiter.store.job_fields import priority_of, waits_after
from recruiter.store.reading import ParsedCollection, parse_one, parsed

MAX_LANES_PER_QUERY = 100
"""MongoDB merges up to 200 sorted scans; beyond that it would sort in memory."""
_SPARE_JOBS_PER_QUERY = 16
"""Extra jobs in each portion: most portions are not quite even."""
_LANES_PER_BATCH = 10_000
_MAX_PRIORITIES_PER_LANE = 20
_MAX_JOBS_COMPARED_FOR_AGE = 10
_MAX_UNITED_QUERIES = 50
"""Queries that are united in one aggregation."""
_JOBS_PER_SEEK = 200
"""One index seek takes about as long as reading this number of entries."""
_PLANNED = {"_id": 1, "priority": 1, "scheduled_at": 1, "lane": 1}
_OF_LANE = dict.fromkeys(("lane", "group", "task", "key", "worker_deaths", "proc", "mem", "resources"), 1)
_SHORT_LANE: Document = {
    "$cond": [
        {"$eq": [{"$type": "$_id"}, "string"]},
        {"$cond": [{"$lte": [{"$strLenBytes": "$_id"}, MAX_LANE_BYTES]}, "$_id", None]},
        None,
    ]
}
_LONG_LANE = f"lane is no text of up to {MAX_LANE_BYTES:,} bytes"


class DueJobs(ParsedCollection):
    """The due jobs of each lane, in their order."""

    name = NAME

    def __init__(self, collection: Collection[Document], markers: str) -> None:
        """`collection` is `scheduled`; `markers` is the name of the collection with the markers of flows."""
        super().__init__(collection)
        marked: list[Document] = [{"$limit": 1}, {"$project": {"_id": {"$literal": MARKED_LANE}}}]
        self._marked: Document = {"$unionWith": {"coll": markers, "pipeline": marked}}

    @store_call
    def lanes(self) -> Parsed[str]:
        """The lanes that have jobs, due or not. One index seek for each lane."""
        return lanes_in(self.collection, HAS_LANE["lane"])

    @store_call
    def lanes_to_plan(self) -> Parsed[str]:
        """The same for the leader, which also learns whether there are markers of flows (`MARKED_LANE`): one query for
        every round."""
        return lanes_in(self.collection, HAS_LANE["lane"], self._marked)

    @store_call
    def in_lanes(self, unreadable: Iterable[Unreadable], limit: int) -> list[Unreadable]:
        """Jobs in lanes that cannot be read, each with its `_id` only."""
        lanes = [this_document(lane.raw, "lane") for lane in unreadable]
        size = {"$cond": [{"$eq": [{"$type": "$lane"}, "string"]}, {"$strLenBytes": "$lane"}, MAX_LANE_BYTES + 1]}
        query = {**HAS_LANE, "$or": [{"$expr": {"$gt": [size, MAX_LANE_BYTES]}}, *lanes]}
        found = self._raw.find(query, {"_id": 1}, hint=DUE, limit=limit)
        return [reading.unreadable(NAME, bytes(document.raw), _LONG_LANE) for document in found]

    @store_call
    def due(self, lanes: Sequence[str], now: datetime, limit: int, held: Ids[JobId]) -> Parsed[JobId]:
        """The next due jobs of these lanes that are not held, by priority, then time."""
        if len(lanes) <= MAX_LANES_PER_QUERY:
            return parsed(NAME, self._find_due({"_id": 1}, lanes, now, limit, held), id_of_document)
        found = self.candidates(lanes, now, limit, held)
        return Parsed((candidate.id for candidate in found), found.unreadable)

    @store_call
    def candidates(self, lanes: Sequence[str], now: datetime, limit: int, held: Ids[JobId]) -> Parsed[Candidate]:
        """Like `due`, with the facts that a planner needs.

        MongoDB merges a limited number of lanes. So more lanes are asked in parts, each part for its portion of the
        jobs and a little more. If the answer of a part is full and ends before the last wanted job, the part may have
        jobs in between: it is asked again, for a larger portion. Then held jobs are left out here, not in the query:
        MongoDB would copy their ids for each lane.
        """
        if len(lanes) <= MAX_LANES_PER_QUERY:
            return parsed(NAME, self._find_due(_PLANNED, lanes, now, limit, held), _candidate)
        parts = [lanes[start : start + MAX_LANES_PER_QUERY] for start in range(0, len(lanes), MAX_LANES_PER_QUERY)]
        enough = limit + len(held)
        portion = min(enough, enough // len(parts) * 5 // 4 + _SPARE_JOBS_PER_QUERY)
        answers = [parsed(NAME, self._find_due(_PLANNED, part, now, portion), _candidate) for part in parts]
        while True:
            free = [candidate for answer in answers for candidate in answer if candidate.id not in held]
            found = sorted(free, key=attrgetter("rank"))[:limit]
            last = found[-1].rank if len(found) == limit else None
            parts_to_ask_again = [
                number
                for number, answer in enumerate(answers)
                if len(answer) + len(answer.unreadable) == portion
                and (last is None or not answer or answer[-1].rank < last)
            ]
            if not parts_to_ask_again or portion == enough:
                return Parsed(found, (wrong for answer in answers for wrong in answer.unreadable))
            portion = min(enough, 4 * portion)
            for number in parts_to_ask_again:
                answers[number] = parsed(NAME, self._find_due(_PLANNED, parts[number], now, portion), _candidate)

    def _find_due(
        self, fields: Document, lanes: Sequence[str], now: datetime, limit: int, held: Ids[JobId] = ()
    ) -> Cursor[Any]:
        query: Document = {"lane": {"$in": list(lanes)}, "scheduled_at": {"$lte": now}}
        if held:
            query["_id"] = {"$nin": list(held)}
        # batch_size: without it the server answers with 101 and makes the leader ask again.
        return self._raw.find(query, fields, limit=limit, batch_size=limit + 1, sort=list(TURN), hint=DUE)

    @store_call
    def candidates_of_each(self, lanes: Mapping[str, int], now: datetime, held: Ids[JobId]) -> Parsed[Candidate]:
        """The given number of jobs of each lane, so that the backlog of one lane does not hide the others."""
        queries = [({"lane": lane, **_due_by(now, held)}, count) for lane, count in lanes.items()]
        return parsed(NAME, self._first_of_each(queries, DUE), _candidate)

    @store_call
    def oldest_due(self, lanes: Iterable[str], now: datetime, held: Ids[JobId]) -> dict[str, datetime]:
        """Since when the oldest due job of each lane waits that no worker holds; lanes without one are left out.
        Metrics and the doctor show with it how late jobs are.

        In the due index, the first job of each priority waits longest. So each turn of the loop seeks the next lower
        priority of each lane, up to 20. Only a step of a flow may wait less long than its place tells: it has the place
        of its flow, but waits since its release. Therefore each seek reads several jobs, and the longest wait counts.
        If most lanes are short (one for each customer), one walk through the index is quicker.
        """
        lowest_read: dict[str, int | float | None] = dict.fromkeys(lanes)
        if self.collection.estimated_document_count() < _JOBS_PER_SEEK * len(lowest_read):
            return {lane: since for lane, since in self._oldest_of_all(now, held) if lane in lowest_read}
        oldest: dict[str, datetime] = {}
        for _ in range(_MAX_PRIORITIES_PER_LANE):
            queries: list[tuple[Document, int]] = []
            for lane, priority in lowest_read.items():
                lower = {} if priority is None else {"priority": {"$lt": priority}}
                queries.append(({"lane": lane, **lower, **_due_by(now, held)}, _MAX_JOBS_COMPARED_FOR_AGE))
            lowest_read = {}  # a lane without further jobs drops out
            first_jobs = self._first_of_each(queries, DUE, {"flow.due": 1})
            for candidate, since in parsed(NAME, first_jobs, lambda job: (_candidate(job), waits_after(job))):
                lane = str(candidate.lane)
                oldest[lane] = min(since, oldest.get(lane, since))
                lowest_read[lane] = candidate.priority
            if not lowest_read:
                break
        return oldest

    def _oldest_of_all(self, now: datetime, held: Ids[JobId]) -> Parsed[tuple[str, datetime]]:
        match = {**HAS_LANE, "scheduled_at": {"$lte": now}, "_id": {"$nin": list(held)}}
        group = {"_id": "$lane", "since": {"$min": {"$max": ["$scheduled_at", "$flow.due"]}}}
        found = self._raw.aggregate([{"$match": match}, {"$group": group}, {"$set": {"_id": _SHORT_LANE}}], hint=DUE)
        return parsed(NAME, found, lambda row: (text(row, "_id", longest=MAX_LANE_BYTES), moment(row, "since")))

    def _first_of_each(
        self, queries: Sequence[tuple[Document, int]], index: str, more_fields: Document | None = None
    ) -> list[Any]:
        """The first jobs, in the order of their turns, that each query finds, up to its number."""
        fields = {**_PLANNED, **(more_fields or {})}
        pipelines: list[list[Document]] = [
            [{"$match": query}, {"$sort": dict(TURN)}, {"$limit": count}, {"$project": fields}]
            for query, count in queries
        ]
        found: list[Any] = []
        for start in range(0, len(pipelines), _MAX_UNITED_QUERIES):
            first, *others = pipelines[start : start + _MAX_UNITED_QUERIES]
            united = [{"$unionWith": {"coll": self.collection.name, "pipeline": pipeline}} for pipeline in others]
            found.extend(self._raw.aggregate([*first, *united], hint=index))
        return found

    @store_call
    def owners(self) -> list[str]:
        """The owners that have jobs, due or not. One index seek for each owner."""
        match: list[Document] = [{"$match": {"username": TEXT}}, {"$group": {"_id": "$username"}}]
        return list(parsed(NAME, self._raw.aggregate(match, hint=BY_OWNER), lambda row: text(row, "_id")))

    @store_call
    def candidates_of_owners(
        self, owners: Sequence[str], lanes: Sequence[str], now: datetime, count: int, held: Ids[JobId]
    ) -> Parsed[Candidate]:
        """The next due jobs in these lanes of each owner, so that the backlog of one does not hide the others."""
        due = {"lane": {"$in": list(lanes)}, **_due_by(now, held)}
        queries = [({"username": owner, **due}, count) for owner in owners]
        return parsed(NAME, self._first_of_each(queries, BY_OWNER), _candidate)

    @store_call
    def owners_of(self, ids: Ids[JobId]) -> dict[JobId, tuple[str, str]]:
        """The lane and the owner of each of these jobs; the owner may be empty."""

        def facts(document: Document) -> tuple[JobId, tuple[str, str]]:
            return id_of_document(document), (_own_lane(document), text(document, "username", None) or "")

        return dict(self._parsed(facts, {"_id": {"$in": list(ids)}, **HAS_LANE}, {**_OF_LANE, "username": 1}))

    @store_call
    def lanes_of(self, ids: Ids[JobId]) -> dict[JobId, str]:
        """The lanes of these jobs, where they have one."""
        query = {"_id": {"$in": list(ids)}, **HAS_LANE}
        return dict(self._parsed(lambda document: (document["_id"], _own_lane(document)), query, _OF_LANE))

    @store_call
    def outside_lanes(self, ids: Ids[JobId]) -> set[JobId]:
        """The jobs among these that no backlog counts: steps of paused flows, and cancelled jobs."""
        query = {"_id": {"$in": list(ids)}, "lane": {"$in": list(ASIDE)}}
        return {document["_id"] for document in self.collection.find(query, {"_id": 1})}

    @store_call
    def kinds_aside(self) -> set[tuple[str, str]]:
        """The groups and tasks of blocked and cancelled jobs. Their lanes do not contain them."""
        kind = {"group": "$group", "task": "$task"}
        found = self.collection.aggregate(
            [{"$match": {"lane": {"$in": list(ASIDE)}}}, {"$group": {"_id": kind}}], hint=DUE
        )
        return {(row["_id"].get("group", ""), row["_id"].get("task", "")) for row in found}

    @store_call
    def waiting_by_lane(self, at: datetime, within: float = 0.0) -> Parsed[tuple[str, int, int]]:
        """Each lane that has jobs, their number, and the number that are not due by then. Walks the index. Raises
        StoreUnreachable if it takes longer than `within` seconds; 0 is no limit."""
        later = {"$sum": {"$cond": [{"$gt": ["$scheduled_at", at]}, 1, 0]}}
        counts = {"_id": "$lane", "jobs": {"$sum": 1}, "later": later}
        rows = self._raw.aggregate(
            [{"$match": HAS_LANE}, {"$group": counts}, {"$set": {"_id": _SHORT_LANE}}],
            hint=DUE,
            maxTimeMS=int(within * 1000),
        )
        return parsed(NAME, rows, lambda row: (text(row, "_id", longest=MAX_LANE_BYTES), row["jobs"], row["later"]))

    @store_call
    def next_due(self, now: datetime) -> datetime | None:
        """When the next postponed job becomes due."""
        found = self.collection.find_one(
            {"scheduled_at": {"$gt": now, "$lte": LAST_MOMENT}, "postponed": True},
            {"_id": 0, "scheduled_at": 1},
            sort=[("scheduled_at", 1)],
            hint=POSTPONED,
        )
        return found["scheduled_at"] if found else None


def _due_by(now: datetime, held: Ids[JobId]) -> Document:
    return {"scheduled_at": {"$lte": now}, "_id": {"$nin": list(held)}}


def lanes_in(collection: Collection[Document], lane: Document, *also: Document) -> Parsed[str]:
    """The lanes in this range, with one index seek for each. (The answer of `distinct` must fit into one document.)"""
    pipeline: list[Document] = [
        {"$match": {"lane": lane}},
        {"$group": {"_id": "$lane"}},
        {"$project": {"_id": _SHORT_LANE}},
        *also,
    ]
    raw: Collection[Any] = collection.with_options(codec_options=RAW)
    found = [_lane(bytes(row.raw)) for row in raw.aggregate(pipeline, hint=DUE, batchSize=_LANES_PER_BATCH)]
    lanes = (lane for lane in found if isinstance(lane, str))
    return Parsed(lanes, (lane for lane in found if isinstance(lane, Unreadable)))


@lru_cache(maxsize=_LANES_PER_BATCH)
def _lane(raw: bytes) -> str | Unreadable:
    return parse_one(NAME, raw, lambda row: text(row, "_id", longest=MAX_LANE_BYTES))


def _own_lane(document: Document) -> str:
    """The lane by its fields for a running job that is being cancelled, or is a step of a paused flow."""
    lane = text(document, "lane", longest=MAX_LANE_BYTES)
    return lane_of(document) if lane in (BLOCKED_LANE, CANCELLED_LANE) else lane


def _candidate(document: Document) -> Candidate:
    lane = Lane.parse(text(document, "lane", longest=MAX_LANE_BYTES))
    return Candidate(id_of_document(document), lane, priority_of(document), moment(document, "scheduled_at"))
