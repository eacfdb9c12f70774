"""A filter of jobs: a checked value, the same for Python, the command line and the store."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, Unpack

from recruiter.domain.duration import humanize
from recruiter.domain.job import JobId
from recruiter.domain.moment import Moment, told
from recruiter.domain.search.conditions import POSTPONED, QUEUED, Argument, Conditions, checked
from recruiter.domain.state import State, Why
from recruiter.domain.text import shown
from recruiter.errors import InvalidFilter

WAITING: frozenset[str] = frozenset({State.WAITING, QUEUED, POSTPONED})
NOT_ENDED: frozenset[str] = WAITING | {State.RUNNING}
ENDED: frozenset[str] = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED, State.LOST})

_TIMES = ("", "created_", "scheduled_", "ended_")


@dataclass(frozen=True, slots=True, init=False)
class JobFilter:
    """Which jobs: `JobFilter(state="failed", task="send", since="2h")`. All words are in `Conditions`.

    Raises InvalidFilter for what makes no sense, or contradicts itself. An attribute that was not said is empty.
    """

    ids: tuple[JobId, ...] = ()
    state: frozenset[str] = frozenset()
    task: tuple[str, ...] = ()
    group: tuple[str, ...] = ()
    tag: tuple[str, ...] = ()
    owner: tuple[str, ...] = ()
    urn: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    worker: tuple[str, ...] = ()
    error: tuple[str, ...] = ()
    why: tuple[str, ...] = ()
    args: tuple[Argument, ...] = ()
    since: Moment | None = None
    until: Moment | None = None
    created_since: Moment | None = None
    created_until: Moment | None = None
    scheduled_since: Moment | None = None
    scheduled_until: Moment | None = None
    ended_since: Moment | None = None
    ended_until: Moment | None = None
    recovered_from: tuple[JobId, ...] = ()
    recovered: bool | None = None
    attempts: int | None = None
    delayed: timedelta | None = None
    slow: timedelta | None = None

    def __init__(self, **conditions: Unpack[Conditions]) -> None:
        given = {name: checked(name, value) for name, value in conditions.items() if value is not None}
        self._set({field.name: given.get(field.name, field.default) for field in fields(self)})

    def _set(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)
        for contradiction in _contradictions(self):
            raise InvalidFilter(contradiction)

    @property
    def is_empty(self) -> bool:
        """Whether it says nothing, and every job is meant."""
        return self == JobFilter()

    # -- for those who build on it -------------------------------------------------------------------------------------

    @property
    def only_ended(self) -> bool:
        """Whether only a job that has ended can fulfil it, whatever it says of the state."""
        return bool(self.why or self.recovered) or self.ended_since is not None or self.ended_until is not None

    def wants(self, states: Iterable[str]) -> bool:
        """Whether jobs in one of these states may be meant."""
        if self.only_ended and not ENDED & set(states):
            return False
        return not self.state or bool(self.state & set(states))

    def wants_why(self, why: str) -> bool:
        """Whether jobs that ended for this reason may be meant."""
        state = State.at_the_end(why == Why.DONE, why)
        return (not self.why or why in self.why) and (not self.state or state in self.state)

    def to_cancel(self) -> JobFilter:
        """Those of its jobs that can be cancelled. Raises InvalidFilter if it asks for others."""
        if self.only_ended:
            raise InvalidFilter("jobs that have ended cannot be cancelled; `recover` runs them once more")
        return self._within(NOT_ENDED, "cancelled; `recover` runs them once more")

    def to_recover(self) -> JobFilter:
        """Those of its jobs that can be recovered, if it does not say more: that failed or were lost, and that nobody
        has recovered yet. Raises InvalidFilter if it asks for jobs that have not ended."""
        narrowed = self._within(ENDED, "recovered; wait until they have ended, or cancel them")
        state = narrowed.state if self.state or self.why else frozenset({State.FAILED, State.LOST})
        return narrowed._with(state=state, recovered=bool(self.recovered))

    def to_remove(self) -> JobFilter:
        """Those of its jobs that can be removed. Raises InvalidFilter if it asks for jobs that have not ended."""
        return self._within(ENDED, "removed; cancel them first")

    def _within(self, states: frozenset[str], refusal: str) -> JobFilter:
        others = sorted(self.state - states)
        if others:
            raise InvalidFilter(f"jobs that are {' or '.join(others)} cannot be {refusal}")
        return self._with(state=self.state or states)

    def _with(self, **changes: Any) -> JobFilter:
        changed = object.__new__(JobFilter)
        changed._set({**{field.name: getattr(self, field.name) for field in fields(self)}, **changes})
        return changed

    @property
    def fingerprint(self) -> bytes:
        """A few bytes that are others for another filter."""
        said = [(field.name, getattr(self, field.name)) for field in fields(self) if field.name != "state"]
        return hashlib.sha256(repr([sorted(self.state), said]).encode()).digest()[:6]

    def __str__(self) -> str:
        """What was said, for people."""
        return ", ".join(_told(self)) or "all jobs"


def filter_of(filter: JobFilter | None, conditions: Conditions) -> JobFilter:
    """Of a call that takes either a filter or its words."""
    if filter is None:
        return JobFilter(**conditions)
    if not isinstance(filter, JobFilter):
        raise InvalidFilter(f"give a JobFilter, or words such as state='failed', not {shown(filter)}")
    if conditions:
        raise InvalidFilter(f"give a JobFilter or words such as {next(iter(conditions))}=…, not both")
    return filter


def _contradictions(filter: JobFilter) -> Iterator[str]:
    for times in _TIMES:
        since, until = getattr(filter, f"{times}since"), getattr(filter, f"{times}until")
        if _never(since, until):
            yield f"nothing is since {told(since)} and until {told(until)}; the first must be the earlier one"
    state = f"is {' or '.join(sorted(filter.state))}"
    if filter.only_ended and filter.state and not filter.state & ENDED:
        yield f"a job that {state} has not ended; leave out the state, or what is said of its end"
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


def _told(filter: JobFilter) -> Iterator[str]:
    for field in fields(filter):
        value, name = getattr(filter, field.name), field.name.replace("_", " ")
        if value is None or value in ((), frozenset()):
            continue
        if field.name == "args":
            yield from (f"{path}={' or '.join(dict.fromkeys(map(str, values)))}" for path, values in value)
        elif field.name in ("delayed", "slow"):
            yield f"{name} by {humanize(value)}" if field.name == "delayed" else f"{name}er than {humanize(value)}"
        elif field.name == "recovered":
            yield "recovered" if value else "not recovered"
        elif field.name == "attempts":
            yield f"at least {value} attempts"
        elif isinstance(value, tuple | frozenset):
            yield f"{name} {' or '.join(map(str, sorted(value, key=str)))}"
        else:
            yield f"{name} {told(value)}"
