"""Searches jobs that have ended, the newest first: chooses the index, and the conditions that it does not cover.

One index over (why, group, task, time) serves states, reasons, groups, tasks and all their combinations. The existing
values are found in a few seeks, and MongoDB merges their ranges. Optional fields, such as an owner or an error, have
partial indexes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from pymongo import DESCENDING
from pymongo.collection import Collection

from recruiter.domain.search.filter import JobFilter
from recruiter.domain.state import Why
from recruiter.store.codec import Document
from recruiter.store.collections.archived import BY_AGE, BY_ATTEMPTS, BY_ERROR, BY_KEY, BY_OWNER, BY_TAG, BY_URN, BY_WHY
from recruiter.store.errors import store_call
from recruiter.store.fields import is_text
from recruiter.store.search import matching
from recruiter.store.search.scans import BY_ID, MOST_MERGED, Scan, Walk

NEWEST_FIRST = (("archived_at", DESCENDING), ("_id", DESCENDING))
MOST_QUERIES = 20
"""Maximum number of queries for a page; above it, the index by age is scanned."""

_RETRIED = 2
"""Minimum number of attempts in the index of retried jobs."""
_CLASS = "last_execution.class"


class EndedJobs:
    def __init__(self, archived: Collection[Document]) -> None:
        self._archived = archived

    @store_call
    def walk(self, filter: JobFilter, now: datetime) -> Walk | None:
        """The ended jobs that the filter selects; None if there are none."""
        conditions = matching.of_ended(filter, now)
        if filter.state or filter.why:
            known = self._whys()
            whys = [why for why in known if filter.wants_why(why)]
            if not whys:
                return None
            if len(whys) < len(known):
                conditions["why"] = {"why": {"$in": whys}}
        bounds = tuple(matching.ended_between(filter, now))
        index, alternatives, answered = self._best(filter, conditions)
        if not alternatives:
            return None
        left = matching.residual(conditions, *answered)
        return Walk(self._archived, Scan(index, NEWEST_FIRST, alternatives, bounds, left))

    @store_call
    def names(self) -> tuple[set[str], set[str]]:
        """The groups and the tasks of jobs that have ended; one index seek for each that there is."""
        groups = set(self._texts("group", {"why": {"$in": self._whys()}}))
        tasks = self._texts("task", {"why": {"$in": self._whys()}, "group": {"$in": sorted(groups)}})
        return groups, set(tasks)

    def _best(
        self, filter: JobFilter, conditions: matching.Conditions
    ) -> tuple[str, tuple[Document, ...], tuple[str, ...]]:
        """An index, the equalities on its first fields, and the words that it answers."""
        if filter.ids:  # few: MongoDB sorts them
            return BY_ID, (conditions["ids"],), ("ids",)
        for word, index in (("urn", BY_URN), ("limited_by", BY_KEY), ("owner", BY_OWNER)):
            if word in conditions:
                field = next(iter(conditions[word]))
                return index, ({field: {"$in": list(getattr(filter, word)), "$gt": ""}},), (word,)
        if filter.error:
            return BY_ERROR, tuple(_in_chunks(_CLASS, self._errors(filter), {"$gt": ""})), ("error",)
        if filter.tag:
            return BY_TAG, ({"tags": filter.tag[0]},), ("tag",) if len(filter.tag) == 1 else ()
        if filter.attempts is not None and filter.attempts >= _RETRIED:
            some = self._archived.distinct("attempts", {"attempts": {"$gte": filter.attempts, "$gt": 1}})
            numbers = [number for number in some if isinstance(number, int | float)]
            return BY_ATTEMPTS, tuple(_in_chunks("attempts", numbers, {"$gt": 1})), ("attempts",)
        if filter.group or filter.task or "why" in conditions:
            alternatives = self._by_why(filter, conditions)
            if alternatives is not None and len(alternatives) <= MOST_QUERIES:
                return BY_WHY, alternatives, ("why", "group", "task")
        return BY_AGE, ({},), ()

    def _by_why(self, filter: JobFilter, conditions: matching.Conditions) -> tuple[Document, ...] | None:
        whys: list[str] = conditions["why"]["why"]["$in"] if "why" in conditions else self._whys()
        if not 0 < len(whys) <= MOST_MERGED:
            return None  # no job has ended, or a policy of the application invents reasons
        of_whys: Document = {"why": {"$in": whys}}
        groups = filter.group or self._texts("group", of_whys)
        if filter.task:
            tasks: Mapping[str, Sequence[str]] = dict.fromkeys(groups, filter.task)
        else:
            tasks = {group: self._texts("task", {**of_whys, "group": group}) for group in groups}
        set_aside: tuple[Document, ...] = ()
        if Why.MALFORMED in whys and not filter.group and not filter.task:
            set_aside = ({"why": Why.MALFORMED, "group": None, "task": None},)  # it has neither
        return (*_products(whys, {group: some for group, some in tasks.items() if some}), *set_aside)

    def _whys(self) -> list[str]:
        return self._texts("why", {})

    def _texts(self, field: str, query: Document) -> list[str]:
        """The distinct text values, one index seek each."""
        texts = {"$and": [query, {field: {"$gte": ""}}]} if query else {field: {"$gte": ""}}
        return [value for value in self._archived.distinct(field, texts) if is_text(value)]

    def _errors(self, filter: JobFilter) -> list[str]:
        """The full names of classes that are meant."""
        known = self._archived.aggregate(
            [{"$match": {_CLASS: {"$gt": ""}}}, {"$group": {"_id": f"${_CLASS}"}}], hint=BY_ERROR
        )
        names = [row["_id"] for row in known if is_text(row["_id"])]
        wanted = set(filter.error)
        return [name for name in names if name in wanted or name.rpartition(".")[2] in wanted]


def _products(whys: Sequence[str], tasks: Mapping[str, Sequence[str]]) -> Iterator[Document]:
    """Reasons, groups and tasks such that each query merges no more than MongoDB can, in few queries."""
    most = MOST_MERGED // len(whys)
    groups: list[str] = []
    together: set[str] = set()
    for group, some in sorted(tasks.items()):
        if groups and (len(groups) + 1) * len(together.union(some)) > most:
            yield _merged(whys, groups, sorted(together))
            groups, together = [], set()
        if len(some) > most:
            yield from (_merged(whys, [group], some[at : at + most]) for at in range(0, len(some), most))
        else:
            groups.append(group)
            together.update(some)
    if groups:
        yield _merged(whys, groups, sorted(together))


def _merged(whys: Sequence[str], groups: Sequence[str], tasks: Sequence[str]) -> Document:
    return {"why": {"$in": list(whys)}, "group": {"$in": list(groups)}, "task": {"$in": list(tasks)}}


def _in_chunks(field: str, values: Sequence[Any], also: Document) -> Iterator[Document]:
    for start in range(0, len(values), MOST_MERGED):
        yield {field: {"$in": list(values[start : start + MOST_MERGED]), **also}}
