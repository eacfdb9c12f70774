"""A clock that is set by the server's, as exactly as can be known and no more."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from recruiter.clock import SystemClock

DAY = timedelta(days=1)
A_MOMENT = timedelta(milliseconds=200)
"""More than this test takes between two lines, on a machine that is busy."""


def shown(ahead: timedelta = timedelta()) -> datetime:
    """What a server shows now whose clock is so far ahead."""
    return datetime.now(UTC) + ahead


def test_a_server_that_may_be_of_the_same_opinion_changes_nothing() -> None:
    clock = SystemClock()

    clock.agree(shown(), took=0.0)
    clock.agree(shown(-timedelta(seconds=3)), took=5.0)  # it was slow to answer, but looked at its clock at once
    clock.agree(shown(-timedelta(milliseconds=10)), took=0.001)  # and ticks coarsely

    assert clock.offset == timedelta()


@pytest.mark.parametrize("ahead", [DAY, -DAY])
def test_it_follows_a_server_that_is_not(ahead: timedelta) -> None:
    clock = SystemClock()

    clock.agree(shown(ahead), took=0.001)

    assert abs(clock.offset - ahead) < A_MOMENT


@pytest.mark.parametrize("ahead", [DAY, -DAY])
def test_an_answer_that_took_less_time_tells_more(ahead: timedelta) -> None:
    clock = SystemClock()
    clock.agree(shown(ahead - timedelta(seconds=2)), took=4.0)  # asked four seconds ago, looked at in the middle
    assert abs(clock.offset - ahead) < timedelta(seconds=2) + A_MOMENT

    clock.agree(shown(ahead), took=0.001)

    assert abs(clock.offset - ahead) < A_MOMENT


def test_it_comes_back() -> None:
    clock = SystemClock()
    clock.agree(shown(DAY), took=0.001)

    clock.agree(shown(), took=0.001)

    assert abs(clock.offset) < A_MOMENT
