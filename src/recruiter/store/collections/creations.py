"""`creations`: ids of jobs that are created once, ever. They stay when their jobs are removed from the archive."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from recruiter.domain.arguments.values import TAG
from recruiter.domain.names import DEFAULT_METHOD
from recruiter.domain.unreadable import Unreadable
from recruiter.store import fields as field
from recruiter.store.codec import encode
from recruiter.store.errors import store_call
from recruiter.store.reading import ParsedCollection

NAME = "creations"
_LARGEST_WHOLE = 2.0**63
"""BSON has no larger integers."""
VALIDATOR = field.validator(at="date")


class Creations(ParsedCollection):
    name = NAME

    @store_call
    def unreadable(self, limit: int, within: float) -> Sequence[Unreadable]:
        """For reports: it reads the whole collection. Raises StoreUnreachable after `within` seconds."""
        query, most = {"at": {"$not": {"$type": "date"}}}, int(within * 1000)
        return self._parsed(
            lambda document: field.moment(document, "at"), query, limit=limit, max_time_ms=most
        ).unreadable


def content_id(task: str, args: Any, method: str = DEFAULT_METHOD, *, exact_numbers: bool = False) -> str:
    """The id that is derived from a job's task, method and arguments, in any order of keys. 2 and 2.0 are equal: a
    producer that does not know the code cannot know which of them the task takes. With `exact_numbers` they differ, as
    in jobs of earlier releases."""
    other = {} if method == DEFAULT_METHOD else {"method": method}
    content = encode({"task": task, "args": _canonical(args, exact_numbers), **other})
    return f"{task}:{hashlib.sha256(content).hexdigest()[:32]}"


def _canonical(value: Any, exact_numbers: bool) -> Any:
    if isinstance(value, dict):
        ordered = {key: _canonical(value[key], exact_numbers) for key in sorted(value)}
        if ordered.get(TAG) == "dict" and isinstance(ordered["value"], list):  # its keys are no strings
            ordered["value"].sort(key=repr)
        return ordered
    if isinstance(value, list):
        return [_canonical(item, exact_numbers) for item in value]
    if type(value) is float and not exact_numbers and value.is_integer() and abs(value) < _LARGEST_WHOLE:
        return int(value)
    return value
