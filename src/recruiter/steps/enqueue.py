"""Enqueue: the first step of a job's life.

A caller that is alone writes by itself, which is quickest. *Batch while busy*: for callers that come meanwhile one
thread writes. It never waits to fill a batch: it takes whatever has gathered while the last write was on its way, and
each caller returns when its own job is durable.

The thread belongs to no caller. A job never writes by itself, because it may be interrupted: it leaves alone, and the
write goes on for the others. What callers and the thread share is a queue and a lock for each caller, both of which are
atomic in Python: an exception that arrives between any two instructions leaves them whole.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue

from bson.raw_bson import RawBSONDocument

from recruiter.domain.job import Job, JobId
from recruiter.errors import InvalidJob, JobExists, RecruiterError, StoreUnreachable
from recruiter.interruption import may_be_interrupted
from recruiter.service_thread import ServiceThread
from recruiter.store.codec import LARGEST_JOB, encode_job
from recruiter.store.connection import answered_within
from recruiter.store.database import Store

LARGEST_BATCH = 1000
_IDLE = 10.0
"""Seconds without work after which the writing thread ends; the next caller starts another."""
SILENCE = 1.0
"""Seconds without an answer after which somebody is told."""


class _Call:
    """One caller, and what became of its job."""

    __slots__ = ("document", "done", "error", "given_up")

    def __init__(self, document: RawBSONDocument) -> None:
        self.document = document
        self.done = threading.Lock()
        self.done.acquire()  # released by the writing thread
        self.error: BaseException | str | None = None
        self.given_up = False


class Enqueuer:
    """`silent` is called when MongoDB has not answered for a second, with what has not been answered."""

    def __init__(self, store: Store, silent: Callable[[str], None] = lambda _: None) -> None:
        self._scheduled = store.scheduled
        self._patience = store.patience
        """Seconds in which the driver repeats a write through any number of new primaries; without a time, once."""
        self._silent = silent
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._thread = ServiceThread(self._write, lambda: not self._calls.empty())
        self._closed = False
        self._alone = threading.Lock()
        """Held by the caller that writes by itself. If an interruption leaves it locked, the thread writes for all."""
        self._busy = False
        """Whether the thread writes."""
        self._awaited: tuple[JobId, float] | None = None
        """The job that a caller writes by itself, and since when."""

    def one(self, job: Job, within: float | None = None) -> None:
        """Returns when the job is durable. Raises JobExists when there is one with this id, and StoreUnreachable when
        it takes longer than `within` seconds."""
        document = encode_job(job)
        if self._busy or not self._calls.empty() or may_be_interrupted() or not self._alone.acquire(blocking=False):
            self._hand_over(job, document, within)
            return
        try:
            self._write_alone(job, document, within)
        finally:
            self._alone.release()

    def _write_alone(self, job: Job, document: RawBSONDocument, within: float | None) -> None:
        began = time.monotonic()
        self._awaited = (job.id, began)
        self._thread.ensure()  # it tells somebody if there is no answer
        try:
            with answered_within(self._patience if within is None else within):
                refused = self._scheduled.insert([document])
        except StoreUnreachable as error:
            over = within is not None and time.monotonic() - began >= within
            raise unknown(job.id, _not_within(within) if over and within is not None else str(error)) from error
        finally:
            self._awaited = None
        if refused:
            raise refusal(job, refused[0])

    def _hand_over(self, job: Job, document: RawBSONDocument, within: float | None) -> None:
        call = _Call(document)
        try:
            self._calls.put(call)
            self._thread.ensure()
            self._wait(call, job.id, within)
        except BaseException:
            call.given_up = True  # if it is not on its way yet, it stays
            raise
        if isinstance(call.error, StoreUnreachable):
            raise unknown(job.id, str(call.error)) from call.error
        if isinstance(call.error, BaseException):
            raise _own(call.error) from call.error
        if call.error is not None:
            raise refusal(job, call.error)

    def many(self, jobs: Sequence[Job]) -> list[RecruiterError | None]:
        """Stores all that can be stored; returns what was wrong with each, in order.

        If MongoDB does not answer, that is the error of each job that was on its way, and may be stored, and of those
        behind it, which are not. Raises StoreUnreachable if that happens before anything is stored."""
        errors: list[RecruiterError | None] = [None] * len(jobs)
        encoded: list[tuple[int, RawBSONDocument]] = []
        for place, job in enumerate(jobs):
            try:
                encoded.append((place, encode_job(job)))
            except InvalidJob as error:
                errors[place] = error
        for start in range(0, len(encoded), LARGEST_BATCH):
            places, batch = zip(*encoded[start : start + LARGEST_BATCH], strict=True)
            for offset, documents in by_size(list(batch)):
                some = places[offset : offset + len(documents)]
                try:
                    with answered_within(self._patience):
                        refusals = self._scheduled.insert(documents)
                except StoreUnreachable as error:
                    if not start and not offset:
                        told = f"it is not known which of these {len(encoded):,} jobs are stored"
                        raise StoreUnreachable(f"{error}; {told}") from error
                    behind = [place for place, _ in encoded[start + offset + len(documents) :]]
                    _give_up(jobs, errors, some, behind, error)
                    return errors
                for index, refused in refusals.items():
                    errors[some[index]] = refusal(jobs[some[index]], refused)
        return errors

    def close(self) -> None:
        """The writing thread ends when it has written what it was given."""
        self._closed = True
        self._calls.put(None)  # wakes it

    # -- the caller ----------------------------------------------------------------------------------------------

    def _wait(self, call: _Call, id: JobId, within: float | None) -> None:
        began, told = time.monotonic(), False
        while True:
            waited = time.monotonic() - began
            left = SILENCE if within is None else min(SILENCE, within - waited)
            if call.done.acquire(timeout=max(0.0, left)):
                return
            waited = time.monotonic() - began
            if within is not None and waited >= within:
                raise unknown(id, _not_within(within))
            self._thread.ensure()
            if waited >= SILENCE and not told:
                told = True
                self._silent(f"job {id!r} is not stored yet")

    # -- the writing thread --------------------------------------------------------------------------------------

    def _write(self) -> None:
        while (batch := self._next_batch()) is not None:
            self._busy = True
            try:
                for place, documents in by_size([call.document for call in batch]):
                    self._store(batch[place : place + len(documents)], documents)
            finally:
                self._busy = False

    def _store(self, calls: list[_Call], documents: list[RawBSONDocument]) -> None:
        try:
            with answered_within(self._patience):
                refusals = self._scheduled.insert(documents)
            for place, error in refusals.items():
                calls[place].error = error
        except BaseException as error:
            for call in calls:
                call.error = error
        finally:
            for call in calls:
                call.done.release()

    def _next_batch(self) -> list[_Call] | None:
        """All that has gathered; None when nobody comes for a while."""
        batch: list[_Call] = []
        try:
            call = self._first_call()
            while True:
                if call is not None and not call.given_up:
                    batch.append(call)
                if len(batch) == LARGEST_BATCH:
                    return batch
                call = self._calls.get_nowait()
        except Empty:
            return batch or None

    def _first_call(self) -> _Call | None:
        """Waits for it, and meanwhile looks after the caller that writes by itself. Raises Empty."""
        until, told = time.monotonic() + _IDLE, None
        while not self._closed:
            try:
                return self._calls.get(timeout=SILENCE / 2)
            except Empty:
                awaited = self._awaited
                if awaited is not None and awaited is not told and time.monotonic() - awaited[1] >= SILENCE:
                    told = awaited
                    self._silent(f"job {awaited[0]!r} is not stored yet")
                if awaited is None and time.monotonic() >= until:
                    raise
        return self._calls.get(timeout=0)


def _give_up(
    jobs: Sequence[Job],
    errors: list[RecruiterError | None],
    on_their_way: Sequence[int],
    behind: Sequence[int],
    error: StoreUnreachable,
) -> None:
    for place in on_their_way:
        errors[place] = unknown(jobs[place].id, str(error))
    for place in behind:
        errors[place] = StoreUnreachable(f"{error}; job {jobs[place].id!r} is not stored")


def _not_within(within: float) -> str:
    return f"MongoDB has not answered within {within:g} s"


def unknown(id: JobId, why: str) -> StoreUnreachable:
    """The error of a caller whose job may be stored, or not."""
    return StoreUnreachable(
        f"{why}; it is not known whether job {id!r} is stored. "
        "Ask recruiter.find() for it, or enqueue with an id of your own, which is safe to do again"
    )


def refusal(job: Job, error: str) -> RecruiterError:
    if error == "duplicate":
        return JobExists(f"there is a job with id {job.id!r} already; it was left as it is")
    return InvalidJob(f"MongoDB refused the job {job.id!r} of task {job.task!r}: {error}")


def _own(error: BaseException) -> BaseException:
    """The same error for each caller: one that is raised in several threads would collect all their tracebacks."""
    try:
        return type(error)(*error.args)
    except Exception:
        return error


def by_size(documents: list[RawBSONDocument]) -> list[tuple[int, list[RawBSONDocument]]]:
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
