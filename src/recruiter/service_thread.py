"""A thread that works for all callers of a process and belongs to none of them.

A caller may be a job, and a job may be interrupted at any instruction: an exception is thrown into its thread. If that
happens while it starts another thread, Python may throw the exception into the new thread instead, which then dies
before it has begun, and `threading.Thread.start` waits for it for ever. So a caller starts the thread without waiting,
and a caller that has waited for a while looks whether it lives.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable


class ServiceThread:
    """Runs `work` as long as there is something to do. `work` returns when there is nothing, for now."""

    def __init__(self, work: Callable[[], None], pending: Callable[[], bool]) -> None:
        self._work = work
        self._pending = pending
        self._alive = threading.Lock()

    @property
    def alive(self) -> bool:
        """Whether it works, or waits for work."""
        return self._alive.locked()

    def ensure(self) -> None:
        """To be called when there is something to do, and again when that has not been done for a while."""
        if not self._alive.locked():
            _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        # Callers leave their work first and look whether the thread lives afterwards; the thread stops living first and
        # looks for work afterwards. So one of the two sees the other.
        while self._alive.acquire(blocking=False):
            try:
                self._work()
            finally:
                self._alive.release()
            if not self._pending():
                return
