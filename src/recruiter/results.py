"""Waits for results. One thread of a process polls for all callers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar, get_args, get_origin

from recruiter.domain.arguments.results import delegated
from recruiter.domain.arguments.typed import decode_result
from recruiter.domain.duration import DurationLike, brief, to_seconds
from recruiter.domain.job import ArchivedJob, JobId
from recruiter.domain.names import id_told
from recruiter.domain.search.conditions import ids_written
from recruiter.errors import JobFailed, JobNotFound, PayloadSealed, ResultTimeout, StoreError, StoreUnreachable
from recruiter.interruption import ServiceThread
from recruiter.store.payload import PLAIN, Owner, Payload, Sealed

if TYPE_CHECKING:
    from recruiter.store.collections.archived import Archived
    from recruiter.store.collections.scheduled import Scheduled
    from recruiter.store.database import Store

R = TypeVar("R")

_FIRST_POLL_SECONDS, _LONGEST_POLL_SECONDS = 0.005, 0.25
_REST = 4
"""Rest after a query, as a multiple of its duration: polling takes at most a fifth of the time."""
_ASSUMED_SECONDS = 5.0
"""Seconds for which a job that was found is assumed to exist; then it is queried again."""


class Results:
    """Polls for archived jobs on behalf of all waiting callers, at growing intervals while none ends.

    One query serves all callers, so a thousand callers cost MongoDB hardly more than one.
    """

    def __init__(self, store: Callable[[], Store], payload: Payload = PLAIN) -> None:
        self._store = store
        self.payload = payload
        """Opens results."""
        self.begin_anew()

    def begin_anew(self) -> None:
        """Starts without waiting callers. A forked child has neither the thread nor the callers of its parent."""
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self._waiting: dict[JobId, list[Future[ArchivedJob]]] = {}
        self._collections: tuple[Scheduled, Archived] | None = None
        """The collections of the first waiting caller: once closed they stay closed."""
        self._existing: set[JobId] = set()
        self._existing_until = 0.0
        self._thread = ServiceThread(self._poll, lambda: bool(self._waiting))

    def close(self) -> None:
        """Ends the waiting of all callers with an error, because the connection is closed."""
        with self._lock:
            waiting, self._waiting = self._waiting, {}
            for id, futures in waiting.items():
                for future in futures:
                    _tell(
                        future,
                        StoreError(
                            f"the recruiter was closed while a caller waited for job {id_told(id)}; call it again"
                        ),
                    )
            self._arrived.notify()

    def add_waiter(self, id: JobId) -> Future[ArchivedJob]:
        """Begins to wait for a job. The future gets it when it has ended, or the error that kept it from being read."""
        future: Future[ArchivedJob] = Future()
        store = self._store()
        with self._lock:
            self._collections = store.scheduled, store.archived
            self._waiting.setdefault(id, []).append(future)
            self._arrived.notify()
        self._thread.ensure()
        return future

    def answer(self, future: Future[ArchivedJob], within: float | None) -> ArchivedJob:
        """Waits for the result and restarts the polling thread if it has died. Raises TimeoutError."""
        until = None if within is None else time.monotonic() + within
        while True:
            left = _ASSUMED_SECONDS if until is None else until - time.monotonic()
            try:
                return future.result(min(left, _ASSUMED_SECONDS))
            except TimeoutError:
                if future.done() or (until is not None and time.monotonic() >= until):
                    raise
                self._thread.ensure()

    def remove_waiter(self, id: JobId, future: Future[ArchivedJob]) -> None:
        """The caller has stopped waiting."""
        with self._lock:
            waiting = self._waiting.get(id, [])
            if future in waiting:
                waiting.remove(future)
            if not waiting:
                self._waiting.pop(id, None)

    def _poll(self) -> None:
        """The thread: asks about the jobs of all waiting callers, at growing intervals, until no caller waits."""
        pause = _FIRST_POLL_SECONDS
        while True:
            with self._lock:
                if not self._waiting:
                    self._existing.clear()
                    return
                ids = list(self._waiting)
            began = time.monotonic()
            found = self._find(ids)
            idle = _REST * (time.monotonic() - began)
            with self._lock:
                for id, answer in found.items():
                    for future in self._waiting.pop(id, ()):
                        _tell(future, answer)
                pause = _FIRST_POLL_SECONDS if found else min(pause * 1.2, _LONGEST_POLL_SECONDS)
                if self._arrived.wait(max(pause, idle)):
                    pause = _FIRST_POLL_SECONDS
            time.sleep(
                max(0.0, began + _FIRST_POLL_SECONDS + idle - time.monotonic())
            )  # even if many callers arrive together

    def _find(self, ids: list[JobId]) -> dict[JobId, ArchivedJob | Exception]:
        """Ended jobs, and errors for missing and unreadable jobs. After an error it asks for each job alone."""
        try:
            return self._ended_or_unknown(ids)
        except StoreUnreachable as error:
            return dict.fromkeys(ids, error)
        except Exception as error:
            if len(ids) == 1:
                return {ids[0]: error}
            return {id: answer for one in ids for id, answer in self._find([one]).items()}

    def _ended_or_unknown(self, ids: list[JobId]) -> dict[JobId, ArchivedJob | Exception]:
        """Ended jobs, and JobNotFound for unknown ids. An id that was found in `scheduled` is not sought again soon."""
        assert self._collections is not None  # a caller waits
        scheduled, archived = self._collections
        found: dict[JobId, ArchivedJob | Exception] = dict(_ended(archived, ids))
        if time.monotonic() > self._existing_until:
            self._existing.clear()
            self._existing_until = time.monotonic() + _ASSUMED_SECONDS
        new = [id for id in ids if id not in found and id not in self._existing]
        if new:
            written = {id: _written(id) for id in new}
            there = scheduled.which_exist([id for ids in written.values() for id in ids])
            self._existing.update(id for id in new if not there.isdisjoint(written[id]))
            gone = [id for id in new if id not in self._existing]
            found |= {id: JobNotFound(f"there is no job {id_told(id)}") for id in gone}
            found |= _ended(archived, gone) if gone else {}  # it may have ended between the two queries
        return found


def _written(id: JobId) -> list[JobId]:
    """Every possible id: a string may stand for another type."""
    return ids_written(id) if isinstance(id, str) else [id]


def _ended(archived: Archived, ids: list[JobId]) -> dict[JobId, ArchivedJob]:
    found = archived.get_many([written for id in ids for written in _written(id)])
    return {id: found[written] for id in ids for written in _written(id)[::-1] if written in found}


def _tell(future: Future[ArchivedJob], answer: ArchivedJob | Exception) -> None:
    with suppress(InvalidStateError):  # cancelled meanwhile by an event loop
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)


def _left(until: float | None) -> float | None:
    return None if until is None else max(0.0, until - time.monotonic())


class JobHandle(Generic[R]):
    """A job that has been made: its id, and its result when there is one."""

    def __init__(
        self, id: JobId, results: Results, returns: Any = Any, *, created: bool = True, key: JobId | None = None
    ) -> None:
        self.id = id
        """The id of the job."""
        self.key = id if key is None else key
        """The id of the first job of its chain of recoveries; `recover` keeps it. (A handle that was made from the mere
        id of a recovered job does not know it: `recruiter.find(id).key` does.)"""
        self.created = created
        """False when `create` found that this job existed already."""
        self._results = results
        self._returns = returns

    def wait(self, timeout: DurationLike | None = None) -> ArchivedJob:
        """Returns the job when it has ended, with or without success. Raises ResultTimeout after this time, and
        JobNotFound when there is no such job."""
        seconds = None if timeout is None else to_seconds(timeout)
        future = self._results.add_waiter(self.id)
        try:
            return self._results.answer(future, seconds)
        except TimeoutError:
            if future.done():  # it came just now, or the error is the store's own
                return future.result()
            raise self._too_late(seconds) from None
        finally:
            self._results.remove_waiter(self.id, future)

    async def await_(self, timeout: DurationLike | None = None) -> ArchivedJob:
        """Like `wait`, without blocking the event loop, and without a thread for each caller."""
        seconds = None if timeout is None else to_seconds(timeout)
        future = self._results.add_waiter(self.id)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), seconds)
        except TimeoutError:
            if future.done() and not future.cancelled():
                return future.result()
            raise self._too_late(seconds) from None
        finally:
            self._results.remove_waiter(self.id, future)

    def result(self, timeout: DurationLike | None = None) -> R:
        """The return value of the job; None if it was too large to be stored. Raises JobFailed when it ended without a
        result, ResultTimeout when it has not ended within this time, and JobNotFound when there is no such job."""
        until = None if timeout is None else time.monotonic() + to_seconds(timeout)
        following = _Following(self._results, self.wait(timeout))
        while (job := following.next()) is not None:
            following.ended = job.wait(_left(until))
        others = delegated(following.ended.result) if following.ended.done else None
        if not isinstance(others, list):
            return self._result_of(following.ended)
        results: Any = [handle.result(_left(until)) for handle in self._items(others)]
        return results  # type: ignore[no-any-return]

    async def aresult(self, timeout: DurationLike | None = None) -> R:
        """Like `result`, without blocking the event loop."""
        until = None if timeout is None else time.monotonic() + to_seconds(timeout)
        following = _Following(self._results, await self.await_(timeout))
        while (job := following.next()) is not None:
            following.ended = await job.await_(_left(until))
        others = delegated(following.ended.result) if following.ended.done else None
        if not isinstance(others, list):
            return self._result_of(following.ended)
        results: Any = [await handle.aresult(_left(until)) for handle in self._items(others)]
        return results  # type: ignore[no-any-return]

    def _items(self, steps: list[JobId]) -> list[JobHandle[Any]]:
        """The steps whose results it returned as a list."""
        returns = (get_args(self._returns) or (Any,))[0] if get_origin(self._returns) is list else Any
        return [_StepHandle(step, self._results, returns) for step in steps]

    def _result_of(self, ended: ArchivedJob) -> R:
        """The return value of an ended job. Raises JobFailed and PayloadSealed."""
        if not ended.done:
            last = ended.last_execution
            error = f": {ended.reason}" if ended.reason else ""
            if last is not None and last.exception:
                error = f": {last.exception}: {last.message}"
            raise JobFailed(f"job {id_told(self.id)} of task {ended.task!r} ended with {ended.why!r}{error}")
        if ended.result is None:  # it returned None, set none in its own transaction, or its result was too large
            return None  # type: ignore[return-value]
        try:
            opened = self._results.payload.open(Sealed.RESULT, Owner(ended.key), ended.result)
        except PayloadSealed as error:
            raise PayloadSealed(f"the result of job {id_told(self.id)} cannot be read: {error}") from error
        value: R = decode_result(opened, self._returns)
        return value

    def _too_late(self, seconds: float | None) -> ResultTimeout:
        return ResultTimeout(
            f"job {id_told(self.id)} has not ended within {brief(seconds)}. It was not cancelled: wait "
            f"again, or ask `recruiter job show {id_told(self.id)}` what it is doing"
        )

    def __repr__(self) -> str:
        return f"JobHandle({id_told(self.id)})"


class _StepHandle(JobHandle[Any]):
    """A step, by the id of its first job. A job that repeats it has its result."""

    def wait(self, timeout: DurationLike | None = None) -> ArchivedJob:
        until = None if timeout is None else time.monotonic() + to_seconds(timeout)
        ended = super().wait(timeout)
        while not ended.done and ended.recovered_as is not None:
            ended = JobHandle[Any](ended.recovered_as, self._results).wait(_left(until))
        return ended

    async def await_(self, timeout: DurationLike | None = None) -> ArchivedJob:
        until = None if timeout is None else time.monotonic() + to_seconds(timeout)
        ended = await super().await_(timeout)
        while not ended.done and ended.recovered_as is not None:
            ended = await JobHandle[Any](ended.recovered_as, self._results).await_(_left(until))
        return ended


class _Following:
    """Goes from a step that returned the result of another step to that step, and so on."""

    def __init__(self, results: Results, ended: ArchivedJob) -> None:
        self._results = results
        self._seen: set[JobId] = set()
        self.ended = ended

    def next(self) -> JobHandle[Any] | None:
        """The next step to wait for; None if this one has its own result. Raises JobFailed for a circle of steps."""
        other = delegated(self.ended.result) if self.ended.done else None
        if other is None or isinstance(other, list):
            return None
        if other in self._seen:
            raise JobFailed(
                f"step {id_told(other)} has no result: it stands for the result of a step that stands for it"
            )
        self._seen.add(other)
        return _StepHandle(other, self._results)
