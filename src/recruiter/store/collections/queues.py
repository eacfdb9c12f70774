"""How many jobs wait, by group and task: counted in one walk through the due index, a microsecond or two for each.

When very many jobs wait, the cleaner counts them now and then and keeps the answer for every reader
(`steps/clean.py`), so that an open screen, or ten of them, do not keep the database busy.

    statistics:  _id: {queues: "waiting"}, at, next_at, until, kinds: [{group, task, due, postponed}]
                 _id: {depth: hour}, due, running, slots,
                      minutes: {"05": {due, running, slots, groups: [{group, jobs}]}}

The second is what the cleaner saw each minute, for charts; beside the minutes are the most of the hour.
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
from recruiter.store.codec import RAW, Document
from recruiter.store.collections.due_jobs import DueJobs
from recruiter.store.collections.statistics import NAME
from recruiter.store.errors import store_call
from recruiter.store.reading import parse_one, parsed

DEPTH = "depth"
GROUPS_SAMPLED = 50
_MINUTES = 60
_KEPT = {"_id": {"queues": "waiting"}}


@dataclass(frozen=True, slots=True)
class Backlogs:
    """How many jobs wait."""

    of: dict[Kind, Backlog]
    counted_at: datetime | None = None
    next_at: datetime | None = None
    """When they were counted, and when to count again; None if it was just now."""


class Queues:
    def __init__(self, due_jobs: DueJobs, statistics: Collection[Document]) -> None:
        self._due_jobs = due_jobs
        self._statistics = statistics

    @store_call
    def about(self) -> int:
        """How many documents there are, without counting any."""
        return self._due_jobs.collection.estimated_document_count()

    def waiting(self, at: datetime, group: str | None = None, task: str | None = None) -> Backlogs:
        """The waiting jobs: a recent stored count, or a count made now."""
        return self.kept(at, group, task) or self.count(at, group, task)

    @store_call
    def count(self, at: datetime, group: str | None = None, task: str | None = None) -> Backlogs:
        """The jobs of all groups and tasks or of this, those that are due by then and those that are not."""
        backlogs: dict[Kind, Backlog] = {}
        for lane, jobs, postponed in self._due_jobs.waiting_by_lane(at):
            kind = Lane.parse(lane)[:2]
            if lane not in ASIDE and group in (None, kind[0]) and task in (None, kind[1]):
                more = Backlog(jobs - postponed, postponed)
                backlogs[kind] = backlogs.get(kind, Backlog()) + more
        return Backlogs(backlogs)

    @store_call
    def keep(self, backlogs: Backlogs, at: datetime, next_at: datetime, until: datetime) -> None:
        """For all who look until then."""
        kinds = [{"group": kind[0], "task": kind[1], **backlog._asdict()} for kind, backlog in backlogs.of.items()]
        kept = {"at": at, "next_at": next_at, "until": until, "kinds": kinds}
        self._statistics.replace_one(_KEPT, kept, upsert=True)

    @store_call
    def kept(self, at: datetime, group: str | None = None, task: str | None = None) -> Backlogs | None:
        """The stored count, if it is recent."""
        raw: Collection[Any] = self._statistics.with_options(codec_options=RAW)
        found = raw.find_one({**_KEPT, "at": {"$lte": at}, "until": {"$gte": at}})
        kept = parse_one(NAME, bytes(found.raw), _backlogs) if found is not None else None
        if kept is None or isinstance(kept, Unreadable):
            return None
        of = {
            kind: backlog for kind, backlog in kept.of.items() if group in (None, kind[0]) and task in (None, kind[1])
        }
        return replace(kept, of=of)

    @store_call
    def sample(self, depth: Depth) -> None:
        """For charts. Two cleaners that sample the same minute see nearly the same."""
        most = {"due": depth.due, "running": depth.running, "slots": depth.slots}
        largest = sorted(depth.groups.items(), key=lambda item: -item[1])[:GROUPS_SAMPLED]
        minute = {**most, "groups": [{"group": group, "jobs": jobs} for group, jobs in largest]}
        update = {"$max": most, "$set": {f"minutes.{depth.at:%M}": minute}}
        hour = {"_id": {DEPTH: hour_of(depth.at)}}
        try:
            self._statistics.update_one(hour, update, upsert=True)
        except WriteError:  # somebody has written there: the hour begins anew
            self._statistics.delete_one(hour)

    @store_call
    def depths(self, since: datetime, until: datetime, *, hours: bool = False) -> list[Depth]:
        """What was sampled in this time, the oldest first: by the minute, or the most of each hour."""
        raw: Collection[Any] = self._statistics.with_options(codec_options=RAW)
        span = {"_id": {"$gte": {DEPTH: hour_of(since)}, "$lt": {DEPTH: until}}}
        found = parsed(NAME, raw.find(span, {"minutes": 0} if hours else None, hint="_id_").sort("_id", 1), _depths)
        return [each for several in found for each in several if hours or since <= each.at < until]


def _depths(document: Document) -> list[Depth]:
    """The parser: the hour, if its minutes were not asked for."""
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
    each = field.mapping({place: value}, place)
    return field.text(each, "group"), field.whole(each, "jobs")


def _backlogs(document: Document) -> Backlogs:
    """The parser."""
    backlogs = dict(field.array(document, "kinds", _backlog))
    return Backlogs(backlogs, field.moment(document, "at"), field.moment(document, "next_at"))


def _backlog(place: str, value: Any) -> tuple[Kind, Backlog]:
    each = field.mapping({place: value}, place)
    counts = (field.whole(each, name) for name in ("due", "postponed"))
    return (field.text(each, "group"), field.text(each, "task")), Backlog(*counts)
