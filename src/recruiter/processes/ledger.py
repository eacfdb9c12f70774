"""The record of what a child runs, in memory that supervisor and child share.

The supervisor numbers every job it sends. Before the child starts a job it *claims* its number; numbers that are not
claimed yet can be *withdrawn* by the supervisor and their jobs given to another child, or back to the roster. Both
happen under one lock, so a job is either started here or taken away, never both. When a child dies, the job it claimed
and did not answer for is the one to blame, exactly.

Numbers only grow. A cell remembers the whole number beside its state, so that a frame which waited long in the pipe,
and was withdrawn meanwhile, is never taken for the job that uses its cell now.
"""

from __future__ import annotations

from collections.abc import Iterable
from multiprocessing.context import ForkServerContext
from typing import Any

CELLS = 4096
"""More than a child is ever sent at once."""
_OPEN, _CLAIMED, _WITHDRAWN = 0, 1, 2


class Ledger:
    """Picklable, so that multiprocessing can hand it to the child; nothing of it is ever stored."""

    def __init__(self, context: ForkServerContext) -> None:
        self._cells: Any = context.RawArray("Q", CELLS)
        self._lock = context.Lock()

    def open(self, number: int) -> None:
        """Supervisor: the job of this number is about to be sent."""
        self._cells[number % CELLS] = number << 2 | _OPEN

    def claim(self, number: int) -> bool:
        """Child: may I start the job of this number?"""
        with self._lock:
            if self._cells[number % CELLS] != number << 2 | _OPEN:
                return False
            self._cells[number % CELLS] = number << 2 | _CLAIMED
            return True

    def withdraw(self, numbers: Iterable[int]) -> list[int]:
        """Supervisor: takes back the numbers that are not claimed; returns them, in order."""
        if not self._lock.acquire(timeout=1.0):
            return []  # the child died, or froze, inside `claim`; its death will be noticed elsewhere
        try:
            taken = [number for number in numbers if self._cells[number % CELLS] == number << 2 | _OPEN]
            for number in taken:
                self._cells[number % CELLS] = number << 2 | _WITHDRAWN
            return taken
        finally:
            self._lock.release()

    def claimed(self, number: int) -> bool:
        return bool(self._cells[number % CELLS] == number << 2 | _CLAIMED)
