"""The progress sender carries the progress of running jobs to the progress writer, a few times a second.

A thread, started when a job says something for the first time. It delivers at once, and then rests, whatever is said
meanwhile: that is delivered together when the rest is over. So the last word always arrives, also of a job that goes on
in silence. The first word after a silence is waited for: the next line of the job may be a long call that lets no other
thread of the process run.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

from recruiter.attempt import AttemptProgress
from recruiter.domain.progress import Progress
from recruiter.store.codec import encode, progress_fields

K = TypeVar("K")

REST = 0.2
"""Seconds between two deliveries."""
_PATIENCE = 0.05
"""Seconds that a job waits for its first word to leave."""


class ProgressSender(Generic[K]):
    def __init__(self, deliver: Callable[[K, bytes], None]) -> None:
        self._deliver = deliver
        # The only queue that may be interrupted anywhere, by the end of a job's time.
        self._calls: queue.SimpleQueue[tuple[K, AttemptProgress, threading.Lock] | None] = queue.SimpleQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._resting = False

    def call(self, key: K, progress: AttemptProgress) -> None:
        """By a job: there is something to be carried."""
        left = threading.Lock()
        left.acquire()
        progress.called = True  # first: it is reset when the sender has been there
        self._calls.put((key, progress, left))
        if self._thread is None:
            self._start()
        if not self._resting:
            left.acquire(timeout=_PATIENCE)

    def close(self) -> None:
        """It goes home; a later call brings another one."""
        with self._starting:
            if self._thread is not None:
                self._thread = None
                self._calls.put(None)

    def _start(self) -> None:
        with self._starting, suppress(RuntimeError):  # no thread to be had: then all is stored at the end
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="progress", daemon=True)
                thread.start()
                self._thread = thread

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            self._carry(*call)
            with suppress(queue.Empty):
                while (call := self._calls.get_nowait()) is not None:
                    self._carry(*call)
                return
            self._resting = True
            time.sleep(REST)
            self._resting = False

    def _carry(self, key: K, progress: AttemptProgress, left: threading.Lock) -> None:
        def away(progress: Progress) -> None:
            self._deliver(key, encode(progress_fields(progress)))

        with suppress(OSError):  # the pipe is broken: this process is about to end
            progress.carry(away)
        left.release()
