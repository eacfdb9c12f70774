"""An attempt: one run of a job. `running` is the one in this thread or task; a `Runner` answers what it asks."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from contextvars import ContextVar
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from recruiter.domain.job import Checkpoint, Job, JobId, Signal, SignalWait
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
    """For attempts whose progress is only stored with their outcome."""


class AttemptProgress:
    """The progress that a running attempt reports: from any of its threads, as often as it likes.

    It is recorded in memory. The first report after a silence is passed on; until the sender has come for it
    (`carry`), no other needs to be. So ten thousand reports a second cost ten thousand entries in memory, and a few
    deliveries. The job's own thread may be interrupted anywhere by the end of its time. So it takes locks that are C
    all through, never holds one while it waits, and leaves nothing that is wrong if the next line does not come.
    """

    def __init__(self, before: Progress, now: Callable[[], datetime], on_progress: OnProgress) -> None:
        self._recorder = Recorder(before)
        self._now = now
        self._on_progress = on_progress
        self._recording, self._carrying = threading.Lock(), threading.Lock()
        self._closed = False
        self._process = os.getpid()
        self.called = False
        """The sender is on the way, and has set this."""

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
        """Hands over all that was said so far, unless the attempt is over."""
        with self._carrying:
            if not self._closed:
                self.called = False  # first: what is said from here on is told again
                away(self._all())

    def so_far(self) -> Progress:
        """All that was said so far; the attempt goes on."""
        return self._all()

    def close(self) -> Progress:
        """The attempt is over: nothing more is carried away, and nothing is on its way any more."""
        with self._carrying:
            self._closed = True
            return self._all()

    def _all(self) -> Progress:
        with self._recording:
            return self._recorder.all()

    def _tell(self) -> None:
        if not self.called:
            self._on_progress(self)

    def _is_ours(self) -> bool:
        """Not in a process that the job has forked: nobody would come there, and a lock may be taken for ever."""
        return not self._closed and os.getpid() == self._process


if TYPE_CHECKING:
    from pymongo import AsyncMongoClient, MongoClient
    from pymongo.asynchronous.client_session import AsyncClientSession
    from pymongo.client_session import ClientSession


_making = threading.Lock()
"""For what an attempt gets only when it asks for it; seldom, so that one will do for all."""


class Checkpoints(Protocol):
    """What a job has done for good, in this run and before."""

    def find(self, name: str) -> Checkpoint | None: ...

    def check(self) -> None: ...

    def begin(self) -> None: ...

    def keep(self, name: str, value: Any, returns: Any = Any) -> Checkpoint: ...

    def result(self, checkpoint: Checkpoint, returns: Any = Any) -> Any: ...

    def next_name(self, what: str) -> str: ...

    def slept(self, name: str) -> list[dict[str, Any]]: ...

    def signal_number(self, name: str) -> int: ...

    def signal(self, name: str, number: int) -> Signal | None: ...

    def waiting(self, checkpoint: str) -> SignalWait | None: ...

    def timed_out(self, name: str) -> None: ...


class Runner(Protocol):
    """The executor that runs jobs here, to be asked about one of them."""

    @property
    def worker(self) -> str: ...

    def job(self, document: Mapping[str, Any]) -> Job: ...

    def policy(self, document: Mapping[str, Any]) -> RetryPolicy | None: ...

    def owner(self, task: str) -> Any: ...

    def progress(self, document: Mapping[str, Any], on_progress: OnProgress) -> AttemptProgress: ...

    def stop_asked(self) -> bool: ...

    def now(self) -> datetime: ...

    def stored_result(self, document: Mapping[str, Any], value: Any) -> Any: ...

    def checkpoints(self, attempt: Attempt) -> Checkpoints: ...

    def transaction(
        self, attempt: Attempt, client: MongoClient[Any] | None
    ) -> AbstractContextManager[ClientSession]: ...

    def atransaction(
        self, attempt: Attempt, client: AsyncMongoClient[Any]
    ) -> AbstractAsyncContextManager[AsyncClientSession]: ...


class Attempt:
    """One run of a job. Cheap to make: everything is found out, and made, when somebody asks."""

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
        """What it has said of itself; None as long as it has said nothing."""
        self.programs: set[Program] = set()
        """What it runs at this moment."""
        self.over = False
        self.following: Following | None = None
        """The instruments that follow it; None where there are none."""
        self.run: Any = None
        """What the runner needs to write on the job itself, from the first time on that it does."""
        self.checkpoints: Any = None
        """Likewise, for what it does once."""
        self.paused: JobPauses | None = None
        """The sleep or wait that it has begun. A job that catches it and goes on has not ended."""
        self.result: Any = None
        """What `set_result` was told, and the same as it is stored."""
        self.stored_result: Any = None
        self.log_context: JobContext | None = None
        """What its log lines are marked with; None as long as it has logged nothing."""

    @property
    def id(self) -> JobId:
        identity: JobId = self.document["_id"]
        return identity

    @property
    def number(self) -> int:
        """1 for the first attempt."""
        return int(self.document.get("attempts") or 0) + 1

    @property
    def trace_id(self) -> str | None:
        """The trace it belongs to: the one in which it is followed, or was made."""
        followed = self.following.trace_id if self.following is not None else None
        return followed or trace_id_of(self.document.get("trace_context"))

    def progress(self) -> AttemptProgress:
        if self.said is None:
            with _making:
                self.said = self.said or self.runner.progress(self.document, self.on_progress)
        return self.said

    def made(self, name: str, make: Callable[[], Any]) -> Any:
        """This attribute, made by the first of its threads that asks for it."""
        with _making:
            if getattr(self, name) is None:
                setattr(self, name, make())
            return getattr(self, name)

    def pause(self, pause: JobPauses) -> NoReturn:
        """It sleeps or waits from here on."""
        self.paused = pause
        raise pause

    def check_goes_on(self) -> None:
        """Raises the pause that the job has caught: it does nothing more that lasts before that is over."""
        if self.paused is not None:
            raise self.paused

    def begin(self, program: Program) -> None:
        """It lives no longer than this attempt, whatever thread it was started from."""
        self.programs.add(program)
        if self.over:  # in this order, and in the other one in `close`: one of the two sees the other
            self.programs.discard(program)
            raise NoCurrentJob(f"job {id_told(self.id)} has ended and can run no more programs")

    def close(self) -> None:
        """It is over: it has nothing more to say, and what it has started and left alone ends."""
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


def log_context() -> JobContext | None:
    """The job that runs here, for its log lines."""
    attempt = running.get()
    if attempt is None:
        return None
    if attempt.log_context is None:
        task = str(attempt.document["task"])
        attempt.log_context = JobContext(attempt.id, task, attempt.number, attempt.runner.worker, attempt.trace_id)
    return attempt.log_context
