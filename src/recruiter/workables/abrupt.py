"""Jobs that do not get as far as failing properly."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from recruiter.errors import InvalidArguments
from recruiter.workable import Workable


@dataclass(frozen=True)
class ExitAbruptly(Workable):
    """Ends the process that runs it, at once: to see that only this job pays for it.

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

    A producer makes one with `FailsInConstructor(fails=False)`; that is not stored, so that the worker's own raises.
    """

    def __init__(self, message: str = "this workable fails in its constructor", *, fails: bool = True) -> None:
        if fails:
            raise RuntimeError(message)
        self.message = message

    def export(self) -> Mapping[str, Any]:
        return {"message": self.message}

    def execute(self) -> None:
        raise AssertionError("it was rebuilt, and should not have been")
