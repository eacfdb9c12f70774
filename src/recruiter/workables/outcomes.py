"""Jobs whose end is known before: to try out a fleet, a retry policy, an alarm."""

from __future__ import annotations

from dataclasses import dataclass

from recruiter.workable import Workable


@dataclass(frozen=True)
class AlwaysSucceed(Workable):
    """Does nothing, and succeeds: to see that jobs come through."""

    def execute(self) -> None:
        pass


@dataclass(frozen=True)
class AlwaysFail(Workable):
    """Fails with this message, at every attempt: to see what a retry policy or an alarm makes of it."""

    message: str = "this job always fails"

    def execute(self) -> None:
        raise RuntimeError(self.message)
