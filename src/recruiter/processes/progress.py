"""How the progress of running jobs travels: from the job (sender) through the worker (buffer) to MongoDB (writer).

    job ──AttemptProgress──▶ sender ──a few times a second──▶ buffer ──▶ progress writer (worker/core.py) ──▶ scheduled

It is for people to see and decides nothing. What does not arrive on the way is written with the outcome of the job.
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
from recruiter.store.codec import Document, decode, encode, progress_fields
from recruiter.store.collections.scheduled import ProgressMark

K = TypeVar("K")

REST = 0.2
"""Seconds between two deliveries."""
_PATIENCE = 0.05
"""Seconds that a job waits for its first word to leave."""


class ProgressSender(Generic[K]):
    """Carries the progress of running jobs out of the process, or the thread, in which they run.

    A thread, started when a job reports progress for the first time. It delivers at once, and then rests; what is
    reported meanwhile is delivered together when the rest is over. So the last report always arrives, also of a job
    that goes on in silence. The first report after a silence is waited for: the next line of the job may be a long call
    that lets no other thread of the process run.
    """

    def __init__(self, deliver: Callable[[K, bytes], None]) -> None:
        self._deliver = deliver
        # The only queue that may be interrupted anywhere, by the end of a job's time.
        self._calls: queue.SimpleQueue[tuple[K, AttemptProgress, threading.Lock] | None] = queue.SimpleQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._resting = False

    def call(self, key: K, progress: AttemptProgress) -> None:
        """By a job: there is something to be carried."""
        left = threading.Lock()
        left.acquire()
        progress.called = True  # first: it is reset when the sender has been there
        self._calls.put((key, progress, left))
        if self._thread is None:
            self._start()
        if not self._resting:
            left.acquire(timeout=_PATIENCE)

    def close(self) -> None:
        """It goes home; a later call brings another one."""
        with self._starting:
            if self._thread is not None:
                self._thread = None
                self._calls.put(None)

    def _start(self) -> None:
        with self._starting, suppress(RuntimeError):  # no thread to be had: then all is stored at the end
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="progress", daemon=True)
                thread.start()
                self._thread = thread

    def _work(self) -> None:
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
    id: JobId
    raw: bytes
    since: datetime
    progress: bytes | None = None
    fresh: bool = True
    """Not written yet."""
    _stored: tuple[int, str | None] | None = None

    def fields(self) -> Document:
        return decode(self.progress) if self.progress is not None else {}

    def mark(self, worker: str) -> ProgressMark | None:
        """The entry as it is written; None if the job cannot be read."""
        if self._stored is None:
            try:
                stored = decode(self.raw)
                self._stored = int(stored["attempts"]), stored.get("locked_by")
            except Exception:
                return None
        return ProgressMark(self.id, *self._stored, worker, self.since, self.fields())


class ProgressBuffer:
    """Which running jobs of one registration have something to be written on them. These are jobs that have reported
    progress, and jobs that have run for longer than a heartbeat. A job is given as its id and its bytes (a `HeldJob`).

        job runner       add(…)                  a job has reported progress
        heartbeat        add_running(…)          these jobs run, since these moments
        progress writer  take() … written()      what is to be written; in between, it is on its way
        settler          stop(…) … forget(…)     these jobs have ended: nothing more is written about them, and
                                                 nothing is on its way any more, until they are settled

    A thread may report a running job late, when the job has been settled and perhaps waits again. So the heartbeat
    reports through `HeldJobs.saw`, which knows the jobs that are held.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._written = threading.Condition(self._lock)
        self._entries: dict[JobId, _Entry] = {}
        self._on_the_way: set[JobId] = set()
        self._ending: set[JobId] = set()

    def add(self, job: tuple[JobId, bytes], since: datetime, progress: bytes) -> None:
        id, raw = job
        with self._lock:
            entry = self._entries.setdefault(id, _Entry(id, raw, since))
            entry.progress, entry.fresh = progress, True

    def add_running(self, running: Iterable[tuple[tuple[JobId, bytes], datetime]], now: datetime, after: float) -> bool:
        """Adds the jobs that have run for longer than `after` seconds; true when there is something to write."""
        long_ago = now - timedelta(seconds=after)
        with self._lock:
            for (id, raw), since in running:
                if since < long_ago and id not in self._entries:
                    self._entries[id] = _Entry(id, raw, since)
            return any(self._is_due(entry) for entry in self._entries.values())

    def fields_of(self, id: JobId) -> Document:
        """The fields that hold the progress of this job."""
        with self._lock:
            entry = self._entries.get(id)
        return entry.fields() if entry is not None else {}

    def take(self, worker: str) -> list[ProgressMark]:
        """What is to be written now."""
        with self._lock:
            entries = [entry for entry in self._entries.values() if self._is_due(entry)]
            for entry in entries:
                entry.fresh = False
            self._on_the_way = {entry.id for entry in entries}
        return [mark for entry in entries if (mark := entry.mark(worker)) is not None]

    def written(self, done: bool) -> None:
        """The entries that were taken are written, or have to be taken again."""
        with self._lock:
            for id in () if done else self._on_the_way:
                if id in self._entries:
                    self._entries[id].fresh = True
            self._on_the_way = set()
            self._written.notify_all()

    def stop(self, ids: Collection[JobId]) -> list[JobId]:
        """Nothing more will be written about these jobs; returns those that have an entry."""
        with self._lock:
            self._ending.update(ids)
            while not self._on_the_way.isdisjoint(ids):
                self._written.wait()
            return [id for id in ids if id in self._entries] if self._entries else []

    def final(self, ids: Iterable[JobId], worker: str) -> list[ProgressMark]:
        """The entries of jobs that were stopped and are handed back."""
        with self._lock:
            entries = [self._entries[id] for id in ids if id in self._entries]
        return [mark for entry in entries if (mark := entry.mark(worker)) is not None]

    def forget(self, ids: Collection[JobId]) -> None:
        """These jobs are settled; if they come again, they begin anew."""
        with self._lock:
            self._ending.difference_update(ids)
            for id in ids if self._entries else ():
                self._entries.pop(id, None)

    def _is_due(self, entry: _Entry) -> bool:
        return entry.fresh and entry.id not in self._ending
