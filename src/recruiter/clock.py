"""Clocks. Code that needs the time is given a clock; no other code reads one."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

_TICK = timedelta(milliseconds=15)
"""Resolution of a server's clock, which may be updated only at intervals."""


def _steady() -> float:
    """Seconds of a clock that cannot be set. Unlike `time.monotonic` it includes the time while the host sleeps, where
    the system has such a clock."""
    return time.clock_gettime(_STEADY) if _STEADY is not None else time.monotonic()


_STEADY: int | None = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


class Clock(Protocol):
    def now(self) -> datetime:
        """The time, aware, in UTC. It may jump: use it to decide when to check, never who may write."""

    def monotonic(self) -> float:
        """Seconds that never jump, meaningful in this process only."""


class SystemClock:
    """The clock of this host, moved by `offset` to agree with the database server's.

    Hosts disagree about the time; the server is the one clock they all can see. Processes measure the offset when
    they connect and with every heartbeat, so a host that is a day off still neither runs jobs early nor late.

    The host's clock is read once; from then on a clock that never jumps is added to it. So setting the host's clock
    while the process runs changes nothing. A leader that followed a step of a day would treat all occurrences of that
    day as done.
    """

    def __init__(self) -> None:
        self.offset = timedelta()
        self._began = time.time() - _steady()

    def now(self) -> datetime:
        """The time, aware, in UTC."""
        return self.host_time() + self.offset

    def host_time(self) -> datetime:
        """The time of this host, without the offset."""
        return datetime.fromtimestamp(self._began + _steady(), UTC)

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back, for durations."""
        return time.monotonic()

    def agree(self, theirs: datetime, took: float) -> None:
        """Adjusts the offset to the server's clock, which showed `theirs` in an answer that took `took` seconds.

        The server read its clock between the question and the answer. An offset that is possible for that interval
        stays unchanged, because an answer that took long (a new connection, user code that held the interpreter) is
        imprecise.
        """
        answered = self.host_time()
        asked = answered - timedelta(seconds=took)
        self.offset = min(max(self.offset, theirs - answered), theirs + _TICK - asked)


class FollowingClock:
    """The clock of a child process, which follows its supervisor's: `lead` seconds ahead of the monotonic clock.

    That clock never jumps and is the same for all processes of a host. So a child is not affected when the host's clock
    is set, and every job brings it the supervisor's latest measurement of the server's clock.
    """

    def __init__(self) -> None:
        self._lead = time.time() - time.monotonic()
        self._said_at = 0.0

    def now(self) -> datetime:
        return datetime.fromtimestamp(time.monotonic() + self._lead, UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    def follow(self, lead: float, said_at: float) -> None:
        """Takes over the supervisor's lead, measured at this time of the monotonic clock; an older one is ignored."""
        if said_at >= self._said_at:
            self._lead, self._said_at = lead, said_at


class StoppedClock(SystemClock):
    """A clock that stands still until it is moved; for tests."""

    def __init__(self, at: datetime) -> None:
        if at.tzinfo is None:
            raise ValueError("a stopped clock needs an aware datetime, e.g. datetime(2030, 1, 1, tzinfo=UTC)")
        super().__init__()
        self._now = at.astimezone(UTC)
        self._elapsed = 0.0

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return self._elapsed

    def agree(self, theirs: datetime, took: float) -> None:
        """A stopped clock ignores the server's time."""

    def move(self, by: timedelta) -> None:
        """Moves the clock forward by this duration."""
        self._now += by
        self._elapsed += by.total_seconds()
