"""The cleaner process removes old jobs from the archive, counts waiting jobs when there are very many, and retires dead
workers when no recruiter leads."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timedelta

from recruiter.domain.planning.workers import RosterWorker
from recruiter.domain.policy_registry import PolicyRegistry
from recruiter.events import Events
from recruiter.processes.loop import Loop, Presence, Stop
from recruiter.processes.systemd import ServiceManager
from recruiter.settings import Settings
from recruiter.steps.clean import (
    MAX_REMOVED_PER_BATCH,
    clean,
    clean_counts,
    clean_starts,
    clean_unique_keys,
    count_waiting,
    forget_flows,
    sample_waiting,
)
from recruiter.steps.rescue import Rescue
from recruiter.store.database import Store

_REST_SECONDS_PER_BATCH = 0.05
_DAY_SECONDS = 86400.0
_SAMPLE_EVERY_SECONDS = 60.0
_SAMPLE_IDLE_EVERY_SECONDS = 600.0
"""Seconds. That nothing waits is no news every minute."""
_MAX_CHECK_SECONDS = 5.0
"""Seconds between two checks of the roster, at most: a worker that joins meanwhile may have a short time."""
_LATE = timedelta(hours=1)
"""How late an outcome may be written."""


class CleanerProcess:
    """The process that removes old jobs, flows and counts, and retires silent workers if no leader does."""

    def __init__(
        self,
        store: Store,
        events: Events,
        stop: Stop,
        settings: Settings,
        policies: PolicyRegistry,
        *,
        presence: Presence | None = None,
        manager: ServiceManager | None = None,
    ) -> None:
        self._store = store
        self._events = events
        self._settings = settings
        # Patient: the leader rescues first; this is for when there is none.
        self._rescue = Rescue(store, store.clock, settings.undeclared_dead_after, policies, patience=2.0)
        store.transactions.sessions.on_refused = lambda error: events.emit("session.not_ended", error=error)
        self._removed_until: datetime | None = None
        self._full_removal_at = 0.0
        self._presence = presence
        self._loop = Loop("cleaner", self._step, stop, events, manager=manager)
        self._at_work = False
        self._clean_at = 0.0
        self._removed = 0
        self._sample_at = self._sample_idle_at = 0.0

    def run(self) -> None:
        try:
            self._loop.run()
        finally:
            if self._presence is not None:
                self._presence.leave()

    def _step(self) -> float:
        if self._presence is not None:
            self._presence.show()
        delay = self._clean()
        if not self._at_work:
            self._at_work = True
            self._events.emit("cleaner.at_work")
        return delay

    def _remove_old(self) -> int:
        """Removes a batch of old jobs; returns their number. It begins where the last complete removal ended, because
        failed jobs may be kept for longer; once a day at the start, because outcomes may be written late."""
        clock, settings = self._store.clock, self._settings
        now, monotonic = clock.now(), clock.monotonic()
        if monotonic >= self._full_removal_at:
            self._removed_until, self._full_removal_at = None, monotonic + _DAY_SECONDS
        removed = clean(self._store, now, settings.clean_after, settings.keep_failed, since=self._removed_until)
        if removed < MAX_REMOVED_PER_BATCH:
            self._removed_until = now - settings.clean_after - _LATE
        return removed

    def _sample(self, roster: Sequence[RosterWorker]) -> None:
        """Stores how many jobs wait, for charts: every minute while jobs wait, else every ten minutes."""
        monotonic = self._store.clock.monotonic()
        if monotonic < self._sample_at:
            return
        self._sample_at = monotonic + _SAMPLE_EVERY_SECONDS
        also_if_idle = monotonic >= self._sample_idle_at
        has_waiting = sample_waiting(self._store, roster, always=also_if_idle)
        if has_waiting or also_if_idle:  # the first sample after the last job is stored, so that the line comes down
            self._sample_idle_at = monotonic + (0.0 if has_waiting else _SAMPLE_IDLE_EVERY_SECONDS)

    def _clean(self) -> float:
        """Retires silent workers, takes a sample, and removes a batch of old records when that is due; returns the
        seconds to wait, few while there is more to remove."""
        clock = self._store.clock
        count_waiting(self._store)
        roster = self._store.roster.read()
        for retired in self._rescue.retire_silent(roster, roster.unreadable):
            self._events.emit(
                "worker.retired" if retired.unreadable is None else "worker.unreadable", **asdict(retired)
            )
        self._sample(roster)
        if clock.monotonic() >= self._clean_at:
            removed = self._remove_old()
            if removed < MAX_REMOVED_PER_BATCH:
                settings = self._settings
                removed += forget_flows(self._store, clock.now(), settings.clean_after, settings.keep_failed)
            counts = clean_counts(self._store, clock.now(), self._settings.clean_after)
            keys = clean_unique_keys(self._store, clock.now())
            clean_starts(self._store, clock.now())
            self._removed += removed
            if removed >= MAX_REMOVED_PER_BATCH or MAX_REMOVED_PER_BATCH in (counts, keys):
                return _REST_SECONDS_PER_BATCH
            if self._removed:
                self._events.emit("archive.cleaned", removed=self._removed)
            self._removed = 0
            self._clean_at = clock.monotonic() + random.uniform(
                self._settings.wait_at_least.total_seconds(), self._settings.wait_at_most.total_seconds()
            )
        next_look = min((self._rescue.dead_after(worker) / 3 for worker in roster), default=_MAX_CHECK_SECONDS)
        return min(_MAX_CHECK_SECONDS, next_look, max(0.0, self._clean_at - clock.monotonic()))
