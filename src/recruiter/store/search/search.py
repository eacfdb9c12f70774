"""Searches running jobs, then waiting jobs in the order in which they will start, then ended jobs, the newest first.

A job that a worker holds is still in `scheduled`; only the roster knows that it runs. So a listing reads one section
after the other, and a cursor holds the section and the position that a page has reached.

A page shows each job once. A job that starts or ends between two pages may be missed, or be on both.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from bson import ObjectId
from bson.datetime_ms import DatetimeMS
from bson.errors import BSONError
from pymongo.collection import Collection

from recruiter.domain.job import Job, JobId
from recruiter.domain.search.conditions import BLOCKED, POSTPONED, QUEUED
from recruiter.domain.search.filter import ENDED, Count, JobFilter, Page
from recruiter.domain.state import State
from recruiter.domain.text import shown
from recruiter.domain.unreadable import Unreadable
from recruiter.errors import InvalidFilter, RecruiterError
from recruiter.store.codec import LENIENT, RAW, Document, archived_from, decode, decode_leniently, encode, job_from
from recruiter.store.collections import archived, scheduled
from recruiter.store.collections.roster import Roster
from recruiter.store.errors import store_call
from recruiter.store.fields import LAST_MOMENT, is_job_id, moment_or_none
from recruiter.store.job_fields import Use, names
from recruiter.store.roster_fields import Hold
from recruiter.store.search import matching
from recruiter.store.search.indexes import EndedJobs, WaitingJobs, WaitingState
from recruiter.store.search.scans import Found, Position, Scan

LOOKS_AT = 5_000
"""Maximum number of documents that one page reads where no index answers; then the page may be short."""
WINDOW = 2_500
"""Maximum number of documents that one query reads."""
_RUNNING_AT_ONCE = 500

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

Projection = Mapping[str, int] | None
_ONLY_IDS = {"_id": 1, "lane": 1, "priority": 1, "scheduled_at": 1, "archived_at": 1}
"""The id, and what jobs are ordered by."""
MINIMAL = {**dict.fromkeys(names(Use.DETAIL), 0), "last_execution.trace": 0, "last_execution.notes": 0}
"""Without the fields that may be large."""


class _FoundJob(NamedTuple):
    section: str
    position: Position
    document: Document


class JobSearch:
    """Finds the jobs that a filter selects, page by page: running, waiting and ended ones."""

    def __init__(self, scheduled: Collection[Document], archived: Collection[Document], roster: Roster) -> None:
        self.scheduled = scheduled.with_options(codec_options=LENIENT)
        self.waiting = WaitingJobs(self.scheduled)
        self.ended = EndedJobs(archived.with_options(codec_options=LENIENT))
        self.roster = roster

    def jobs(
        self, filter: JobFilter, now: datetime, *, limit: int, after: str | None = None, fields: Projection = None
    ) -> Page[Job]:
        """One page of jobs with these fields. Raises InvalidFilter for a cursor of another filter."""
        listing = _Listing(self, filter, now, after)
        page = listing.page(limit, fields)
        jobs: list[Job] = []
        unreadable: list[Unreadable] = []
        for section, _, document in page:
            try:
                if section == ENDS:
                    jobs.append(archived_from(document))
                else:
                    hold = listing.holds.get(document["_id"]) if section == RUNNING else None
                    jobs.append(with_hold(job_from(document), document, hold))
            except RecruiterError as error:
                place = archived.NAME if section == ENDS else scheduled.NAME
                unreadable.append(Unreadable(place, shown(document.get("_id")), str(error)))
        return Page(tuple(jobs), page.next, page.looked_at, tuple(unreadable))

    def ids(
        self, filter: JobFilter, now: datetime, *, limit: int, after: str | None = None, also: Sequence[Document] = ()
    ) -> Page[JobId]:
        """One page of ids, including ids of unreadable documents. Jobs that have not ended fulfil `also` too."""
        page = _Listing(self, filter, now, after, also).page(limit, _ONLY_IDS)
        ids = (found.document["_id"] for found in page)
        return Page(tuple(id for id in ids if is_job_id(id)), page.next, page.looked_at)

    def count(self, filter: JobFilter, now: datetime, most: int | None) -> Count:
        """The number of jobs: all of them, or up to `most`, reading no more than a page would."""
        return _Listing(self, filter, now).count(most)


class _Listing:
    """The sections of a listing for one filter, from a cursor on, with one value for "now"."""

    def __init__(
        self,
        search: JobSearch,
        filter: JobFilter,
        now: datetime,
        after: str | None = None,
        also: Sequence[Document] = (),
    ) -> None:
        self._search = search
        self._filter = filter
        self._also = also
        self._sections = [name for name, states in SECTIONS.items() if filter.wants(states)]
        # in milliseconds, the precision of MongoDB, so that the next page has the same time
        started = _Cursor(None, None, now.replace(microsecond=now.microsecond // 1000 * 1000))
        self._begin = started if after is None else _cursor_from(after, filter)
        self._now = self._begin.began_at
        self.holds = search.roster.holds() if set(self._sections) - {ENDS} else {}

    def page(self, limit: int, fields: Projection) -> Page[_FoundJob]:
        """Up to `limit` jobs from the cursor on, section by section. The page is shorter when it would have to read too
        many documents."""
        section, position = self._begin.section or self._section_after(None), self._begin.position
        found: list[_FoundJob] = []
        looked = 0
        while section is not None and len(found) <= limit and looked < LOOKS_AT:
            # one more than wanted, to know whether there is one
            window = min(WINDOW, LOOKS_AT - looked)
            part = self._read_section(section, position, limit + 1 - len(found), window, fields)
            found += (_FoundJob(section, place, document) for place, document in part.documents)
            looked, position = looked + part.looked_at, part.reached
            section = self._section_after(section) if position is None else section
        if len(found) > limit:
            del found[limit:]
            section, position = found[-1].section, found[-1].position
        following = None if section is None else _Cursor(section, position, self._now).written(self._filter)
        # A job that started or ended while the sections were read is in two of them: the later one is the truth.
        latest = {repr(job.document["_id"]): job for job in found}
        return Page(tuple(job for job in found if latest[repr(job.document["_id"])] is job), following, looked)

    def count(self, most: int | None) -> Count:
        """The number of jobs in all sections; with `most`, it stops at that number, or where a page would stop."""
        number = looked = 0
        for section in self._sections:
            position: Position | None = None
            while True:
                left = None if most is None else most - number
                counted, position, read = self._count_section(section, position, left)
                number += counted
                looked += read
                more = position is not None or section != self._sections[-1]
                if most is not None and (number >= most or (more and looked >= LOOKS_AT)):
                    return Count(number, False)
                if position is None:
                    break
        return Count(number, True)

    def _section_after(self, section: str | None) -> str | None:
        """The section that follows; the first one after None."""
        later = self._sections if section is None else self._sections[self._sections.index(section) + 1 :]
        return later[0] if later else None

    def _read_section(self, section: str, after: Position | None, limit: int, window: int, fields: Projection) -> Found:
        """The next jobs of a section. Raises InvalidFilter if the position does not belong to this section."""
        if section not in self._sections:
            raise _stale_cursor()
        if section == RUNNING:
            return self._running(after, limit, fields)
        scan = self._scan(section, after)
        if scan is None:
            return Found([], None, 0)
        if after is not None and len(after) != len(scan.order):
            raise _stale_cursor()
        return scan.page(after, limit, window, fields)

    def _count_section(
        self, section: str, after: Position | None, most: int | None
    ) -> tuple[int, Position | None, int]:
        """The number of jobs after this position, the position to continue after, and the number of documents read."""
        if section == RUNNING:
            found = self._running(None, len(self.holds) + 1, _ONLY_IDS)
            return len(found.documents), None, found.looked_at
        scan = self._scan(section, after)
        if scan is None:
            return 0, None, 0
        number, reached = scan.count(after, most, WINDOW)
        return number, reached, WINDOW if reached is not None else 0

    def _scan(self, section: str, after: Position | None) -> Scan | None:
        if section == ENDS:
            return self._search.ended.scan(self._filter, self._now)
        state = WaitingState(section)
        return self._search.waiting.scan(state, self._filter, self._now, self.holds, after, self._also)

    @store_call
    def _running(self, after: Position | None, limit: int, fields: Projection) -> Found:
        """Jobs that workers hold: the longest running first, jobs that have not started last."""
        if after is not None and not (len(after) == 2 and isinstance(after[0], datetime) and isinstance(after[1], str)):
            raise _stale_cursor()
        wanted = ((id, hold) for id, hold in self.holds.items() if self._has_hold(hold))
        order = sorted(((hold.since or LAST_MOMENT, str(id), id) for id, hold in wanted), key=lambda place: place[:2])
        places = [place for place in order if after is None or place[:2] > after]
        conditions = matching.residual(matching.of_waiting(self._filter, self._now), "worker", "slow")
        conditions = (*conditions, *matching.due_between(self._filter, self._now), *self._also)
        raw: Collection[Any] = self._search.scheduled.with_options(codec_options=RAW)
        found: list[tuple[Position, Document]] = []
        looked = 0
        while looked < len(places) and len(found) < limit:
            batch = places[looked : looked + _RUNNING_AT_ONCE]
            looked += len(batch)
            query = {"$and": [{"_id": {"$in": [id for _, _, id in batch]}}, {"lane": {"$gt": ""}}, *conditions]}
            read = (decode_leniently(bytes(document.raw)) for document in raw.find(query, fields))
            documents = {document["_id"]: document for document in read if self._has_delay(document)}
            found += [((since, text), documents[id]) for since, text, id in batch if id in documents]
        if len(found) >= limit:
            return Found(found[:limit], found[limit - 1][0], looked)
        return Found(found, None, looked)

    def _has_hold(self, hold: Hold) -> bool:
        """Whether the hold fulfils the conditions on the worker and the duration."""
        if self._filter.worker and hold.worker not in self._filter.worker:
            return False
        slow = self._filter.slow
        return slow is None or (hold.since is not None and self._now - hold.since >= slow)

    def _has_delay(self, document: Document) -> bool:
        if self._filter.delayed is None:
            return True
        began, scheduled_at = self.holds[document["_id"]].since or self._now, document.get("scheduled_at")
        return isinstance(scheduled_at, datetime) and began - scheduled_at >= self._filter.delayed


def with_hold(job: Job, document: Mapping[str, Any], hold: Hold | None) -> Job:
    """The job with its worker and its start, from the roster, the mark on the job, or the last assignment."""
    if hold is None:
        return replace(job, locked_by=None, locked_at=None)
    since = hold.since
    if since is None and document.get("locked_by") == hold.worker:
        since = moment_or_none(document.get("locked_at"))
    return replace(job, locked_by=hold.worker, locked_at=since or hold.given_at)


# -- cursors -----------------------------------------------------------------------------------------------------------

_VALUES = (datetime, DatetimeMS, int, float, str, ObjectId, UUID, type(None))
_MAX_CURSOR_CHARACTERS = 5_000
_MAX_CURSOR_VALUES = 4


@dataclass(frozen=True, slots=True)
class _Cursor:
    """The place where the next page begins; people get it as text."""

    section: str | None
    """The section to continue in; None before the first."""
    position: Position | None
    """The last document of the section that was read; None before the first."""
    began_at: datetime
    """What "now" means in the filter, for all pages of one listing."""

    def written(self, filter: JobFilter) -> str:
        position = None if self.position is None else list(self.position)
        raw = encode({"s": self.section, "p": position, "t": self.began_at, "f": filter.fingerprint})
        return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _cursor_from(text: str, filter: JobFilter) -> _Cursor:
    """The cursor that a caller hands back. Raises InvalidFilter if it is not a cursor of this filter."""
    no_cursor = InvalidFilter(f"{shown(text, 60)} is not a cursor; give the `next` of the previous page")
    if not isinstance(text, str) or len(text) > _MAX_CURSOR_CHARACTERS:
        raise no_cursor
    try:
        found = decode(base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True))
        section, position, began_at, fingerprint = found["s"], found["p"], found["t"], found["f"]
    except (binascii.Error, BSONError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise no_cursor from None
    if fingerprint != filter.fingerprint:
        raise InvalidFilter(
            "this cursor belongs to another filter; use it with the filter it came from, or start again without it"
        )
    values = position if isinstance(position, list) else [] if position is None else [object()]
    known = all(isinstance(value, _VALUES) and not isinstance(value, bool) for value in values)
    sound = known and len(values) <= _MAX_CURSOR_VALUES
    if not sound or not isinstance(section, str) or not isinstance(began_at, datetime):
        raise no_cursor
    return _Cursor(section, tuple(position) if position is not None else None, began_at)


def _stale_cursor() -> InvalidFilter:
    return InvalidFilter("this cursor is no longer valid; start again without --after")
