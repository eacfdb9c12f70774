"""The policies that come with Recruiter. `n` retries are `n + 1` runs; delays count from the failure."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import InitVar, dataclass, field
from datetime import timedelta
from itertools import pairwise
from typing import Any, Self

from recruiter.domain.duration import DurationLike, humanize, to_timedelta
from recruiter.domain.retry.decision import (
    Archive,
    Decision,
    Failure,
    Retry,
    RetryPolicy,
    after,
    checked_names,
    only_names,
)
from recruiter.domain.state import Why
from recruiter.domain.text import shown
from recruiter.errors import InvalidJob

ExceptionClasses = type[BaseException] | str | Iterable[type[BaseException] | str]


@dataclass(frozen=True)
class DoNotDoItAgain(RetryPolicy):
    """The default: a failed job is archived."""

    def decide(self, failure: Failure) -> Decision:  # noqa: ARG002
        return Archive(Why.NOT_SCHEDULED_BY_RETRY_POLICY)


@dataclass(frozen=True, repr=False)
class RetryManyTimes(RetryPolicy):
    """Up to `n` retries, each `seconds` (or any duration) after the failure."""

    n: int
    seconds: InitVar[DurationLike]
    delay: timedelta = field(init=False)

    def __post_init__(self, seconds: DurationLike) -> None:
        object.__setattr__(self, "n", _count(self.n, type(self).__name__))
        object.__setattr__(self, "delay", to_timedelta(seconds))

    @classmethod
    def for_times(cls, n: int, seconds: DurationLike) -> Self:
        """The same, with the name that the PHP version uses."""
        return cls(n, seconds)

    def decide(self, failure: Failure) -> Decision:
        if failure.attempt > self.n:
            return Archive(Why.TRIED_TOO_MANY_TIMES)
        return Retry(after(failure.failed_at, self.delay_before_retry(failure.attempt)))

    def delay_before_retry(self, number: int) -> timedelta:  # noqa: ARG002
        """The delay of the retry with this number (1 is the first)."""
        return self.delay

    def export(self) -> dict[str, Any]:
        return {"n": self.n, "seconds": _number(self.delay)}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.n}, {humanize(self.delay)!r})"


@dataclass(frozen=True, repr=False)
class ExponentialBackoff(RetryManyTimes):
    """Up to `n` retries: the first after `seconds`, each of the others after twice the delay before it.

    No delay is longer than `most`. A `jitter` of 0.1 takes up to a tenth off each delay at random, so that jobs that
    failed together do not come back together; `random.seed()` makes it repeatable. Without one, delays are exact.
    """

    most: DurationLike | None = None
    jitter: float = 0.0

    def __post_init__(self, seconds: DurationLike) -> None:
        super().__post_init__(seconds)
        if self.most is not None:
            object.__setattr__(self, "most", to_timedelta(self.most))
            if self._most < self.delay:
                raise InvalidJob(f"most={humanize(self._most)!r} is shorter than the first delay: {self!r}")
        jitter: object = self.jitter
        if isinstance(jitter, bool) or not isinstance(jitter, int | float) or not 0 <= jitter <= 1:
            raise InvalidJob(f"jitter is a part of the delay, from 0 to 1, not {shown(jitter)}")

    @property
    def _most(self) -> timedelta:
        return timedelta.max if self.most is None else to_timedelta(self.most)

    @classmethod
    def for_an_interval(cls, total: DurationLike, seconds: DurationLike, *, jitter: float = 0.0) -> Self:
        """As many retries as have a delay of at most `total`: (120, 30) waits 30, 60 and 120 seconds."""
        longest, first = to_timedelta(total), to_timedelta(seconds)
        if not timedelta(0) < first <= longest:
            raise InvalidJob(
                f"for_an_interval({humanize(longest)}, {humanize(first)}): "
                "the first delay must be longer than zero and no longer than the interval"
            )
        return cls((longest // first).bit_length(), first, jitter=jitter)

    def delay_before_retry(self, number: int) -> timedelta:
        try:
            # 2 ** 64 microseconds are 584,000 years: a larger exponent only costs memory.
            exact = self.delay * (1 << min(max(number - 1, 0), 64))
        except OverflowError:
            exact = timedelta.max
        delay = min(exact, self._most)
        return delay * (1 - self.jitter * random.random()) if self.jitter else delay

    def export(self) -> dict[str, Any]:
        most = {} if self.most is None else {"most": _number(self._most)}
        return {**super().export(), **most, **({"jitter": self.jitter} if self.jitter else {})}

    def __repr__(self) -> str:
        most = "" if self.most is None else f", most={humanize(self._most)!r}"
        jitter = f", jitter={self.jitter}" if self.jitter else ""
        return f"{type(self).__name__}({self.n}, {humanize(self.delay)!r}{most}{jitter})"


@dataclass(frozen=True, repr=False)
class RetryForever(RetryPolicy):
    """Again and again, each time `seconds` (or any duration) after the failure."""

    seconds: InitVar[DurationLike]
    delay: timedelta = field(init=False)

    def __post_init__(self, seconds: DurationLike) -> None:
        object.__setattr__(self, "delay", to_timedelta(seconds))

    @classmethod
    def after_seconds(cls, seconds: DurationLike) -> Self:
        """The same, with the name that the PHP version uses."""
        return cls(seconds)

    def decide(self, failure: Failure) -> Decision:
        return Retry(after(failure.failed_at, self.delay))

    def export(self) -> dict[str, Any]:
        return {"seconds": _number(self.delay)}

    def __repr__(self) -> str:
        return f"RetryForever({humanize(self.delay)!r})"


@dataclass(frozen=True, repr=False)
class TimeTable(RetryPolicy):
    """The older the job, the longer the delay: `{"5 minutes ago": "1 minute", "1 hour ago": "5 minutes"}`.

    Every minute while the job was created less than 5 minutes ago, then every 5 minutes until it is an hour
    old; an older one is not retried.
    """

    time_table: InitVar[Mapping[str, DurationLike] | Iterable[tuple[DurationLike, DurationLike]]]
    rows: tuple[tuple[timedelta, timedelta], ...] = field(init=False)

    def __post_init__(
        self, time_table: Mapping[str, DurationLike] | Iterable[tuple[DurationLike, DurationLike]]
    ) -> None:
        if isinstance(time_table, Mapping):
            rows = [(_age(text), to_timedelta(delay)) for text, delay in time_table.items()]
        else:
            rows = [(to_timedelta(age), to_timedelta(delay)) for age, delay in _pairs("a time table", time_table)]
        object.__setattr__(self, "rows", _checked_rows(rows))

    def decide(self, failure: Failure) -> Decision:
        for age, delay in self.rows:
            if failure.age < age:
                return Retry(after(failure.failed_at, delay))
        return Archive(Why.NOT_SCHEDULED_BY_RETRY_POLICY)

    def export(self) -> dict[str, Any]:
        return {"time_table": [[_number(age), _number(delay)] for age, delay in self.rows]}

    def __repr__(self) -> str:
        rows = ", ".join(f"'{humanize(age)} ago': {humanize(delay)!r}" for age, delay in self.rows)
        return f"TimeTable({{{rows}}})"


@dataclass(frozen=True, repr=False)
class SelectByException(RetryPolicy):
    """A policy per kind of exception; the first case that fits decides:
    `SelectByException().when(ConnectionError, RetryManyTimes(3, 60)).otherwise(DoNotDoItAgain())`."""

    cases: tuple[tuple[tuple[str, ...], RetryPolicy], ...] = ()
    default: RetryPolicy = field(default_factory=DoNotDoItAgain)

    def __post_init__(self) -> None:
        cases = tuple((_names(classes), _policy(policy)) for classes, policy in _pairs("cases", self.cases))
        object.__setattr__(self, "cases", cases)
        _policy(self.default)

    def when(self, exceptions: ExceptionClasses, policy: RetryPolicy) -> Self:
        """With one case more, tried after those already there. Subclasses count."""
        checked_names([exceptions] if isinstance(exceptions, str | type) else exceptions)
        return type(self)((*self.cases, (_names(exceptions), policy)), self.default)

    def otherwise(self, policy: RetryPolicy) -> Self:
        """For exceptions of no case, and for crashes, which have none."""
        return type(self)(self.cases, policy)

    def decide(self, failure: Failure) -> Decision | None:
        fitting = (policy for names, policy in self.cases if failure.is_a(names))
        return next(fitting, self.default).decide(failure)

    def is_last(self, failure: Failure) -> bool:
        return all(policy.is_last(failure) for policy in (*(policy for _, policy in self.cases), self.default))

    def export(self) -> dict[str, Any]:
        cases = [{"exceptions": list(names), "policy": policy} for names, policy in self.cases]
        return {"cases": cases, "otherwise": self.default}

    @classmethod
    def import_(cls, parameters: Mapping[str, Any]) -> Self:
        cases = tuple((case["exceptions"], case["policy"]) for case in parameters["cases"])
        return cls(cases, parameters["otherwise"])

    def __repr__(self) -> str:
        cases = "".join(f".when({list(names)!r}, {policy!r})" for names, policy in self.cases)
        return f"SelectByException(){cases}.otherwise({self.default!r})"


@dataclass(frozen=True)
class RetriableExceptionFilter(RetryPolicy):
    """`only=[…]`: the policy decides about these exceptions and their subclasses; others archive immediately.

    A crash has no exception and always reaches the policy.
    """

    policy: RetryPolicy
    only: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "only", only_names(self.only))
        if isinstance(_policy(self.policy), RetriableExceptionFilter):
            raise InvalidJob(f"{self.policy!r} has a list of exceptions already; give only= once")

    def decide(self, failure: Failure) -> Decision | None:
        if not failure.crashed and not failure.is_a(self.only):
            return Archive(Why.NON_RETRIABLE_EXCEPTION)
        return self.policy.decide(failure)

    def is_last(self, failure: Failure) -> bool:
        return self.policy.is_last(failure)


def _names(exceptions: ExceptionClasses) -> tuple[str, ...]:
    names = only_names([exceptions] if isinstance(exceptions, str | type) else exceptions)
    if not names:
        raise InvalidJob("a case without exceptions would never fit; name at least one exception class")
    return names


def _policy(value: RetryPolicy) -> RetryPolicy:
    if not isinstance(value, RetryPolicy):
        raise InvalidJob(f"a retry policy is needed, as in RetryManyTimes(3, 60), not {shown(value)}")
    return value


def _count(value: object, policy: str) -> int:
    # A number that JavaScript wrote is a float, whole or not.
    whole = isinstance(value, float) and value.is_integer()
    if isinstance(value, bool) or not (whole or isinstance(value, int)) or value < 0:  # type: ignore[operator]
        raise InvalidJob(f"{policy} needs a number of retries, 0 or more, not {shown(value)}")
    return int(value)  # type: ignore[call-overload,no-any-return]


def _number(duration: timedelta) -> int | float:
    seconds = duration.total_seconds()
    return int(seconds) if seconds.is_integer() else seconds


def _age(text: object) -> timedelta:
    words = text.split() if isinstance(text, str) else []
    if words[-1:] != ["ago"]:
        raise InvalidJob(f"a row of a TimeTable begins with an age such as '5 minutes ago', not {shown(text)}")
    return to_timedelta(" ".join(words[:-1]))


def _checked_rows(rows: list[tuple[timedelta, timedelta]]) -> tuple[tuple[timedelta, timedelta], ...]:
    ages = sorted(age for age, _ in rows)
    if not ages:
        raise InvalidJob("a TimeTable needs at least one row, as in {'5 minutes ago': '1 minute'}")
    if ages[0] == timedelta(0):
        raise InvalidJob("a TimeTable row of age zero would never be used")
    for age, next_age in pairwise(ages):
        if age == next_age:
            raise InvalidJob(f"two rows of the TimeTable have the same age, {humanize(age)} ago")
    return tuple(sorted(rows))


def _pairs(what: str, value: Iterable[Any]) -> list[tuple[Any, Any]]:
    try:
        return [(first, second) for first, second in value]
    except (TypeError, ValueError):
        raise InvalidJob(f"{what} must be a list of pairs, not {shown(value)}") from None
