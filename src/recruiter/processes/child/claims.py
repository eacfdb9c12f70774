"""The record of what a child runs, in memory that supervisor and child share.

The supervisor numbers every job it sends. Before the child starts a job it *claims* its number; numbers that are not
claimed yet can be *withdrawn* by the supervisor and their jobs given to another child, or back to the roster. Both
happen under one lock, so a job is either started here or taken away, never both. When a child dies, the job it claimed
and did not answer for is the one to blame, exactly.

Beside its number stand two moments: when the job was claimed, and when its time is over. The child writes them, the
supervisor reads them, and so knows since when a job runs and which one has overrun without asking anybody. The other
way goes one word: that the worker is about to stop, for jobs that want to know.

Numbers only grow. A cell remembers the whole number beside its state, so that a frame which waited long in the pipe,
and was withdrawn meanwhile, is never taken for the job that uses its cell now.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext
from typing import Any

CELLS = 4096
"""More than a child is ever sent at once."""
_OPEN, _CLAIMED, _WITHDRAWN, _ENDED = 0, 1, 2, 3


class Claims:
    """Picklable, so that multiprocessing can hand it to the child; nothing of it is ever stored."""

    def __init__(self, context: ForkServerContext) -> None:
        self._cells: Any = context.RawArray("Q", CELLS)
        self._claimed_at: Any = context.RawArray("d", CELLS)
        self._deadlines: Any = context.RawArray("d", CELLS)
        self._stop_asked: Any = context.RawValue("b", 0)
        self._lock = context.Lock()

    def open(self, number: int) -> None:
        """Supervisor: the job of this number is about to be sent."""
        self._cells[number % CELLS] = number << 2 | _OPEN

    def claim(self, number: int) -> bool:
        """Child: may I start the job of this number?"""
        with self._lock:
            if self._cells[number % CELLS] != number << 2 | _OPEN:
                return False
            self._deadlines[number % CELLS] = 0.0
            self._claimed_at[number % CELLS] = time.monotonic()
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

    def end(self, number: int) -> None:
        """Child: the job of this number has ended. Until the answer has arrived it is the one to blame all the same."""
        self._cells[number % CELLS] = number << 2 | _ENDED

    def claimed(self, number: int) -> bool:
        """Whether it was started."""
        return self._cells[number % CELLS] in (number << 2 | _CLAIMED, number << 2 | _ENDED)

    def running(self, number: int) -> bool:
        """Whether it was started and has not ended."""
        return bool(self._cells[number % CELLS] == number << 2 | _CLAIMED)

    def claimed_at(self, number: int) -> float:
        """On the clock that never jumps, which all processes of a host share."""
        return float(self._claimed_at[number % CELLS])

    @contextmanager
    def deadline(self, number: int, seconds: float) -> Iterator[None]:
        """Child: what runs inside must be over in so many seconds."""
        self._deadlines[number % CELLS] = time.monotonic() + seconds
        try:
            yield
        finally:
            self._deadlines[number % CELLS] = 0.0

    def deadline_of(self, number: int) -> float | None:
        """Supervisor: when the job of this number must be over, if its clock runs now."""
        moment = float(self._deadlines[number % CELLS])
        return moment if moment and self.claimed(number) else None

    def ask_to_stop(self) -> None:
        """Supervisor: tells the jobs, if they ask."""
        self._stop_asked.value = 1

    def stop_asked(self) -> bool:
        return bool(self._stop_asked.value)
