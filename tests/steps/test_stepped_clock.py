"""Somebody sets the clock of a host while processes run on it: nothing comes early, and nothing is silent."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Self

import pytest

from recruiter import Every, Recruiter
from recruiter import clock as clocks
from recruiter.clock import SystemClock
from recruiter.events import Events
from recruiter.processes.maintenance import Repeater
from recruiter.steps.lead import Leadership
from recruiter.store.database import Store
from tests.conftest import eventually

DAY, MINUTE = timedelta(days=1), timedelta(minutes=1)


@contextmanager
def host_clock_set(by: timedelta) -> Iterator[None]:
    """As if somebody had set the clock of this host; MongoDB is on another."""
    real = time.time

    class Shifted(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return cls.fromtimestamp(real() + by.total_seconds(), tz)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clocks, "datetime", Shifted)
        patch.setattr(time, "time", lambda: real() + by.total_seconds())
        yield


@pytest.mark.parametrize("step", [DAY, -DAY, timedelta(seconds=-3)], ids=str)
def test_the_clock_of_a_process_does_not_jump(step: timedelta) -> None:
    clock, before = SystemClock(), datetime.now(UTC)

    with host_clock_set(step):
        seen = clock.now()

    assert abs(seen - before) < timedelta(seconds=2)


@pytest.mark.parametrize("step", [DAY, -DAY], ids=str)
def test_a_repeatable_job_is_not_silent_when_the_leaders_clock_is_set(
    store: Store, target: str, step: timedelta
) -> None:
    # given a leader, and a job that repeats every second
    before = datetime.now(UTC)
    with Recruiter(target) as recruiter:
        recruiter.job("tick").repeat_with_policy(Every("1 second")).with_urn("tick").create()
    leadership = Leadership(store, store.clock, 60.0)
    assert leadership.attend()
    repeating = Repeater(store, Events(), recruiter.schedules)

    def made() -> int:
        repeating.step(leadership.term, leadership.holder)
        return store.scheduled.collection.count_documents({"urn": "tick"})

    eventually(lambda: made() >= 1)

    # when somebody sets the clock of its host
    with host_clock_set(step):
        already = made()
        eventually(lambda: made() >= already + 2)

    # then it goes on as before, and nothing of another day is made or skipped
    (scheduler,) = store.schedulers.all()
    assert abs(scheduler.handled - before) < MINUTE
    for document in store.scheduled.collection.find({"urn": "tick"}):
        assert abs(document["scheduled_at"] - before) < MINUTE
