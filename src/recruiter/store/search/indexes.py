"""Chooses the index for a search, and the conditions that it does not answer (`residual`).

Waiting jobs are listed in the order in which they will start. No index has that order for all jobs. The due index has
it for each lane, there are few lanes, and MongoDB merges them. With thousands of lanes (keys), or with residual
conditions on hundreds of lanes, the scan goes lane by lane.

Ended jobs are listed newest first. One index over (why, group, task, time) serves states, reasons, groups, tasks
and their combinations: the existing values are found in a few seeks, and MongoDB merges their ranges. Optional fields,
such as an owner or an error, have partial indexes.
"""

from __future__ import annotations

from collections.abc import Collection as Ids
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from pymongo import ASCENDING, DESCENDING
from pymongo.collection import Collection

from recruiter.domain.duration import resolved
from recruiter.domain.job import JobId
from recruiter.domain.lane import Lane
from recruiter.domain.names import ASIDE, BLOCKED_LANE, CANCELLED_LANE
from recruiter.domain.search.filter import JobFilter
from recruiter.domain.state import Why
from recruiter.store.codec import Document
from recruiter.store.collections import archived, scheduled
from recruiter.store.collections.due_jobs import lanes_in
from recruiter.store.collections.scheduled import TURN
from recruiter.store.errors import store_call
from recruiter.store.fields import is_text
from recruiter.store.search import matching
from recruiter.store.search.scans import BY_ID, MOST_MERGED, Position, Scan

MOST_LANES = 20 * MOST_MERGED
"""Maximum number of lanes that are merged: twenty queries for a page."""
MOST_QUERIES = 20
"""Maximum number of queries for a page; above it, the index by age is scanned."""

_LANE_BY_LANE = (("lane", ASCENDING), *TURN)
_IN_A_LANE: Document = {"lane": {"$gt": "", "$nin": list(ASIDE)}}
_NEWEST_FIRST = (("archived_at", DESCENDING), ("_id", DESCENDING))
_CLASS = "last_execution.class"


class WaitingState(StrEnum):
    """The states of jobs that no worker holds."""

    QUEUED = "queued"
    """They are due."""
    POSTPONED = "postponed"
    CANCELLING = "cancelling"
    """The leader will archive them."""
    BLOCKED = "blocked"
    """They wait for other steps of their flow."""


_LANES_ASIDE = {WaitingState.CANCELLING: CANCELLED_LANE, WaitingState.BLOCKED: BLOCKED_LANE}


class WaitingJobs:
    """Finds the index along which jobs that no worker holds are searched."""

    def __init__(self, scheduled: Collection[Document]) -> None:
        self._scheduled = scheduled

    @store_call
    def scan(
        self,
        state: WaitingState,
        filter: JobFilter,
        now: datetime,
        held: Ids[JobId],
        after: Position | None = None,
        also: Sequence[Document] = (),
    ) -> Scan | None:
        """The jobs in this state that fulfil the filter and `also`, except jobs that a worker holds; None if there are
        none. A scan that continues at `after` keeps its order."""
        scan = self._along_an_index(state, filter, now, after)
        if scan is None:
            return None
        bounds = matching.due_between(filter, now)
        if filter.delayed is not None:
            bounds.append({"scheduled_at": {"$lte": resolved(filter.delayed, now)}})
        if state not in _LANES_ASIDE:
            bounds.append({"scheduled_at": {"$lte" if state is WaitingState.QUEUED else "$gt": now}})
        if held:
            bounds.append({"_id": {"$nin": list(held)}})
        return replace(scan, bounds=tuple(bounds), residual=(*scan.residual, *also))

    def _along_an_index(
        self, state: WaitingState, filter: JobFilter, now: datetime, after: Position | None
    ) -> Scan | None:
        """The scan without the bounds of a page: the index, the equalities on it, and the remaining conditions. Of the
        indexes that apply, the first is taken: it usually leaves the fewest jobs."""
        conditions = matching.of_waiting(filter, now)

        # Only the due index knows the lane: along another index, jobs in lanes aside must be left out.
        def scan(index: str, equal: Document, *answered: str, also: tuple[Document, ...] = (_IN_A_LANE,)) -> Scan:
            residual = (*matching.residual(conditions, *answered), *also)
            return Scan(self._scheduled, index, TURN, (equal,), residual=residual)

        if state in _LANES_ASIDE:
            return scan(scheduled.DUE, {"lane": _LANES_ASIDE[state]}, also=())
        if filter.ids:  # few: MongoDB sorts them
            return scan(BY_ID, conditions["ids"], "ids")
        # `$gt ""`: MongoDB uses a partial index only for a query that implies its condition.
        if filter.urn:
            return scan(scheduled.BY_URN, {"urn": {"$in": list(filter.urn), "$gt": ""}}, "urn")
        if filter.owner:
            return scan(scheduled.BY_OWNER, {"username": {"$in": list(filter.owner), "$gt": ""}}, "owner")
        if filter.tag:
            return scan(scheduled.BY_TAG, {"tags": filter.tag[0]}, *(["tag"] if len(filter.tag) == 1 else []))
        was_lane_by_lane = None if after is None else len(after) == len(_LANE_BY_LANE)  # a value for each field
        return self._in_lanes(filter, conditions, was_lane_by_lane)

    def _in_lanes(self, filter: JobFilter, conditions: matching.Conditions, lane_by_lane: bool | None) -> Scan | None:
        """The scan of all lanes that may have such jobs, in the order of their turns if MongoDB can merge that many
        lanes, else lane by lane. A listing that continues has decided that before (`lane_by_lane`)."""
        lanes = [
            lane
            for group in filter.group or (None,)
            for lane in lanes_in(self._scheduled, _of_group(group))
            if lane not in ASIDE and _has_wanted_jobs(Lane.parse(lane), filter)
        ]
        if not lanes:
            return None
        residual = matching.residual(conditions, "group", "task", "limited_by")
        if lane_by_lane is None:
            lane_by_lane = len(lanes) > (MOST_MERGED if residual else MOST_LANES)
        if lane_by_lane:
            ranges = tuple({"lane": {**_of_group(group), "$nin": list(ASIDE)}} for group in filter.group or (None,))
            residual = matching.residual(conditions, "group")
            return Scan(self._scheduled, scheduled.DUE, _LANE_BY_LANE, ranges, residual=residual)
        return Scan(self._scheduled, scheduled.DUE, TURN, _in_chunks("lane", lanes), residual=residual)


def _of_group(group: str | None) -> Document:
    """The range of the lanes of a group: '0' is the character after '/'."""
    return {"$gt": ""} if group is None else {"$gt": f"{group}/", "$lt": f"{group}0"}


def _has_wanted_jobs(lane: Lane, filter: JobFilter) -> bool:
    return (not filter.task or lane.task in filter.task) and (not filter.limited_by or lane.key in filter.limited_by)


class EndedJobs:
    """Finds the index along which ended jobs are searched."""

    def __init__(self, archived: Collection[Document]) -> None:
        self._archived = archived

    @store_call
    def scan(self, filter: JobFilter, now: datetime) -> Scan | None:
        """The ended jobs that the filter selects; None if there are none."""
        conditions = matching.of_ended(filter, now)
        if filter.state or filter.why:
            known = self._values("why", {})
            whys = [why for why in known if filter.wants_why(why)]
            if not whys:
                return None
            if len(whys) < len(known):
                conditions["why"] = {"why": {"$in": whys}}
        index, alternatives, answered = self._choose_index(filter, conditions)
        if not alternatives:
            return None
        bounds, residual = tuple(matching.ended_between(filter, now)), matching.residual(conditions, *answered)
        return Scan(self._archived, index, _NEWEST_FIRST, alternatives, bounds, residual)

    @store_call
    def names(self) -> tuple[set[str], set[str]]:
        """The groups and the tasks of ended jobs, one index seek each."""
        whys = {"why": {"$in": self._values("why", {})}}
        groups = self._values("group", whys)
        return set(groups), set(self._values("task", {**whys, "group": {"$in": groups}}))

    def _choose_index(
        self, filter: JobFilter, conditions: matching.Conditions
    ) -> tuple[str, tuple[Document, ...], tuple[str, ...]]:
        """An index, the equalities on its first fields, and the conditions that it answers. The first index that
        applies is taken: it usually leaves the fewest jobs."""
        if filter.ids:  # few: MongoDB sorts them
            return BY_ID, (conditions["ids"],), ("ids",)
        optional = (
            ("urn", "urn", archived.BY_URN),
            ("limited_by", "key", archived.BY_KEY),
            ("owner", "username", archived.BY_OWNER),
        )
        for word, field, index in optional:
            if word in conditions:
                # `$gt` repeats the condition of the partial index: without it MongoDB would not use it.
                return index, ({field: {"$in": list(getattr(filter, word)), "$gt": ""}},), (word,)
        if filter.error:
            return archived.BY_ERROR, _in_chunks(_CLASS, self._errors(filter), {"$gt": ""}), ("error",)
        if filter.tag:
            return archived.BY_TAG, ({"tags": filter.tag[0]},), ("tag",) if len(filter.tag) == 1 else ()
        if filter.attempts is not None and filter.attempts > 1:  # the index has jobs with more than one attempt
            found = self._archived.distinct("attempts", {"attempts": {"$gte": filter.attempts, "$gt": 1}})
            numbers = [number for number in found if isinstance(number, int | float)]
            return archived.BY_ATTEMPTS, _in_chunks("attempts", numbers, {"$gt": 1}), ("attempts",)
        if filter.group or filter.task or "why" in conditions:
            alternatives = self._by_why(filter, conditions)
            if alternatives is not None and len(alternatives) <= MOST_QUERIES:
                return archived.BY_WHY, alternatives, ("why", "group", "task")
        return archived.BY_AGE, ({},), ()

    def _by_why(self, filter: JobFilter, conditions: matching.Conditions) -> tuple[Document, ...] | None:
        """The queries along the index by reason, group and task; None if there are no reasons, or too many."""
        whys: list[str] = conditions["why"]["why"]["$in"] if "why" in conditions else self._values("why", {})
        if not 0 < len(whys) <= MOST_MERGED:
            return None  # a policy of the application may invent reasons
        of_whys: Document = {"why": {"$in": whys}}
        groups = filter.group or self._values("group", of_whys)
        tasks: dict[str, Sequence[str]] = {
            group: filter.task or self._values("task", {**of_whys, "group": group}) for group in groups
        }
        malformed: tuple[Document, ...] = ()
        if Why.MALFORMED in whys and not filter.group and not filter.task:
            malformed = ({"why": Why.MALFORMED, "group": None, "task": None},)
        return (*_products(whys, {group: of_group for group, of_group in tasks.items() if of_group}), *malformed)

    def _values(self, field: str, query: Document) -> list[str]:
        """The different strings in this field, one index seek each."""
        strings = {"$and": [query, {field: {"$gte": ""}}]} if query else {field: {"$gte": ""}}
        return [value for value in self._archived.distinct(field, strings) if is_text(value)]

    @store_call
    def errors(self) -> list[str]:
        """The full names of the exceptions that ended jobs failed with; one index seek each."""
        pipeline: list[Document] = [{"$match": {_CLASS: {"$gt": ""}}}, {"$group": {"_id": f"${_CLASS}"}}]
        known = self._archived.aggregate(pipeline, hint=archived.BY_ERROR)
        return [row["_id"] for row in known if is_text(row["_id"])]

    def _errors(self, filter: JobFilter) -> list[str]:
        """The full names of the wanted exception classes."""
        return [name for name in self.errors() if name in filter.error or name.rpartition(".")[2] in filter.error]


def _products(whys: Sequence[str], tasks: Mapping[str, Sequence[str]]) -> Iterator[Document]:
    """Few queries for these reasons and the tasks of these groups. No query merges more ranges than MongoDB can."""
    most = MOST_MERGED // len(whys)

    def query(groups: Sequence[str], tasks: Sequence[str]) -> Document:
        return {"why": {"$in": list(whys)}, "group": {"$in": list(groups)}, "task": {"$in": list(tasks)}}

    groups: list[str] = []
    united: set[str] = set()
    for group, of_group in sorted(tasks.items()):
        if groups and (len(groups) + 1) * len(united.union(of_group)) > most:
            yield query(groups, sorted(united))
            groups, united = [], set()
        if len(of_group) > most:
            yield from (query([group], of_group[at : at + most]) for at in range(0, len(of_group), most))
        else:
            groups.append(group)
            united.update(of_group)
    if groups:
        yield query(groups, sorted(united))


def _in_chunks(field: str, values: Sequence[Any], also: Mapping[str, Any] | None = None) -> tuple[Document, ...]:
    starts = range(0, len(values), MOST_MERGED)
    return tuple({field: {"$in": list(values[start : start + MOST_MERGED]), **(also or {})}} for start in starts)
