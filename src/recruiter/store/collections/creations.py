"""`creations`: ids that exist once, ever. They stay when their jobs have long been cleaned out of the archive."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from pymongo.collection import Collection

from recruiter.domain.arguments.values import TAG
from recruiter.domain.names import DEFAULT_METHOD
from recruiter.domain.unreadable import Unreadable
from recruiter.store import fields as field
from recruiter.store.codec import RAW, Document, encode
from recruiter.store.errors import store_call
from recruiter.store.reading import parsed

NAME = "creations"
_LARGEST_WHOLE = 2.0**63
"""Beyond, BSON has no integers."""
VALIDATOR = {"$jsonSchema": {"properties": {"at": {"bsonType": "date"}}}}


class Creations:
    def __init__(self, collection: Collection[Document]) -> None:
        self.collection = collection

    @store_call
    def unreadable(self, limit: int, within: float) -> Sequence[Unreadable]:
        """Up to so many. For reports only, it reads all of the collection; raises StoreUnreachable if that takes longer
        than so many seconds."""
        raw: Collection[Any] = self.collection.with_options(codec_options=RAW)
        found = raw.find({"at": {"$not": {"$type": "date"}}}, limit=limit, max_time_ms=int(within * 1000))
        return parsed(NAME, found, lambda document: field.moment(document, "at")).unreadable


def content_id(task: str, args: Any, method: str = DEFAULT_METHOD, *, exact_numbers: bool = False) -> str:
    """The id of a job by what it is: the same task (and method) with the same arguments, in any order of keys, is the
    same job. 2 and 2.0 are the same: a producer that does not know the code cannot know which of them the task takes.
    With `exact_numbers` they are not, as in jobs of earlier releases."""
    other = {} if method == DEFAULT_METHOD else {"method": method}
    content = encode({"task": task, "args": _canonical(args, exact_numbers), **other})
    return f"{task}:{hashlib.sha256(content).hexdigest()[:32]}"


def _canonical(value: Any, exact_numbers: bool) -> Any:
    if isinstance(value, dict):
        ordered = {key: _canonical(value[key], exact_numbers) for key in sorted(value)}
        if ordered.get(TAG) == "dict" and isinstance(ordered["value"], list):  # one whose keys are no texts
            ordered["value"].sort(key=repr)
        return ordered
    if isinstance(value, list):
        return [_canonical(item, exact_numbers) for item in value]
    if type(value) is float and not exact_numbers and value.is_integer() and abs(value) < _LARGEST_WHOLE:
        return int(value)
    return value
