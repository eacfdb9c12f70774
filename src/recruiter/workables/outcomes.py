"""Jobs with a known outcome, to try out a fleet, a retry policy, a timeout or an alarm."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from recruiter.domain.duration import DurationLike, to_seconds
from recruiter.errors import InvalidArguments
from recruiter.workable import Workable


@dataclass(frozen=True)
class AlwaysSucceed(Workable):
    """Does nothing, and succeeds: to test that jobs run."""

    def execute(self) -> None:
        pass


@dataclass(frozen=True)
class AlwaysFail(Workable):
    """Fails with this message, at every attempt: to test a retry policy or an alarm."""

    message: str = "this job always fails"

    def execute(self) -> None:
        raise RuntimeError(self.message)


@dataclass(frozen=True)
class ExitAbruptly(Workable):
    """Ends the process that runs it, immediately: to test that no other job is affected.

    Run it in the background only: in the process that makes it, `execute` ends that one.
    """

    code: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.code <= 255:
            raise InvalidArguments(f"an exit code is a number from 0 to 255, not {self.code!r:.80}")

    def execute(self) -> None:
        os._exit(self.code)


class FailsInConstructor(Workable):
    """Can be made and enqueued, and raises when it is rebuilt: to see that such a job is explained like any other.

    A producer calls `FailsInConstructor(fails=False)`. The option is not stored, so the worker's constructor raises.
    """

    def __init__(self, message: str = "this workable fails in its constructor", *, fails: bool = True) -> None:
        if fails:
            raise RuntimeError(message)
        self.message = message

    def export(self) -> Mapping[str, Any]:
        return {"message": self.message}

    def execute(self) -> None:
        raise AssertionError("it was rebuilt, and should not have been")


_held: list[bytearray] = []


@dataclass(frozen=True)
class ConsumeMemory(Workable):
    """Takes this many megabytes, and with `hold` keeps them after its end: to test `--memory-limit`.

    Each job that holds adds to what its process has, until that is replaced.
    """

    megabytes: int
    hold: bool = False

    def __post_init__(self) -> None:
        if self.megabytes < 0:
            raise InvalidArguments(f"megabytes cannot be negative: {self.megabytes!r:.80}")

    def execute(self) -> None:
        taken = bytearray(b"x") * (self.megabytes * 1024 * 1024)  # written to, or the system would only promise it
        if self.hold:
            _held.append(taken)


@dataclass(frozen=True)
class LazyBones(Workable):
    """Sleeps for `seconds`, more or less `give_or_take`: to test slow jobs and timeouts."""

    seconds: float = 0.0
    give_or_take: float = 0.0

    def __post_init__(self) -> None:
        to_seconds(self.seconds)
        to_seconds(self.give_or_take)

    @classmethod
    def wait_for(cls, duration: DurationLike, give_or_take: DurationLike = 0) -> Self:
        """`LazyBones.wait_for("2 minutes", give_or_take="10s")`."""
        return cls(to_seconds(duration), to_seconds(give_or_take))

    @classmethod
    def wait_for_ms(cls, milliseconds: float, give_or_take: float = 0) -> Self:
        return cls(milliseconds / 1000, give_or_take / 1000)

    def execute(self) -> None:
        wake_at = time.monotonic() + self.seconds + random.uniform(-self.give_or_take, self.give_or_take)
        while (left := wake_at - time.monotonic()) > 0:
            # In a child with several concurrent jobs, a timeout arrives between lines of Python, not inside a sleep.
            time.sleep(min(left, 0.05))
