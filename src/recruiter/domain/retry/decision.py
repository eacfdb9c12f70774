"""Decides after a failed attempt. The functions are pure: nothing is written here.

    a run raised, or its process died ──▶ decide(policy, failure, …) ──▶ Retry(at, group) │ Archive(why, reason)

A custom policy is a class with `decide`, registered where the tasks are (docs/how-to/retries.md).
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Self

from recruiter.domain.definitions import qualified_name
from recruiter.domain.names import check_name
from recruiter.domain.state import Why
from recruiter.domain.text import cut, said_by, shown
from recruiter.errors import InvalidJob

MAX_CRASHES = 3
"""The default of `max_crashes`: a job that ends its process this often is archived, regardless of its policy."""
MOST_ATTEMPTS = 1_000_000
MAX_WORKER_DEATHS = 5
"""A job whose whole worker dies this often is archived. Counted separately from crashes, because the cause is usually
the machine."""

_EARLIEST = datetime(1, 1, 2, tzinfo=UTC)
LATEST = datetime(9999, 1, 1, tzinfo=UTC)
"""No retry is scheduled after this: past it, datetimes overflow when they are shown in another time zone."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Run the job again, not before `at`; in another group if one is given."""

    at: datetime
    group: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.at, datetime) or self.at.utcoffset() is None:
            raise InvalidJob(f"a retry needs a datetime with a time zone, not {self.at!r}")
        object.__setattr__(self, "at", _storable(self.at))
        if self.group is not None:
            check_name("group", self.group)


@dataclass(frozen=True, slots=True)
class Archive:
    """Do not run the job again; `reason` is a sentence for people where `why` alone does not explain it."""

    why: str
    reason: str | None = None


Decision = Retry | Archive
"""The answer of a policy."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The facts for a policy. `attempt` is 1 when the first run failed; datetimes are aware, in UTC."""

    attempt: int
    created_at: datetime
    scheduled_at: datetime
    failed_at: datetime
    exception: BaseException | None = None
    exception_classes: tuple[str, ...] = ()
    crashed: bool = False

    @property
    def age(self) -> timedelta:
        """The time from the creation of the job to the failure."""
        return self.failed_at - self.created_at

    def is_a(self, names: Iterable[str]) -> bool:
        """Whether an exception of these classes, or of a subclass, ended the run."""
        return any(name in self.exception_classes for name in names)


class StoredPolicy:
    """A policy is a value: immutable, compared by content, stored as the parameters that it exports."""

    error: ClassVar[type[InvalidJob]] = InvalidJob

    def export(self) -> dict[str, Any]:
        """The parameters to store: BSON values, and other policies. A dataclass need not write this."""
        cls: type = type(self)
        if not is_dataclass(cls):
            raise self.error(f"{cls.__name__} must be a dataclass or define export() and import_()")
        return {field.name: getattr(self, field.name) for field in fields(cls) if field.init}

    @classmethod
    def import_(cls, parameters: Mapping[str, Any]) -> Self:
        """The policy that `export` wrote, rebuilt in another process."""
        return cls(**parameters)


class RetryPolicy(StoredPolicy, ABC):
    """Decides about a job after a failed run. A policy is a value: immutable, compared by content."""

    @abstractmethod
    def decide(self, failure: Failure) -> Decision | None:
        """Retry, Archive, or None, which archives the job."""

    def is_last(self, failure: Failure) -> bool:
        """Whether this failure would be the last, for any exception. For jobs that ask before they fail."""
        return not isinstance(self.decide(failure), Retry)


def decide(
    policy: RetryPolicy | None,
    failure: Failure,
    *,
    at_most_once: bool = False,
    crashes: int = 0,
    max_crashes: int | None = None,
) -> Decision:
    """Decides about a failed attempt. `crashes` counts how often its process has died, this time included.

    After a crash, a job without a policy runs again immediately, in its old place before later jobs: a crash is more
    often the machine's fault than the job's. No policy can extend `max_crashes`.
    """
    if failure.crashed and at_most_once:
        return Archive(Why.LOST, "the process died while it ran, and this job must not run twice")
    if failure.crashed and crashes >= (max_crashes or MAX_CRASHES):
        times = "once" if crashes == 1 else f"{crashes} times"
        return Archive(Why.CRASHED_TOO_MANY_TIMES, f"its process died {times}")
    if failure.crashed and policy is None:
        return Retry(failure.scheduled_at)
    if policy is None or at_most_once:
        return Archive(Why.NOT_SCHEDULED_BY_RETRY_POLICY)
    return _ask(policy, failure)


def _ask(policy: RetryPolicy, failure: Failure) -> Decision:
    """Asks the policy for its decision. If it raises, or returns anything else, the job is archived, not lost."""
    try:
        decision: object = policy.decide(failure)
    except BaseException as error:  # SystemExit too: it is the policy's, not the worker's
        reason = f"{said_by(policy, repr)} raised {type(error).__name__}: {said_by(error)}"
        return Archive(Why.POLICY_FAILED, cut(reason))
    if decision is None:
        return Archive(Why.NOT_SCHEDULED_BY_RETRY_POLICY)
    if not isinstance(decision, Retry | Archive):
        reason = f"{said_by(policy, repr)} answered {said_by(decision, repr)} instead of Retry or Archive"
        return Archive(Why.POLICY_FAILED, cut(reason))
    if isinstance(decision, Archive) and decision.reason is not None:
        return Archive(cut(decision.why, 200), cut(decision.reason))
    return decision


def check_max_crashes(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_ATTEMPTS:
        raise InvalidJob(f"max_crashes is a whole number from 1 to {MOST_ATTEMPTS:,}, not {said_by(value, repr, 100)}")
    return value


def is_last(policy: RetryPolicy | None, failure: Failure) -> bool:
    """Whether there would be no other attempt; a policy that raises is assumed to retry."""
    try:
        return policy is None or bool(policy.is_last(failure))
    except (Exception, SystemExit):
        return False


def exception_names(exception: type[BaseException]) -> tuple[str, ...]:
    """The names of the class and of its ancestors: a stored name is compared with them, never imported."""
    return tuple(qualified_name(cls) for cls in exception.__mro__ if issubclass(cls, BaseException))


def checked_names(only: Iterable[type[BaseException] | str]) -> tuple[str, ...]:
    """Like `only_names`, for the user's own list: raises InvalidJob for a name that no exception has. A name with a
    module is only checked if that module is loaded, because a producer need not have it."""
    only = only if isinstance(only, str | type) or not isinstance(only, Iterable) else tuple(only)
    names = only_names(only)
    for name in (_exception_name(given) for given in only if isinstance(given, str)):
        place, _, cls = name.rpartition(".")
        module = sys.modules.get(place or "builtins")
        found = getattr(module, cls, None)
        if module is not None and not (isinstance(found, type) and issubclass(found, BaseException)):
            raise InvalidJob(
                f"there is no exception {name!r}: give the class itself, as in only=[ConnectionError], "
                "or its name with its module, as in 'requests.ConnectionError'"
            )
    return names


def only_names(only: Iterable[type[BaseException] | str]) -> tuple[str, ...]:
    """Exception classes, or their qualified names, as the names that are stored."""
    if isinstance(only, str | type) or not isinstance(only, Iterable):
        raise InvalidJob(f"a list of exception classes is needed, as in only=[ConnectionError], not {shown(only)}")
    return tuple(_exception_name(exception) for exception in only)


def after(moment: datetime, delay: timedelta) -> datetime:
    """The sum, but never later than LATEST and never an OverflowError."""
    try:
        return min(moment + delay, LATEST)
    except OverflowError:
        return LATEST


def _storable(moment: datetime) -> datetime:
    """In UTC, and never later than LATEST nor earlier than MongoDB can keep."""
    try:
        return max(min(moment.astimezone(UTC), LATEST), _EARLIEST)
    except OverflowError:
        return LATEST if moment.year > 1 else _EARLIEST


def _exception_name(exception: type[BaseException] | str) -> str:
    if isinstance(exception, str) and exception.strip():
        return exception.removeprefix("builtins.")
    if isinstance(exception, type) and issubclass(exception, BaseException):
        return qualified_name(exception)
    raise InvalidJob(f"{shown(exception)} is not an exception class, nor the qualified name of one")
