"""`current_job`: the facts that running code reads and reports about its own job, from any function that it calls.

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
import sys
import threading
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from contextvars import copy_context
from datetime import datetime, timedelta
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from types import CoroutineType
from typing import Any, NamedTuple, NoReturn, ParamSpec, TypeVar, TypeVarTuple, Unpack, overload

from pymongo import AsyncMongoClient, MongoClient
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.client_session import ClientSession

from recruiter.async_face import in_a_thread, in_its_own_thread
from recruiter.attempt import Attempt, running
from recruiter.domain.arguments.check import Signature
from recruiter.domain.arguments.values import from_bson
from recruiter.domain.duration import DurationLike, humanize, to_seconds, to_timedelta
from recruiter.domain.job import NO_SIGNAL, Execution, Job, JobId, SignalWait, check_checkpoint, signals_told
from recruiter.domain.names import id_told
from recruiter.domain.retry.decision import Failure, Retry, RetryPolicy, after, decide, exception_names, is_last
from recruiter.domain.text import cut, said_by, shown
from recruiter.errors import (
    InvalidArguments,
    JobPauses,
    JobTimedOut,
    NoCurrentJob,
    RecruiterError,
    RetryLater,
    SignalTimeout,
    Superseded,
)
from recruiter.programs import CommandResult, OnLine, ProcessOptions, Program
from recruiter.store.runs import Checkpoints, StepFailures, check_step_name

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class ReceivedSignal(NamedTuple):
    """The signal that ended a wait."""

    name: str
    data: Any


class CurrentJob:
    """The job that runs here. Outside of a job, `bool(current_job)` is False, and other uses raise NoCurrentJob."""

    def __bool__(self) -> bool:
        return running.get() is not None

    # -- its facts ----------------------------------------------------------------------------------------------

    @property
    def id(self) -> JobId:
        """The id of the job, the same in every attempt; `recover` creates a job with another id."""
        return self._attempt.id

    @property
    def key(self) -> JobId:
        """The id of the first job in the chain of recovered jobs: the same in every attempt and after every `recover`.
        Use it as an idempotency key for another system if your own data has none."""
        return self.job.key

    @property
    def job(self) -> Job:
        """The whole job, in the state before this attempt."""
        attempt = self._attempt
        return attempt.runner.job(attempt.document)

    @property
    def task(self) -> str:
        """The name of its task."""
        return self.job.task

    @property
    def args(self) -> Mapping[str, Any] | Sequence[Any]:
        """The stored arguments."""
        return self.job.args

    @property
    def group(self) -> str:
        """Its group."""
        return self.job.group

    @property
    def tags(self) -> tuple[str, ...]:
        """Its tags: the tags of its task, and the tags of the job."""
        return self.job.tags

    @property
    def urn(self) -> str | None:
        """The origin of the job: its scheduler, or the value given to `with_urn`."""
        return self.job.urn

    @property
    def owner(self) -> str | None:
        """The owner of the job, as given to `owned_by`."""
        return self.job.owner

    @property
    def worker(self) -> str:
        """The id of its worker on the roster, or "here" in the process that made the job."""
        return self._attempt.runner.worker

    @property
    def attempt(self) -> int:
        """The number of this attempt; the first is 1."""
        return self._attempt.number

    @property
    def trace_id(self) -> str | None:
        """The id of its trace, as 32 hexadecimal digits; None if the job was not created in a trace and is not traced
        here."""
        return self._attempt.trace_id

    @property
    def started_at(self) -> datetime:
        """When this attempt began."""
        return self._attempt.started_at

    @property
    def is_last_attempt(self) -> bool:
        """Whether a failure of this attempt is final: the policy would not retry it, for any exception."""
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
            return True  # a policy that cannot be loaded does not let the job run again
        return job.at_most_once or is_last(policy, failure)

    @property
    def previous_failure(self) -> Execution | None:
        """The attempt before this one, if there was one: it failed, or its process died."""
        return self.job.last_execution

    @property
    def stop_asked(self) -> bool:
        """Whether its worker is about to stop: a long job can save its results so far, and raise RetryLater."""
        return self._attempt.runner.stop_asked()

    def _owner(self) -> Any:
        owner = self._attempt.runner.application_of(self.task)
        if owner is None:
            raise NoCurrentJob("this job runs without an application")
        return owner

    # -- its reports --------------------------------------------------------------------------------------------

    def stage(self, stage: str, *, progress: float | None = None) -> None:
        """Enters this stage. A stage begins at 0, or at `progress`; its progress never goes back.

        Stages, progress and log are visible within a second while the job runs, and stay with the job when it has
        ended. You can report as often as you like: Recruiter writes a few times per second.
        """
        self._attempt.progress().stage(str(stage), progress)

    def progress(self, value: float) -> None:
        """Reports how far the job is in its stage, from 0 to 1. A smaller value than before is ignored; a job that
        succeeds is set to 1."""
        self._attempt.progress().progress(value)

    def log(self, text: str) -> None:
        """Adds one or more lines to the log of this job. The last 500 lines are kept, up to 64 KiB."""
        self._attempt.progress().log(str(text))

    # -- durable steps ------------------------------------------------------------------------------------------

    @overload
    def once(self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def once(
        self,
        name: str,
        function: Callable[[Unpack[Ts]], R],
        /,
        *args: *Ts,
        retry: RetryPolicy | None = None,
        timeout: DurationLike | None = None,
    ) -> R: ...
    def once(  # type: ignore[misc]  # mypy and *Ts
        self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        """Calls the function once in the life of this job, and keeps the result: `charge_id =
        current_job.once("charge", charge_card, order)`.

        The result is stored with the job, durably, before `once` returns. When the job runs again, after a crash or by
        its retry policy, the stored result is returned and nothing is called. If the function raises, nothing is
        stored. If the process dies inside the function, or before the result is stored, the function is called again.
        Only the function itself can make this harmless, for example with `current_job.key` as an idempotency key.

        With `retry=` the step has its own retry policy: when the function raises, the job leaves its worker, as in
        `sleep`, and the step is tried again without using up an attempt of the job. When the policy gives up, the error
        is raised. With `timeout=` it raises TimeoutError after that time; the function runs in a separate thread,
        which cannot be stopped. A function that has a parameter `retry` or `timeout` is given it instead.

        Names are unique in a job: in a loop, use a different name for each call. Raises InvalidName for a second call
        of a name with other arguments. Raises UnsupportedValue or JobTooLarge when the result cannot be stored, in this
        run and in each later one; the function is not called again. Raises Superseded when another worker holds the
        job.
        """
        checkpoints = self._checkpoints(name)
        rules = _take_rules(name, function, kwargs)  # they are no longer in kwargs
        kept = checkpoints.find(name)
        if kept is None:
            if iscoroutinefunction(function):
                raise _must_be_awaited(name)
            _check_not_given_up(checkpoints, name)
            checkpoints.begin()
            try:
                call = partial(function, *args, **kwargs)
                done = call() if rules.seconds is None else _within(rules.seconds, name, call)
            except Exception as error:
                self._pause_or_give_up(checkpoints, name, rules, error)  # does not return if it is tried again
                raise
            if isinstance(done, CoroutineType):
                done.close()
                raise _must_be_awaited(name)
            kept = checkpoints.keep(name, done, rules.returns)
        checkpoints.check_alike(name, (*_identity(function), args, kwargs))
        return checkpoints.result(kept, rules.returns)

    @overload
    async def aonce(
        self, name: str, function: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...
    @overload
    async def aonce(
        self,
        name: str,
        function: Callable[[Unpack[Ts]], Awaitable[R]],
        /,
        *args: *Ts,
        retry: RetryPolicy | None = None,
        timeout: DurationLike | None = None,
    ) -> R: ...
    @overload
    async def aonce(self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    async def aonce(
        self,
        name: str,
        function: Callable[[Unpack[Ts]], R],
        /,
        *args: *Ts,
        retry: RetryPolicy | None = None,
        timeout: DurationLike | None = None,
    ) -> R: ...
    async def aonce(  # type: ignore[misc]  # mypy and *Ts
        self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        """Like `once`, in an `async def`: `await current_job.aonce("charge", charge_card, order)`. The function is an
        `async def`, which is awaited, or a plain one, which is called in a thread and does not block the event loop."""
        checkpoints = self._checkpoints(name)
        rules = _take_rules(name, function, kwargs)  # they are no longer in kwargs
        kept = checkpoints.find(name)
        if kept is None:
            _check_not_given_up(checkpoints, name)
            await in_a_thread(checkpoints.begin)
            called = function if iscoroutinefunction(function) else partial(in_its_own_thread, function)
            try:
                async with asyncio.timeout(rules.seconds) as limit:
                    done = await called(*args, **kwargs)
                    if isawaitable(done):
                        done = await done
            except Exception as raised:
                too_slow = rules.seconds is not None and limit.expired()
                error = _too_slow(name, rules.seconds or 0) if too_slow else raised
                self._pause_or_give_up(checkpoints, name, rules, error)  # does not return if it is tried again
                raise error from raised.__cause__
            kept = await in_a_thread(checkpoints.keep, name, done, rules.returns)
        checkpoints.check_alike(name, (*_identity(function), args, kwargs))
        return checkpoints.result(kept, rules.returns)

    def _pause_or_give_up(self, checkpoints: Checkpoints, step: str, rules: _StepRules, error: Exception) -> None:
        """Pauses the job until the next try of the step; returns if there is none. An end of the job's own time, and a
        wish to run later, are no failures of the step."""
        if rules.retry is None or isinstance(error, JobTimedOut | RetryLater | Superseded):
            return
        attempt, now = self._attempt, self._attempt.runner.now()
        before = checkpoints.failures(step, attempt.number)
        number, first = (0, now) if before is None else (before.number, before.first)
        names = exception_names(type(error))
        decision = decide(rules.retry, Failure(number + 1, first, first, now, error, names))
        text = f"{names[0]}: {said_by(error)}"
        if isinstance(decision, Retry):
            failures = StepFailures(attempt.number, number + 1, first)
            checkpoints.failed(step, failures, cut(text))
            attempt.pause(JobPauses(f"step {step!r} failed with {text}", until=decision.at))
        checkpoints.give_up(step, cut(text))

    def sleep(self, duration: DurationLike) -> None:
        """Sleeps without occupying a slot: the job leaves its worker, and runs again from its beginning when the time
        has passed. Then this call returns immediately. No attempt is counted.

        The code before the sleep runs again: put effects that must not happen twice in `once`. A sleep can last seconds
        or days, and survives every restart. Raises InvalidDuration.
        """
        delay = to_timedelta(duration)
        checkpoints = self._checkpoints()
        name = checkpoints.next_name("sleep")
        if checkpoints.find(name) is None:
            told = f"it sleeps for {humanize(delay)}"
            self._attempt.pause(JobPauses(told, delay=delay, checkpoint=checkpoints.slept(name)))

    async def asleep(self, duration: DurationLike) -> None:
        """Like `sleep`, in an `async def`."""
        self.sleep(duration)

    def wait_for(self, signal: str, timeout: DurationLike | None = None) -> Any:
        """Waits until another process calls `recruiter.signal(job_id, "approved", {…})`, and returns the data.

        The job leaves its worker meanwhile, and is run again, from its beginning, when the signal comes; then this call
        returns immediately. A signal may come before the job waits for it. Each wait for a name takes the next signal
        of this name. Raises SignalTimeout when none comes within `timeout`; such a wait takes no signal. See `sleep`
        for the code that runs again.
        """
        return self._first_of((signal,), timeout).data

    async def await_for(self, signal: str, timeout: DurationLike | None = None) -> Any:
        """Like `wait_for`, without blocking the event loop."""
        return await in_a_thread(self.wait_for, signal, timeout)

    await_signal = await_for

    def wait_for_any(self, *signals: str, timeout: DurationLike | None = None) -> ReceivedSignal:
        """Waits for the first of several signals, and returns its `name` and its `data`:
        `answer = current_job.wait_for_any("approved", "rejected", timeout="7 days")`. Each wait takes one signal; the
        others stay for later waits. Otherwise it is like `wait_for`."""
        for signal in signals:
            check_checkpoint("the name of a signal", signal)
        if len(set(signals)) < 2:
            raise InvalidArguments("wait_for_any() takes two or more different names; for one signal use wait_for()")
        return self._first_of(signals, timeout)

    async def await_for_any(self, *signals: str, timeout: DurationLike | None = None) -> ReceivedSignal:
        """Like `wait_for_any`, without blocking the event loop."""
        return await in_a_thread(partial(self.wait_for_any, *signals, timeout=timeout))

    def _first_of(self, signals: tuple[str, ...], timeout: DurationLike | None) -> ReceivedSignal:
        delay = None if timeout is None else to_timedelta(timeout)
        for signal in signals:
            check_checkpoint("the name of a signal", signal)
        checkpoints = self._checkpoints()
        wait = checkpoints.wait_name(signals)
        kept = checkpoints.find(wait)
        if kept is None:
            numbers = checkpoints.signal_numbers(wait, signals)
            came = checkpoints.first_signal(numbers)
            if came is None:
                self._wait(checkpoints, wait, numbers, delay)
            checkpoints.begin()
            data = from_bson(came.data)
            kept = checkpoints.keep(wait, data if len(signals) == 1 else {"name": came.name, "data": data})
        if kept.problem == NO_SIGNAL:
            raise self._no_signal(signals)
        result = checkpoints.result(kept)
        return ReceivedSignal(signals[0], result) if len(signals) == 1 else ReceivedSignal(**result)

    def _wait(
        self, checkpoints: Checkpoints, name: str, numbers: Sequence[tuple[str, int]], delay: timedelta | None
    ) -> NoReturn:
        attempt, signals = self._attempt, tuple(signal for signal, _ in numbers)
        now = attempt.runner.now()
        wait = checkpoints.waiting(name)
        if wait is None:
            until = None if delay is None else after(now, delay)
            wait = SignalWait(signals[0], now, until, name, signals if len(signals) > 1 else ())
        if wait.until is not None and wait.until <= now:
            checkpoints.begin()
            checkpoints.timed_out(name)
            raise self._no_signal(signals)
        attempt.pause(JobPauses(f"it waits for {wait.told}", until=wait.until, waits_for=wait, signals=numbers))

    def _no_signal(self, signals: Sequence[str]) -> SignalTimeout:
        return SignalTimeout(f"job {id_told(self.id)} waited for {signals_told(signals)}, and none came in time")

    def _checkpoints(self, name: str | None = None) -> Checkpoints:
        if name is not None:
            check_step_name(name)
        attempt = self._attempt
        attempt.check_goes_on()
        checkpoints: Checkpoints = attempt.runner.checkpoints(attempt)
        if attempt.run is not None:
            checkpoints.check()
        return checkpoints

    # -- its own transaction -------------------------------------------------------------------------------------

    def transaction(self, client: MongoClient[Any] | None = None) -> AbstractContextManager[ClientSession]:
        """Commits the writes of this session and the end of the job together, or not at all:
        `with current_job.transaction() as session: orders.update_one(…, session=session)`.

        The session is of your `client`, or of the recruiter's client (`session.client`). When the block is
        left, the job has succeeded, for good: nothing that happens after it changes that. Its result is what
        `set_result` received inside the block. A worker that has lost the job cannot commit. If the transaction
        conflicts with another transaction, or MongoDB changes its primary, the whole job runs again, and no attempt is
        counted. An error in the block rolls everything back, and the attempt has failed.
        """
        attempt = self._attempt
        attempt.check_goes_on()
        return attempt.runner.transaction(attempt, client)

    def atransaction(self, client: AsyncMongoClient[Any]) -> AbstractAsyncContextManager[AsyncClientSession]:
        """Like `transaction`, in an `async def`: `async with current_job.atransaction(client) as session:`."""
        attempt = self._attempt
        attempt.check_goes_on()
        return attempt.runner.atransaction(attempt, client)

    def set_result(self, value: Any) -> None:
        """The result of a job that ends in its own transaction: call it inside the block. A value that the
        function returns after the commit comes too late. Raises UnsupportedValue."""
        attempt = self._attempt
        attempt.stored_result = attempt.runner.stored_result(attempt.document, value)
        attempt.result = value

    # -- programs ------------------------------------------------------------------------------------------------

    def run_process(self, argv: Sequence[str | os.PathLike[str]], **options: Unpack[ProcessOptions]) -> CommandResult:
        """Runs a program with its arguments, without a shell; it ends with the job, and so do all programs that it
        started.

        Every line it prints goes to the log of the job, and to `on_line`. `cwd` is its folder; `env` is added to the
        environment; it reads `input`. The result has its `code`, and the last `keep` bytes of `stdout` and `stderr`.
        Raises CommandFailed, with its last words, if it cannot be started or ends with a code that is not in
        `ok_codes` (default: 0).
        """
        return self._run(Program(), argv, options)

    async def arun_process(
        self, argv: Sequence[str | os.PathLike[str]], **options: Unpack[ProcessOptions]
    ) -> CommandResult:
        """Like `run_process`, without blocking the event loop. Cancelling it ends the program; `on_line` is called in
        another thread."""
        program = Program()
        ended = in_its_own_thread(self._run, program, argv, options)
        try:
            return await asyncio.shield(ended)
        except asyncio.CancelledError:
            ended.add_done_callback(lambda answer: answer.cancelled() or answer.exception())  # no other code reads it
            await in_its_own_thread(program.end)
            raise

    def _run(self, program: Program, argv: Sequence[str | os.PathLike[str]], options: ProcessOptions) -> CommandResult:
        if isinstance(argv, str | bytes) or not argv:
            raise InvalidArguments(f'run_process needs a list such as ["bowtie2", "--version"], not {shown(argv)}')
        attempt = self._attempt
        attempt.begin(program)
        logged: ProcessOptions = {**options, "on_line": partial(_heard, attempt, options.get("on_line"))}
        try:
            return program.run([os.fspath(argument) for argument in argv], **logged)
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
        return "CurrentJob(none)" if attempt is None else f"CurrentJob({id_told(attempt.id)}, attempt={attempt.number})"


def track(iterable: Iterable[T], total: int | None = None, stage: str | None = None) -> Iterator[T]:
    """Yields the same items, and reports the share of completed items as progress. `for picture in track(pictures): …`

    `total` is for an iterable that does not know how many it has; without it, the progress is 0 until it is 1.
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


class _StepRules(NamedTuple):
    """The options of one durable step."""

    returns: Any
    """The annotation of the function's result; Any without one."""
    retry: RetryPolicy | None
    seconds: float | None


def _take_rules(step: str, function: Callable[..., Any], kwargs: dict[str, Any]) -> _StepRules:
    """Takes the options out of the arguments; a parameter of the function comes first. Raises InvalidArguments."""
    if not callable(function):
        raise InvalidArguments(
            f"once({step!r}, …) needs a function and then its arguments, not {shown(function)}: it calls the function "
            "itself"
        )
    own: Collection[str]
    try:
        signature = Signature(function)
        returns, own = signature.returns, signature.names
    except (InvalidArguments, TypeError, ValueError):  # functions written in C may have no signature
        returns, own = Any, ()
    retry = None if "retry" in own else kwargs.pop("retry", None)
    timeout = None if "timeout" in own else kwargs.pop("timeout", None)
    if retry is not None and not isinstance(retry, RetryPolicy):
        raise InvalidArguments(f"retry= takes a retry policy such as RetryManyTimes(3, '10s'), not {shown(retry)}")
    return _StepRules(returns, retry, None if timeout is None else to_seconds(timeout))


def _identity(function: Callable[..., Any]) -> tuple[Any, Any]:
    """The same for a lambda or an inner function that the same line has made again."""
    return getattr(function, "__code__", function), getattr(function, "__self__", None)


def _within(seconds: float, step: str, call: Callable[[], T]) -> T:
    """The result of the call, which runs in a separate thread. Raises TimeoutError; the thread continues then."""
    answer: Future[T] = Future()
    context = copy_context()

    def run() -> None:
        try:
            answer.set_result(context.run(call))
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, name=f"step {step}", daemon=True).start()
    try:
        return answer.result(seconds)
    except TimeoutError:
        if answer.done():  # the function itself raised it
            raise
        raise _too_slow(step, seconds) from None


def _too_slow(step: str, seconds: float) -> TimeoutError:
    return TimeoutError(f"step {step!r} has not ended within {humanize(timedelta(seconds=seconds))}")


def _check_not_given_up(checkpoints: Checkpoints, step: str) -> None:
    """Raises the error of a step after which the job continued in an earlier run: the same class with the same text, or
    RecruiterError where the class is not loaded."""
    problem = checkpoints.given_up(step)
    if problem is not None:
        name, _, text = problem.partition(": ")
        module, _, cls = name.rpartition(".")
        found = getattr(sys.modules.get(module or "builtins"), cls, None)
        if not isinstance(found, type) or not issubclass(found, Exception):
            raise RecruiterError(f"step {step!r} has given up: {problem}")
        error = found.__new__(found)
        error.args = (text,)
        raise error


def _must_be_awaited(name: str) -> InvalidArguments:
    return InvalidArguments(
        f"once({name!r}, …) was given a function that must be awaited; nothing was done. Write "
        f"`await current_job.aonce({name!r}, …)` in an `async def`"
    )


def _heard(attempt: Attempt, on_line: OnLine | None, line: str) -> None:
    attempt.progress().log(line)
    if on_line is not None:
        on_line(line)
