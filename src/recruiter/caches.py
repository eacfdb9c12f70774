"""Caches of values that many callers ask for: each value is read by one caller at a time, and kept for a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future, wait
from typing import Generic, TypeVar

T = TypeVar("T")

_MOST_ANSWERS = 200
_CLOSE_SECONDS = 10.0
_KEPT_PER_SECOND_OF_READING = 20
"""A value that took long to read is kept for longer."""


class Cache(Generic[T]):
    """Answers by key, each kept for some time. Callers that ask for the same key wait for the caller that reads
    it; a slow read of one key delays no other."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        """Held to look at the two dictionaries, never while a value is read."""
        self._answers: dict[Hashable, tuple[float, T]] = {}
        self._reading: dict[Hashable, Future[T]] = {}
        self._closed = False

    def get(self, key: Hashable, read: Callable[[], T]) -> T:
        """The answer; read now if none is known, or the known one is too old."""
        with self._lock:
            known = self.peek(key)
            if known is not None:
                return known
            reading = self._reading.get(key)
            must_read = reading is None
            if reading is None:
                reading = self._reading[key] = Future[T]()
        if must_read:
            self._read(key, read, reading)
        return reading.result()

    def get_stale(self, key: Hashable, read: Callable[[], T]) -> T | None:
        """The known answer, however old. If it is too old, a thread reads it again: for values that take long."""
        with self._lock:
            if not self._closed and self.peek(key) is None and key not in self._reading:
                self._reading[key] = future = Future[T]()
                arguments = (key, read, future)
                threading.Thread(target=self._read, args=arguments, name="recruiter cache", daemon=True).start()
        return self.peek(key, old=True)

    def get_within(self, key: Hashable, read: Callable[[], T], seconds: float) -> T | None:
        """The known answer, however old, or the answer that a thread reads in this time; None if that takes longer.
        Raises the error of the read."""
        known = self.get_stale(key, read)
        reading = self._reading.get(key)
        if known is not None:
            return known
        if reading is None:  # the read has just ended
            return self.get(key, read)
        return reading.result() if wait([reading], seconds).done else None

    def peek(self, key: Hashable, *, old: bool = False) -> T | None:
        """The known answer; with `old` even if it is too old."""
        until, answer = self._answers.get(key, (0.0, None))
        return answer if old or time.monotonic() < until else None

    def expire(self) -> None:
        """Every known answer is too old: a user has changed something."""
        with self._lock:
            self._answers = {key: (0.0, answer) for key, (_, answer) in self._answers.items()}

    def close(self) -> None:
        """Waits for the running threads, which would otherwise reopen a closed store, and starts no other."""
        self._closed = True
        wait(list(self._reading.values()), _CLOSE_SECONDS)

    def _read(self, key: Hashable, read: Callable[[], T], future: Future[T]) -> None:
        """Reads an answer or an error for all callers that wait for it. After an error the next caller reads again."""
        began = time.monotonic()
        try:
            found = read()
        except BaseException as error:
            with self._lock:
                del self._reading[key]
            future.set_exception(error)
            return
        now = time.monotonic()
        with self._lock:
            del self._reading[key]
            while len(self._answers) >= _MOST_ANSWERS:
                self._answers.pop(next(iter(self._answers)))
            self._answers[key] = (now + max(self._seconds, _KEPT_PER_SECOND_OF_READING * (now - began)), found)
        future.set_result(found)
