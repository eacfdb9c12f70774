"""A filter as conditions on documents, by the name of the filter's own condition.

The code that knows an index which answers a word leaves it out and asks for the rest (`residual`). Values are only ever
compared (`$eq`), so nothing in them can be an operator or a pattern.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from recruiter.domain.duration import Moment, resolved
from recruiter.domain.search.filter import JobFilter
from recruiter.store.codec import Document

Conditions = dict[str, Document]

_ANY_OF = {
    "ids": "_id",
    "task": "task",
    "group": "group",
    "owner": "username",
    "urn": "urn",
    "limited_by": "key",
    "worker": "last_execution.worker",
    "recovered_from": "recovered_from",
}
"""Conditions that compare one field with the given values."""
_CLOCKS_DISAGREE = timedelta(minutes=1)
_STARTED, _ENDED = "last_execution.started_at", "last_execution.ended_at"


def of_ended(filter: JobFilter, now: datetime) -> Conditions:
    """Conditions on a document in `archived`; reason and time of its end are left to the index and its bounds."""
    conditions = of_waiting(filter, now)
    for condition in _in_time("scheduled_at", filter.scheduled_since, filter.scheduled_until, now):
        conditions["scheduled"] = condition
    if filter.recovered is not None:
        conditions["recovered"] = {"recovered_as": {"$ne" if filter.recovered else "$eq": None}}
    if filter.delayed is not None:
        conditions["delayed"] = _between("scheduled_at", _STARTED, filter.delayed)
    return conditions


def due_between(filter: JobFilter, now: datetime) -> list[Document]:
    """Bounds on when a job that has not ended is due."""
    return [
        *_in_time("scheduled_at", filter.scheduled_since, filter.scheduled_until, now),
        *_in_time("scheduled_at", filter.since, filter.until, now),
    ]


def ended_between(filter: JobFilter, now: datetime) -> list[Document]:
    """Bounds on when a job ended. It did so after it was created, give or take what clocks disagree."""
    bounds = [
        *_in_time("archived_at", filter.ended_since, filter.ended_until, now),
        *_in_time("archived_at", filter.since, filter.until, now),
    ]
    if filter.created_since is not None:
        created = resolved(filter.created_since, now)
        bounds.append({"archived_at": {"$gte": resolved(_CLOCKS_DISAGREE, created)}})
    return bounds


def residual(conditions: Conditions, *answered: str) -> tuple[Document, ...]:
    """The conditions that the index does not answer."""
    return tuple(condition for word, condition in conditions.items() if word not in answered)


def of_waiting(filter: JobFilter, now: datetime) -> Conditions:
    """Conditions on a document in `scheduled`; its due time is left to `due_between`."""
    conditions: Conditions = {
        word: {field: {"$eq": values[0]} if len(values) == 1 else {"$in": list(values)}}
        for word, field in _ANY_OF.items()
        if (values := tuple(getattr(filter, word)))
    }
    if filter.tag:
        conditions["tag"] = {"tags": {"$all": list(filter.tag)}}
    if filter.error:
        # A class name matches with any module; a name with a module is compared exactly.
        names = [name if "." in name else re.compile(rf"(^|\.){re.escape(name)}$") for name in filter.error]
        conditions["error"] = {"last_execution.class": {"$in": names}}
    if filter.args:
        wanted = [{"$or": [{f"args.{path}": {"$eq": value}} for value in values]} for path, values in filter.args]
        conditions["args"] = {"$and": [{"args": {"$exists": True}}, *wanted]}  # set-aside documents have no arguments
    if filter.attempts:
        conditions["attempts"] = {"attempts": {"$gte": filter.attempts}}
    if filter.slow is not None:
        conditions["slow"] = _between(_STARTED, _ENDED, filter.slow)
    for condition in _in_time("created_at", filter.created_since, filter.created_until, now):
        conditions["created"] = condition
    return conditions


def _between(start: str, end: str, least: timedelta) -> Document:
    """At least this long from one date to the other; other values do not match."""
    dates = [{"$eq": [{"$type": f"${name}"}, "date"]} for name in (start, end)]
    took = {"$cond": [{"$and": dates}, {"$subtract": [f"${end}", f"${start}"]}, None]}
    return {"$expr": {"$gte": [took, least / timedelta(milliseconds=1)]}}


def _in_time(field: str, since: Moment | None, until: Moment | None, now: datetime) -> list[Document]:
    """The condition that this field is in this time; none if the time is not limited."""
    bounds: Document = {}
    if since is not None:
        bounds["$gte"] = resolved(since, now)
    if until is not None:
        bounds["$lt"] = resolved(until, now)
    return [{field: bounds}] if bounds else []
