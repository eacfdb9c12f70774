"""Caches of values that many callers ask for: each is read by one caller at a time, and kept for a while."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")

_MOST = 200
_PATIENCE = 10.0
"""Seconds to wait at the end for what is still being read."""
_REST = 20
"""What took long to read is kept for so many times as long."""


class Cache(Generic[T]):
    """Answers by key, each kept for so many seconds. Callers that ask meanwhile wait for the one that reads."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._answers: dict[Hashable, tuple[float, T]] = {}
        self._closed = False

    def get(self, key: Hashable, read: Callable[[], T]) -> T:
        """The answer; read now if none is known, or the one that is known is too old."""
        with self._lock:
            found = self.peek(key)
            return self._read(key, read) if found is None else found

    def get_stale(self, key: Hashable, read: Callable[[], T]) -> T | None:
        """What is known, however old; and if that is too old, it is read again beside. For what takes long."""
        if not self._closed and self.peek(key) is None and self._lock.acquire(blocking=False):
            threading.Thread(target=self._refresh, args=(key, read), name="recruiter cache", daemon=True).start()
        return self.peek(key, old=True)

    def get_within(self, key: Hashable, read: Callable[[], T], seconds: float) -> T | None:
        """What is known, however old, or what is known after so many seconds; it is read beside. None if that takes
        longer. Raises what reading raises."""
        known = self.get_stale(key, read)
        if known is None and self._lock.acquire(timeout=seconds):
            self._lock.release()
            known = self.get(key, read)
        return known

    def peek(self, key: Hashable, *, old: bool = False) -> T | None:
        """What is known already; with `old` also if it was read too long ago."""
        until, answer = self._answers.get(key, (0.0, None))
        return answer if old or time.monotonic() < until else None

    def expire(self) -> None:
        """Somebody has changed something: what is known is old."""
        self._answers = {key: (0.0, answer) for key, (_, answer) in self._answers.items()}

    def close(self) -> None:
        """Reads nothing more beside, and waits for the one who does: a store that is closed meanwhile would be opened
        again."""
        self._closed = True
        if self._lock.acquire(timeout=_PATIENCE):
            self._lock.release()

    def _refresh(self, key: Hashable, read: Callable[[], T]) -> None:
        try:
            self._read(key, read)
        except Exception:  # the next caller reads again, and gets the error
            logging.getLogger("recruiter.caches").debug("could not be read", exc_info=True)
        finally:
            self._lock.release()

    def _read(self, key: Hashable, read: Callable[[], T]) -> T:
        began = time.monotonic()
        found = read()
        took = time.monotonic() - began
        while len(self._answers) >= _MOST:
            self._answers.pop(next(iter(self._answers)))
        self._answers[key] = (time.monotonic() + max(self._seconds, _REST * took), found)
        return found
