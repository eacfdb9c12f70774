"""Searches waiting jobs, in the order in which they will start: chooses the index and the residual conditions.

No index has that order for all jobs. The due index has it for each lane, lanes are few, and MongoDB merges them. With
thousands of lanes (keys), or with residual conditions on hundreds of lanes, the scan goes lane by lane.
"""

from __future__ import annotations

from collections.abc import Collection as Ids
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from enum import StrEnum

from pymongo import ASCENDING
from pymongo.collection import Collection

from recruiter.domain.duration import resolved
from recruiter.domain.job import JobId
from recruiter.domain.lane import Lane
from recruiter.domain.names import ASIDE, BLOCKED_LANE, CANCELLED_LANE
from recruiter.domain.search.filter import JobFilter
from recruiter.store.codec import Document
from recruiter.store.collections.due_jobs import lanes_in
from recruiter.store.collections.scheduled import BY_OWNER, BY_TAG, BY_URN, DUE, TURN
from recruiter.store.errors import store_call
from recruiter.store.search import matching
from recruiter.store.search.scans import BY_ID, MOST_MERGED, Position, Scan, Walk

MOST_LANES = 20 * MOST_MERGED
"""Maximum number of lanes that are merged: twenty queries for a page."""

_LANE_BY_LANE = (("lane", ASCENDING), *TURN)
_IN_A_LANE: Document = {"lane": {"$gt": "", "$nin": list(ASIDE)}}


class WaitingState(StrEnum):
    """The states of jobs that no worker holds."""

    QUEUED = "queued"
    """Their time has come."""
    POSTPONED = "postponed"
    CANCELLING = "cancelling"
    """The leader will archive them."""
    BLOCKED = "blocked"
    """They wait for other steps of their flow."""


_LANES_ASIDE = {WaitingState.CANCELLING: CANCELLED_LANE, WaitingState.BLOCKED: BLOCKED_LANE}


class WaitingJobs:
    def __init__(self, scheduled: Collection[Document]) -> None:
        self._scheduled = scheduled

    @store_call
    def walk(
        self,
        state: WaitingState,
        filter: JobFilter,
        now: datetime,
        held: Ids[JobId],
        after: Position | None = None,
        also: Sequence[Document] = (),
    ) -> Walk | None:
        """The jobs in this state that fulfil the filter and `also`, except jobs that a worker holds; None if there are
        none.

        A walk that continues at `after` keeps the order in which it began.
        """
        scan = self._scan(state, filter, now, after)
        if scan is None:
            return None
        bounds = [*scan.bounds, *matching.due_between(filter, now)]
        if filter.delayed is not None:
            bounds.append({"scheduled_at": {"$lte": resolved(filter.delayed, now)}})
        if state not in _LANES_ASIDE:
            bounds.append({"scheduled_at": {"$lte" if state is WaitingState.QUEUED else "$gt": now}})
        if held:
            bounds.append({"_id": {"$nin": list(held)}})
        return Walk(self._scheduled, replace(scan, bounds=tuple(bounds), residual=(*scan.residual, *also)))

    def _scan(self, state: WaitingState, filter: JobFilter, now: datetime, after: Position | None) -> Scan | None:
        conditions = matching.of_waiting(filter, now)
        if state in _LANES_ASIDE:
            return Scan(DUE, TURN, ({"lane": _LANES_ASIDE[state]},), residual=matching.residual(conditions))
        if filter.ids:  # few: MongoDB sorts them
            left = (*matching.residual(conditions, "ids"), _IN_A_LANE)
            return Scan(BY_ID, TURN, (conditions["ids"],), residual=left)
        for word, index, values in (("urn", BY_URN, filter.urn), ("owner", BY_OWNER, filter.owner)):
            if values:
                field = next(iter(conditions[word]))
                equal = {field: {"$in": list(values), "$gt": ""}}
                return Scan(index, TURN, (equal,), residual=(*matching.residual(conditions, word), _IN_A_LANE))
        if filter.tag:
            left = matching.residual(conditions, *(["tag"] if len(filter.tag) == 1 else []))
            return Scan(BY_TAG, TURN, ({"tags": filter.tag[0]},), residual=(*left, _IN_A_LANE))
        begun = None if after is None else len(after) == len(_LANE_BY_LANE)
        return self._in_lanes(filter, conditions, lane_by_lane=begun)

    def _in_lanes(
        self, filter: JobFilter, conditions: matching.Conditions, *, lane_by_lane: bool | None
    ) -> Scan | None:
        """Merged, unless there are very many; or as it has begun."""
        lanes = self.lanes(filter)
        if not lanes:
            return None
        left = matching.residual(conditions, "group", "task", "limited_by")
        if lane_by_lane is None:
            lane_by_lane = len(lanes) > (MOST_MERGED if left else MOST_LANES)
        if lane_by_lane:
            ranges = tuple({"lane": {**_of_group(group), "$nin": list(ASIDE)}} for group in filter.group or (None,))
            return Scan(DUE, _LANE_BY_LANE, ranges, residual=matching.residual(conditions, "group"))
        alternatives = tuple({"lane": {"$in": some}} for some in _chunks(lanes))
        return Scan(DUE, TURN, alternatives, residual=left)

    def lanes(self, filter: JobFilter) -> list[str]:
        """The lanes in which jobs that are meant may wait. One index seek for each lane of its groups."""
        return [
            lane
            for group in filter.group or (None,)
            for lane in self._lanes_of(group)
            if lane not in ASIDE and _is_meant(filter, Lane.parse(lane))
        ]

    def _lanes_of(self, group: str | None) -> Iterator[str]:
        yield from lanes_in(self._scheduled, _of_group(group))


def _of_group(group: str | None) -> Document:
    """The range in which its lanes are: '0' is the character after '/'."""
    return {"$gt": ""} if group is None else {"$gt": f"{group}/", "$lt": f"{group}0"}


def _is_meant(filter: JobFilter, lane: Lane) -> bool:
    return (not filter.task or lane.task in filter.task) and (not filter.limited_by or lane.key in filter.limited_by)


def _chunks(lanes: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(lanes), MOST_MERGED):
        yield lanes[start : start + MOST_MERGED]
