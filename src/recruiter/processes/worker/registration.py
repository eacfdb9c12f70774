"""A worker's place on the roster, as the threads of its process share it.

    heartbeat ──joins, beats──▶ roster ──holding──▶ fetching ──jobs──▶ runner ──outcomes──▶ settling ──▶ MongoDB

Each thread has a file of its own; they meet here and in `HeldJobs`, which belongs to one registration. When that is
lost, the owner of the registration begins again under a new id, and what the threads still do under the old one counts
for nothing: they compare `held_jobs` before they say anything about the registration.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Protocol

import psutil

from recruiter.clock import Clock
from recruiter.domain.job import JobId
from recruiter.domain.planning.limits import Limit
from recruiter.domain.planning.needs import Needs
from recruiter.errors import StoreError
from recruiter.events import Events
from recruiter.processes.worker.held_jobs import NOBODY, HeldJob, HeldJobs, WakeUps
from recruiter.settings import Settings
from recruiter.store.codec import Document
from recruiter.store.database import Store
from recruiter.store.outcomes import Outcome

LAST_WRITES = 10.0
"""Seconds to get the last results written when stopping, also when MongoDB does not answer."""


class JobRunner(Protocol):
    """Where jobs run: the dispatcher of a worker, or the calling thread (`InlineRunner`).

    All methods are for other threads, except `open` and `close`.
    """

    @property
    def tasks(self) -> frozenset[str] | None:
        """What can be run here; None as long as nobody knows."""

    @property
    def limits(self) -> Sequence[Limit]:
        """What the application declares for these tasks; known with them."""

    @property
    def has_free_slot(self) -> bool:
        """It could start a job now, and has none."""

    def wake(self) -> None:
        """Look around: something has arrived, or the registration is lost."""

    def running(self) -> list[tuple[HeldJob, datetime]]:
        """What runs, and since when."""

    def cancel(self, flags: Mapping[JobId, Document]) -> None:
        """These jobs have been cancelled, here or elsewhere."""

    def recall(self, ids: Collection[JobId]) -> None:
        """These must not start any more: those that have not are given back."""

    def crash(self, job: HeldJob, at: datetime, how: str) -> Outcome | None:
        """The outcome of a job whose process died under it."""

    def open(self, held_jobs: HeldJobs) -> None:
        """Runs the jobs of this registration from now on."""

    def close(self) -> None:
        """Runs nothing any more. No other thread may be left that could wake it."""


class Registration:
    """The registration in force, and what is known of it."""

    def __init__(self, clock: Clock, settings: Settings, wake_ups: WakeUps = NOBODY) -> None:
        self.settings = settings
        self._cut_off_after = settings.dead_after - settings.heartbeat.total_seconds()
        self.draining = False
        self._clock = clock
        self._wake_ups = wake_ups
        self.begin()

    def begin(self) -> None:
        """A new registration, under a new id; the heartbeat will join."""
        self.held_jobs = HeldJobs(_new_id(), self._wake_ups)  # first: no thread may join again under the old id
        self.joined = self.lost = False
        self.beaten_at = self._clock.monotonic()

    def lose(self, held_jobs: HeldJobs) -> None:
        """This registration is off the roster. Any thread may notice it."""
        if held_jobs is self.held_jobs:
            self.lost = True
            self._wake_ups.runner()

    @property
    def silent_too_long(self) -> bool:
        """By now others may have been given the jobs held here."""
        return self.joined and self.silence > self._cut_off_after

    @property
    def silence(self) -> float:
        """Seconds since the last heartbeat that arrived."""
        return self._clock.monotonic() - self.beaten_at

    def leave(self, store: Store, events: Events) -> None:
        """Off the roster: whatever is still held is free at once."""
        try:
            store.roster.leave(self.held_jobs.worker)
            events.emit("worker.left", worker=self.held_jobs.worker)
        except StoreError as error:
            events.emit("store.unreachable", loop="worker", error=f"could not leave the roster: {error}")


def _new_id() -> str:
    """New for every registration: a worker that was retired and comes back is another worker."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"


def measured_resources() -> str:
    """Its processors, as many as this process may use, and its memory; what else it has must be said."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return str(Needs.of(proc=processors, mem=psutil.virtual_memory().total))
