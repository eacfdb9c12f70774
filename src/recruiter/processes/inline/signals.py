"""Ctrl-C and SIGTERM while jobs run in the calling process.

    SIGTERM     the running job may finish; then the process does what it would have done at once
    Ctrl-C      the running job is interrupted; then KeyboardInterrupt is raised for whoever called
    watch       both are a wish to stop, and nothing else: the running job may finish, and `watch` returns
    a second    of either interrupts the running job, and is then passed on

"Then" means: what became of the jobs is written, and the roster is left. Only in the main thread, where signals arrive,
and only where the caller has not put handlers of its own; those are the caller's way to stop, and stay.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

from recruiter.processes.loop import SAME_WISH

_STOPS = (signal.SIGINT, signal.SIGTERM)
_UNTOUCHED = (signal.SIG_DFL, signal.default_int_handler)


class Signals:
    """To be entered for as long as jobs run here. Passes on what arrived when it is left."""

    def __init__(self, wake: Callable[[], None], *, patient: bool) -> None:
        self.asked = False
        """Whether to take no more jobs."""
        self.interrupted = False
        """Whether the running job was ended by a signal."""
        self.in_job = False
        """Set by whoever runs jobs: only there a signal is raised as an exception, nowhere in our own code."""
        self._wake = wake
        self._patient = patient
        self._asked_at = 0.0
        self._pass_on: signal.Signals | None = None
        self._wants_out = False
        self._before: dict[signal.Signals, Callable[[int, FrameType | None], object] | int | None] = {}

    def note_interrupt(self) -> None:
        """A job failed with KeyboardInterrupt. If that can have been Ctrl-C, in the caller's own way, it was not meant
        for the job alone."""
        if _in_main_thread() and signal.SIGINT not in self._before:
            self.asked = self._wants_out = True

    def __enter__(self) -> Signals:
        if _in_main_thread():
            for number in _STOPS:
                if signal.getsignal(number) in _UNTOUCHED:
                    self._before[number] = signal.signal(number, self._obey)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._pass_on is not None:
            signal.raise_signal(self._pass_on)
        if self._wants_out:
            raise KeyboardInterrupt

    def _obey(self, number: int, _frame: FrameType | None) -> None:
        """Runs in the main thread between any two of its steps; so it only notes, and takes no lock."""
        now = time.monotonic()
        self._asked_at = self._asked_at or now
        again, self.asked = now - self._asked_at > SAME_WISH, True
        self._wake()
        if again or not self._patient:
            self._pass_on = signal.Signals(number)
        if self.in_job and (again or (number == signal.SIGINT and not self._patient)):
            self.interrupted = True
            raise KeyboardInterrupt


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
