"""An attempt: one run of a job. `running` is the attempt of this thread or task; a `Runner` answers its questions."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from contextvars import ContextVar
from datetime import datetime
from typing import Any, NoReturn, Protocol

from pymongo import AsyncMongoClient, MongoClient
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.client_session import ClientSession

from recruiter.domain.job import Job, JobId
from recruiter.domain.names import id_told
from recruiter.domain.progress import Progress, Recorder
from recruiter.domain.retry.decision import RetryPolicy
from recruiter.errors import JobPauses, NoCurrentJob
from recruiter.instruments import Following, trace_id_of
from recruiter.log import JobContext
from recruiter.programs import Program, end_all

OnProgress = Callable[["AttemptProgress"], None]
"""Called when an attempt has new progress to send."""


def ignore_progress(_progress: AttemptProgress) -> None:
    """For attempts whose progress is stored with their outcome only."""


class AttemptProgress:
    """The progress that a running attempt reports, from any of its threads and at any rate.

    It is recorded in memory. The first report calls the sender; until the sender has taken it (`carry`), further
    reports are only recorded. So ten thousand reports a second cost ten thousand entries in memory, and a few
    deliveries. A timeout may interrupt the job's thread at any instruction. So it takes only locks that are written in
    C, never waits while it holds one, and leaves a consistent state after every line.
    """

    def __init__(self, before: Progress, now: Callable[[], datetime], on_progress: OnProgress) -> None:
        self._recorder = Recorder(before)
        self._now = now
        self._on_progress = on_progress
        self._recording, self._carrying = threading.Lock(), threading.Lock()
        self._closed = False
        self._process = os.getpid()
        self.called = False
        """Set by the sender, which is on its way."""

    def stage(self, stage: str, progress: float | None) -> None:
        if self._is_ours():
            with self._recording:
                self._recorder.stage(stage, progress, self._now())
            self._tell()

    def progress(self, value: float) -> None:
        if self._is_ours():
            with self._recording:
                self._recorder.progress(value, self._now())
            self._tell()

    def log(self, text: str) -> None:
        if self._is_ours():
            with self._recording:
                self._recorder.log(text, self._now())
            self._tell()

    def carry(self, away: Callable[[Progress], None]) -> None:
        """Hands over the progress, unless the attempt has ended."""
        with self._carrying:
            if not self._closed:
                self.called = False  # first: a report from here on calls the sender again
                away(self.so_far())

    def so_far(self) -> Progress:
        with self._recording:
            return self._recorder.all()

    def close(self) -> Progress:
        """The attempt has ended: when this returns, no delivery is under way, and none follows."""
        with self._carrying:
            self._closed = True
            return self.so_far()

    def _tell(self) -> None:
        if not self.called:
            self._on_progress(self)

    def _is_ours(self) -> bool:
        """False in a process that the job has forked: it has no sender, and a lock may be locked there forever."""
        return not self._closed and os.getpid() == self._process


_making = threading.Lock()
"""Guards the attributes of attempts that are made on first use. That is rare, so one lock serves all attempts."""


class Runner(Protocol):
    """The executor of this process."""

    @property
    def worker(self) -> str: ...

    def job(self, document: Mapping[str, Any]) -> Job: ...

    def policy(self, document: Mapping[str, Any]) -> RetryPolicy | None: ...

    def application_of(self, task: str) -> Any: ...

    def progress(self, document: Mapping[str, Any], on_progress: OnProgress) -> AttemptProgress: ...

    def stop_asked(self) -> bool: ...

    def now(self) -> datetime: ...

    def stored_result(self, document: Mapping[str, Any], value: Any) -> Any: ...

    def checkpoints(self, attempt: Attempt) -> Any: ...

    def note_session(self, attempt: Attempt, session: ClientSession) -> None: ...

    def transaction(
        self, attempt: Attempt, client: MongoClient[Any] | None
    ) -> AbstractContextManager[ClientSession]: ...

    def atransaction(
        self, attempt: Attempt, client: AsyncMongoClient[Any]
    ) -> AbstractAsyncContextManager[AsyncClientSession]: ...


class Attempt:
    """One run of a job. Its attributes are computed on first use."""

    __slots__ = (
        *("checkpoints", "document", "following", "log_context", "on_progress", "over", "paused", "programs", "result"),
        *("run", "runner", "said", "started_at", "stored_result"),
    )

    def __init__(
        self,
        document: dict[str, Any],
        started_at: datetime,
        runner: Runner,
        on_progress: OnProgress = ignore_progress,
    ) -> None:
        self.document = document
        self.started_at = started_at
        self.runner = runner
        self.on_progress = on_progress
        self.said: AttemptProgress | None = None
        """Its progress; None before its first report."""
        self.programs: set[Program] = set()
        """Programs that it runs now."""
        self.over = False
        self.following: Following | None = None
        """The instruments that follow it; None where there are none."""
        self.run: Any = None
        """The runner's access to the job's document; None before its first write."""
        self.checkpoints: Any = None
        """Its checkpoints; None before the first one."""
        self.paused: JobPauses | None = None
        """The sleep or wait that it has begun. A job may catch this exception and continue."""
        self.result: Any = None
        """The value given to `set_result`; `stored_result` is its stored form."""
        self.stored_result: Any = None
        self.log_context: JobContext | None = None
        """The marks of its log lines; None before the first line."""

    @property
    def id(self) -> JobId:
        identity: JobId = self.document["_id"]
        return identity

    @property
    def number(self) -> int:
        """1 for the first attempt."""
        return int(self.document.get("attempts") or 0) + 1

    @property
    def span(self) -> str | None:
        """Its span, if an instrument traces it."""
        return None if self.following is None else self.following.span

    @property
    def trace_id(self) -> str | None:
        """The trace in which it is followed, or in which the job was made."""
        followed = self.following.trace_id if self.following is not None else None
        return followed or trace_id_of(self.document.get("trace_context"))

    def progress(self) -> AttemptProgress:
        if self.said is None:
            with _making:
                self.said = self.said or self.runner.progress(self.document, self.on_progress)
        return self.said

    def made(self, name: str, make: Callable[[], Any]) -> Any:
        """The attribute of this name, made on first use."""
        with _making:
            if getattr(self, name) is None:
                setattr(self, name, make())
            return getattr(self, name)

    def pause(self, pause: JobPauses) -> NoReturn:
        self.paused = pause
        raise pause

    def check_goes_on(self) -> None:
        """Raises the pause that the job has caught: until it ends, the job cannot do anything durable."""
        if self.paused is not None:
            raise self.paused

    def begin(self, program: Program) -> None:
        """The program ends with this attempt, whichever thread has started it."""
        self.programs.add(program)
        if self.over:  # `close` sets `over` first and then reads `programs`: so either sees the other
            self.programs.discard(program)
            raise NoCurrentJob(f"job {id_told(self.id)} has ended and cannot run another program")

    def close(self) -> None:
        """The attempt has ended: kills the programs that it has left running."""
        self.over = True
        if self.said is not None:
            self.said.close()
        if self.log_context is not None:
            self.log_context.close()
        if self.programs:
            end_all(list(self.programs))
        if self.following is not None:
            self.following.close()


running: ContextVar[Attempt | None] = ContextVar("recruiter_job", default=None)


def note_session(session: ClientSession) -> None:
    """A transaction begins in this session. If a job runs here, the session is noted on the roster: should the process
    die in the transaction, the locks are released when the worker is retired."""
    attempt = running.get()
    if attempt is not None and not attempt.over:
        attempt.runner.note_session(attempt, session)


def log_context() -> JobContext | None:
    """The marks of log lines of the job that runs here."""
    attempt = running.get()
    if attempt is None:
        return None
    if attempt.log_context is None:
        task = str(attempt.document["task"])
        attempt.log_context = JobContext(attempt.id, task, attempt.number, attempt.runner.worker, attempt.trace_id)
    return attempt.log_context
