"""Enqueue: the first step of a job's life.

*Batch while busy*: a lone caller writes at once. Callers that come while a write is on its way gather, and the first
of them takes all the others along in the next write. Nobody ever waits to fill a batch, and each caller returns when
its own job is durable.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from bson.raw_bson import RawBSONDocument

from recruiter.domain.job import Job
from recruiter.errors import InvalidJob, JobExists, RecruiterError
from recruiter.store.codec import LARGEST_JOB, encode_job
from recruiter.store.database import Store

LARGEST_BATCH = 1000


class _Caller:
    """One caller in the queue, and what became of its job."""

    __slots__ = ("document", "error", "finished", "turn")

    def __init__(self, document: RawBSONDocument) -> None:
        self.document = document
        self.turn = threading.Event()
        self.finished = False
        self.error: BaseException | str | None = None


class Enqueuer:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._waiting: list[_Caller] = []
        self._writing = False

    def one(self, job: Job) -> None:
        """Returns when the job is durable. Raises JobExists when there is one with this id."""
        caller = _Caller(encode_job(job))
        with self._lock:
            self._waiting.append(caller)
            must_wait = self._writing
            self._writing = True
        if must_wait:
            try:
                caller.turn.wait()
            except BaseException:  # Ctrl-C: whoever comes next must not wait for us
                self._abandon(caller)
                raise
        if not caller.finished:
            self._write_waiting()
        if isinstance(caller.error, BaseException):
            raise caller.error
        if caller.error is not None:
            raise refusal(job, caller.error)

    def many(self, jobs: Sequence[Job]) -> list[RecruiterError | None]:
        """Stores all that can be stored; returns what was wrong with each, in order."""
        errors: list[RecruiterError | None] = [None] * len(jobs)
        encoded: list[tuple[int, RawBSONDocument]] = []
        for place, job in enumerate(jobs):
            try:
                encoded.append((place, encode_job(job)))
            except InvalidJob as error:
                errors[place] = error
        for start in range(0, len(encoded), LARGEST_BATCH):
            places, batch = zip(*encoded[start : start + LARGEST_BATCH], strict=True)
            for offset, documents in _by_size(list(batch)):
                for index, refused in self._store.scheduled.insert(documents).items():
                    place = places[offset + index]
                    errors[place] = refusal(jobs[place], refused)
        return errors

    def _abandon(self, caller: _Caller) -> None:
        with self._lock:
            its_turn = caller.turn.is_set() and not caller.finished
            if caller in self._waiting:
                self._waiting.remove(caller)
            next_writer = self._waiting[0] if its_turn and self._waiting else None
            if its_turn:
                self._writing = next_writer is not None
        if next_writer is not None:
            next_writer.turn.set()

    def _write_waiting(self) -> None:
        with self._lock:
            batch, self._waiting = self._waiting[:LARGEST_BATCH], self._waiting[LARGEST_BATCH:]
        try:
            for place, documents in _by_size([caller.document for caller in batch]):
                for index, error in self._store.scheduled.insert(documents).items():
                    batch[place + index].error = error
        except BaseException as error:
            for caller in batch:
                caller.error = error
        finally:
            with self._lock:
                next_writer = self._waiting[0] if self._waiting else None
                self._writing = next_writer is not None
            for caller in batch:
                caller.finished = True
                caller.turn.set()
            if next_writer is not None:
                next_writer.turn.set()


def refusal(job: Job, error: str) -> RecruiterError:
    if error == "duplicate":
        return JobExists(f"there is a job with id {job.id!r} already; it was left as it is")
    return InvalidJob(f"MongoDB refused the job {job.id!r} of task {job.task!r}: {error}")


def _by_size(documents: list[RawBSONDocument]) -> list[tuple[int, list[RawBSONDocument]]]:
    """Pieces with their starting place, each small enough that one huge job does not fail its neighbours."""
    pieces: list[tuple[int, list[RawBSONDocument]]] = []
    size = LARGEST_JOB
    for place, document in enumerate(documents):
        if size + len(document.raw) > LARGEST_JOB:
            pieces.append((place, []))
            size = 0
        pieces[-1][1].append(document)
        size += len(document.raw)
    return pieces
