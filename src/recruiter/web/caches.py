"""What is read once for all who look: kept for a while, and read by one at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")

_MOST = 200


class Kept(Generic[T]):
    """Answers by key, each kept for so many seconds. Those who ask meanwhile wait for the one who reads."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._answers: dict[Hashable, tuple[float, T]] = {}

    def get(self, key: Hashable, read: Callable[[], T]) -> T:
        with self._lock:
            found = self.peek(key)
            if found is None:
                found = read()
                while len(self._answers) >= _MOST:
                    self._answers.pop(next(iter(self._answers)))
                self._answers[key] = (time.monotonic() + self._seconds, found)
            return found

    def peek(self, key: Hashable, *, old: bool = False) -> T | None:
        """What is known already; with `old` also if it was read too long ago."""
        until, answer = self._answers.get(key, (0.0, None))
        return answer if old or time.monotonic() < until else None

    def forget(self) -> None:
        """Somebody has changed something."""
        self._answers.clear()
