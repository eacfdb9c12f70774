"""How a supervisor reaches the jobs that a child runs: a pipe beside the one for jobs, and a thread that listens.

Through it come cancellations, and what time it is when that has changed while a job runs.
"""

from __future__ import annotations

import os
import threading
from functools import partial

from recruiter.clock import FollowingClock
from recruiter.errors import JobCancelled
from recruiter.interruption import Interruptible
from recruiter.processes.child import pipe
from recruiter.processes.child.claims import Claims
from recruiter.store.codec import Document, decode


class CancelListener:
    """The child's side. A cancellation may come just before its job begins, or after it has ended: both do no harm."""

    def __init__(self, end: int, claims: Claims, clock: FollowingClock, *, by_signal: bool) -> None:
        self._end = end
        self._claims = claims
        self._clock = clock
        self._by_signal = by_signal
        self._lock = threading.Lock()
        self._interruptibles: dict[int, Interruptible] = {}
        threading.Thread(target=self._listen, name="control", daemon=True).start()

    def begin(self, number: int) -> Interruptible:
        """How the job of this number can be reached from now on."""
        with self._lock:
            return self._interruptible(number)

    def end(self, number: int) -> None:
        """The job of this number is over."""
        self._claims.end(number)
        with self._lock:
            self._interruptibles.pop(number, None)

    def _listen(self) -> None:
        frames = pipe.Frames()
        while data := os.read(self._end, pipe.READ_AT_ONCE):
            for kind, number, payload in frames.feed(data):
                if kind == pipe.CLOCK:
                    self._clock.follow(*pipe.time_of(payload))
                else:
                    self._cancel(number, decode(payload))

    def _cancel(self, number: int, flag: Document) -> None:
        with self._lock:
            if not self._claims.running(number):
                return  # it has just ended
            interruptible = self._interruptible(number)
        interruptible.interrupt(JobCancelled(flag.get("by"), flag.get("reason"), flag.get("at")))

    def _interruptible(self, number: int) -> Interruptible:
        """Under the lock."""
        if number not in self._interruptibles:
            self._interruptibles[number] = Interruptible(self._by_signal, partial(self._claims.tell, number))
        return self._interruptibles[number]
