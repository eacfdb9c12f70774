"""Searches jobs that a worker holds: the longest running first, then the jobs that are about to start.

The roster names them, and since when each runs. They are fetched by their ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pymongo import ASCENDING
from pymongo.collection import Collection

from recruiter.domain.job import JobId
from recruiter.domain.search.filter import JobFilter
from recruiter.store.codec import RAW, Document, decode_leniently
from recruiter.store.errors import store_call
from recruiter.store.fields import is_job_id
from recruiter.store.roster_fields import Hold
from recruiter.store.search import matching
from recruiter.store.search.scans import Found, Order, Position, compare, sort_key

_AT_ONCE = 500
_LONGEST_FIRST: Order = (("about to start", ASCENDING), ("since", ASCENDING), ("_id", ASCENDING))


@dataclass(frozen=True, slots=True)
class RunningJobs:
    scheduled: Collection[Document]
    holds: Mapping[JobId, Hold]
    filter: JobFilter
    now: datetime
    also: Sequence[Document] = ()
    """What else their documents must fulfil."""

    @store_call
    def page(self, after: Position | None, limit: int, fields: Mapping[str, Any] | None) -> Found:
        """Up to so many after this position, and where to go on."""
        places = self._places(after)
        found: list[tuple[Position, Document]] = []
        looked = 0
        while looked < len(places) and len(found) < limit:
            some = places[looked : looked + _AT_ONCE]
            looked += len(some)
            documents = self._fetch([place[-1] for place in some], fields)
            found += [(place, documents[place[-1]]) for place in some if self._is_meant(documents.get(place[-1]))]
        if len(found) >= limit:
            return Found(found[:limit], found[limit - 1][0], looked)
        return Found(found, None, looked)

    def _places(self, after: Position | None) -> list[Position]:
        wanted: list[Position] = [
            (int(hold.since is None), hold.since, id) for id, hold in self.holds.items() if self._may_be_meant(hold)
        ]
        wanted.sort(key=lambda place: sort_key(_LONGEST_FIRST, place))
        return [place for place in wanted if after is None or compare(_LONGEST_FIRST, place, after) > 0]

    def _may_be_meant(self, hold: Hold) -> bool:
        if self.filter.worker and hold.worker not in self.filter.worker:
            return False
        slow = self.filter.slow
        return slow is None or (hold.since is not None and self.now - hold.since >= slow)

    def _is_meant(self, document: Document | None) -> bool:
        """Whether it is there, and as late as is asked for."""
        if document is None or self.filter.delayed is None:
            return document is not None
        began, scheduled_at = self.holds[document["_id"]].since or self.now, document.get("scheduled_at")
        return isinstance(scheduled_at, datetime) and began - scheduled_at >= self.filter.delayed

    def _fetch(self, ids: list[JobId], fields: Mapping[str, Any] | None) -> dict[JobId, Document]:
        conditions = matching.residual(matching.of_waiting(self.filter, self.now), "worker", "slow")
        due = matching.due_between(self.filter, self.now)
        query = {"$and": [{"_id": {"$in": ids}}, {"lane": {"$gt": ""}}, *conditions, *due, *self.also]}
        raw: Collection[Any] = self.scheduled.with_options(codec_options=RAW)
        found = (decode_leniently(bytes(document.raw))[0] for document in raw.find(query, fields))
        return {document["_id"]: document for document in found if is_job_id(document["_id"])}
