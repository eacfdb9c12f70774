"""The number of waiting jobs by group and task: counted in one scan of the due index, about 2 µs per job.

When very many jobs wait, the cleaner counts them regularly and stores the counts for all readers (`steps/clean.py`), so
that open screens do not keep the database busy.

    statistics:  _id: {queues: "waiting"}, at, next_at, until, kinds: [{group, task, due, postponed}]
                 _id: {depth: hour}, due, running, slots,
                      minutes: {"05": {due, running, slots, groups: [{group, jobs}]}}

The second kind is a sample of every minute, for charts, with the maxima of the hour.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pymongo.collection import Collection
from pymongo.errors import WriteError

from recruiter.domain.lane import Lane
from recruiter.domain.names import ASIDE
from recruiter.domain.statistics import Backlog, Depth, Kind, hour_of
from recruiter.domain.unreadable import Unreadable
from recruiter.store import fields as field
from recruiter.store.codec import Document
from recruiter.store.collections.due_jobs import DueJobs
from recruiter.store.collections.statistics import NAME
from recruiter.store.errors import store_call
from recruiter.store.reading import ParsedCollection

DEPTH = "depth"
GROUPS_SAMPLED = 50
_MINUTES = 60
_KEPT = {"_id": {"queues": "waiting"}}


@dataclass(frozen=True, slots=True)
class Backlogs:
    """The numbers of waiting jobs."""

    of: dict[Kind, Backlog]
    counted_at: datetime | None = None
    """None if they were counted just now."""
    next_at: datetime | None = None


class Queues(ParsedCollection):
    """The numbers of waiting jobs, counted and kept for reports."""

    name = NAME

    def __init__(self, due_jobs: DueJobs, statistics: Collection[Document]) -> None:
        super().__init__(statistics)
        self._due_jobs = due_jobs

    @store_call
    def about(self) -> int:
        """The approximate number of documents, from the metadata of the collection."""
        return self._due_jobs.collection.estimated_document_count()

    def waiting(self, at: datetime, group: str | None = None, task: str | None = None) -> Backlogs:
        """The waiting jobs: a recent stored count, or a count made now."""
        return self.kept(at, group, task) or self.count(at, group, task)

    @store_call
    def count(self, at: datetime, group: str | None = None, task: str | None = None) -> Backlogs:
        """Counts the jobs that are due at that time and the jobs that are not; of all groups and tasks, or of these."""
        backlogs: dict[Kind, Backlog] = {}
        for lane, jobs, postponed in self._due_jobs.waiting_by_lane(at):
            kind = Lane.parse(lane)[:2]
            if lane not in ASIDE and _is_wanted(kind, group, task):
                backlogs[kind] = backlogs.get(kind, Backlog()) + Backlog(jobs - postponed, postponed)
        return Backlogs(backlogs)

    @store_call
    def keep(self, backlogs: Backlogs, at: datetime, next_at: datetime, until: datetime) -> None:
        """Stores a count for all readers until then."""
        kinds = [{"group": kind[0], "task": kind[1], **backlog._asdict()} for kind, backlog in backlogs.of.items()]
        kept = {"at": at, "next_at": next_at, "until": until, "kinds": kinds}
        self.collection.replace_one(_KEPT, kept, upsert=True)

    @store_call
    def kept(self, at: datetime, group: str | None = None, task: str | None = None) -> Backlogs | None:
        """The stored count, if it is recent."""
        kept = self._parsed_one(_backlogs, {**_KEPT, "at": {"$lte": at}, "until": {"$gte": at}})
        if kept is None or isinstance(kept, Unreadable):
            return None
        return replace(kept, of={kind: kept.of[kind] for kind in kept.of if _is_wanted(kind, group, task)})

    @store_call
    def sample(self, depth: Depth) -> None:
        """Stores a sample for charts. Two cleaners that sample the same minute see nearly the same."""
        most = {"due": depth.due, "running": depth.running, "slots": depth.slots}
        largest = sorted(depth.groups.items(), key=lambda item: -item[1])[:GROUPS_SAMPLED]
        minute = {**most, "groups": [{"group": group, "jobs": jobs} for group, jobs in largest]}
        update = {"$max": most, "$set": {f"minutes.{depth.at:%M}": minute}}
        hour = {"_id": {DEPTH: hour_of(depth.at)}}
        try:
            self.collection.update_one(hour, update, upsert=True)
        except WriteError:  # another program has written there: the hour starts again
            self.collection.delete_one(hour)

    @store_call
    def depths(self, since: datetime, until: datetime, *, hours: bool = False) -> list[Depth]:
        """The samples of this period, the oldest first: one per minute, or the maxima of each hour."""
        span = {"_id": {"$gte": {DEPTH: hour_of(since)}, "$lt": {DEPTH: until}}}
        found = self._parsed(_depths, span, {"minutes": 0} if hours else None, hint="_id_", sort=[("_id", 1)])
        return [depth for depths in found for depth in depths if hours or since <= depth.at < until]


def _is_wanted(kind: Kind, group: str | None, task: str | None) -> bool:
    return group in (None, kind[0]) and task in (None, kind[1])


def _depths(document: Document) -> list[Depth]:
    """The samples in the document of an hour, by minute; the maxima of the hour if its minutes were not read."""
    hour = field.moment(field.mapping(document, "_id"), DEPTH)
    if "minutes" not in document:
        return [_depth(hour, document)]
    minutes = field.mapping(document, "minutes")
    return [
        _depth(hour.replace(minute=int(minute)), field.mapping(minutes, minute))
        for minute in sorted(minutes)
        if minute.isdecimal() and int(minute) < _MINUTES
    ]


def _depth(at: datetime, document: Document) -> Depth:
    groups = dict(field.array(document, "groups", _jobs_of_group)) if "groups" in document else {}
    due, running, slots = (field.whole(document, name) for name in ("due", "running", "slots"))
    return Depth(at, due, running, slots, groups)


def _jobs_of_group(place: str, value: Any) -> tuple[str, int]:
    entry = field.mapping({place: value}, place)
    return field.text(entry, "group"), field.whole(entry, "jobs")


def _backlogs(document: Document) -> Backlogs:
    backlogs = dict(field.array(document, "kinds", _backlog))
    return Backlogs(backlogs, field.moment(document, "at"), field.moment(document, "next_at"))


def _backlog(place: str, value: Any) -> tuple[Kind, Backlog]:
    entry = field.mapping({place: value}, place)
    counts = (field.whole(entry, name) for name in ("due", "postponed"))
    return (field.text(entry, "group"), field.text(entry, "task")), Backlog(*counts)
