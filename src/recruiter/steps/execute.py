"""Execute: runs one job, in a child or in the calling process, and says what becomes of it.

Whatever the user's code does is caught here: constructor, method, result, finalizers, listeners, policy. One attempt is
one generator. It hands out every coroutine that user code returned, and its driver (coroutines.py) awaits
them in its own way: `run` with a loop of its own, `run_async` in the loop it runs in.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from types import CoroutineType
from typing import Any

from recruiter import interruption
from recruiter.attempt import Attempt, AttemptProgress, OnProgress, ignore_progress, running
from recruiter.clock import Clock
from recruiter.coroutines import Loops, adrive, drive
from recruiter.domain.arguments.results import filled
from recruiter.domain.duration import UNTIL_SIGNAL, to_timedelta
from recruiter.domain.job import Execution, Job
from recruiter.domain.names import DEFAULT_METHOD, id_told
from recruiter.domain.policy_registry import PolicyRegistry
from recruiter.domain.retry.decision import (
    Archive,
    Decision,
    Retry,
    RetryPolicy,
    after,
    exception_names,
)
from recruiter.domain.state import Why
from recruiter.domain.text import said_by
from recruiter.errors import (
    InvalidArguments,
    InvalidJob,
    JobCancelled,
    JobEnded,
    JobPauses,
    NoCurrentJob,
    PayloadSealed,
    RecruiterError,
    RetryLater,
    TransactionRepeats,
)
from recruiter.events import Event
from recruiter.instruments import AttemptEnd, AttemptStart
from recruiter.interruption import Interruptible
from recruiter.registry import Call, Registry, RegistryOwner, TaskDefinition
from recruiter.store import outcomes
from recruiter.store.codec import Document, decode, id_of, job_from, progress_fields
from recruiter.store.job_fields import may_expire, progress_from
from recruiter.store.job_transaction import AsyncJobTransaction, JobTransaction
from recruiter.store.outcomes import Outcome, Rescheduled, Settled
from recruiter.store.payload import PLAIN, Owner, Payload, Sealed, is_sealed, owner_of
from recruiter.store.runs import Checkpoints, Run

LONGEST_TRACE = 8_000
HERE = "here"
"""The worker of a job that runs in the process that makes it, and was never stored."""
_REPEATED, _REPEATED_LATER = 20.0, 1.0
"""Seconds for which a job runs again whose own transaction meets others; then it goes back, and comes again later."""
_MOST_CONFLICTS = 10
"""How often in its life a job goes back for that. Then its attempt fails: after more than three minutes of nothing but
conflicts, the retry policy and people should know. An outage of MongoDB is one of them, however long it lasts: the job
goes back when MongoDB answers again."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.5

_AROUND_JOBS = (str(Path(__file__).parent.parent), str(Path(asyncio.__file__).parent))
"""The code that calls user code."""

Awaiting = Generator[Coroutine[Any, Any, Any], Any, Any]
"""A computation that hands out coroutines, and is given what they returned or raised."""

Limit = Callable[[float], AbstractContextManager[None]]
"""What holds while user code runs that has so many seconds."""


def no_limit(_seconds: float) -> AbstractContextManager[None]:
    return nullcontext()


class Executor:
    def __init__(
        self,
        registry: Registry,
        policies: PolicyRegistry,
        clock: Clock,
        worker: str,
        *,
        owners: Sequence[RegistryOwner] = (),
        stop_asked: Callable[[], bool] = lambda: False,
    ) -> None:
        self._registry = registry
        self._policies = policies
        self._clock = clock
        self.worker = worker
        self._owners = owners
        self.stop_asked = stop_asked
        self._loops = Loops()

    def run(
        self,
        raw: bytes,
        interruptible: Interruptible | None = None,
        hard: Limit = no_limit,
        on_progress: OnProgress = ignore_progress,
    ) -> Outcome:
        """Runs the job; never raises, whatever the document holds or the user's code does. But when it runs inside
        another job, and that one was interrupted, its interruption is raised.

        Other threads interrupt it through `interruptible`. `hard` is called when the clock of a job with a timeout
        starts and stops, so that the supervisor can end a job that overruns. `on_progress` is called when the job has
        reported progress that can be sent.
        """
        attempt = self._attempt(raw, interruptible or Interruptible(), hard, on_progress)
        ended: Outcome = drive(attempt, self._loops.run, _throwable)
        interruption.pass_on()
        return ended

    async def run_async(
        self,
        raw: bytes,
        interruptible: Interruptible | None = None,
        hard: Limit = no_limit,
        on_progress: OnProgress = ignore_progress,
    ) -> Outcome:
        """Like `run`, in the running event loop; for jobs that `is_async` says are made for it."""
        attempt = self._attempt(raw, interruptible or Interruptible(), hard, on_progress)
        ended: Outcome = await adrive(attempt, lambda coroutine: coroutine, _throwable)
        interruption.pass_on()
        return ended

    def is_async(self, raw: bytes) -> bool:
        """Whether this job is an `async def`."""
        try:
            document = decode(raw)
            task = self._registry.find(document["task"])
            return task is not None and task.is_async(document.get("method") or DEFAULT_METHOD)
        except Exception:
            return False  # it cannot be read; `run` will say so

    def close(self) -> None:
        self._loops.close()

    # -- one attempt ---------------------------------------------------------------------------------------------

    def _attempt(self, raw: bytes, interruptible: Interruptible, hard: Limit, on_progress: OnProgress) -> Awaiting:
        started_at = self._clock.now()
        try:
            document = decode(raw)
            task = self._registry.find(document["task"])
            if task is None:
                return outcomes.misplaced(document, started_at)
            if "expires_at" in document and document["expires_at"] <= started_at and may_expire(document):
                return outcomes.expired(document, started_at)
        except Exception as error:
            return outcomes.unreadable(id_of(raw), raw, started_at, f"cannot be read: {error}")
        attempt = Attempt(document, started_at, self, on_progress)
        token = running.set(attempt)
        self._follow(attempt, document["task"])
        try:
            outcome = yield from self._run(task, attempt, interruptible, hard)
            if self.worker == HERE and isinstance(outcome, Rescheduled):  # nothing of it has been stored before
                outcome = replace(outcome, fields={**_kept(attempt), **outcome.fields})
            return outcome
        except Exception as error:  # of ours: a field of a kind that no job of ours has
            reason = f"cannot be run: {type(error).__name__}: {error}"
            return outcomes.unreadable(document["_id"], raw, self._clock.now(), reason)
        finally:
            running.reset(token)
            attempt.close()

    # -- for current_job -----------------------------------------------------------------------------------------

    def job(self, document: Mapping[str, Any]) -> Job:
        job = job_from(document)
        if not is_sealed(job.args):
            return job
        return replace(job, args=self._payload(document).open_arguments(job.task, job.args, owner_of(document)))

    def policy(self, document: Mapping[str, Any]) -> RetryPolicy | None:
        stored = document.get("retry_policy")
        return self._policies.load(stored) if stored is not None else None

    def owner(self, task: str) -> RegistryOwner | None:
        """The application that this task is of; workables are the first one's."""
        for owner in self._owners:
            if owner.registry.has(task):
                return owner
        return self._owners[0] if self._owners else None

    def progress(self, document: Mapping[str, Any], on_progress: OnProgress) -> AttemptProgress:
        return AttemptProgress(progress_from(document), self._clock.now, on_progress)

    # -- what happens --------------------------------------------------------------------------------------------

    def _run(self, task: TaskDefinition, attempt: Attempt, interruptible: Interruptible, hard: Limit) -> Awaiting:
        document, started_at = attempt.document, attempt.started_at
        calls: list[Call] = []
        timeout, payload = document.get("timeout"), self._payload(document)
        try:
            if timeout is None:
                result = yield from self._called(task, attempt, interruptible, payload, calls)
            else:
                with _Timed(timeout, interruptible, hard):
                    result = yield from self._called(task, attempt, interruptible, payload, calls)
            stored = _stored(task, document, payload, result) if _committed(attempt) is None else None
        except BaseException as error:  # SystemExit and KeyboardInterrupt are the job's, not the worker's
            interruptible.leave()
            call = calls[-1] if calls else None
            if _committed(attempt) is not None:
                return (yield from self._settled(attempt, call, _as_meant(error, interruptible), None))
            if isinstance(error, PayloadSealed) and call is None:  # another worker may have the key
                return outcomes.unopened(document, self._clock.now(), str(error))
            if isinstance(error, RetryLater | JobPauses):
                return (yield from self._later(document, call, started_at, error))
            if isinstance(interruptible.error, JobCancelled):  # whatever it raised on its way out
                return (yield from self._cancelled(document, call, started_at, interruptible.error))
            return (yield from self._failed(document, call, started_at, _as_meant(error, interruptible)))
        if _committed(attempt) is not None:
            return (yield from self._settled(attempt, calls[-1], None, result))
        ended_at = self._clock.now()
        notes = yield from self._succeeded(attempt, calls[-1], result, ended_at)
        execution = Execution(started_at, ended_at, self.worker, notes=notes)
        return outcomes.succeeded(_with_progress(document), execution, ended_at, stored)

    def _called(
        self,
        task: TaskDefinition,
        attempt: Attempt,
        interruptible: Interruptible,
        payload: Payload,
        calls: list[Call],
    ) -> Awaiting:
        """What the job returns. It is called again as long as its own transaction has to be repeated. Each `Call` is
        added to `calls` before it runs."""
        document, pause, until = attempt.document, _FIRST_PAUSE, time.monotonic() + _REPEATED
        while True:
            try:
                with interruptible, _OneProcess(), _Ungrouped(self._clock.now):
                    args = _arguments(document, payload)
                    try:
                        call = task.call(args, document.get("method") or DEFAULT_METHOD)
                    except InvalidArguments as error:
                        raise _without_results(document, error) from None
                    calls.append(call)
                    if len(calls) == 1 and (call.listener is not None or self._heard()):
                        self._tell(call, "job.started", document)
                    result = call.run()
                if isinstance(result, CoroutineType):
                    result = yield interruptible.awaiting(_in_one_process(result, self._clock.now))
                if attempt.paused is not None and _committed(attempt) is None:
                    raise attempt.paused  # the job has caught it, and has not ended
                if (run := attempt.run) is not None and run.not_committed is not None and run.committed is None:
                    raise run.not_committed  # the job has caught it, and cannot have succeeded
                return result
            except StopIteration as error:
                raise _Stopped(error) from None
            except TransactionRepeats as again:
                interruptible.leave()
                if document.get("at_most_once"):  # what it did before the transaction must not be done twice
                    raise TransactionRepeats(f"{again}. An at-most-once job is not run again") from again
                if time.monotonic() > until:
                    raise _put_off(document, again) from again
                if attempt.run is not None:
                    attempt.run.not_committed = None
            attempt.result = attempt.stored_result = attempt.paused = None
            if attempt.checkpoints is not None:
                attempt.checkpoints.run_again()
            yield asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _succeeded(self, attempt: Attempt, call: Call, result: Any, ended_at: datetime) -> Awaiting:
        """Calls what is to be called after a success; returns what went wrong in it."""
        finalizers = call.finalizers
        notes: tuple[str, ...] = ()
        if finalizers:
            notes = yield from _all(
                ("after_success", finalizers.after_success, result), ("finalize", finalizers.finalize, None)
            )
        if attempt.following is not None:
            attempt.following.ended(AttemptEnd("succeeded"))
        if call.listener is not None or self._heard():
            seconds = (ended_at - attempt.started_at).total_seconds()
            self._tell(call, "job.ended", attempt.document, done=True, seconds=seconds)
        return notes

    def _settled(self, attempt: Attempt, call: Call | None, error: BaseException | None, returned: Any) -> Awaiting:
        """The job has ended in its own transaction. What happened after the commit changes nothing, and is noted."""
        raw = _committed(attempt)
        assert raw is not None
        notes: tuple[str, ...] = ()
        if call is not None:
            notes = yield from self._succeeded(attempt, call, attempt.result, self._clock.now())
        if error is not None and not (isinstance(error, JobEnded) and attempt.run.answer_was_lost):
            notes += (f"raised {exception_names(type(error))[0]} after its transaction: {said_by(error)}",)
        elif returned is not None and attempt.stored_result is None:
            notes += (
                "returned a value after its transaction; only current_job.set_result() inside the block keeps it",
            )
        if attempt.said is not None:
            attempt.said.close()
        return Settled(raw if not notes else outcomes.noted(raw, notes))

    # -- what a job writes itself --------------------------------------------------------------------------------

    def now(self) -> datetime:
        return self._clock.now()

    def stored_result(self, document: Mapping[str, Any], value: Any) -> Any:
        return _stored(self._registry.get(document["task"]), document, self._payload(document), value)

    def _payload(self, document: Mapping[str, Any]) -> Payload:
        payload: Payload = getattr(self.owner(document["task"]), "payload", PLAIN)
        return payload

    def checkpoints(self, attempt: Attempt) -> Checkpoints:
        def make() -> Checkpoints:
            document = attempt.document
            return Checkpoints(lambda: self._run_of(attempt), document, self._clock.now, self._payload(document))

        checkpoints: Checkpoints = attempt.made("checkpoints", make)
        return checkpoints

    def transaction(self, attempt: Attempt, client: Any) -> JobTransaction:
        return JobTransaction(lambda: self._run_of(attempt), client)

    def atransaction(self, attempt: Attempt, client: Any) -> AsyncJobTransaction:
        return AsyncJobTransaction(lambda: self._run_of(attempt), client)

    def _run_of(self, attempt: Attempt) -> Run:
        if attempt.over:
            raise NoCurrentJob(f"job {id_told(attempt.id)} has ended and can write nothing more")
        owner: Any = self.owner(attempt.document["task"])
        if owner is None:
            raise NoCurrentJob("this job runs without an application")
        succeeded, stored = partial(self._ending_now, attempt), self.worker != HERE
        about = (lambda: owner.store, attempt.document, self.worker, attempt.started_at, succeeded)
        run: Run = attempt.made("run", lambda: Run(*about, stored=stored))
        return run

    def _ending_now(self, attempt: Attempt) -> bytes:
        """The document for the archive, if the job succeeds at this moment."""
        now = self._clock.now()
        said = {} if attempt.said is None else progress_fields(attempt.said.so_far())
        execution = Execution(attempt.started_at, now, self.worker)
        document = {**attempt.document, **said, **_kept(attempt)}
        return outcomes.succeeded(document, execution, now, attempt.stored_result)

    def _failed(self, document: Document, call: Call | None, started_at: datetime, error: BaseException) -> Awaiting:
        now = self._clock.now()
        decision = self._decide(document, now, error)
        last = isinstance(decision, Archive)
        notes: tuple[str, ...] = ()
        if call is not None:
            finalizers = call.finalizers
            notes = yield from _all(
                ("after_failure", finalizers.after_failure, error),
                ("after_last_failure", finalizers.after_last_failure if last else (), error),
                ("finalize", finalizers.finalize, error),
            )
        execution = Execution(
            started_at,
            now,
            self.worker,
            exception=exception_names(type(error))[0],
            message=said_by(error),
            trace=said_by(error, _trace, LONGEST_TRACE),
            notes=notes,
        )
        told = f"{execution.exception}: {execution.message}"
        self._tell(call, "job.ended", document, done=False, seconds=(now - started_at).total_seconds())
        if isinstance(decision, Archive):
            _ended(AttemptEnd("failed", error))
            self._tell(call, "job.failure.last", document, error=told, why=decision.why, trace=execution.trace)
        else:
            _ended(AttemptEnd("retried", error, decision.at))
            self._tell(call, "job.failed", document, error=told, next=decision.at)
        return outcomes.failed(_with_progress(document), execution, now, decision)

    def _cancelled(
        self, document: Document, call: Call | None, started_at: datetime, cancelled: JobCancelled
    ) -> Awaiting:
        notes: tuple[str, ...] = ()
        if call is not None:
            notes = yield from _all(("finalize", call.finalizers.finalize, cancelled))
        now = self._clock.now()
        _ended(AttemptEnd("cancelled", cancelled))
        self._tell(call, "job.cancelled", document, by=cancelled.by, reason=cancelled.reason)
        flag = {"at": cancelled.at or now, "by": cancelled.by, "reason": cancelled.reason}
        execution = Execution(started_at, now, self.worker, message=str(cancelled), notes=notes)
        return outcomes.cancelled({**_with_progress(document), "cancel": flag}, now, execution)

    def _later(
        self, document: Document, call: Call | None, started_at: datetime, later: RetryLater | JobPauses
    ) -> Awaiting:
        """The job asked for it, and nothing has failed; unless what it asks for cannot be."""
        now = self._clock.now()
        try:
            until = _until(later, now)
            if document.get("at_most_once"):
                raise InvalidJob("an at-most-once job has started and cannot be run again later")
        except RecruiterError as error:
            return (yield from self._failed(document, call, started_at, error))
        if call is not None:
            yield from _all(("finalize", call.finalizers.finalize, None))
        _ended(AttemptEnd("snoozed", next_at=until))
        self._tell(call, "job.snoozed", document, next=until, reason=said_by(later))
        if isinstance(later, JobPauses):
            return outcomes.paused(_with_progress(document), now, until, later, started_at)
        if isinstance(later, _Conflict):
            return outcomes.conflicted(_with_progress(document), now, until, said_by(later), started_at)
        return outcomes.snoozed(_with_progress(document), now, until, said_by(later), started_at)

    def _decide(self, document: Document, now: datetime, error: BaseException) -> Decision:
        try:
            policy = self.policy(document)
        except RecruiterError as broken:
            return Archive(Why.POLICY_FAILED, str(broken))
        return outcomes.decide_for(document, policy, now, error)

    def _follow(self, attempt: Attempt, task: str) -> None:
        if not self._followed():
            return
        owner = self.owner(task)
        if owner is None or not owner.instruments:
            return
        with suppress(RecruiterError):  # a field that no job of ours has; whoever runs it says so
            start = AttemptStart(self.job(attempt.document), attempt.number, self.worker, owner)
            attempt.following = owner.instruments.attempt(start)

    def flush(self) -> None:
        """The process is about to end: what instruments have not sent yet leaves now."""
        for owner in self._owners:
            owner.instruments.flush()

    def _followed(self) -> bool:
        for owner in self._owners:  # noqa: SIM110 – asked for every job
            if owner.instruments:
                return True
        return False

    def _heard(self) -> bool:
        for owner in self._owners:  # noqa: SIM110 – asked for every job, and `any` would take three times as long
            if owner.events.heard:
                return True
        return False

    def _tell(self, call: Call | None, name: str, document: Document, **fields: Any) -> None:
        """To the listeners of the application, and to the workable itself."""
        listener = call.listener if call is not None else None
        if listener is None and not self._heard():
            return
        owners = self._owners
        attempt = document["attempts"] + 1
        about = {"job": document["_id"], "task": document["task"], "attempt": attempt, "worker": self.worker}
        if (trace_id := _trace_id()) is not None:
            about["trace_id"] = trace_id
        fields = {**about, **fields}
        for owner in owners:
            owner.events.emit(name, **fields)
        if listener is not None:
            try:
                listener(Event(name, fields))
            except BaseException as error:
                failure = {"listener": said_by(listener, repr), "event": name, "error": said_by(error, repr)}
                for owner in owners:
                    owner.events.emit("listener.failed", **failure)


def _stored(task: TaskDefinition, document: Mapping[str, Any], payload: Payload, result: Any) -> Any:
    """The result as it is stored."""
    return payload.seal(Sealed.RESULT, owner_of(document), task.encode_result(result))


def _arguments(document: Document, payload: Payload = PLAIN) -> Any:
    """Its arguments, opened; of a step that takes results of others, with these in their places."""
    args = payload.open_arguments(document["task"], document["args"], owner_of(document))
    results = _results(document)
    if results is None:
        return args
    opened = [payload.open(Sealed.RESULT, Owner(each["step"]), each.get("value")) for each in results]
    return filled(args, [{**each, "value": value} for each, value in zip(results, opened, strict=True)])


def _results(document: Document) -> Sequence[Document] | None:
    """The results of other steps that are among its arguments; None of a job that takes none."""
    flow = document.get("flow")
    return flow["results"] if flow is not None and "takes" in flow else document.get("step_results")


def _without_results(document: Document, error: InvalidArguments) -> InvalidArguments:
    """The same, and which of the steps whose results it takes have none."""
    missing = [each["step"] for each in _results(document) or () if each.get("value") is None]
    if not missing:
        return error
    steps = ", ".join(str(step) for step in missing)
    return InvalidArguments(
        f"{error}. Of the steps whose results are its arguments, step {steps} gave no result: it returned none, did "
        f"not succeed, or returned more than can be kept; `recruiter job show {missing[0]}` says which"
    )


def _ended(end: AttemptEnd) -> None:
    attempt = running.get()
    if attempt is not None and attempt.following is not None:
        attempt.following.ended(end)


def _trace_id() -> str | None:
    attempt = running.get()
    return None if attempt is None else attempt.trace_id


def _committed(attempt: Attempt) -> bytes | None:
    """The archived document of a job that has ended in its own transaction."""
    committed: bytes | None = attempt.run.committed if attempt.run is not None else None
    return committed


def _with_progress(document: Document) -> Document:
    """With what this attempt has said of itself, and kept. From here on it has nothing more to say."""
    attempt = running.get()
    if attempt is None or (attempt.said is None and attempt.checkpoints is None):
        return document
    said = {} if attempt.said is None else progress_fields(attempt.said.close())
    return {**document, **said, **_kept(attempt)}


def _kept(attempt: Attempt) -> Document:
    """The checkpoints, if there are new ones."""
    kept: Document = {} if attempt.checkpoints is None else attempt.checkpoints.fields()
    return kept


class _Timed:
    """What runs inside must be over in so many seconds: then it is interrupted, and the supervisor is told."""

    def __init__(self, seconds: float, interruptible: Interruptible, hard: Limit) -> None:
        self._timer = threading.Timer(seconds, interruptible.interrupt, (interruption.time_is_over(seconds),))
        self._timer.daemon = True
        self._hard = hard(seconds)

    def __enter__(self) -> None:
        self._hard.__enter__()
        self._timer.start()

    def __exit__(self, *error: Any) -> None:
        self._timer.cancel()
        self._hard.__exit__(*error)


class _OneProcess:
    """A job may fork. The copy ends where the job's code ends: it must not go on as a second worker."""

    def __enter__(self) -> None:
        self._process = os.getpid()

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if os.getpid() != self._process:
            for stream in (sys.stdout, sys.stderr):
                with suppress(Exception):
                    stream.flush()
            code = error.code if isinstance(error, SystemExit) else error
            os._exit(code if isinstance(code, int) else int(code is not None))


async def _in_one_process(coroutine: Coroutine[Any, Any, Any], now: Callable[[], datetime]) -> Any:
    with _OneProcess(), _Ungrouped(now):
        return await coroutine


class _Ungrouped:
    """A task group wraps what leaves it. A group of nothing but pauses, or of what runs the job again, leaves as the
    first of them that comes to its end; the next run meets the others."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if not isinstance(error, BaseExceptionGroup):
            return
        if error.split((TransactionRepeats, JobPauses, RetryLater))[1] is not None:
            return  # something has failed, too
        leaves, now = list(_leaves(error)), self._now()
        again = [leaf for leaf in leaves if isinstance(leaf, TransactionRepeats)]
        raise again[0] if again else min(leaves, key=lambda pause: _until(pause, now))


def _leaves(group: BaseExceptionGroup[Any]) -> Iterator[Any]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def _all(*finalizers: tuple[str, Iterable[Callable[[Any], Any]], Any]) -> Awaiting:
    """Calls them in order, each once; returns what went wrong in them."""
    notes: list[str] = []
    for name, functions, argument in finalizers:
        for function in functions:
            try:
                result = function(argument)
                if isinstance(result, CoroutineType):
                    yield result
            except BaseException as error:
                notes.append(f"{name} raised {exception_names(type(error))[0]}: {said_by(error)}")
    return tuple(notes)


def _until(later: RetryLater | JobPauses, now: datetime) -> datetime:
    at = later.at if isinstance(later, RetryLater) else later.until
    if at is not None:
        return Retry(at).at
    return UNTIL_SIGNAL if later.delay is None else after(now, to_timedelta(later.delay))


class _Conflict(RetryLater):
    """Its own transaction has met others for too long; it comes again."""


def _put_off(document: Document, again: TransactionRepeats) -> BaseException:
    conflicts = document.get("conflicts") or 0
    if conflicts < _MOST_CONFLICTS:
        return _Conflict(_REPEATED_LATER, reason=str(again))
    return TransactionRepeats(f"{again}. The job has been put off for that {conflicts} times, and is not any more")


class _Stopped(BaseException):
    """The StopIteration of a job, on its way out of a generator, which cannot raise it as it is."""

    def __init__(self, error: StopIteration) -> None:
        self.error = error


def _as_meant(error: BaseException, interruptible: Interruptible) -> BaseException:
    """What it was interrupted with, where it could only be thrown as something like it; what the job raised."""
    if isinstance(error, _Stopped):
        error = error.error
    meant = interruptible.error
    if meant is None or not isinstance(error, type(meant)):
        return error
    return meant.with_traceback(error.__traceback__)


def _throwable(error: BaseException) -> BaseException:
    """A generator that is thrown a GeneratorExit must end; ours still has to say what became of the job."""
    return RuntimeError("the job raised GeneratorExit") if isinstance(error, GeneratorExit) else error


def _trace(error: BaseException) -> str:
    """From the first line of the user's own code on: how a worker calls it is the same for every job."""
    first = error.__traceback__
    while first is not None and first.tb_frame.f_code.co_filename.startswith(_AROUND_JOBS):
        first = first.tb_next
    return "".join(traceback.format_exception(type(error), error, first or error.__traceback__))
