"""A clock that is set by the server's, as exactly as can be known and no more."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from recruiter.clock import FollowingClock, SystemClock

DAY = timedelta(days=1)
A_MOMENT = timedelta(milliseconds=200)
"""More than this test takes between two lines, on a machine that is busy."""


def shown(ahead: timedelta = timedelta()) -> datetime:
    """What a server shows now whose clock is so far ahead."""
    return datetime.now(UTC) + ahead


class AtRest(SystemClock):
    """No time passes between two lines of a test."""

    def __init__(self) -> None:
        super().__init__()
        self.at = datetime.now(UTC)

    def host_time(self) -> datetime:
        return self.at


def test_a_server_that_may_be_of_the_same_opinion_changes_nothing() -> None:
    clock = AtRest()

    clock.agree(clock.at, took=0.0)
    clock.agree(clock.at - timedelta(seconds=3), took=5.0)  # it was slow to answer, but looked at its clock at once
    clock.agree(clock.at - timedelta(milliseconds=10), took=0.001)  # and ticks coarsely

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


class TestFollowing:
    """The clock of a child."""

    def test_it_shows_what_its_supervisor_has_said(self) -> None:
        clock = FollowingClock()
        moment = datetime(2040, 1, 1, tzinfo=UTC)

        clock.follow(moment.timestamp() - time.monotonic(), said_at=1.0)

        assert timedelta() <= clock.now() - moment < timedelta(seconds=5)

    def test_what_was_said_before_is_not_believed_any_more(self) -> None:
        """Given two pipes, which may be read in another order."""
        clock = FollowingClock()
        clock.follow(2e9, said_at=2.0)

        clock.follow(1e9, said_at=1.0)

        assert clock.now().timestamp() > 2e9

    def test_it_does_not_notice_that_the_hosts_clock_is_set(self, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = FollowingClock()
        clock.follow(2e9, said_at=1.0)
        before = clock.now()

        monkeypatch.setattr(time, "time", lambda: 0.0)

        assert timedelta() <= clock.now() - before < timedelta(seconds=5)
