"""`current_job`: what a job can know and say of itself while it runs, in this thread or task and whatever they call.

from recruiter import current_job

@recruiter.task(retry=RetryManyTimes(3, "1 minute"))
def import_orders() -> None:
    if current_job.is_last_attempt:
        warn_somebody(current_job.id, current_job.previous_failure)
    current_job.stage("download")
    current_job.run_process(["rsync", "orders.example.org::orders", "."])
    for file in track(os.listdir(), stage="import"):
        ...
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextvars import ContextVar
from datetime import datetime
from functools import partial
from typing import Any, Protocol, TypeVar

from recruiter.async_face import in_its_own_thread
from recruiter.domain.job import Execution, Job, JobId
from recruiter.domain.retry.decision import Failure, RetryPolicy, is_last
from recruiter.domain.trace_context import trace_id_of
from recruiter.errors import InvalidArguments, NoCurrentJob, RecruiterError
from recruiter.instruments import Following
from recruiter.log import JobContext
from recruiter.programs import LONGEST_OUTPUT, CommandResult, OnLine, Program, end_all
from recruiter.progress import AttemptProgress, OnProgress, ignore_progress

T = TypeVar("T")

_making = threading.Lock()
"""For what an attempt gets only when it asks for it; seldom, so that one will do for all."""


class Runner(Protocol):
    """The executor that runs jobs here, to be asked about one of them."""

    @property
    def worker(self) -> str: ...

    def job(self, document: Mapping[str, Any]) -> Job: ...

    def policy(self, document: Mapping[str, Any]) -> RetryPolicy | None: ...

    def owner(self, task: str) -> Any: ...

    def progress(self, document: Mapping[str, Any], on_progress: OnProgress) -> AttemptProgress: ...

    def stop_asked(self) -> bool: ...


class Attempt:
    """One run of a job. Cheap to make: everything is found out, and made, when somebody asks."""

    __slots__ = (
        *("document", "following", "log_context", "on_progress", "over", "programs", "runner", "said", "started_at"),
    )

    def __init__(
        self,
        document: Mapping[str, Any],
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

    def begin(self, program: Program) -> None:
        """It lives no longer than this attempt, whatever thread it was started from."""
        self.programs.add(program)
        if self.over:  # in this order, and in the other one in `close`: one of the two sees the other
            self.programs.discard(program)
            raise NoCurrentJob(f"job {self.id!r} has ended and can run no more programs")

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


class CurrentJob:
    """The job that runs here. Outside of a job it is false, and asking it anything raises NoCurrentJob."""

    def __bool__(self) -> bool:
        return running.get() is not None

    # -- what it knows -------------------------------------------------------------------------------------------

    @property
    def id(self) -> JobId:
        """The same in every attempt."""
        return self._attempt.id

    @property
    def job(self) -> Job:
        """The whole job, as it waited."""
        attempt = self._attempt
        return attempt.runner.job(attempt.document)

    @property
    def task(self) -> str:
        """The name of its task."""
        return self.job.task

    @property
    def args(self) -> Mapping[str, Any] | Sequence[Any]:
        """The arguments as they are stored."""
        return self.job.args

    @property
    def group(self) -> str:
        """Its group."""
        return self.job.group

    @property
    def tags(self) -> tuple[str, ...]:
        """Its tags, those of its task and its own."""
        return self.job.tags

    @property
    def urn(self) -> str | None:
        """Where it comes from: its scheduler, or what `with_urn` said."""
        return self.job.urn

    @property
    def owner(self) -> str | None:
        """Whose job it is, as `owned_by` said."""
        return self.job.owner

    @property
    def worker(self) -> str:
        """Where it runs: the worker's id on the roster, or "here" in the process that made it."""
        return self._attempt.runner.worker

    @property
    def attempt(self) -> int:
        """1 in the first attempt."""
        return self._attempt.number

    @property
    def trace_id(self) -> str | None:
        """The trace it belongs to, as 32 hexadecimal digits, if it was made in one or is traced here."""
        return self._attempt.trace_id

    @property
    def started_at(self) -> datetime:
        """When this attempt began."""
        return self._attempt.started_at

    @property
    def is_last_attempt(self) -> bool:
        """Whether a failure now would be final, of whatever exception the policy would retry at all."""
        attempt, job = self._attempt, self.job
        failure = Failure(
            attempt=attempt.number,
            created_at=job.created_at,
            scheduled_at=job.scheduled_at,
            failed_at=attempt.started_at,
        )
        try:
            policy = attempt.runner.policy(attempt.document)
        except RecruiterError:
            return True  # one that cannot be loaded does not let it run again
        return job.at_most_once or is_last(policy, failure)

    @property
    def previous_failure(self) -> Execution | None:
        """The attempt before this one, if there was one: it failed, or its process died."""
        return self.job.last_execution

    @property
    def stop_asked(self) -> bool:
        """Whether its worker is about to stop: a long job can save what it has, and raise RetryLater."""
        return self._attempt.runner.stop_asked()

    def _owner(self) -> Any:
        owner = self._attempt.runner.owner(self.task)
        if owner is None:
            raise NoCurrentJob("this job runs without an application")
        return owner

    # -- what it says --------------------------------------------------------------------------------------------

    def stage(self, stage: str, *, progress: float | None = None) -> None:
        """It is in this stage now. A stage begins at 0, or at `progress`; its progress never goes back.

        Stages, progress and log can be seen within a second while the job runs, and stay with it when it has ended.
        Say as much as you like: it is written a few times a second.
        """
        self._attempt.progress().stage(str(stage), progress)

    def progress(self, value: float) -> None:
        """It is so far in its stage, from 0 to 1. Less than before is ignored; success is 1 by itself."""
        self._attempt.progress().progress(value)

    def log(self, text: str) -> None:
        """A line, or several, for the log of this job. The last 500 are kept, up to 64 KiB in all."""
        self._attempt.progress().log(str(text))

    # -- programs ------------------------------------------------------------------------------------------------

    def run_process(
        self,
        argv: Sequence[str | os.PathLike[str]],
        *,
        on_line: OnLine | None = None,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        input: str | bytes | None = None,
        ok_codes: Iterable[int] = (0,),
        keep: int = LONGEST_OUTPUT,
    ) -> CommandResult:
        """Runs a program with its arguments, without a shell; it ends with the job, and so does all that it started.

        Every line it prints goes to the log of the job, and to `on_line`. `env` is added to the environment. The result
        has its `code`, and the last `keep` bytes of `stdout` and `stderr`. Raises CommandFailed, with its last words,
        if it cannot be started or ends with a code that is not one of `ok_codes`.
        """
        return self._run(Program(), argv, on_line, cwd, env, input, ok_codes, keep)

    async def arun_process(
        self,
        argv: Sequence[str | os.PathLike[str]],
        *,
        on_line: OnLine | None = None,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        input: str | bytes | None = None,
        ok_codes: Iterable[int] = (0,),
        keep: int = LONGEST_OUTPUT,
    ) -> CommandResult:
        """Like `run_process`, without blocking the event loop. Cancelling it ends the program; `on_line` is called in
        another thread."""
        program = Program()
        ended = in_its_own_thread(self._run, program, argv, on_line, cwd, env, input, ok_codes, keep)
        try:
            return await asyncio.shield(ended)
        except asyncio.CancelledError:
            ended.add_done_callback(lambda answer: answer.cancelled() or answer.exception())  # nobody else asks
            await in_its_own_thread(program.end)
            raise

    def _run(
        self,
        program: Program,
        argv: Sequence[str | os.PathLike[str]],
        on_line: OnLine | None,
        cwd: str | os.PathLike[str] | None,
        env: Mapping[str, str] | None,
        input: str | bytes | None,
        ok_codes: Iterable[int],
        keep: int,
    ) -> CommandResult:
        if isinstance(argv, str | bytes) or not argv:
            raise InvalidArguments(f'run_process needs a list such as ["bowtie2", "--version"], not {argv!r:.80}')
        attempt = self._attempt
        attempt.begin(program)
        try:
            return program.run(
                [os.fspath(argument) for argument in argv],
                cwd=cwd,
                env=env or {},
                input=input,
                ok_codes=tuple(ok_codes),
                keep=keep,
                on_line=partial(_heard, attempt, on_line),
            )
        finally:
            attempt.programs.discard(program)

    @property
    def _attempt(self) -> Attempt:
        attempt = running.get()
        if attempt is None:
            raise NoCurrentJob("no job runs here; current_job works inside a task or workable while it runs as a job")
        return attempt

    def __repr__(self) -> str:
        attempt = running.get()
        return "CurrentJob(none)" if attempt is None else f"CurrentJob({attempt.id!r}, attempt={attempt.number})"


def track(iterable: Iterable[T], total: int | None = None, stage: str | None = None) -> Iterator[T]:
    """The same items; the progress of the job is how many of them are done. `for picture in track(pictures): …`

    `total` is for an iterable that does not know how many it has; if nobody knows, the progress is 0 until it is 1.
    With `stage` the job enters that stage first. Outside of a job it does nothing else.
    """
    attempt = running.get()
    if attempt is None:
        yield from iterable
        return
    progress = attempt.progress()
    if total is None and isinstance(iterable, Sized):
        total = len(iterable)
    if stage is not None:
        progress.stage(stage, None)
    for done, item in enumerate(iterable, 1):
        yield item
        if total:
            progress.progress(done / total)
    progress.progress(1.0)


def _heard(attempt: Attempt, on_line: OnLine | None, line: str) -> None:
    attempt.progress().log(line)
    if on_line is not None:
        on_line(line)
