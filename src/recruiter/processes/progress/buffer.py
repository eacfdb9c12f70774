"""What a worker knows of the jobs that run under one registration and are worth writing down: those that have said
something of themselves, and those that have run for longer than a heartbeat.

    the workplace    heard(…)                what a job has said
    the heartbeat    saw(…)                  what runs, and since when
    progress writer  take() … landed()       what is to be written; in between it is on its way
    settling         stop(…) … forget(…)     these have ended: nothing more is written about them, and nothing is
                                             on its way any more, until they are settled

Whoever sees a job run may say so late, when it has been settled and perhaps waits again. So whoever asks about what
runs (`Holdings.saw`) also knows what is held.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from recruiter.domain.job import JobId
from recruiter.processes.worker.held_job import HeldJob
from recruiter.store.codec import Document, decode
from recruiter.store.collections.scheduled import Sign


@dataclass(slots=True)
class _Track:
    job: HeldJob
    since: datetime
    said: bytes | None = None
    fresh: bool = True
    """Not written yet."""
    _stored: tuple[int, str | None] | None = None

    def fields(self) -> Document:
        return decode(self.said) if self.said is not None else {}

    def sign(self, worker: str) -> Sign | None:
        """As it is written; None of a job that cannot be read."""
        if self._stored is None:
            try:
                stored = decode(self.job.raw)
                self._stored = int(stored["attempts"]), stored.get("locked_by")
            except Exception:
                return None
        return Sign(self.job.id, *self._stored, worker, self.since, self.fields())


class ProgressBuffer:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._landed = threading.Condition(self._lock)
        self._tracks: dict[JobId, _Track] = {}
        self._on_the_way: set[JobId] = set()
        self._ending: set[JobId] = set()

    def heard(self, job: HeldJob, since: datetime, said: bytes) -> None:
        with self._lock:
            track = self._tracks.setdefault(job.id, _Track(job, since))
            track.said, track.fresh = said, True

    def saw(self, running: Iterable[tuple[HeldJob, datetime]], now: datetime, after: float) -> bool:
        """Notes those that have run for longer than so many seconds; true when there is something to write."""
        long_ago = now - timedelta(seconds=after)
        with self._lock:
            for job, since in running:
                if since < long_ago and job.id not in self._tracks:
                    self._tracks[job.id] = _Track(job, since)
            return any(self._is_due(track) for track in self._tracks.values())

    def said(self, id: JobId) -> Document:
        """The fields that hold what this job has said."""
        with self._lock:
            track = self._tracks.get(id)
        return track.fields() if track is not None else {}

    def take(self, worker: str) -> list[Sign]:
        """What is to be written now."""
        with self._lock:
            tracks = [track for track in self._tracks.values() if self._is_due(track)]
            for track in tracks:
                track.fresh = False
            self._on_the_way = {track.job.id for track in tracks}
        return [sign for track in tracks if (sign := track.sign(worker)) is not None]

    def landed(self, written: bool) -> None:
        """What was taken is written, or has to be taken again."""
        with self._lock:
            for id in () if written else self._on_the_way:
                if id in self._tracks:
                    self._tracks[id].fresh = True
            self._on_the_way = set()
            self._landed.notify_all()

    def stop(self, ids: Collection[JobId]) -> list[JobId]:
        """Nothing more will be written about these; returns those that were worth it."""
        with self._lock:
            self._ending.update(ids)
            while not self._on_the_way.isdisjoint(ids):
                self._landed.wait()
            return [id for id in ids if id in self._tracks] if self._tracks else []

    def last_words(self, ids: Iterable[JobId], worker: str) -> list[Sign]:
        """Of jobs that were stopped and are handed back."""
        with self._lock:
            tracks = [self._tracks[id] for id in ids if id in self._tracks]
        return [sign for track in tracks if (sign := track.sign(worker)) is not None]

    def forget(self, ids: Collection[JobId]) -> None:
        """These are settled; if they come again, they begin anew."""
        with self._lock:
            self._ending.difference_update(ids)
            for id in ids if self._tracks else ():
                self._tracks.pop(id, None)

    def _is_due(self, track: _Track) -> bool:
        return track.fresh and track.job.id not in self._ending
