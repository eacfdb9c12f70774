"""A worker's place on the roster, as the threads of its process share it.

    heartbeat ──joins, beats──▶ roster ──holding──▶ fetching ──jobs──▶ runner ──outcomes──▶ settling ──▶ MongoDB

Each thread has its own file; they meet here and in `HeldJobs`, which belongs to one registration. When the registration
is lost, its owner begins another one under a new id. Work that the threads still do under the old id does not count:
they compare `held_jobs` before they change the registration.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

import psutil

from recruiter.clock import Clock
from recruiter.domain.job import JobId
from recruiter.domain.planning.limits import Limit
from recruiter.domain.planning.needs import Needs
from recruiter.domain.policy_registry import PolicyRegistry
from recruiter.errors import StoreError
from recruiter.events import Events
from recruiter.processes.worker.held_job import HeldJob
from recruiter.processes.worker.held_jobs import NOBODY, HeldJobs, WakeUps
from recruiter.settings import Settings
from recruiter.store.codec import Document
from recruiter.store.database import Store

LAST_WRITES = 10.0
"""Seconds to write the last results when stopping, even if MongoDB does not answer."""


class JobRunner(Protocol):
    """Runs jobs: the dispatcher of a worker, or the calling thread (`InlineRunner`).

    All methods are for other threads, except `open` and `close`.
    """

    policies: PolicyRegistry
    stack: Document | None
    """The last answer to `ask_stack`: the question, `text` and `at`."""

    @property
    def tasks(self) -> frozenset[str] | None:
        """The tasks that can run here; None until the application is loaded."""

    @property
    def limits(self) -> Sequence[Limit]:
        """The limits that the application declares for these tasks."""

    @property
    def has_free_slot(self) -> bool:
        """It could start a job now, and has none."""

    @property
    def prefetch(self) -> int:
        """The number of jobs that the worker may hold in addition to the running ones."""

    def wake(self) -> None:
        """Jobs have arrived, or the registration is lost."""

    def running(self) -> list[tuple[HeldJob, datetime]]:
        """The running jobs, and since when they run."""

    def cancel(self, flags: Mapping[JobId, Document]) -> None:
        """These jobs have been cancelled, here or elsewhere."""

    def ask_stack(self, asked: Document) -> None:
        """A person asks for the calls that the process of this running job is in: `id` and `job`."""

    def open(self, held_jobs: HeldJobs) -> None:
        """Runs the jobs of this registration from now on."""

    def close(self) -> None:
        """Call this when no other thread is left that could wake it."""


class Registration:
    """The current registration."""

    def __init__(self, clock: Clock, settings: Settings, wake_ups: WakeUps = NOBODY) -> None:
        self.settings = settings
        self._cut_off_after = settings.dead_after - settings.heartbeat.total_seconds()
        self.draining = False
        self._clock = clock
        self._wake_ups = wake_ups
        self.begin()

    def begin(self) -> None:
        """A new registration, under a new id; the heartbeat will join."""
        # The id is new for every registration: a worker that was retired and comes back is another worker.
        id = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        self.held_jobs = HeldJobs(id, self._wake_ups)  # first: no thread may join again under the old id
        self.joined = self.lost = False
        self.beaten_at = self._clock.monotonic()

    def lose(self, held_jobs: HeldJobs) -> None:
        """This registration is off the roster. Any thread may notice it."""
        if held_jobs is self.held_jobs:
            self.lost = True
            self._wake_ups.runner()

    @property
    def silent_too_long(self) -> bool:
        """By now other workers may hold these jobs."""
        return self.joined and self.silence > self._cut_off_after

    @property
    def silence(self) -> float:
        """Seconds since the last heartbeat that arrived."""
        return self._clock.monotonic() - self.beaten_at

    def leave(self, store: Store, events: Events) -> None:
        """Leaves the roster: jobs that are still held are free immediately."""
        try:
            store.roster.leave(self.held_jobs.worker)
            events.emit("worker.left", worker=self.held_jobs.worker)
        except StoreError as error:
            events.emit("store.unreachable", loop="worker", error=f"could not leave the roster: {error}")


def measured_resources() -> str:
    """The processors that this process may use, and the memory of the host; other resources must be declared."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return str(Needs.of(proc=processors, mem=psutil.virtual_memory().total))
