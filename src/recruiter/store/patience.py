"""How long this call may wait for MongoDB, where somebody has said so."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import pymongo

from recruiter.domain.duration import DurationLike, to_seconds

_deadline: ContextVar[float | None] = ContextVar("recruiter_deadline", default=None)


@contextmanager
def answered_within(duration: DurationLike | None) -> Iterator[None]:
    """Inside this block MongoDB must answer within this time, all calls together; then StoreUnreachable is raised."""
    if duration is None:
        yield
        return
    seconds = max(0.001, to_seconds(duration))
    token = _deadline.set(time.monotonic() + seconds)
    try:
        with pymongo.timeout(seconds):
            yield
    finally:
        _deadline.reset(token)


def seconds_left() -> float | None:
    """How long this call may still wait; None when nobody has said."""
    deadline = _deadline.get()
    return None if deadline is None else max(0.0, deadline - time.monotonic())
