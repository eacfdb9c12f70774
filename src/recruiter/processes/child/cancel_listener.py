"""How a supervisor reaches the jobs that a child runs: a pipe beside the one for jobs, and a thread that listens."""

from __future__ import annotations

import os
import threading

from recruiter.errors import JobCancelled
from recruiter.interruption import Reach
from recruiter.processes.child import pipe
from recruiter.store.codec import decode


class CancelListener:
    """The child's side. A cancellation may come just before its job begins, or after it has ended: both do no harm."""

    def __init__(self, pipe: int, *, by_signal: bool) -> None:
        self._pipe = pipe
        self._by_signal = by_signal
        self._lock = threading.Lock()
        self._reaches: dict[int, Reach] = {}
        threading.Thread(target=self._listen, name="control", daemon=True).start()

    def begin(self, number: int) -> Reach:
        """How the job of this number can be reached from now on."""
        with self._lock:
            reach = self._reaches.get(number)
            if reach is None:
                reach = self._reaches[number] = Reach(self._by_signal)
            return reach

    def end(self, number: int) -> None:
        with self._lock:
            self._reaches.pop(number, None)

    def _listen(self) -> None:
        frames = pipe.Frames()
        while data := os.read(self._pipe, pipe.READ_AT_ONCE):
            for _, number, payload in frames.feed(data):
                flag = decode(payload)
                self.begin(number).interrupt(JobCancelled(flag.get("by"), flag.get("reason"), flag.get("at")))
