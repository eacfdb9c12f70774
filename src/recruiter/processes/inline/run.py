"""Jobs in the calling process: one, all that are due, or all that come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from recruiter.domain.job import JobReport
from recruiter.events import Events
from recruiter.processes.inline.runner import InlineApplication
from recruiter.processes.inline.worker import InlineMode, InlineWorker, StopEvent
from recruiter.settings import Settings
from recruiter.store.database import Store

_BETWEEN_LOOKS = 0.1
"""Seconds between two looks at the caller's wish to stop."""
_SLACK = 1.0

ONE = InlineMode(prefetch=False, rejoins=False)
ALL = InlineMode()
WATCH = InlineMode(stays=True)


class Inline:
    def __init__(self, store: Store, events: Events, application: InlineApplication, settings: Settings) -> None:
        self._store = store
        self._events = events
        self._application = application
        self._settings = settings

    @property
    def patience(self) -> float:
        """Seconds after which even the lease of a leader that was killed has run out."""
        return self._settings.lease_time.total_seconds() + _SLACK

    def run(self, tasks: Iterable[str], wait: float | None = None, stop: StopEvent | None = None) -> JobReport | None:
        """Runs one due job; None when there is none to be had, or when asked to stop before there was one."""
        with self._caller(tasks, ONE) as caller:
            job = caller.next_job(self.patience if wait is None else wait, stop)
            if job is None:
                return None
            caller.take_no_more()
            caller.perform(job)
            reports = caller.conclude()
        return reports[0] if reports else None

    def run_all(self, tasks: Iterable[str], stop: StopEvent | None = None) -> list[JobReport]:
        """Runs due jobs until none is left, or until asked to stop."""
        with self._caller(tasks, ALL) as caller:
            while (job := caller.next_job(self.patience, stop)) is not None:
                caller.perform(job)
            return caller.conclude()

    def watch(self, tasks: Iterable[str], stop: StopEvent | None = None) -> None:
        """Runs jobs as they come, until asked to stop."""
        with self._caller(tasks, WATCH) as caller:
            while not caller.signals.asked and not (stop is not None and stop.is_set()):
                job = caller.take(_BETWEEN_LOOKS)
                if job is not None:
                    caller.perform(job)

    @contextmanager
    def _caller(self, tasks: Iterable[str], mode: InlineMode) -> Iterator[InlineWorker]:
        caller = InlineWorker(self._store, self._events, self._application, self._settings, frozenset(tasks), mode)
        with caller.signals:
            try:
                caller.open()
                yield caller
            finally:
                caller.close()
