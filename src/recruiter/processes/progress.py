"""How the progress of running jobs travels: from the job (sender) through the worker (buffer) to MongoDB (writer).

    job ──AttemptProgress──▶ sender ──a few times a second──▶ buffer ──▶ progress writer (worker/core.py) ──▶ scheduled

It is shown to people and decides nothing. Progress that does not arrive on the way is written with the outcome.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Generic, TypeVar

from recruiter.attempt import AttemptProgress
from recruiter.domain.job import JobId
from recruiter.domain.progress import Progress
from recruiter.processes.worker.held_job import HeldJob
from recruiter.store.codec import Document, decode, encode, progress_fields
from recruiter.store.collections.scheduled import ProgressMark

K = TypeVar("K")

REST = 0.2
"""Seconds between two deliveries."""
_PATIENCE = 0.05
"""Seconds that a job waits until its first report is sent."""


class ProgressSender(Generic[K]):
    """Carries the progress of running jobs out of the process, or the thread, in which they run.

    A thread, started when a job reports progress for the first time. It delivers immediately, and then rests; reports
    that come meanwhile are delivered together after the rest. So the last report always arrives, even if the job is
    silent from then on. The job waits for its first report after a silence: its next line may be a long call that lets
    no other thread of the process run.
    """

    def __init__(self, deliver: Callable[[K, bytes], None]) -> None:
        self._deliver = deliver
        # The only queue that may be interrupted anywhere, by the end of a job's time.
        self._calls: queue.SimpleQueue[tuple[K, AttemptProgress, threading.Lock] | None] = queue.SimpleQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._resting = False

    def call(self, key: K, progress: AttemptProgress) -> None:
        """Sends new progress of a job, which calls this. After a silence it waits shortly until the report has left."""
        left = threading.Lock()
        left.acquire()
        progress.called = True  # first: it is reset when the sender has been there
        self._calls.put((key, progress, left))
        if self._thread is None:
            self._start()
        if not self._resting:
            left.acquire(timeout=_PATIENCE)

    def close(self) -> None:
        """Ends the thread; a later call starts another one."""
        with self._starting:
            if self._thread is not None:
                self._thread = None
                self._calls.put(None)

    def _start(self) -> None:
        # If no thread can be started, the progress is only stored with the outcome.
        with self._starting, suppress(RuntimeError):
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="progress", daemon=True)
                thread.start()
                self._thread = thread

    def _work(self) -> None:
        """The thread: delivers reports, all that have come meanwhile too, and rests; until `close`."""
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


@dataclass(slots=True)
class _Entry:
    """A running job, and what must be written on its document."""

    job: HeldJob
    since: datetime
    progress: bytes | None = None
    fresh: bool = True
    """Not written yet."""

    def fields(self) -> Document:
        return decode(self.progress) if self.progress is not None else {}

    def mark(self, worker: str) -> ProgressMark:
        """The entry in its written form."""
        return ProgressMark(self.job.id, self.job.attempts, self.job.locked_by, worker, self.since, self.fields())


class ProgressBuffer:
    """The running jobs of one registration that have something to be written on them: jobs that have reported progress,
    and jobs that have run for longer than a heartbeat.

        job runner       add(…)                  a job has reported progress
        heartbeat        add_running(…)          these jobs run, since these moments
        progress writer  take() … written()      the entries to write; in between, they are on their way
        settler          stop(…) … forget(…)     these jobs have ended: until they are settled, nothing is written
                                                 about them, and nothing is on its way

    A thread may report a running job late, when the job has been settled and perhaps waits again. So the heartbeat
    reports through `HeldJobs.saw`, which knows the jobs that are held.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._written = threading.Condition(self._lock)
        self._entries: dict[JobId, _Entry] = {}
        self._on_the_way: set[JobId] = set()
        self._ending: set[JobId] = set()

    def add(self, job: HeldJob, since: datetime, progress: bytes) -> None:
        with self._lock:
            entry = self._entries.setdefault(job.id, _Entry(job, since))
            entry.progress, entry.fresh = progress, True

    def add_running(self, running: Iterable[tuple[HeldJob, datetime]], now: datetime, after: float) -> bool:
        """Adds the jobs that have run for longer than `after` seconds; true when there is something to write."""
        long_ago = now - timedelta(seconds=after)
        with self._lock:
            for job, since in running:
                if since < long_ago and job.id not in self._entries:
                    self._entries[job.id] = _Entry(job, since)
            return any(self._is_due(entry) for entry in self._entries.values())

    def fields_of(self, id: JobId) -> Document:
        """The fields that hold the progress of this job."""
        with self._lock:
            entry = self._entries.get(id)
        return entry.fields() if entry is not None else {}

    def take(self, worker: str) -> list[ProgressMark]:
        """Takes the entries to write now. They are on their way until `written` is called."""
        with self._lock:
            entries = [entry for entry in self._entries.values() if self._is_due(entry)]
            for entry in entries:
                entry.fresh = False
            self._on_the_way = {entry.job.id for entry in entries}
        return [entry.mark(worker) for entry in entries]

    def written(self, done: bool) -> None:
        """The entries on their way are written; unless `done`, they are taken again."""
        with self._lock:
            for id in () if done else self._on_the_way:
                if id in self._entries:
                    self._entries[id].fresh = True
            self._on_the_way = set()
            self._written.notify_all()

    def stop(self, ids: Collection[JobId]) -> list[JobId]:
        """Ends all writes about these jobs; returns the jobs that have an entry."""
        with self._lock:
            self._ending.update(ids)
            while not self._on_the_way.isdisjoint(ids):
                self._written.wait()
            return [id for id in ids if id in self._entries] if self._entries else []

    def final(self, ids: Iterable[JobId], worker: str) -> list[ProgressMark]:
        """The entries of jobs that were stopped and are handed back."""
        with self._lock:
            entries = [self._entries[id] for id in ids if id in self._entries]
        return [entry.mark(worker) for entry in entries]

    def forget(self, ids: Collection[JobId]) -> None:
        """These jobs are settled; if they come again, they start without an entry."""
        with self._lock:
            self._ending.difference_update(ids)
            for id in ids if self._entries else ():
                self._entries.pop(id, None)

    def _is_due(self, entry: _Entry) -> bool:
        return entry.fresh and entry.job.id not in self._ending
