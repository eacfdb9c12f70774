"""The options of a job. A task, a workable class, a job and a repeatable job take the same ones, checked in one place.

    @recruiter.task(group="mail")    class Mail(Workable, group="mail")    job.in_group("mail")
                └──────────────────────────────┼────────────────────────────────┘
                                TaskOptions.changed(group="mail")

A job begins with the options of its task; the options of the job itself replace them. A new option is one line in
each of `GivenOptions`, `TaskOptions` and `_CHECKS`, and one method in `HasOptions`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Self, TypedDict, TypeVar, Unpack, cast

from recruiter.domain.duration import DurationLike, humanize, to_timedelta
from recruiter.domain.names import DEFAULT_GROUP, check_name, check_priority, check_tags, check_text, one_by_one
from recruiter.domain.planning.needs import NOTHING, AmountLike, Needs
from recruiter.domain.retry.decision import RetryPolicy, check_max_crashes, checked_names
from recruiter.domain.text import shown
from recruiter.domain.uniqueness import UniqueKind, Uniqueness, Until
from recruiter.errors import InvalidDuration, InvalidJob

F = TypeVar("F", bound=Callable[..., Any])
_KEY_EXAMPLE = "as in limited_by(customer=42) or limited_by('customer:42')"


class GivenOptions(TypedDict, total=False):
    """The options that all jobs of a task may share, as people write them."""

    group: str
    priority: int | float
    tags: Iterable[str]
    retry: RetryPolicy | None
    only: Iterable[type[BaseException]]
    at_most_once: bool
    timeout: DurationLike | None
    needs: Mapping[str, AmountLike] | None
    max_crashes: int | None
    expires: DurationLike | None
    keep_failed: DurationLike | None
    unique: bool | Until


class GivenJobOptions(GivenOptions, total=False):
    """The same, and the options that belong to one job."""

    owner: str
    limited_by: str


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """Checked options. The options of a task are checked when it is defined."""

    group: str = DEFAULT_GROUP
    priority: int | float = 0
    tags: tuple[str, ...] = ()
    retry: RetryPolicy | None = None
    only: tuple[type[BaseException], ...] = ()
    at_most_once: bool = False
    timeout: float | None = None
    """Seconds that one attempt may take."""
    needs: Needs = NOTHING
    max_crashes: int | None = None
    expires: float | None = None
    """Seconds after the time a job is scheduled for in which it may start."""
    keep_failed: float | None = None
    """Seconds to keep a job that did not succeed."""
    unique: Uniqueness | None = None
    """The rule for a job that meets another job with its key."""
    owner: str | None = None
    limited_by: str | None = None

    def changed(self, **given: Unpack[GivenJobOptions]) -> TaskOptions:
        """A copy with the given options changed. Raises InvalidJob, InvalidName, InvalidDuration; TypeError for an
        unknown option."""
        if unknown := given.keys() - _CHECKS.keys():
            raise TypeError(f"there is no option {min(unknown)!r}; the options are {', '.join(_CHECKS)}")
        if "retry" in given:
            given.setdefault("only", ())  # it belongs to the policy that it was given with
        return replace(self, **{name: _CHECKS[name](value) for name, value in given.items()})

    def of_job(self) -> dict[str, Any]:
        """The options that are fields of a job."""
        return {name: getattr(self, name) for name in _COPIED}


DEFAULTS = TaskOptions()


class HasOptions:
    """A method for each option, which returns a changed copy; for jobs and repeatable jobs."""

    @property
    def _task_options(self) -> TaskOptions:
        raise NotImplementedError

    def _changed(self, **given: Unpack[GivenJobOptions]) -> Self:
        raise NotImplementedError

    def in_group(self, group: str) -> Self:
        """Only workers of this group, or of all groups, will run it. A job has one group. Raises InvalidName."""
        return self._changed(group=group)

    def tagged_as(self, *tags: str | Iterable[str]) -> Self:
        """Adds tags: `tagged_as("a", "b")`, or `tagged_as(["a", "b"])`. Raises InvalidName."""
        return self._changed(tags=cast(Iterable[str], (*self._task_options.tags, *one_by_one(tags))))

    def with_priority(self, priority: int | float) -> Self:
        """A higher priority goes first inside its group; among equals the older job does. Raises InvalidJob."""
        return self._changed(priority=priority)

    def owned_by(self, owner: str) -> Self:
        """The user that it belongs to."""
        return self._changed(owner=owner)

    def retry_with_policy(self, policy: RetryPolicy, only: Iterable[type[BaseException]] = ()) -> Self:
        """Retries after a failure by this policy; `only` on these exceptions and their subclasses. Raises InvalidJob
        for a policy that cannot be stored."""
        if not isinstance(policy, RetryPolicy):
            raise InvalidJob(f"a retry policy is needed, as in RetryManyTimes(3, '1 minute'), not {shown(policy)}")
        return self._changed(retry=policy, only=only)

    def at_most_once(self) -> Self:
        """Never started twice, even if that means that it is lost when its worker dies."""
        return self._changed(at_most_once=True)

    def timeout(self, duration: DurationLike) -> Self:
        """Limits the duration of one attempt: then JobTimedOut is raised in it, and soon after its process is killed.
        Raises InvalidDuration."""
        return self._changed(timeout=seconds_to_run(duration))

    def max_crashes(self, count: int) -> Self:
        """Archives it when its process has died this often (default 3). Raises InvalidJob."""
        return self._changed(max_crashes=check_max_crashes(count))

    def expires_in(self, duration: DurationLike) -> Self:
        """If it has not started within this time after its scheduled time, it never starts, and is archived as
        `expired`. An attempt that has begun continues. Raises InvalidDuration."""
        return self._changed(expires=seconds_of("expires_in", duration))

    def keep_failed(self, duration: DurationLike) -> Self:
        """Keeps it in the archive for this time if it does not succeed, instead of the cleaner's time. Raises
        InvalidDuration."""
        return self._changed(keep_failed=seconds_of("keep_failed", duration))

    def needing(self, **resources: AmountLike) -> Self:
        """Reserves resources while it runs: `.needing(proc=2, mem="4GiB", gpu=1)`. It waits for a host that has them
        free.

        `proc` is a number of processors. `mem` is a string with its unit, or a number of GiB; a number of 1,048,576 or
        more is in bytes. Raises InvalidJob.
        """
        return self._changed(needs=resources)

    def limited_by(self, key: str | None = None, /, **keys: str | int) -> Self:
        """Counts it by a key: `.limited_by(customer=42)`, or the string "customer:42". A limit on `key:customer`
        applies to it, and so does `limits={"customer": "2/10s"}` of its task. A job has one key. Raises InvalidName and
        InvalidJob."""
        if (key is not None) + len(keys) != 1:
            raise InvalidJob(f"limited_by needs one key, {_KEY_EXAMPLE}")
        for kind, value in keys.items():
            if isinstance(value, bool) or not isinstance(value, str | int):
                raise InvalidJob(f"limited_by({kind}={shown(value)}): the value of a key is a text or an integer")
            key = f"{kind}:{value}"
        return self._changed(limited_by=cast(str, key))


def accepts_options(function: F) -> F:
    """Lists the options of `**options` in the signature of a function: for `help()` and the reference."""
    found = inspect.signature(function)
    given = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default={"needs": None, "unique": False}.get(name, getattr(DEFAULTS, name)),
            annotation=annotation.__forward_arg__,
        )
        for name, annotation in GivenOptions.__annotations__.items()
    ]
    parameters = [*list(found.parameters.values())[:-1], *given]
    function.__signature__ = found.replace(parameters=parameters)  # type: ignore[attr-defined]
    return function


def seconds_of(name: str, duration: DurationLike) -> float:
    """A duration in seconds, above zero. Raises InvalidDuration."""
    seconds = to_timedelta(duration).total_seconds()
    if not seconds:
        raise InvalidDuration(f"{name} must be longer than nothing; leave it out for no limit")
    return seconds


def seconds_to_run(timeout: DurationLike) -> float:
    """A timeout in seconds, above zero. Raises InvalidDuration."""
    duration = to_timedelta(timeout)
    if not duration:
        raise InvalidDuration(f"a timeout of {humanize(duration)} leaves no time to run; leave it out for no limit")
    return duration.total_seconds()


def _check_retry(policy: object) -> RetryPolicy | None:
    if policy is not None and not isinstance(policy, RetryPolicy):
        raise InvalidJob(f"retry is a policy such as RetryManyTimes(3, '1 minute'), not {shown(policy)}")
    return policy


def _check_only(only: object) -> tuple[type[BaseException], ...]:
    if not isinstance(only, Iterable | type):
        raise InvalidJob(f"only must be a list of exception classes, not {shown(only)}")
    classes: Any = only if isinstance(only, str | type) else tuple(only)
    checked_names(classes)
    return tuple(classes)


def _check_flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidJob(f"{name} is True or False, not {shown(value)}")
    return value


def _check_unique(value: Any) -> Uniqueness | None:
    if isinstance(value, Uniqueness):
        return value
    if value is None or isinstance(value, bool):
        return Uniqueness(UniqueKind.ENDED) if value else None
    return Uniqueness.until(value)


def _check_key(key: object) -> str:
    kind, _, value = check_name("key", key).partition(":")
    if not kind or not value:
        raise InvalidJob(f"the key {shown(key)} needs a kind and a value, {_KEY_EXAMPLE}")
    return f"{kind}:{value}"


def _optional(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else check(value)


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "group": partial(check_name, "group"),
    "priority": check_priority,
    "tags": check_tags,
    "retry": _check_retry,
    "only": _check_only,
    "at_most_once": partial(_check_flag, "at_most_once"),
    "timeout": _optional(seconds_to_run),
    "needs": Needs.of,
    "max_crashes": _optional(check_max_crashes),
    "expires": _optional(partial(seconds_of, "expires")),
    "keep_failed": _optional(partial(seconds_of, "keep_failed")),
    "unique": _check_unique,
    "owner": partial(check_text, "an owner"),
    "limited_by": _check_key,
}
"""Checks each option and returns its stored form."""

_COPIED = [field.name for field in fields(TaskOptions) if field.name not in ("retry", "only", "expires", "unique")]
