"""`creations`: ids of jobs that are created once, ever. They stay when their jobs are removed from the archive."""

from __future__ import annotations

import hashlib
from typing import Any

from recruiter.domain.arguments.values import TAG
from recruiter.domain.names import DEFAULT_METHOD
from recruiter.domain.search.conditions import LARGEST_INTEGER
from recruiter.store.codec import encode
from recruiter.store.fields import validator

NAME = "creations"
VALIDATOR = validator(at="date")


def content_id(task: str, args: Any, method: str = DEFAULT_METHOD, *, exact_numbers: bool = False) -> str:
    """The id that is derived from a job's task, method and arguments, in any order of keys. 2 and 2.0 are equal: a
    producer that does not know the code cannot know which of them the task takes. With `exact_numbers` they differ, as
    in jobs of earlier releases."""
    other = {} if method == DEFAULT_METHOD else {"method": method}
    content = encode({"task": task, "args": _canonical(args, exact_numbers), **other})
    return f"{task}:{hashlib.sha256(content).hexdigest()[:32]}"


def _canonical(value: Any, exact_numbers: bool) -> Any:
    """The form that all equal values share: sorted keys, and 2 instead of 2.0 unless `exact_numbers`."""
    if isinstance(value, dict):
        ordered = {key: _canonical(value[key], exact_numbers) for key in sorted(value)}
        if ordered.get(TAG) == "dict" and isinstance(ordered["value"], list):  # its keys are no strings
            ordered["value"].sort(key=repr)
        return ordered
    if isinstance(value, list):
        return [_canonical(item, exact_numbers) for item in value]
    if type(value) is float and not exact_numbers and value.is_integer() and abs(value) < LARGEST_INTEGER:
        return int(value)
    return value
