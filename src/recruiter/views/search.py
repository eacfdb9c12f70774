"""Search: the jobs of a filter, page by page: running jobs, then waiting jobs in the order in which they will start,
then ended jobs, the newest first.

A job that a worker holds is still in `scheduled`, and only the roster says so. So the sections are asked one after the
other, each in its own way, and a cursor says which of them a page has reached, and where.

A page shows each job once. One that starts or ends while somebody turns the pages may be missed, or be on two pages:
more cannot be promised of a listing of things that move.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Generic, TypeVar

from recruiter.domain.job import Job, JobId
from recruiter.domain.names import ASIDE, group_and_task
from recruiter.domain.search.conditions import BLOCKED, POSTPONED, QUEUED
from recruiter.domain.search.filter import ENDED, Count, JobFilter, JobSummary, Page
from recruiter.domain.state import State
from recruiter.domain.text import shown, similar
from recruiter.domain.unreadable import Unreadable
from recruiter.errors import InvalidFilter, RecruiterError
from recruiter.store.codec import Document, archived_from, job_from
from recruiter.store.collections import archived, scheduled
from recruiter.store.database import Store
from recruiter.store.fields import job_id
from recruiter.store.roster_fields import Hold
from recruiter.store.search.running import RunningJobs
from recruiter.store.search.scans import Position, Walk
from recruiter.store.search.summaries import FIELDS, ONLY_IDS, Cursor, cursor_from, locked_at, summary_from
from recruiter.store.search.waiting import WaitingState

T = TypeVar("T")

LOOKS_AT = 5_000
"""So many documents one page may look at where no index answers; then it is handed out as it is."""
WINDOW = 2_500
"""So many one query may look at."""
FIRST_WINDOW = 1_000
"""The first look is a short one: most of what people ask for is common."""

RUNNING, ENDS = "running", "ended"
SECTIONS: dict[str, frozenset[str]] = {
    RUNNING: frozenset({State.RUNNING}),
    WaitingState.QUEUED: frozenset({State.WAITING, QUEUED}),
    WaitingState.POSTPONED: frozenset({State.WAITING, POSTPONED}),
    WaitingState.BLOCKED: frozenset({State.WAITING, BLOCKED}),
    WaitingState.CANCELLING: frozenset({State.WAITING}),
    ENDS: ENDED,
}
"""In the order of a listing, each with the states that its jobs are in."""
_LENGTHS = {
    RUNNING: {3},
    WaitingState.QUEUED: {3, 4},
    WaitingState.POSTPONED: {3, 4},
    WaitingState.BLOCKED: {3},
    WaitingState.CANCELLING: {3},
    ENDS: {2},
}
"""How many values say where a job stands."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A document that was found, and where it stands."""

    section: str
    position: Position
    document: Document
    hold: Hold | None = None


@dataclass(frozen=True, slots=True)
class Form(Generic[T]):
    """How jobs are handed out, and which fields that takes; None for all."""

    fields: Mapping[str, int] | None
    of: Callable[[Entry], T]


def search(
    store: Store,
    filter: JobFilter,
    now: datetime,
    form: Form[T],
    *,
    limit: int,
    after: str | None = None,
    also: Sequence[Document] = (),
) -> Page[T]:
    """One page of jobs; those that have not ended fulfil `also` too. Raises InvalidFilter for a cursor that is none."""
    begin = None if after is None else cursor_from(after, filter)
    moment = begin.began_at if begin else _in_milliseconds(now)
    sections = Sections(store, filter, moment, also)
    section, position = (begin.section, begin.position) if begin else (sections.first, None)
    entries: list[Entry] = []
    looked = 0
    while section is not None and len(entries) <= limit and looked < LOOKS_AT:
        window = FIRST_WINDOW if not looked else min(WINDOW, LOOKS_AT - looked)
        # one more than wanted, to know whether there is one
        some, position, some_looked = sections.look(section, position, limit + 1 - len(entries), window, form.fields)
        entries += some
        looked += some_looked
        section = sections.after(section) if position is None else section
    if len(entries) > limit:
        del entries[limit:]
        section, position = entries[-1].section, entries[-1].position
    following = Cursor(section, position, moment).written(filter) if section is not None else None
    return _page(entries, form, following, looked)


def _page(entries: Sequence[Entry], form: Form[T], following: str | None, looked: int) -> Page[T]:
    jobs: list[T] = []
    unreadable: list[Unreadable] = []
    for entry in _each_once(entries):
        try:
            jobs.append(form.of(entry))
        except RecruiterError as error:
            place = archived.NAME if entry.section == ENDS else scheduled.NAME
            unreadable.append(Unreadable(place, shown(entry.document.get("_id")), str(error)))
    return Page(tuple(jobs), following, looked, tuple(unreadable))


def _each_once(entries: Sequence[Entry]) -> Iterable[Entry]:
    """A job that started or ended while the sections were read is in two of them: the later one is the truth."""
    latest = {repr(entry.document["_id"]): entry for entry in entries}
    return (entry for entry in entries if latest[repr(entry.document["_id"])] is entry)


def count(store: Store, filter: JobFilter, now: datetime, most: int | None) -> Count:
    """How many there are: all of them, or up to `most`, and then no more than a page would look at."""
    sections = Sections(store, filter, _in_milliseconds(now))
    section, position = sections.first, None
    number = looked = 0
    while section is not None:
        left = None if most is None else most - number
        some, position, some_looked = sections.count(section, position, left)
        number += some
        looked += some_looked
        section = sections.after(section) if position is None else section
        if most is not None and (number >= most or (section is not None and looked >= LOOKS_AT)):
            return Count(number, False)
    return Count(number, True)


class Sections:
    """The parts of a listing that the filter wants, at one moment."""

    def __init__(self, store: Store, filter: JobFilter, now: datetime, also: Sequence[Document] = ()) -> None:
        self._store = store
        self._filter = filter
        self._now = now
        self._also = also
        self._wanted = [name for name, states in SECTIONS.items() if filter.wants(states)]
        self._holds = store.roster.holds() if set(self._wanted) - {ENDS} else {}

    @property
    def first(self) -> str | None:
        return self._wanted[0] if self._wanted else None

    def after(self, section: str) -> str | None:
        later = self._wanted[self._wanted.index(section) + 1 :]
        return later[0] if later else None

    def look(
        self, section: str, after: Position | None, limit: int, window: int, fields: Mapping[str, int] | None
    ) -> tuple[list[Entry], Position | None, int]:
        """Jobs after this position, where to go on, and how many documents that took."""
        if section not in self._wanted or (after is not None and len(after) not in _LENGTHS[section]):
            raise InvalidFilter("this cursor is no longer valid; start again without --after")
        if section == RUNNING:
            found = self._held.page(after, limit, fields)
        elif (walk := self._walk(section, after)) is None:
            return [], None, 0
        else:
            found = walk.page(after, limit, window, fields)
        entries = [Entry(section, position, document) for position, document in found.documents]
        if section == RUNNING:
            entries = [replace(entry, hold=self._holds.get(entry.document["_id"])) for entry in entries]
        return entries, found.reached, found.looked_at

    def count(self, section: str, after: Position | None, most: int | None) -> tuple[int, Position | None, int]:
        """Likewise only how many. What an index alone answers is not looked at, and counted at once."""
        if section == RUNNING:
            found = self._held.page(None, len(self._holds) + 1, ONLY_IDS)
            return len(found.documents), None, found.looked_at
        walk = self._walk(section, after, in_order=False)
        if walk is None:
            return 0, None, 0
        number, reached = walk.count(after, most, WINDOW)
        return number, reached, WINDOW if reached is not None else 0

    @property
    def _held(self) -> RunningJobs:
        return self._store.running_jobs(self._holds, self._filter, self._now, self._also)

    def _walk(self, section: str, after: Position | None, *, in_order: bool = True) -> Walk | None:
        if section == ENDS:
            return self._store.ended_jobs.walk(self._filter, self._now, in_order=in_order)
        state = WaitingState(section)
        return self._store.waiting_jobs.walk(state, self._filter, self._now, self._holds, after, self._also)


def _in_milliseconds(moment: datetime) -> datetime:
    """As MongoDB keeps it, so that it is the same moment on the next page."""
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def _full(entry: Entry) -> Job:
    if entry.section == ENDS:
        return archived_from(entry.document)
    job, hold = job_from(entry.document), entry.hold
    return replace(job, locked_by=hold.worker if hold else None, locked_at=locked_at(entry.document, hold))


def _summary(entry: Entry) -> JobSummary:
    return summary_from(entry.document, entry.hold)


def _id(entry: Entry) -> JobId:
    return job_id("_id", entry.document["_id"])


FULL = Form(None, _full)
SHORT = Form(FIELDS, _summary)
ID = Form(ONLY_IDS, _id)


_NEAR = 5


def recognize(store: Store, filter: JobFilter) -> None:
    """Raises InvalidFilter for a task or group that no job, worker, scheduler, limit or pause has; and says which are
    near."""
    if filter.task or filter.group:
        groups, tasks = known_names(store)
        for kind, wanted, known in (("group", filter.group, groups), ("task", filter.task, tasks)):
            for name in wanted:
                if name not in known:
                    raise InvalidFilter(f"there is no {kind} {name!r}; {_near(kind, name, known)}")


def known_names(store: Store) -> tuple[set[str], set[str]]:
    """The groups and the tasks that somebody knows: jobs, workers, schedules, pauses and limits."""
    groups, tasks = store.ended_jobs.names()
    lanes = set(store.scheduled.lanes())
    kinds = {group_and_task(lane) for lane in lanes.difference(ASIDE)}
    for group, task in kinds | (store.scheduled.kinds_aside() if lanes.intersection(ASIDE) else set()):
        groups.add(group)
        tasks.add(task)
    for worker in store.roster.read():
        groups |= worker.groups or set()
        tasks |= worker.tasks
    for scheduler in store.schedulers.all():
        groups.add(scheduler.template.group)
        tasks.add(scheduler.template.task)
    rules = store.limits.read()
    for subject in (*rules.paused, *(limit.subject for limit in rules.limits)):
        kind, _, name = subject.partition(":")
        {"group": groups, "task": tasks}.get(kind, set()).add(name)
    return groups - {""}, tasks


def _near(kind: str, name: str, known: Collection[str]) -> str:
    if near := similar(name, known, _NEAR):
        return near
    some = sorted(known)[:_NEAR]
    return (
        f"there are {', '.join(some)}{' and others' if len(known) > _NEAR else ''}" if some else f"there is no {kind}"
    )
