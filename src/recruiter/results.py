"""Waiting for results. However many callers wait in a process, one thread asks for all of them together."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from recruiter.domain.duration import DurationLike, to_seconds
from recruiter.domain.job import ArchivedJob, JobId
from recruiter.domain.typed import decode_result
from recruiter.errors import JobFailed, ResultTimeout, StoreUnreachable
from recruiter.store.database import Store

R = TypeVar("R")

_FIRST_LOOK, _LONGEST_BETWEEN_LOOKS = 0.005, 0.25


class Results:
    """Looks for archived jobs on behalf of everybody who waits, more and more slowly while nothing comes."""

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self._waiting: dict[JobId, list[_Waiter]] = {}
        self._thread: threading.Thread | None = None

    def wait(self, id: JobId, timeout: float | None) -> ArchivedJob:
        waiter = self._enlist(id)
        try:
            if not waiter.done.wait(timeout):
                raise ResultTimeout(f"job {id!r} has not ended within {timeout:g} s; it goes on, ask again")
        finally:
            self._dismiss(id, waiter)
        return waiter.outcome()

    def _enlist(self, id: JobId) -> _Waiter:
        waiter = _Waiter()
        with self._lock:
            self._waiting.setdefault(id, []).append(waiter)
            if self._thread is None:
                self._thread = threading.Thread(target=self._look, name="results", daemon=True)
                self._thread.start()
            self._arrived.notify()
        return waiter

    def _dismiss(self, id: JobId, waiter: _Waiter) -> None:
        with self._lock:
            waiters = self._waiting.get(id, [])
            if waiter in waiters:
                waiters.remove(waiter)
            if not waiters:
                self._waiting.pop(id, None)

    def _look(self) -> None:
        pause = _FIRST_LOOK
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                ids = list(self._waiting)
            found = self._find(ids)
            with self._lock:
                for id, answer in found.items():
                    for waiter in self._waiting.pop(id, ()):
                        waiter.answer = answer
                        waiter.done.set()
                pause = _FIRST_LOOK if found else min(pause * 1.5, _LONGEST_BETWEEN_LOOKS)
                if self._arrived.wait(pause):
                    pause = _FIRST_LOOK

    def _find(self, ids: list[JobId]) -> dict[JobId, ArchivedJob | Exception]:
        """What has ended; if it cannot be read, whoever waits for it is told, and nobody else."""
        try:
            return dict(self._store().archived.get_many(ids))
        except StoreUnreachable as error:
            return dict.fromkeys(ids, error)
        except Exception as error:
            if len(ids) == 1:
                return {ids[0]: error}
            return {id: answer for each in ids for id, answer in self._find([each]).items()}


class _Waiter:
    def __init__(self) -> None:
        self.done = threading.Event()
        self.answer: ArchivedJob | Exception | None = None

    def outcome(self) -> ArchivedJob:
        if isinstance(self.answer, Exception):
            raise self.answer
        assert self.answer is not None
        return self.answer


class JobHandle(Generic[R]):
    """A job that has been made: its id, and its result when there is one."""

    def __init__(self, id: JobId, results: Results, returns: Any = Any) -> None:
        self.id = id
        self._results = results
        self._returns = returns

    def wait(self, timeout: DurationLike | None = None) -> ArchivedJob:
        """Returns the job when it has ended, well or not. Raises ResultTimeout when the time is over."""
        return self._results.wait(self.id, None if timeout is None else to_seconds(timeout))

    def result(self, timeout: DurationLike | None = None) -> R:
        """What the job returned. Raises JobFailed when it ended without a result."""
        ended = self.wait(timeout)
        if not ended.done:
            last = ended.last_execution
            told = f": {last.exception}: {last.message}" if last is not None and last.exception else ""
            raise JobFailed(f"job {self.id!r} of task {ended.job.task!r} ended with {ended.why!r}{told}")
        value: R = decode_result(ended.result, self._returns)
        return value

    async def aresult(self, timeout: DurationLike | None = None) -> R:
        """Like `result`, without blocking the event loop."""
        return await asyncio.to_thread(self.result, timeout)

    def __repr__(self) -> str:
        return f"JobHandle({self.id!r})"
