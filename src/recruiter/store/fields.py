"""Functions that read a field of a document and check it. The parsers of all collections are written with them.

Each function raises `UnreadableDocument` with the name of the field, its value, and the allowed values. A field without
a default must exist.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeGuard, TypeVar

from bson.code import Code

from recruiter.domain.job import JobId
from recruiter.domain.names import LONGEST_ID as LONGEST_ID
from recruiter.domain.names import is_job_id as is_job_id
from recruiter.domain.names import plain
from recruiter.domain.text import is_unicode, shown
from recruiter.errors import InvalidJob, UnreadableDocument

T = TypeVar("T")

MOST: Final = 2**53
"""The largest accepted counter or term. Adding one to it still works."""
BELIEVED_TERM: Final = 2**52
"""The highest term outside of the lease that a leader accepts and exceeds. No fleet reaches it."""
HIGHEST_TERM: Final = BELIEVED_TERM + 2**32
"""The highest term that can be read. A leader that has exceeded an accepted term can still take new terms."""
LONGEST_TEXT: Final = 10_000
_FOR_SEVERAL = "; for several jobs: recruiter.jobs.cancel(ids=[…]), or list, recover and remove with ids"

_REQUIRED: Any = object()
FIRST_MOMENT = datetime(1, 1, 3, tzinfo=UTC)
LAST_MOMENT = datetime(9999, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)
"""Dates that Python can calculate with; MongoDB has others."""


def validator(required: str = "", **types: str | Mapping[str, Any]) -> dict[str, Any]:
    """The validator of a collection: its required fields, and the BSON types or the schema of fields."""
    schemas = {name: dict(of) if isinstance(of, Mapping) else {"bsonType": _names(of)} for name, of in types.items()}
    needed = {"required": required.split()} if required else {}
    return {"$jsonSchema": {**needed, "properties": schemas}}


def _names(types: str) -> str | list[str]:
    names = types.split()
    return names if len(names) > 1 else types


def check_id(id: object) -> JobId:
    """Returns the id. Raises InvalidJob."""
    if not is_job_id(id) or (isinstance(id, str) and not is_unicode(id)):
        raise InvalidJob(
            "a job id is an ObjectId, a text of up to 1,000 characters, an integer of 64 bits or a UUID, "
            f"not {shown(id)}{_FOR_SEVERAL if isinstance(id, list | tuple | set | frozenset) else ''}"
        )
    return plain(id) if isinstance(id, str) else id


def text(document: Mapping[str, Any], name: str, default: Any = _REQUIRED, longest: int = LONGEST_TEXT) -> Any:
    value = _value(document, name, default)
    if value is default:
        return default
    if not is_text(value):
        raise _unfit(name, "text", value)
    if len(value) > longest:
        raise UnreadableDocument(f"{name} has {len(value):,} characters; at most {longest:,} are allowed")
    return value


def whole(document: Mapping[str, Any], name: str, default: Any = _REQUIRED, *, least: int = 0, most: int = MOST) -> Any:
    value = _value(document, name, default)
    if value is default:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise _unfit(name, "a whole number", value)
    if not least <= value <= most:
        raise UnreadableDocument(f"{name} is {value}; it must be between {least} and {most}")
    return value


def number(
    document: Mapping[str, Any], name: str, default: Any = _REQUIRED, *, least: float = -1e15, most: float = 1e15
) -> Any:
    value = _value(document, name, default)
    if value is default:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _unfit(name, "a finite number", value)
    if not least <= value <= most:
        raise UnreadableDocument(f"{name} is {value}; it must be between {least:g} and {most:g}")
    return value


def moment(document: Mapping[str, Any], name: str, default: Any = _REQUIRED) -> Any:
    value = _value(document, name, default)
    return value if value is default else as_moment(name, value)


def as_moment(name: str, value: Any) -> datetime:
    """A date that Python can calculate with, in every time zone."""
    if not isinstance(value, datetime):
        raise _unfit(name, "a date between the years 1 and 9999", value)
    if not FIRST_MOMENT <= value <= LAST_MOMENT:
        raise UnreadableDocument(f"{name} is {value.isoformat()}; it must be between the years 1 and 9999")
    return value


def truth(document: Mapping[str, Any], name: str, default: Any = _REQUIRED) -> Any:
    value = _value(document, name, default)
    if value is not default and not isinstance(value, bool):
        raise _unfit(name, "true or false", value)
    return value


def mapping(document: Mapping[str, Any], name: str, default: Any = _REQUIRED) -> Any:
    value = _value(document, name, default)
    if value is not default and not isinstance(value, dict):
        raise _unfit(name, "a document", value)
    return value


def texts(document: Mapping[str, Any], name: str, default: Any = _REQUIRED) -> Any:
    return array(document, name, lambda place, value: text({place: value}, place), default)


def array(
    document: Mapping[str, Any], name: str, check: Callable[[str, Any], T], default: Any = _REQUIRED
) -> list[T] | Any:
    """An array. `check` gets the place and the value of each element."""
    value = _value(document, name, default)
    if value is default:
        return default
    if not isinstance(value, list):
        raise _unfit(name, "an array", value)
    return [check(f"{name}.{place}", element) for place, element in enumerate(value)]


def job_id(name: str, value: Any) -> JobId:
    if not is_job_id(value):
        raise _unfit(name, f"an ObjectId, a text of up to {LONGEST_ID:,} characters, an integer or a UUID", value)
    return value


def is_text(value: Any) -> TypeGuard[str]:
    """`Code` is a `str` for Python, and no text."""
    return isinstance(value, str) and not isinstance(value, Code)


def text_or_none(value: Any) -> str | None:
    return value if is_text(value) else None


def moment_or_none(value: Any) -> datetime | None:
    return value if isinstance(value, datetime) and FIRST_MOMENT <= value <= LAST_MOMENT else None


def _value(document: Mapping[str, Any], name: str, default: Any) -> Any:
    value = document.get(name, None if default is not _REQUIRED else _REQUIRED)
    if value is _REQUIRED:
        raise UnreadableDocument(f"{name} is missing")
    return default if value is None and default is not _REQUIRED else value


def _unfit(name: str, wanted: str, value: Any) -> UnreadableDocument:
    return UnreadableDocument(f"{name} is {shown(value, 60)} ({type(value).__name__}); it must be {wanted}")
