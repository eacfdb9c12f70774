"""A job that needs memory, and may not give it back."""

from __future__ import annotations

from dataclasses import dataclass

from recruiter.errors import InvalidArguments
from recruiter.workable import Workable

_held: list[bytearray] = []


@dataclass(frozen=True)
class ConsumeMemory(Workable):
    """Takes so many megabytes, and with `hold` keeps them after its end: to see what `--memory-limit` does.

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
