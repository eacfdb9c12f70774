"""Enqueue: the first step of a job's life.

A caller that is alone writes by itself, which is quickest. *Batch while busy*: for callers that come meanwhile, and for
coroutines, one thread writes. It takes whatever has gathered while the last write was on its way, and each caller goes
on when its own job is durable.

    thread      alone: writes by itself      else: leaves a call, waits for its lock      ─┐
    coroutine   leaves a call, awaits its future; no thread waits for it                  ─┤
                                                                                           ▼
    writing thread    any call? ──▶ gather ──▶ one insert ──▶ answer: locks, and each event loop once

The thread belongs to no caller. A job never writes by itself, because it may be interrupted: it leaves alone, and the
write goes on for the others. What callers and the thread share is a deque, a queue of wake-ups and a lock for each
caller, all of which are atomic in Python: an exception that arrives between any two instructions leaves them whole.
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
from recruiter.interruption import ServiceThread, may_be_interrupted
from recruiter.store.codec import LARGEST_JOB, encode_job
from recruiter.store.connection import answered_within

if TYPE_CHECKING:
    from recruiter.store.database import Store

LARGEST_BATCH = 1000
_IDLE = 10.0
"""Seconds without work after which the writing thread ends; the next caller starts another."""
_A_MOMENT = 0.0005
_NOBODY = sys.maxsize
SILENCE = 1.0
"""Seconds without an answer after which somebody is told."""


class _Call:
    """One caller, and what became of its job."""

    __slots__ = ("document", "done", "error", "future", "given_up")

    def __init__(self, document: RawBSONDocument, future: asyncio.Future[None] | None = None) -> None:
        self.document = document
        self.future = future
        """What a coroutine awaits; None for a thread."""
        self.done = threading.Lock()
        """What a thread waits for. The writing thread releases it."""
        if future is None:
            self.done.acquire()
        self.error: BaseException | str | None = None
        self.given_up = False


class Enqueuer:
    """`silent` is called when MongoDB has not answered for a second, with what has not been answered."""

    def __init__(self, store: Store, silent: Callable[[str], None] = lambda _: None) -> None:
        self._scheduled = store.scheduled
        self._patience = store.patience
        """Seconds in which the driver repeats a write through any number of new primaries; without a time, once."""
        self._silent = silent
        self._calls: deque[_Call] = deque()
        """Left by callers, taken by the writing thread."""
        self._wanted = _NOBODY
        """How many calls must be there to wake the writing thread."""
        self._wakes: SimpleQueue[None] = SimpleQueue()
        self._thread = ServiceThread(self._write, lambda: bool(self._calls))
        self._closed = False
        self._alone = threading.Lock()
        """Held by the caller that writes by itself. If an interruption leaves it locked, the thread writes for all."""
        self._busy = False
        """Whether the thread writes, or has done so until a moment ago."""
        self._awaited: tuple[JobId, float] | None = None
        """The job that a caller writes by itself, and since when."""

    def one(self, job: Job, within: float | None = None) -> None:
        """Returns when the job is durable. Raises JobExists when there is one with this id, and StoreUnreachable when
        it takes longer than `within` seconds."""
        self.encoded(job.id, job.task, encode_job(job), within)

    def encoded(self, id: JobId, task: str, document: RawBSONDocument, within: float | None = None) -> None:
        """The same, of a job that is encoded already."""
        if self._busy or self._calls or may_be_interrupted() or not self._alone.acquire(blocking=False):
            refused = self._hand_over(id, document, within)
        else:
            try:
                refused = self._write_alone(id, document, within)
            finally:
                self._alone.release()
        if refused is not None:
            raise refusal(id, task, refused)

    async def aencoded(self, id: JobId, task: str, document: RawBSONDocument, within: float | None = None) -> None:
        """The same for a coroutine. If its task is cancelled before the job is on its way, the job is not stored."""
        loop = asyncio.get_running_loop()
        answered = loop.create_future()
        call = _Call(document, answered)
        self._leave(call)
        watch = _Watch(self, call, id, within)
        try:
            await answered
        except BaseException:
            call.given_up = True
            raise
        finally:
            watch.end()
        refused = _outcome(call, id)
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
            self._leave(call)
            self._wait(call, id, within)
        except BaseException:
            call.given_up = True  # if it is not on its way yet, it stays
            raise
        return _outcome(call, id)

    def many(self, jobs: Sequence[RawBSONDocument]) -> dict[int, RecruiterError]:
        """Stores all encoded jobs that can be stored; returns the errors of the others, by place.

        If MongoDB does not answer, that is the error of each job that was on its way, and may be stored, and of those
        behind it, which are not. Raises StoreUnreachable if that happens before anything is stored."""
        return self.in_parts(jobs[start : start + LARGEST_BATCH] for start in range(0, len(jobs), LARGEST_BATCH))

    def in_parts(self, parts: Iterable[Sequence[RawBSONDocument]]) -> dict[int, RecruiterError]:
        """The same of jobs that are encoded part by part; a part has up to `LARGEST_BATCH`."""
        errors: dict[int, RecruiterError] = {}
        parts, start = iter(parts), 0
        for part in parts:
            for offset, documents in by_size(part):
                first = start + offset
                try:
                    with answered_within(self._patience):
                        refusals = self._scheduled.insert(documents)
                except StoreUnreachable as error:
                    rest = [*part[offset:], *(document for other in parts for document in other)]
                    if not first:
                        told = f"it is not known which of these {len(rest):,} jobs are stored"
                        raise StoreUnreachable(f"{error}; {told}") from error
                    return errors | _given_up(rest, first, len(documents), error)
                for index, refused in refusals.items():
                    errors[first + index] = refusal(documents[index]["_id"], documents[index]["task"], refused)
            start += len(part)
        return errors

    def close(self) -> None:
        """The writing thread ends when it has written what it was given."""
        self._closed = True
        self._wakes.put(None)

    # -- the caller ----------------------------------------------------------------------------------------------

    def _leave(self, call: _Call) -> None:
        # The thread first says how many calls it wants and then looks for them; a caller first leaves its call and then
        # looks how many are wanted. So one of the two sees the other.
        self._calls.append(call)
        if len(self._calls) >= self._wanted:
            self._wakes.put(None)
        self._thread.ensure()

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
                self.tell_silence(id)

    def tell_silence(self, id: JobId) -> None:
        self._silent(f"job {id_told(id)} is not stored yet")

    def ensure(self) -> None:
        """Somebody writes."""
        self._thread.ensure()

    # -- the writing thread --------------------------------------------------------------------------------------

    def _write(self) -> None:
        answered = 0
        try:
            while self._any_call():
                self._gather(answered)
                batch = self._taken()
                self._busy, answered = True, len(batch)
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
            _answer(calls)

    def _any_call(self) -> bool:
        """Waits for one, and meanwhile looks after the caller that writes by itself. False when nobody comes for a
        while, and when it is closed."""
        until, told = time.monotonic() + _IDLE, None
        while True:
            self._wanted = 1
            if self._calls:
                return True
            if self._closed:
                return False
            if self._woken(_A_MOMENT if self._busy else SILENCE / 2):
                continue
            self._busy = False  # a caller that is alone now writes by itself
            awaited = self._awaited
            if awaited is not None and awaited is not told and time.monotonic() - awaited[1] >= SILENCE:
                told = awaited
                self.tell_silence(awaited[0])
            if awaited is None and time.monotonic() >= until:
                return False

    def _gather(self, answered: int) -> None:
        """Callers that have been answered together, so many, are on their way with their next jobs. They are waited for
        as long as one comes within a moment after the other; the last one wakes the thread."""
        gathered = 0
        while gathered < len(self._calls) < answered:
            gathered = len(self._calls)
            self._wanted = answered
            if len(self._calls) < answered:
                self._woken(_A_MOMENT)
        self._wanted = _NOBODY

    def _woken(self, within: float) -> bool:
        try:
            self._wakes.get(timeout=within)
        except Empty:
            return False
        self._wanted = _NOBODY
        while not self._wakes.empty():  # of several who wake it one is enough
            self._wakes.get_nowait()
        return True

    def _taken(self) -> list[_Call]:
        calls = [self._calls.popleft() for _ in range(min(len(self._calls), LARGEST_BATCH))]
        return [call for call in calls if not call.given_up]


class _Watch:
    """Looks after a coroutine that awaits its answer: the time it has, and the silence of MongoDB."""

    __slots__ = ("_began", "_call", "_enqueuer", "_id", "_loop", "_timer", "_told", "_within")

    def __init__(self, enqueuer: Enqueuer, call: _Call, id: JobId, within: float | None) -> None:
        self._enqueuer, self._call, self._id, self._within = enqueuer, call, id, within
        self._loop = asyncio.get_running_loop()
        self._began, self._told = self._loop.time(), False
        self._set(0.0)

    def end(self) -> None:
        self._timer.cancel()

    def _set(self, waited: float) -> None:
        left = SILENCE if self._within is None else min(SILENCE, self._within - waited)
        self._timer = self._loop.call_later(max(0.0, left), self._look)

    def _look(self) -> None:
        future = self._call.future
        assert future is not None
        if future.done():
            return
        waited = self._loop.time() - self._began
        if self._within is not None and waited >= self._within:
            future.set_exception(unknown(self._id, _not_within(self._within)))
            return
        self._enqueuer.ensure()
        if waited >= SILENCE and not self._told:
            self._told = True
            self._enqueuer.tell_silence(self._id)
        self._set(waited)


def _answer(calls: list[_Call]) -> None:
    """Wakes each thread, and each event loop once."""
    loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for call in calls:
        if call.future is None:
            call.done.release()
        else:
            loops.setdefault(call.future.get_loop(), []).append(call.future)
    for loop, futures in loops.items():
        with suppress(RuntimeError):  # it is closed: nobody awaits them any more
            loop.call_soon_threadsafe(_wake, futures)


def _wake(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():  # cancelled, or its time is over
            future.set_result(None)


def _outcome(call: _Call, id: JobId) -> str | None:
    """Why MongoDB refused it, if it did. Raises what has happened to its write."""
    if isinstance(call.error, StoreUnreachable):
        raise unknown(id, str(call.error)) from call.error
    if isinstance(call.error, BaseException):
        raise _own(call.error) from call.error
    return call.error


def _given_up(
    rest: Sequence[RawBSONDocument], first: int, on_their_way: int, error: StoreUnreachable
) -> dict[int, RecruiterError]:
    """The errors of jobs of which so many were on their way; the first has this place."""
    ids = [document["_id"] for document in rest]
    return {
        first + number: unknown(id, str(error))
        if number < on_their_way
        else StoreUnreachable(f"{error}; job {id_told(id)} is not stored")
        for number, id in enumerate(ids)
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
