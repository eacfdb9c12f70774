"""Short records of jobs, and the cursors between pages of them."""

from __future__ import annotations

import base64
import binascii
import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from bson import ObjectId
from bson.datetime_ms import DatetimeMS
from bson.errors import BSONError

from recruiter.domain.job import JobId
from recruiter.domain.names import BLOCKED_LANE
from recruiter.domain.planning.needs import NOTHING, Needs
from recruiter.domain.search.filter import JobFilter, JobSummary
from recruiter.domain.state import State
from recruiter.domain.text import shown
from recruiter.errors import InvalidFilter, InvalidJob
from recruiter.store.codec import decode, encode
from recruiter.store.fields import is_job_id, is_text, moment_or_none, text_or_none
from recruiter.store.job_fields import Use, names, needs_of
from recruiter.store.roster_fields import Hold
from recruiter.store.search.scans import Position

_BEYOND = datetime(9999, 12, 31, tzinfo=UTC)
"""For a date that Python cannot have, and MongoDB can."""

ONLY_IDS: Mapping[str, int] = {"_id": 1, "lane": 1, "priority": 1, "scheduled_at": 1, "archived_at": 1}
"""The id, and what jobs are ordered by."""

FIELDS: Mapping[str, int] = {
    **dict.fromkeys(names(Use.SUMMARY), 1),
    **{f"last_execution.{name}": 1 for name in ("message", "started_at", "ended_at", "class", "worker")},
}


def summary_from(document: Mapping[str, Any], hold: Hold | None = None) -> JobSummary:
    """Of any document in `scheduled` or `archived`, whatever is in it."""
    last = document.get("last_execution")
    last = last if isinstance(last, dict) else {}
    ended = document.get("archived_at")
    moment = moment_or_none(ended) or moment_or_none(document.get("scheduled_at")) or _BEYOND
    return JobSummary(
        id=_id(document["_id"]),
        task=text_or_none(document.get("task")) or "",
        group=text_or_none(document.get("group")) or "",
        state=_state(document, hold),
        created_at=moment_or_none(document.get("created_at")) or moment,
        scheduled_at=moment_or_none(document.get("scheduled_at")) or moment,
        priority=_any_number(document.get("priority")),
        tags=tuple(tag for tag in _list(document.get("tags")) if is_text(tag)),
        urn=text_or_none(document.get("urn")),
        owner=text_or_none(document.get("username")),
        needs=_needs(document),
        attempts=int(_any_number(document.get("attempts"))),
        started_at=runs_since(document, hold) or moment_or_none(last.get("started_at")),
        ended_at=moment_or_none(ended),
        why=text_or_none(document.get("why")) if ended is not None else None,
        error=text_or_none(last.get("class")),
        message=text_or_none(last.get("message")),
        worker=hold.worker if hold else text_or_none(last.get("worker")),
        stage=text_or_none(document.get("stage")),
        progress=1.0 if ended is not None and document.get("done") is True else _number(document.get("progress")),
        locked_by=hold.worker if hold else None,
        locked_at=locked_at(document, hold),
        cancelling=ended is None and isinstance(document.get("cancel"), dict),
        blocked=ended is None and hold is None and document.get("lane") == BLOCKED_LANE,
    )


def locked_at(document: Mapping[str, Any], hold: Hold | None) -> datetime | None:
    """Since when its holder has it: since it runs there, or since it was given to it."""
    return runs_since(document, hold) or (hold.given_at if hold else None)


def runs_since(document: Mapping[str, Any], hold: Hold | None) -> datetime | None:
    """Since when its holder runs it: the roster says so, or the sign that its worker has left on the job."""
    if hold is None or hold.since is not None:
        return hold.since if hold else None
    return moment_or_none(document.get("locked_at")) if document.get("locked_by") == hold.worker else None


def _state(document: Mapping[str, Any], hold: Hold | None) -> State:
    if "archived_at" in document:
        return State.at_the_end(document.get("done") is True, str(document.get("why")))
    return State.WAITING if hold is None else State.RUNNING


def _needs(document: Mapping[str, Any]) -> Needs:
    with contextlib.suppress(InvalidJob):
        return needs_of(document)
    return NOTHING


def _id(value: Any) -> JobId:
    """What is no id of a job is shown as text."""
    return value if is_job_id(value) else shown(value)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _any_number(value: Any) -> int | float:
    return value if isinstance(value, int | float) and math.isfinite(value) else 0


def _number(value: Any) -> float:
    return min(1.0, max(0.0, float(value))) if isinstance(value, int | float) else 0.0


_VALUES = (datetime, DatetimeMS, int, float, str, ObjectId, UUID, type(None))
_LONGEST = 5_000
_MOST_VALUES = 4


@dataclass(frozen=True, slots=True)
class Cursor:
    section: str
    """Which kind of jobs it was at."""
    position: Position | None
    """The last of them that was looked at; None before the first."""
    began_at: datetime
    """What "now" means in the filter, for all pages of one listing."""

    def written(self, filter: JobFilter) -> str:
        position = None if self.position is None else list(self.position)
        raw = encode({"s": self.section, "p": position, "t": self.began_at, "f": filter.fingerprint})
        return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def cursor_from(text: str, filter: JobFilter) -> Cursor:
    """Raises InvalidFilter for what no page of this filter has said."""
    if not isinstance(text, str) or len(text) > _LONGEST:
        raise _none(text)
    try:
        found = decode(base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True))
        section, position, began_at, fingerprint = found["s"], found["p"], found["t"], found["f"]
    except (binascii.Error, BSONError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise _none(text) from None
    if fingerprint != filter.fingerprint:
        raise InvalidFilter(
            "this cursor belongs to another filter; use it with the filter it came from, or start again without it"
        )
    values = position if isinstance(position, list) else [] if position is None else [object()]
    sound = len(values) <= _MOST_VALUES and all(isinstance(v, _VALUES) and not isinstance(v, bool) for v in values)
    if not sound or not isinstance(section, str) or not isinstance(began_at, datetime):
        raise _none(text)
    return Cursor(section, tuple(position) if position is not None else None, began_at)


def _none(text: object) -> InvalidFilter:
    return InvalidFilter(f"{shown(text, 60)} is not a cursor; give the `next` of the previous page")
