"""Claims: the jobs that a child runs, recorded in memory that supervisor and child share.

Each job sent to a child has a number, and each number in use has its own cell (`Numbers`). Before the
child starts a job it *claims* its number; numbers that are not claimed yet can be *withdrawn* by the supervisor and
their jobs given to another child, or back to the roster. Both happen under one lock, so a job is either started here or
taken away, never both. When a child dies, exactly the jobs that it claimed and did not answer for are to blame.

    free ──open──▶ OPEN ──claim──▶ CLAIMED ──end──▶ ENDED ──answered──▶ free
                    └──withdraw──▶ WITHDRAWN ──────────────────────────▶ free
                                                   (supervisor: open, withdraw, free; child: claim, end)

A cell also contains the time of the claim, the deadline of the job, whether the job was notified of its timeout, and
its thread. The child writes these facts and the supervisor reads them. So the supervisor knows the start of each job,
which job has overrun, and which job blocks the others, without asking a process that may not be able to answer. In the
other direction there is one flag: the worker is about to stop.

A cell contains the whole number and its state. A frame that waited long in the pipe, and was withdrawn meanwhile, is
never mistaken for the job that uses its cell now.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.context import BaseContext
from typing import Any, NamedTuple

CELLS = 4096
"""Maximum number of jobs that a child can have at the same time."""
NUMBERS = 1 << 32
_OPEN, _CLAIMED, _WITHDRAWN, _ENDED = 0, 1, 2, 3
_PATIENCE = 0.1
"""Seconds to wait for a child that is just claiming something."""


class Numbers:
    """Supervisor: the numbers that are free. Each belongs to one cell, and is new each time the cell is used."""

    def __init__(self) -> None:
        self._free = deque(range(CELLS))

    def __len__(self) -> int:
        return len(self._free)

    def take(self) -> int:
        return self._free.popleft()

    def free(self, number: int) -> None:
        """The job of this number has been answered for, or taken back."""
        self._free.append((number + CELLS) % NUMBERS)


class LoopHolder(NamedTuple):
    """The job whose code the event loop of a child is in, and since when."""

    number: int
    since: float


class Claims:
    """The memory that a supervisor shares with a child. Picklable, so that multiprocessing can hand it to the child."""

    def __init__(self, context: BaseContext) -> None:
        self._cells: Any = context.RawArray("Q", CELLS)
        self._claimed_at: Any = context.RawArray("d", CELLS)
        self._deadlines: Any = context.RawArray("d", CELLS)
        self._told: Any = context.RawArray("b", CELLS)
        self._threads: Any = context.RawArray("Q", CELLS)
        self._loop_holder: Any = context.RawValue("Q", 0)
        self._loop_since: Any = context.RawValue("d", 0.0)
        self._ticked_at: Any = context.RawValue("d", 0.0)
        self._stop_asked: Any = context.RawValue("b", 0)
        self._tries: Any = context.RawValue("Q", 0)
        self._lock = context.Lock()

    # -- the supervisor's side -----------------------------------------------------------------------------------

    def open(self, number: int) -> None:
        """The job of this number is about to be sent."""
        self._cells[number % CELLS] = number << 2 | _OPEN

    def withdraw(self, numbers: Iterable[int]) -> list[int]:
        """Takes back the numbers that are not claimed; returns them, in order. Returns no number if the child died,
        froze or is very slow inside `claim`: then it is unknown which jobs it has started."""
        if not self._lock.acquire(timeout=_PATIENCE):
            return []
        try:
            taken = [number for number in numbers if self._cells[number % CELLS] == number << 2 | _OPEN]
            for number in taken:
                self._cells[number % CELLS] = number << 2 | _WITHDRAWN
            return taken
        finally:
            self._lock.release()

    def claimed(self, number: int) -> bool:
        """Whether it was started."""
        return self._cells[number % CELLS] in (number << 2 | _CLAIMED, number << 2 | _ENDED)

    def running(self, number: int) -> bool:
        """Whether it was started and has not ended."""
        return bool(self._cells[number % CELLS] == number << 2 | _CLAIMED)

    def claimed_at(self, number: int) -> float:
        """On the clock that never jumps, which all processes of a host share."""
        return float(self._claimed_at[number % CELLS])

    def deadline_of(self, number: int) -> float | None:
        """When the job of this number must be over, if its clock runs now."""
        moment = float(self._deadlines[number % CELLS])
        return moment if moment and self.claimed(number) else None

    def was_told(self, number: int) -> bool:
        """Whether the job of this number was asked to end, inside its process."""
        return bool(self._told[number % CELLS])

    def thread_of(self, number: int) -> int:
        """The native id of the thread that the job of this number runs in; 0 in an event loop, or while it is
        unknown."""
        return int(self._threads[number % CELLS])

    def loop_holder(self) -> LoopHolder | None:
        """The job whose code the event loop is running now."""
        number, since = int(self._loop_holder.value), float(self._loop_since.value)
        return LoopHolder(number - 1, since) if number else None

    def ticked_at(self) -> float:
        """When a thread of the child that does nothing else could last run."""
        return float(self._ticked_at.value)

    def tries(self) -> int:
        """The number of attempts to claim a number. It grows while the child takes the jobs that it was sent."""
        return int(self._tries.value)

    def ask_to_stop(self) -> None:
        """Sets the flag that jobs can read."""
        self._stop_asked.value = 1

    # -- the child's side ----------------------------------------------------------------------------------------

    def claim(self, number: int) -> bool:
        """Claims a job before its start; false if the supervisor has withdrawn it: then it must not start here."""
        cell = number % CELLS
        self._tries.value += 1
        with self._lock:
            if self._cells[cell] != number << 2 | _OPEN:
                return False
            self._deadlines[cell], self._told[cell], self._threads[cell] = 0.0, 0, 0
            self._claimed_at[cell] = time.monotonic()
            self._cells[cell] = number << 2 | _CLAIMED
            return True

    def end(self, number: int) -> None:
        """The job of this number has ended. It is still to blame until its answer has arrived."""
        if self.running(number):
            self._cells[number % CELLS] = number << 2 | _ENDED

    @contextmanager
    def deadline(self, number: int, seconds: float) -> Iterator[None]:
        """Sets the deadline of the code in this block, in seconds from now: after it, the supervisor ends the job."""
        if self.running(number):
            self._deadlines[number % CELLS] = time.monotonic() + seconds
        try:
            yield
        finally:
            if self.claimed(number):  # also when the job has ended; otherwise the cell is of another job by now
                self._deadlines[number % CELLS] = 0.0

    def tell(self, number: int) -> None:
        """The job of this number has been asked to end."""
        if self.running(number):
            self._told[number % CELLS] = 1

    def runs_in(self, number: int, thread: int) -> None:
        """The job of this number runs in this thread."""
        if self.running(number):
            self._threads[number % CELLS] = thread

    def enter_loop(self, number: int) -> None:
        """The event loop runs code of this job, until `leave_loop`."""
        self._loop_since.value = time.monotonic()
        self._loop_holder.value = number + 1

    def leave_loop(self) -> None:
        self._loop_holder.value = 0

    def tick(self) -> None:
        """No code holds the interpreter now."""
        self._ticked_at.value = time.monotonic()

    def stop_asked(self) -> bool:
        return bool(self._stop_asked.value)
