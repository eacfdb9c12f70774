"""Enqueue: the first step of a job's life.

*Batch while busy*: one thread writes for all callers. It takes the jobs that have gathered during its last write, and
each caller continues when its own job is durable.

    thread      leaves a call, waits for its lock         ─┐
    coroutine   leaves a call, awaits its future          ─┤
                                                           ▼
    writing thread    any call? ──▶ gather ──▶ one insert ──▶ answer: locks, and each event loop once

The thread belongs to no caller. A job that enqueues may be interrupted: the write continues for the others. Callers and
the thread share a deque, a queue of wake-ups and a lock for each caller, all of which are atomic in Python: an
exception between any two instructions leaves them intact.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from bson.raw_bson import RawBSONDocument

from recruiter.domain.job import Job, JobId
from recruiter.domain.names import id_told
from recruiter.errors import InvalidJob, JobExists, RecruiterError, StoreUnreachable
from recruiter.interruption import ServiceThread
from recruiter.store.codec import LARGEST_JOB, encode_job
from recruiter.store.connection import answered_within

if TYPE_CHECKING:
    from recruiter.store.database import Store

LARGEST_BATCH = 1000
IDLE_SECONDS = 10.0
"""After this time without work the writing thread ends; the next caller starts another."""
GATHER_SECONDS = 0.0005
SILENCE_SECONDS = 1.0
"""After this time without an answer a caller reports that MongoDB is silent."""
_NOBODY = sys.maxsize


class _Caller:
    """One caller with its job, how long it waits, and how the write ended."""

    __slots__ = ("_began", "_is_reported", "_job", "_within", "document", "done", "error", "future", "given_up")

    def __init__(self, job: Job, within: float | None, future: asyncio.Future[None] | None = None) -> None:
        self._job, self._within = job, within
        self._began, self._is_reported = time.monotonic(), False
        self.document = encode_job(job)
        self.future = future
        """A coroutine awaits it; None for a thread."""
        self.done = threading.Lock()
        """A thread waits for it. The writing thread releases it."""
        if future is None:
            self.done.acquire()
        self.error: BaseException | str | None = None
        self.given_up = False

    def next_check(self) -> float:
        if self._within is None:
            return SILENCE_SECONDS
        return max(0.0, min(SILENCE_SECONDS, self._began + self._within - time.monotonic()))

    def check(self, silent: Callable[[str], None]) -> None:
        """Raises StoreUnreachable after `within` seconds; after a second it calls `silent`, once."""
        waited = time.monotonic() - self._began
        if self._within is not None and waited >= self._within:
            raise unknown(self._job.id, f"MongoDB has not answered within {self._within:g} s")
        if waited >= SILENCE_SECONDS and not self._is_reported:
            self._is_reported = True
            silent(f"job {id_told(self._job.id)} is not stored yet")

    def raise_error(self) -> None:
        """Raises the error of its write, or the refusal of MongoDB, if there was one."""
        if isinstance(self.error, StoreUnreachable):
            raise unknown(self._job.id, str(self.error)) from self.error
        if isinstance(self.error, BaseException):
            raise _copy(self.error) from self.error
        if self.error is not None:
            raise refusal(self._job.id, self._job.task, self.error)


class Enqueuer:
    """Stores new jobs, in one write for concurrent callers. `silent` is called with a description when MongoDB has not
    answered for a second."""

    def __init__(self, store: Store, silent: Callable[[str], None] = lambda _: None) -> None:
        self._scheduled = store.scheduled
        self._patience = store.patience
        """Seconds in which the driver repeats a write through any number of new primaries; without a time, once."""
        self._silent = silent
        self._calls: deque[_Caller] = deque()
        """Left by callers, taken by the writing thread."""
        self._wanted = _NOBODY
        """The number of calls that wakes the writing thread."""
        self._wakes: SimpleQueue[None] = SimpleQueue()
        self._thread = ServiceThread(self._write, lambda: bool(self._calls))
        self._closed = False

    def one(self, job: Job, within: float | None = None) -> None:
        """Returns when the job is durable. Raises JobTooLarge, JobExists when there is a job with this id, and
        StoreUnreachable when it takes longer than `within` seconds."""
        call = _Caller(job, within)
        try:
            self._leave(call)
            while not call.done.acquire(timeout=call.next_check()):
                self._check(call)
        except BaseException:
            call.given_up = True  # not stored, if it is not on its way yet
            raise
        call.raise_error()

    async def aone(self, job: Job, within: float | None = None) -> None:
        """Like `one`, for a coroutine. If its task is cancelled before the job is on its way, the job is not stored."""
        answered = asyncio.get_running_loop().create_future()
        call = _Caller(job, within, answered)
        try:
            self._leave(call)
            while not (await asyncio.wait([answered], timeout=call.next_check()))[0]:
                self._check(call)
        except BaseException:
            call.given_up = True
            raise
        call.raise_error()

    def many(self, parts: Iterable[Sequence[RawBSONDocument]]) -> dict[int, RecruiterError]:
        """Stores all encoded jobs that can be stored, in parts of up to `LARGEST_BATCH` jobs; returns the errors of the
        others, by position.

        If MongoDB does not answer, each job that was on its way, and may be stored, gets that error, and so does each
        job behind it, which is not stored. Raises StoreUnreachable if this happens before anything is stored."""
        errors: dict[int, RecruiterError] = {}
        parts, start = iter(parts), 0
        for part in parts:
            for offset, documents in by_size(part):
                first = start + offset
                try:
                    with answered_within(self._patience):
                        refusals = self._scheduled.insert(documents)
                except StoreUnreachable as error:
                    left = [*part[offset:], *(document for other in parts for document in other)]
                    if not first:
                        unknown_jobs = f"it is not known which of these {len(left):,} jobs are stored"
                        raise StoreUnreachable(f"{error}; {unknown_jobs}") from error
                    return errors | _errors_of_the_rest(left, first, len(documents), error)
                for index, refused in refusals.items():
                    errors[first + index] = refusal(documents[index]["_id"], documents[index]["task"], refused)
            start += len(part)
        return errors

    def close(self) -> None:
        """The writing thread ends when it has written the calls that were left."""
        self._closed = True
        self._wakes.put(None)

    # -- the caller ----------------------------------------------------------------------------------------------

    def _leave(self, call: _Caller) -> None:
        # The thread first writes the number of calls that it wants and then checks for calls. A caller first leaves its
        # call and then reads that number. So at least one side sees the other.
        self._calls.append(call)
        if len(self._calls) >= self._wanted:
            self._wakes.put(None)
        self._ensure_writer()

    def _check(self, call: _Caller) -> None:
        call.check(self._silent)
        self._ensure_writer()  # it may have died

    def _ensure_writer(self) -> None:
        try:
            self._thread.ensure()
        except RuntimeError:  # the interpreter is ending, and cannot start threads
            self._write_gathered()

    # -- the writing thread --------------------------------------------------------------------------------------

    def _write(self) -> None:
        answered = 0
        while self._has_calls():
            self._gather(answered)
            answered = self._write_gathered()

    def _has_calls(self) -> bool:
        """Waits for a call. False when none comes for a while, and when the enqueuer is closed."""
        woken = True
        while woken:
            self._wanted = 1
            if self._calls or self._closed:
                break
            woken = self._is_woken_within(IDLE_SECONDS)
        return bool(self._calls)

    def _gather(self, answered: int) -> None:
        """The callers that were just answered are about to send their next jobs. The thread waits for that number of
        calls, as long as each arrives within GATHER_SECONDS; the last call wakes it."""
        gathered = 0
        while gathered < len(self._calls) < answered:
            gathered = len(self._calls)
            self._wanted = answered
            if len(self._calls) < answered:
                self._is_woken_within(GATHER_SECONDS)
        self._wanted = _NOBODY

    def _is_woken_within(self, seconds: float) -> bool:
        try:
            self._wakes.get(timeout=seconds)
        except Empty:
            return False
        self._wanted = _NOBODY
        while not self._wakes.empty():  # of several wake-ups one is enough
            self._wakes.get_nowait()
        return True

    def _write_gathered(self) -> int:
        """Stores the jobs of the calls that have gathered; returns how many."""
        taken = [self._calls.popleft() for _ in range(min(len(self._calls), LARGEST_BATCH))]
        calls = [call for call in taken if not call.given_up]
        for start, documents in by_size([call.document for call in calls]):
            self._store(calls[start : start + len(documents)], documents)
        return len(calls)

    def _store(self, calls: list[_Caller], documents: list[RawBSONDocument]) -> None:
        """Writes the documents of these calls, notes the error of each call, and wakes the callers."""
        try:
            with answered_within(self._patience):
                refusals = self._scheduled.insert(documents)
            for place, error in refusals.items():
                calls[place].error = error
        except BaseException as error:
            for call in calls:
                call.error = error
        finally:
            _answer(calls)


def _answer(calls: list[_Caller]) -> None:
    """Wakes each thread, and each event loop once."""
    loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for call in calls:
        if call.future is None:
            call.done.release()
        else:
            loops.setdefault(call.future.get_loop(), []).append(call.future)
    for loop, futures in loops.items():
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(_wake, futures)


def _wake(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():  # cancelled
            future.set_result(None)


def _errors_of_the_rest(
    left: Sequence[RawBSONDocument], first: int, on_their_way: int, error: StoreUnreachable
) -> dict[int, RecruiterError]:
    """The errors of all jobs from position `first` on: the first `on_their_way` of them may be stored, the others are
    not."""
    return {
        first + number: unknown(document["_id"], str(error))
        if number < on_their_way
        else StoreUnreachable(f"{error}; job {id_told(document['_id'])} is not stored")
        for number, document in enumerate(left)
    }


def unknown(id: JobId, why: str) -> StoreUnreachable:
    """The error of a caller whose job may or may not be stored."""
    return StoreUnreachable(
        f"{why}; it is not known whether job {id_told(id)} is stored. "
        "Ask recruiter.find() for it, or enqueue with your own id, which is safe to repeat"
    )


def refusal(id: JobId, task: str, error: str) -> RecruiterError:
    if error == "duplicate":
        return JobExists(f"there is a job with id {id_told(id)} already; it was not changed")
    return InvalidJob(f"MongoDB refused the job {id_told(id)} of task {task!r}: {error}")


def _copy(error: BaseException) -> BaseException:
    """A copy for each caller: an error that is raised in several threads would collect all their tracebacks."""
    try:
        return type(error)(*error.args)
    except Exception:
        return error


def by_size(documents: Sequence[RawBSONDocument]) -> list[tuple[int, list[RawBSONDocument]]]:
    """Splits documents into pieces of limited size, each with the place where it starts. Each piece is one write: one
    huge job must not fail its neighbours."""
    pieces: list[tuple[int, list[RawBSONDocument]]] = []
    size = LARGEST_JOB
    for place, document in enumerate(documents):
        if size + len(document.raw) > LARGEST_JOB:
            pieces.append((place, []))
            size = 0
        pieces[-1][1].append(document)
        size += len(document.raw)
    return pieces
