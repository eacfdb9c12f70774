"""What a job of a task has when it does not say otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from recruiter.domain.duration import DurationLike, humanize, to_timedelta
from recruiter.domain.names import DEFAULT_GROUP, check_name, check_priority, check_tags
from recruiter.domain.planning.needs import NOTHING, AmountLike, Needs
from recruiter.domain.retry.decision import RetryPolicy, check_max_crashes, checked_names
from recruiter.domain.text import shown
from recruiter.errors import InvalidDuration, InvalidJob


@dataclass(frozen=True, slots=True)
class Defaults:
    """Checked when the task is defined, so that a mistake shows when the application starts and not with a job."""

    group: str = DEFAULT_GROUP
    priority: int | float = 0
    tags: tuple[str, ...] = ()
    retry: RetryPolicy | None = None
    only: tuple[type[BaseException], ...] = ()
    at_most_once: bool = False
    timeout: float | None = None
    """Seconds."""
    needs: Needs = NOTHING
    max_crashes: int | None = None
    expires: float | None = None
    """Seconds after the time a job is scheduled for in which it may start."""
    keep_failed: float | None = None
    """Seconds to keep a job that did not succeed."""

    @classmethod
    def of(
        cls,
        group: str = DEFAULT_GROUP,
        priority: int | float = 0,
        tags: Iterable[str] = (),
        retry: RetryPolicy | None = None,
        only: Iterable[type[BaseException]] = (),
        at_most_once: bool = False,
        timeout: DurationLike | None = None,
        needs: Mapping[str, AmountLike] | None = None,
        max_crashes: int | None = None,
        expires: DurationLike | None = None,
        keep_failed: DurationLike | None = None,
    ) -> Defaults:
        if retry is not None and not isinstance(retry, RetryPolicy):
            raise InvalidJob(f"retry is a policy such as RetryManyTimes(3, '1 minute'), not {shown(retry)}")
        if not isinstance(only, Iterable | type):
            raise InvalidJob(f"only must be a list of exception classes, not {shown(only)}")
        only = only if isinstance(only, str | type) else tuple(only)
        checked_names(only)
        return cls(
            check_name("group", group),
            check_priority(priority),
            check_tags(tags),
            retry,
            tuple(only),
            at_most_once,
            None if timeout is None else seconds_to_run(timeout),
            Needs.of(needs),
            None if max_crashes is None else check_max_crashes(max_crashes),
            None if expires is None else seconds_of("expires", expires),
            None if keep_failed is None else seconds_of("keep_failed", keep_failed),
        )


def seconds_of(name: str, duration: DurationLike) -> float:
    """A duration in seconds; raises InvalidDuration for none at all."""
    seconds = to_timedelta(duration).total_seconds()
    if not seconds:
        raise InvalidDuration(f"{name} must be longer than nothing; leave it out for no limit")
    return seconds


def seconds_to_run(timeout: DurationLike) -> float:
    """A timeout in seconds; raises InvalidDuration for one in which nothing can run."""
    duration = to_timedelta(timeout)
    if not duration:
        raise InvalidDuration(f"a timeout of {humanize(duration)} leaves no time to run; leave it out for no limit")
    return duration.total_seconds()
