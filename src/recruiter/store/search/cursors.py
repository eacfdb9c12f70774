"""The cursor of a listing: where a page ended, as an opaque text that is checked when it comes back."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from bson import ObjectId
from bson.datetime_ms import DatetimeMS
from bson.errors import BSONError

from recruiter.domain.search.filter import JobFilter
from recruiter.domain.text import shown
from recruiter.errors import InvalidFilter
from recruiter.store.codec import decode, encode
from recruiter.store.search.scans import Position

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
    return InvalidFilter(f"{shown(text, 60)} is no cursor; give what `next` of the page before says")
