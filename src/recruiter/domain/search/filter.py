"""A filter of jobs, the same for Python, the command line and the store; and the pages that a search answers with."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, Generic, NamedTuple, TypedDict, TypeVar, Unpack

from recruiter.domain.duration import DurationLike, Moment, MomentLike, humanize, to_moment, told
from recruiter.domain.job import JobId
from recruiter.domain.search import conditions as check
from recruiter.domain.search.conditions import BLOCKED, POSTPONED, QUEUED, STATES, Argument, argument_written
from recruiter.domain.state import State, Why
from recruiter.domain.text import shown, similar
from recruiter.domain.unreadable import Unreadable
from recruiter.errors import InvalidFilter

WAITING: frozenset[str] = frozenset({State.WAITING, QUEUED, POSTPONED, BLOCKED})
NOT_ENDED: frozenset[str] = WAITING | {State.RUNNING}
CHANGEABLE: frozenset[str] = WAITING - {BLOCKED}
ENDED: frozenset[str] = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED, State.LOST})


def _condition(means: str, check: Callable[[str, object], Any], default: Any = None) -> Any:
    return field(default=default, metadata={"means": means, "check": check})


Several = str | Iterable[str]
"""One text, or several, of which any will do."""


class Conditions(TypedDict, total=False):
    """The keywords of `JobFilter` and of everything in `recruiter.jobs`, with their types. The fields of `JobFilter`
    explain them. Several values mean any of them; several tags, all. `args` has values by their path, `{"customer.id":
    42}`, where a tuple means any of its values."""

    ids: JobId | Iterable[JobId]
    state: Several
    task: Several
    group: Several
    tag: Several
    owner: Several
    error: str | type[BaseException] | Iterable[str | type[BaseException]]
    why: Several
    args: Mapping[str, Any]
    since: MomentLike
    until: MomentLike
    slow: DurationLike
    delayed: DurationLike
    attempts: int
    worker: Several
    urn: Several
    limited_by: Several
    created_since: MomentLike
    created_until: MomentLike
    scheduled_since: MomentLike
    scheduled_until: MomentLike
    ended_since: MomentLike
    ended_until: MomentLike
    recovered_from: JobId | Iterable[JobId]
    recovered: bool


@dataclass(frozen=True, init=False)
class JobFilter:
    """Selects jobs: `JobFilter(state="failed", task="send", since="2h")`. A job must meet all conditions.

    This is the one declaration of the conditions: the command line, the web console, its API and the reference take
    them from here. Raises InvalidFilter for values that make no sense, or that contradict each other. An attribute that
    was not given is empty.
    """

    ids: tuple[JobId, ...] = _condition(
        'These jobs. An id may be given as text: `"42"` means the job 42 and the job "42".', check.ids, ()
    )
    state: frozenset[str] = _condition(
        f"{', '.join(STATES)}. A waiting job is queued or postponed.", check.states, frozenset()
    )
    task: tuple[str, ...] = _condition("Jobs of this task.", check.names, ())
    group: tuple[str, ...] = _condition("Jobs of this group.", check.names, ())
    tag: tuple[str, ...] = _condition(
        "Jobs with this tag; if several are given, jobs with all of them.", check.texts, ()
    )
    owner: tuple[str, ...] = _condition("Jobs of this owner.", check.texts, ())
    error: tuple[str, ...] = _condition(
        "Jobs whose last attempt failed with this exception: its name, with or without the module.", check.errors, ()
    )
    why: tuple[str, ...] = _condition("Jobs that ended for this reason: tried-too-many-times, …", check.texts, ())
    args: tuple[Argument, ...] = _condition(
        "Jobs with this argument, by its path: customer.id=42.", check.arguments, ()
    )
    since: Moment | None = _condition(
        "Jobs that ended since this time, or that are due since then: 2h (ago), 2026-11-16, 2026-11-16T03:00Z.",
        to_moment,
    )
    until: Moment | None = _condition("Jobs that ended, or are due, until this time.", to_moment)
    slow: timedelta | None = _condition(
        "Jobs whose last attempt took, or takes, at least this long: 10s.", check.length
    )
    delayed: timedelta | None = _condition(
        "Jobs that started, or still wait, at least this long after their time: 1m.", check.length
    )
    attempts: int | None = _condition("Jobs with at least this many attempts.", check.whole_number)
    worker: tuple[str, ...] = _condition("Jobs that this worker holds, or ran last.", check.texts, ())
    urn: tuple[str, ...] = _condition("Jobs with this urn, such as the jobs of a scheduler.", check.texts, ())
    limited_by: tuple[str, ...] = _condition("Jobs with this key of a limit, such as customer:42.", check.names, ())
    created_since: Moment | None = _condition("Jobs created since this time.", to_moment)
    created_until: Moment | None = _condition("Jobs created until this time.", to_moment)
    scheduled_since: Moment | None = _condition("Jobs due since this time.", to_moment)
    scheduled_until: Moment | None = _condition("Jobs due until this time.", to_moment)
    ended_since: Moment | None = _condition("Jobs ended since this time.", to_moment)
    ended_until: Moment | None = _condition("Jobs ended until this time.", to_moment)
    recovered_from: tuple[JobId, ...] = _condition("Jobs that were made by recovering this job.", check.ids, ())
    recovered: bool | None = _condition("Jobs that have been recovered, or have not.", check.truth)

    def __init__(self, **conditions: Unpack[Conditions]) -> None:
        given = {name: value for name, value in conditions.items() if value is not None}
        known = {condition.name: condition.metadata["check"] for condition in fields(JobFilter)}
        if unknown := given.keys() - known.keys():
            raise unknown_word(min(unknown), tuple(known))
        vars(self).update({name: known[name](name, value) for name, value in given.items()})
        self._check_contradictions()

    def _check_contradictions(self) -> None:
        contradiction = next(_contradictions(self), None)
        if contradiction is not None:
            raise InvalidFilter(contradiction)

    @property
    def is_empty(self) -> bool:
        """Whether it has no condition and selects every job."""
        return self == JobFilter()

    # -- for extensions ------------------------------------------------------------------------------------------------

    @property
    def only_ended(self) -> bool:
        """Whether only ended jobs can fulfil it, apart from its condition on the state."""
        return bool(self.why or self.recovered) or self.ended_since is not None or self.ended_until is not None

    def wants(self, states: Iterable[str]) -> bool:
        """Whether it can select jobs in these states."""
        if self.only_ended and not ENDED & set(states):
            return False
        return not self.state or bool(self.state & set(states))

    def wants_why(self, why: str) -> bool:
        """Whether jobs that ended for this reason may be meant."""
        state = State.at_the_end(why == Why.DONE, why)
        return (not self.why or why in self.why) and (not self.state or state in self.state)

    def to_cancel(self) -> JobFilter:
        """Its jobs that can be cancelled. Raises InvalidFilter if it selects others."""
        if self.only_ended:
            raise InvalidFilter("jobs that have ended cannot be cancelled; `recover` runs them once more")
        return self._within(NOT_ENDED, "cancelled; `recover` runs them once more")

    def to_change(self) -> JobFilter:
        """Its jobs that can be rescheduled or reprioritised. Raises InvalidFilter if it selects others."""
        if self.only_ended:
            raise InvalidFilter("jobs that have ended cannot be changed; `recover` runs them once more")
        return self._within(CHANGEABLE, "changed; only jobs that wait in the queue can")

    def to_run(self) -> JobFilter:
        """Its postponed jobs. Raises InvalidFilter if it selects others."""
        self.to_change()
        postponed = frozenset({POSTPONED})
        return self._within(postponed | {State.WAITING}, "made due") if self.state else self._with(state=postponed)

    def to_recover(self, *, again: bool = False) -> JobFilter:
        """Its jobs that can be recovered; without a state, jobs that failed or were lost and have not been recovered
        yet. Raises InvalidFilter if it selects jobs that have not ended, and without `again` if it selects jobs that
        succeeded."""
        narrowed = self._within(ENDED, "recovered; wait until they have ended, or cancel them")
        if not again and (State.SUCCEEDED in self.state or Why.DONE in self.why):
            raise InvalidFilter(
                "jobs that succeeded would do their work a second time; to run them again, give again=True (on the "
                "command line --again)"
            )
        state = narrowed.state if self.state or self.why else frozenset({State.FAILED, State.LOST})
        return narrowed._with(state=state, recovered=bool(self.recovered))

    def to_remove(self) -> JobFilter:
        """Its ended jobs. Raises InvalidFilter if it selects others."""
        return self._within(ENDED, "removed; cancel them first")

    def _within(self, states: frozenset[str], refusal: str) -> JobFilter:
        others = sorted(self.state - states)
        if others:
            raise InvalidFilter(f"jobs that are {' or '.join(others)} cannot be {refusal}")
        return self._with(state=self.state or states)

    def _with(self, **changes: Any) -> JobFilter:
        changed = copy(self)
        vars(changed).update(changes)
        changed._check_contradictions()
        return changed

    @property
    def fingerprint(self) -> bytes:
        """A few bytes that differ for another filter."""
        others = [(name, value) for name, value in self.items() if name != "state"]
        return hashlib.sha256(repr([sorted(self.state), others]).encode()).digest()[:6]

    def items(self) -> Iterator[tuple[str, Any]]:
        """Every condition by its name, including empty ones."""
        return ((condition.name, getattr(self, condition.name)) for condition in fields(self))

    def __str__(self) -> str:
        """The conditions, for people."""
        return ", ".join(_described(self)) or "all jobs"


def filter_of(filter: JobFilter | None, conditions: Conditions) -> JobFilter:
    """The filter of a call that takes either a filter or its conditions."""
    if filter is None:
        return JobFilter(**conditions)
    if not isinstance(filter, JobFilter):
        raise InvalidFilter(f"give a JobFilter, or words such as state='failed', not {shown(filter)}")
    if conditions:
        raise InvalidFilter(f"give a JobFilter or words such as {next(iter(conditions))}=…, not both")
    return filter


class FilterWord(NamedTuple):
    """A condition in a command or a URL."""

    name: str
    means: str
    several: bool
    """Whether it may be given several times."""


FILTER_WORDS: Mapping[str, FilterWord] = {
    word.name: word
    for word in (
        FilterWord("arg" if each.name == "args" else each.name, each.metadata["means"], each.default is not None)
        for each in fields(JobFilter)
        if each.name != "ids"
    )
}
"""In the order in which they are shown. Ids are written in other ways."""


def unknown_word(name: str, known: Collection[str] = tuple(FILTER_WORDS)) -> InvalidFilter:
    """The error for an unknown condition. To ignore it would select too many jobs."""
    hint = similar(name, known) or f"known: {', '.join(known)}"
    return InvalidFilter(f"jobs cannot be filtered by {shown(name)}; {hint}")


def filter_from_words(words: Mapping[str, Sequence[str]]) -> JobFilter:
    """The filter of conditions written as strings; the last value of a single-valued condition counts. Raises
    InvalidFilter."""
    conditions: dict[str, Any] = {}
    for name, values in words.items():
        if name not in FILTER_WORDS:
            raise unknown_word(name)
        if not values:
            continue
        if name == "arg":
            conditions["args"] = dict(map(argument_written, values))
        elif not FILTER_WORDS[name].several:
            conditions[name] = _written(name, values[-1])
        else:
            conditions[name] = list(values)
    return JobFilter(**conditions)


_TRUTHS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def _written(name: str, text: str) -> Any:
    if name == "recovered":
        return _TRUTHS.get(text.lower(), text)
    return int(text) if name == "attempts" and text.isdigit() else text


def _contradictions(filter: JobFilter) -> Iterator[str]:
    for times in ("", "created_", "scheduled_", "ended_"):
        since, until = getattr(filter, f"{times}since"), getattr(filter, f"{times}until")
        if _never(since, until):
            yield f"no job is since {told(since)} and until {told(until)}: the first must be the earlier time"
    state = f"is {' or '.join(sorted(filter.state))}"
    if filter.only_ended and filter.state and not filter.state & ENDED:
        yield f"a job that {state} has not ended; leave out the state, or the conditions on its end"
    if filter.why and filter.state and not any(map(filter.wants_why, filter.why)):
        yield f"a job that {state} has never ended with {' or '.join(filter.why)}; leave out one of the two"
    if filter.error and filter.state == {State.SUCCEEDED}:
        yield "a job that has succeeded has no error; leave out one of the two"


def _never(since: Moment | None, until: Moment | None) -> bool:
    """Whether there is no time between them, whatever the time is now."""
    if isinstance(since, timedelta) and isinstance(until, timedelta):
        return since <= until
    if since is None or until is None or isinstance(since, timedelta) or isinstance(until, timedelta):
        return False
    return since >= until


def _described(filter: JobFilter) -> Iterator[str]:
    for word, value in filter.items():
        name = word.replace("_", " ")
        if value is None or value in ((), frozenset()):
            continue
        if word == "args":
            yield from (f"{path}={' or '.join(dict.fromkeys(map(str, values)))}" for path, values in value)
        elif word in ("delayed", "slow"):
            yield f"{name} by {humanize(value)}" if word == "delayed" else f"{name}er than {humanize(value)}"
        elif word == "recovered":
            yield "recovered" if value else "not recovered"
        elif word == "attempts":
            yield f"at least {value} attempts"
        elif isinstance(value, tuple | frozenset):
            yield f"{name} {' or '.join(map(str, sorted(value, key=str)))}"
        else:
            yield f"{name} {told(value)}"


# -- results of a search --------------------------------------------------------------------------------------------


J = TypeVar("J", covariant=True)


@dataclass(frozen=True, slots=True)
class Page(Generic[J]):
    """A page of jobs, in order."""

    jobs: tuple[J, ...]
    next: str | None = None
    """The value of `after` for the next page; None at the end."""
    looked_at: int = 0
    """Approximate number of documents read. If no index answers a condition, a page may be short, even empty, although
    `next` is not None."""
    unreadable: tuple[Unreadable, ...] = ()
    """Documents that should have been on this page and cannot be read."""

    def __iter__(self) -> Iterator[J]:
        return iter(self.jobs)

    def __len__(self) -> int:
        return len(self.jobs)


class Count(NamedTuple):
    """A number of jobs; a lower bound if it is not exact."""

    number: int
    exact: bool

    def __int__(self) -> int:
        return self.number

    def __str__(self) -> str:
        return f"{self.number:,}" if self.exact else f"at least {self.number:,}"
