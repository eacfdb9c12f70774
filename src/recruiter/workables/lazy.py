"""A job that takes its time."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Self

from recruiter.domain.duration import DurationLike, to_seconds
from recruiter.workable import Workable

_NAP = 0.05
"""In a child that runs several jobs at once, a timeout arrives with the next line of Python, not inside a sleep."""


@dataclass(frozen=True)
class LazyBones(Workable):
    """Sleeps for so many seconds, `give_or_take` some: to see what slow jobs do to a fleet, and what timeouts do."""

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
            time.sleep(min(left, _NAP))
