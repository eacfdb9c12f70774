"""Whatever is said to a public call, what cannot be is refused in our own words, never with an error of Python's."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any
from uuid import UUID

import pytest
from bson import ObjectId
from hypothesis import given, settings
from hypothesis import strategies as some

from recruiter import (
    Cron,
    Every,
    ExponentialBackoff,
    JobFilter,
    Recruiter,
    RecruiterError,
    RetryForever,
    RetryManyTimes,
    SelectByException,
    TimeTable,
)

nowhere = Recruiter("127.0.0.1:1", server_timeout="1ms")


@nowhere.task(name="hostile.echo")
def echo(value: Any) -> Any:
    return value


def _cycle() -> list[Any]:
    cycle: list[Any] = []
    cycle.append(cycle)
    return cycle


STRANGE = [
    *("\ud800", "a/b", "", "\0", "$where", 2**63, 2**70, -(2**70), 10**5000, float("nan"), float("inf"), True, None),
    *(object(), b"\xff", _cycle(), {"a": _cycle()}, [[]], [{}], {1: 2}, {"$x": 1}, (), print, ValueError, UUID(int=0)),
]
values = some.one_of(
    some.sampled_from(STRANGE),
    some.recursive(
        some.one_of(some.none(), some.booleans(), some.integers(), some.floats(), some.text(), some.binary()),
        lambda inner: some.one_of(some.lists(inner), some.dictionaries(some.text(), inner), some.tuples(inner)),
        max_leaves=5,
    ),
    some.builds(ObjectId),
)

job = echo.job(1)
WORDS = ("in_group", "with_priority", "with_id", "with_urn", "owned_by", "tagged_as", "limited_by", "timeout")
FILTERS = ("state", "task", "group", "tag", "owner", "urn", "worker", "since", "until", "key", "error", "attempts")
CALLS: dict[str, Callable[[Any], Any]] = {
    **{word: (lambda value, word=word: getattr(job, word)(value)) for word in WORDS},  # type: ignore[misc]
    "schedule_in": job.schedule_in,
    "schedule_at": job.schedule_at,
    "retry_with_policy": job.retry_with_policy,
    "needing": lambda value: job.needing(proc=value, gpu=value),
    "argument": echo.job,
    "job": lambda value: nowhere.job(value, {}),
    "data": lambda value: nowhere.job("unknown", value),
    "data of a known task": lambda value: nowhere.job("hostile.echo", value),
    "handle": nowhere.handle,
    **{f"filter {name}": (lambda value, name=name: JobFilter(**{name: value})) for name in FILTERS},  # type: ignore[misc]
    "limit of a list": lambda value: nowhere.jobs.list(limit=value),
    "counts": nowhere.counts,
    "calls": lambda value: echo.enqueue_many(value, errors="return"),
    "a call": lambda value: echo.enqueue_many([value], errors="return"),
    "ids": lambda value: echo.enqueue_many([(1,)], ids=value, errors="return"),
    "session": lambda value: job.enqueue(session=value),
    "TimeTable": TimeTable,
    "RetryManyTimes": lambda value: RetryManyTimes(value, value),
    "RetryForever": RetryForever,
    "ExponentialBackoff": lambda value: ExponentialBackoff(value, value),
    "SelectByException": SelectByException,
    "Every": Every,
    "Cron": lambda value: Cron(value),
    "Cron's zone": lambda value: Cron("* * * * *", tz=value),
    "only": lambda value: nowhere.task(only=value),
    "tags": lambda value: nowhere.task(tags=value),
    "group of a task": lambda value: nowhere.task(group=value),
}


TALKING = ("limit of a list", "counts", "calls", "a call", "ids", "session")
"""These try to connect, which takes its time."""


@pytest.mark.parametrize("call", [call for call in CALLS if call not in TALKING])
@settings(max_examples=20)
@given(value=values)
def test_what_cannot_be_is_refused_in_our_own_words(call: str, value: Any) -> None:
    with suppress(RecruiterError):
        CALLS[call](value)


@pytest.mark.parametrize("call", CALLS)
def test_so_are_the_strangest(call: str) -> None:
    for value in STRANGE:
        with suppress(RecruiterError):
            CALLS[call](value)
