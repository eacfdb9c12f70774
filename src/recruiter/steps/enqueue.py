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
from recruiter.domain.names import id_told
from recruiter.errors import InvalidJob, JobExists, RecruiterError, StoreUnreachable
from recruiter.interruption import may_be_interrupted
from recruiter.service_thread import ServiceThread
from recruiter.store.codec import LARGEST_JOB, encode_job
from recruiter.store.connection import answered_within
from recruiter.store.database import Store

LARGEST_BATCH = 1000
_IDLE = 10.0
"""Seconds without work after which the writing thread ends; the next caller starts another."""
_A_MOMENT = 0.0005
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
        self.encoded(job.id, job.task, encode_job(job), within)

    def encoded(self, id: JobId, task: str, document: RawBSONDocument, within: float | None = None) -> None:
        """The same, of a job that is encoded already."""
        if self._busy or not self._calls.empty() or may_be_interrupted() or not self._alone.acquire(blocking=False):
            refused = self._hand_over(id, document, within)
        else:
            try:
                refused = self._write_alone(id, document, within)
            finally:
                self._alone.release()
        if refused is not None:
            raise refusal(id, task, refused)

    def _write_alone(self, id: JobId, document: RawBSONDocument, within: float | None) -> str | None:
        """Why it was refused, if it was."""
        began = time.monotonic()
        self._awaited = (id, began)
        self._thread.ensure()  # it tells somebody if there is no answer
        try:
            with answered_within(self._patience if within is None else within):
                refused = self._scheduled.insert([document])
        except StoreUnreachable as error:
            over = within is not None and time.monotonic() - began >= within
            raise unknown(id, _not_within(within) if over and within is not None else str(error)) from error
        finally:
            self._awaited = None
        return refused.get(0)

    def _hand_over(self, id: JobId, document: RawBSONDocument, within: float | None) -> str | None:
        call = _Call(document)
        try:
            self._calls.put(call)
            self._thread.ensure()
            self._wait(call, id, within)
        except BaseException:
            call.given_up = True  # if it is not on its way yet, it stays
            raise
        if isinstance(call.error, StoreUnreachable):
            raise unknown(id, str(call.error)) from call.error
        if isinstance(call.error, BaseException):
            raise _own(call.error) from call.error
        return call.error

    def many(self, jobs: Sequence[RawBSONDocument]) -> dict[int, RecruiterError]:
        """Stores all encoded jobs that can be stored; returns the errors of the others, by place.

        If MongoDB does not answer, that is the error of each job that was on its way, and may be stored, and of those
        behind it, which are not. Raises StoreUnreachable if that happens before anything is stored."""
        errors: dict[int, RecruiterError] = {}
        for start in range(0, len(jobs), LARGEST_BATCH):
            for offset, documents in by_size(jobs[start : start + LARGEST_BATCH]):
                first = start + offset
                try:
                    with answered_within(self._patience):
                        refusals = self._scheduled.insert(documents)
                except StoreUnreachable as error:
                    if not first:
                        told = f"it is not known which of these {len(jobs):,} jobs are stored"
                        raise StoreUnreachable(f"{error}; {told}") from error
                    return errors | _given_up(jobs, first, first + len(documents), error)
                for index, refused in refusals.items():
                    errors[first + index] = refusal(documents[index]["_id"], documents[index]["task"], refused)
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
                self._silent(f"job {id_told(id)} is not stored yet")

    # -- the writing thread --------------------------------------------------------------------------------------

    def _write(self) -> None:
        answered = 0
        while (batch := self._next_batch(answered)) is not None:
            self._busy, answered = True, len(batch)
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

    def _next_batch(self, answered: int) -> list[_Call] | None:
        """All that has gathered; None when nobody comes for a while. Callers that have just been answered, so many, may
        be on their way with their next job: a caller that comes within a moment after the one before is taken along."""
        batch: list[_Call] = []
        try:
            call = self._first_call()
            while True:
                if call is not None and not call.given_up:
                    batch.append(call)
                if len(batch) == LARGEST_BATCH:
                    return batch
                if not self._calls.empty() or not answered:
                    call = self._calls.get_nowait()
                else:
                    answered -= 1
                    call = self._calls.get(timeout=_A_MOMENT)
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


def _given_up(
    jobs: Sequence[RawBSONDocument], first: int, behind: int, error: StoreUnreachable
) -> dict[int, RecruiterError]:
    """The errors of jobs that were on their way, from the first, and of those behind them."""
    ids = {place: jobs[place]["_id"] for place in range(first, len(jobs))}
    return {
        place: unknown(id, str(error))
        if place < behind
        else StoreUnreachable(f"{error}; job {id_told(id)} is not stored")
        for place, id in ids.items()
    }


def _not_within(within: float) -> str:
    return f"MongoDB has not answered within {within:g} s"


def unknown(id: JobId, why: str) -> StoreUnreachable:
    """The error of a caller whose job may be stored, or not."""
    return StoreUnreachable(
        f"{why}; it is not known whether job {id_told(id)} is stored. "
        "Ask recruiter.find() for it, or enqueue with an id of your own, which is safe to do again"
    )


def refusal(id: JobId, task: str, error: str) -> RecruiterError:
    if error == "duplicate":
        return JobExists(f"there is a job with id {id_told(id)} already; it was left as it is")
    return InvalidJob(f"MongoDB refused the job {id_told(id)} of task {task!r}: {error}")


def _own(error: BaseException) -> BaseException:
    """The same error for each caller: one that is raised in several threads would collect all their tracebacks."""
    try:
        return type(error)(*error.args)
    except Exception:
        return error


def by_size(documents: Sequence[RawBSONDocument]) -> list[tuple[int, list[RawBSONDocument]]]:
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
