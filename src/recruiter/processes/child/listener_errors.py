"""ListenerErrors: listeners that fail in a child, where nobody reads a log, told to the worker, which has one.

They travel with the answer of the next job that ends, and only now and then: a listener that fails once fails with
every job.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

from recruiter.clock import Clock
from recruiter.domain.repetition import RareReports
from recruiter.domain.text import cut
from recruiter.events import Event
from recruiter.processes.child import pipe
from recruiter.store.codec import decode, encode

_SELDOM_FROM_A_CHILD, _SELDOM_IN_THE_LOG = 1.0, 60.0
"""Seconds between two listener_errors about the same kind of event."""
_LONGEST = 500


class ListenerError(NamedTuple):
    listener: str
    event: str
    error: str
    times: int


class ListenerErrors:
    """In the child: what there is to complain about."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._reports = RareReports(_SELDOM_FROM_A_CHILD)
        self._lock = threading.Lock()
        self._frames: list[bytes] = []

    def hear(self, event: Event) -> None:
        """Of a listener that has failed."""
        about = str(event.fields["event"])
        with self._lock:
            times = self._reports.due(about, self._clock.monotonic())
            if times:
                listener, error = (cut(str(event.fields[name]), _LONGEST) for name in ("listener", "error"))
                listener_error = ListenerError(listener, about, error, times)
                self._frames.append(pipe.frame(pipe.LISTENER_ERROR, 0, encode(listener_error._asdict())))

    def take(self) -> bytes:
        """To be sent before an answer; most of the time there is nothing."""
        if not self._frames:
            return b""
        with self._lock:
            frames, self._frames = self._frames, []
        return b"".join(frames)


class ListenerErrorLog:
    """In the worker: those of all its children."""

    def __init__(self) -> None:
        self._reports = RareReports(_SELDOM_IN_THE_LOG)

    def due(self, payload: bytes, now: float) -> ListenerError | None:
        listener_error = ListenerError(**decode(payload))
        times = self._reports.due(listener_error.event, now, listener_error.times)
        return listener_error._replace(times=times) if times else None
