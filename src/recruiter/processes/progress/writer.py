"""The progress writer: writes on running jobs what they say of themselves, and who runs them since when.

A few times a second, one write for all jobs of the worker, however much they have said. It is for people to see and
decides nothing: if MongoDB does not take it, the jobs go on, and with the outcome everything is written once more.
"""

from __future__ import annotations

import threading
import time

from recruiter.errors import StoreError, StoreUnreachable
from recruiter.events import Events
from recruiter.processes.loop import Loop, Stop
from recruiter.processes.worker.registration import Registration
from recruiter.store.database import Store

_BETWEEN_WRITES = 0.25
"""Seconds; together with the sender's, what a job says can be seen within half a second."""


class ProgressWriter:
    def __init__(self, store: Store, events: Events, stop: Stop, registration: Registration) -> None:
        self._store = store
        self._events = events
        self._registration = registration
        self._loop = Loop("progress", self._step, stop, events)
        self._wrote_at = 0.0
        """On the real clock, also where the application's stands still."""

    def start(self) -> threading.Thread:
        return self._loop.start()

    def wake(self) -> None:
        self._loop.wake()

    def _step(self) -> float:
        rest = self._wrote_at + _BETWEEN_WRITES - time.monotonic()
        if rest > 0:
            return rest
        held_jobs, registration = self._registration.held_jobs, self._registration
        if registration.lost or registration.silent_too_long:
            return _BETWEEN_WRITES  # by now the jobs may be somebody else's
        marks = held_jobs.progress.take(held_jobs.worker)
        written = True
        try:
            if marks:
                self._wrote_at = time.monotonic()
                self._store.scheduled.mark_progress(marks)
        except StoreUnreachable:
            written = False
            raise
        except StoreError as error:
            self._events.emit("progress.refused", jobs=[mark.id for mark in marks], error=str(error))
        finally:
            held_jobs.progress.written(written)
        return 3600.0
