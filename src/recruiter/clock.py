"""Clocks. Code that needs the time is given one of these; nothing else reads a clock."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

_A_STEP = 1.0
"""Seconds by which a clock is set, and not only corrected."""
_TICK = timedelta(milliseconds=15)
"""How far behind a server's clock may be that is only set now and then."""


def _steady() -> float:
    """Seconds that nobody can set; unlike `time.monotonic`, they go on while the host sleeps, where there is such a
    clock."""
    return time.clock_gettime(_STEADY) if _STEADY is not None else time.monotonic()


_STEADY: int | None = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


class Clock(Protocol):
    """What time it is, and how long something took."""

    def now(self) -> datetime:
        """The moment, aware, in UTC. It may jump; it decides when to look, never who may write."""

    def monotonic(self) -> float:
        """Seconds that never jump, meaningful in this process only."""


class SystemClock:
    """The clock of this host, moved by `offset` to agree with the database server's.

    Hosts disagree about the time; the server is the one clock they all can see. Processes measure the offset when
    they connect and with every heartbeat, so a host that is a day off still neither runs jobs early nor late.

    The host's clock is read once, and counted on from there by one that never jumps: a person who sets the host's clock
    while the process runs changes nothing. A leader that believed a step of a day would take all occurrences of that
    day for done.
    """

    def __init__(self) -> None:
        self.offset = timedelta()
        self._began = time.time() - _steady()

    def now(self) -> datetime:
        """The time, aware, in UTC."""
        return self.host_time() + self.offset

    def host_time(self) -> datetime:
        """The time of this host, whatever the server's clock shows."""
        return datetime.fromtimestamp(self._began + _steady(), UTC)

    def monotonic(self) -> float:
        """Seconds that never jump."""
        return time.monotonic()

    def agree(self, theirs: datetime, took: float) -> None:
        """Sets itself by the server's clock, which showed this time in an answer that took so many seconds.

        It showed it at some time between the question and the answer. Whatever is possible then is left as it is: an
        answer that took long, because of a new connection or of user code that held the interpreter, says little.
        """
        answered = self.host_time()
        asked = answered - timedelta(seconds=took)
        self.offset = min(max(self.offset, theirs - answered), theirs + _TICK - asked)


class SteadyClock:
    """A clock of the host that does not jump when somebody sets it.

    It goes on as before until the server has been asked again, and says how much of it is true (`offset`). In between,
    a host that is set back by a day would make every retry due at once.
    """

    def __init__(self, source: SystemClock) -> None:
        self._source = source
        self._offset = source.offset
        self._lead = self._measured()

    def now(self) -> datetime:
        """The moment, aware, in UTC."""
        offset, measured = self._source.offset, self._measured()
        if offset != self._offset or abs(measured - self._lead) < _A_STEP:
            self._offset, self._lead = offset, measured
        return datetime.fromtimestamp(self._source.monotonic() + self._lead, UTC)

    def monotonic(self) -> float:
        """Seconds that never jump."""
        return self._source.monotonic()

    def _measured(self) -> float:
        return self._source.now().timestamp() - self._source.monotonic()


class FollowingClock:
    """The clock of a child process, which follows its supervisor's: `lead` seconds ahead of the monotonic clock.

    That clock never jumps and is the same for all processes of a host. So a child notices nothing when somebody sets
    the host's clock, and knows with every job what its supervisor has learnt of the server's.
    """

    def __init__(self) -> None:
        self._lead = time.time() - time.monotonic()
        self._said_at = 0.0

    def now(self) -> datetime:
        """The moment, aware, in UTC."""
        return datetime.fromtimestamp(time.monotonic() + self._lead, UTC)

    def monotonic(self) -> float:
        """Seconds that never jump."""
        return time.monotonic()

    def follow(self, lead: float, said_at: float) -> None:
        """The supervisor has said what time it is, at this moment of the monotonic clock."""
        if said_at >= self._said_at:
            self._lead, self._said_at = lead, said_at


class StoppedClock(SystemClock):
    """A clock that stands still until told to move; for tests."""

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
        """It is what it is."""

    def move(self, by: timedelta) -> None:
        """Lets so much time pass at once."""
        self._now += by
        self._elapsed += by.total_seconds()
