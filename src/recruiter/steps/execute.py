"""Execute: runs one job, in a child or in the calling process, and returns its outcome.

Whatever the user's code does is caught here: constructor, method, result, finalizers, listeners, policy. One attempt is
one generator. It hands out every coroutine that user code returned, and its driver (coroutines.py) awaits
them in their own way: `run` with its own loop, `run_async` in the running loop.
"""

from __future__ import annotations

import asyncio
import logging
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
from recruiter.domain.arguments.results import (
    HasResult,
    StepResult,
    as_argument,
    contains_results,
    filled,
)
from recruiter.domain.arguments.results import stored as stored_as_argument
from recruiter.domain.arguments.typed import Mismatch
from recruiter.domain.duration import UNTIL_SIGNAL, to_timedelta
from recruiter.domain.job import Execution, Job
from recruiter.domain.names import DEFAULT_METHOD, id_told
from recruiter.domain.policy_registry import PolicyRegistry
from recruiter.domain.retry.decision import (
    Archive,
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
    UnsupportedValue,
)
from recruiter.events import Event
from recruiter.instruments import AttemptEnd, AttemptStart, ProcessDeath
from recruiter.interruption import Interruptible
from recruiter.registry import Call, FunctionTask, Registry, RegistryOwner, TaskDefinition
from recruiter.store import outcomes
from recruiter.store.codec import Document, archived_from, decode, id_of, job_from, progress_fields
from recruiter.store.job_fields import may_expire, progress_from
from recruiter.store.job_transaction import AsyncJobTransaction, JobTransaction
from recruiter.store.outcomes import Outcome, Rescheduled, Settled, ToArchive
from recruiter.store.payload import PLAIN, Owner, Payload, Sealed, is_sealed, owner_of
from recruiter.store.runs import Checkpoints, Run
from recruiter.store.transactions import InTransaction

_log = logging.getLogger(__name__)
LONGEST_TRACE = 8_000
HERE = "here"
"""The worker of a job that runs in the process that makes it, and was never stored."""
_REPEATED, _REPEATED_LATER = 20.0, 1.0
"""Seconds for which a job runs again whose own transaction meets others; then it goes back, and comes again later."""
_MOST_CONFLICTS = 10
"""Maximum number of times that a job goes back because of conflicts. Then its attempt fails: after more than three
minutes of conflicts, the retry policy and people should know. An outage of MongoDB counts once, no matter how long it
lasts: the job goes back when MongoDB answers again."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.5

_AROUND_JOBS = (str(Path(__file__).parent.parent), str(Path(asyncio.__file__).parent))
"""The code that calls user code."""

Awaiting = Generator[Coroutine[Any, Any, Any], Any, Any]
"""A computation that hands out coroutines, and receives their results or errors."""

Limit = Callable[[float], AbstractContextManager[None]]
"""Makes the context in which user code runs that has this many seconds."""


def no_limit(_seconds: float) -> AbstractContextManager[None]:
    return nullcontext()


class Executor:
    """Runs jobs, one attempt after the other or many at the same time, and returns their outcomes."""

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
        """Like `run`, in the running event loop; for jobs that are `is_async`."""
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
            return False  # it cannot be read; `run` reports that

    def close(self) -> None:
        self._loops.close()

    # -- one attempt ---------------------------------------------------------------------------------------------

    def _attempt(self, raw: bytes, interruptible: Interruptible, hard: Limit, on_progress: OnProgress) -> Awaiting:
        """The whole attempt, from the stored document to the outcome. Every error becomes an outcome."""
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
        self._let_instruments_follow(attempt)
        try:
            outcome = yield from self._run(task, attempt, interruptible, hard)
            if self.worker == HERE and isinstance(outcome, Rescheduled):
                return outcome.with_fields(_new_checkpoints(attempt))  # nothing of the job has been stored before
            return outcome
        except Exception as error:  # a field of the document has an invalid value
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

    def application_of(self, task: str) -> RegistryOwner | None:
        """The application that this task is of; workables are the first one's."""
        for owner in self._owners:
            if owner.registry.has(task):
                return owner
        return self._owners[0] if self._owners else None

    def progress(self, document: Mapping[str, Any], on_progress: OnProgress) -> AttemptProgress:
        return AttemptProgress(progress_from(document), self._clock.now, on_progress)

    # -- what happens --------------------------------------------------------------------------------------------

    def _run(self, task: TaskDefinition, attempt: Attempt, interruptible: Interruptible, hard: Limit) -> Awaiting:
        """Runs the job, and returns the outcome that follows from its result or error."""
        calls: list[Call] = []
        timeout, payload = attempt.document.get("timeout"), self._payload(attempt.document)
        try:
            with nullcontext() if timeout is None else _Timed(timeout, interruptible, hard):
                result = yield from self._call_job(task, attempt, interruptible, payload, calls)
            stored = _stored(task, attempt.document, payload, result) if _committed(attempt) is None else None
        except BaseException as error:  # SystemExit and KeyboardInterrupt are the job's, not the worker's
            interruptible.leave()
            call = calls[-1] if calls else None
            if _committed(attempt) is not None:
                return (yield from self._settled(attempt, call, _real_error(error, interruptible), None))
            if isinstance(error, PayloadSealed) and call is None:  # another worker may have the key
                return outcomes.unopened(attempt.document, self._clock.now(), str(error))
            if isinstance(error, RetryLater | JobPauses):
                return (yield from self._later(attempt, call, error))
            if isinstance(interruptible.error, JobCancelled):  # whatever it raised on its way out
                return (yield from self._cancelled(attempt, call, interruptible.error))
            return (yield from self._failed(attempt, call, _real_error(error, interruptible)))
        if _committed(attempt) is not None:
            return (yield from self._settled(attempt, calls[-1], None, result))
        ended_at = self._clock.now()
        notes = yield from self._call_after_success(attempt, calls[-1], result, ended_at)
        changed = _changed_code(attempt)
        execution = Execution(
            attempt.started_at, ended_at, self.worker, notes=(*notes, *filter(None, [changed])), span=attempt.span
        )
        return outcomes.succeeded(_with_progress(attempt), execution, ended_at, stored)

    def _call_job(
        self,
        task: TaskDefinition,
        attempt: Attempt,
        interruptible: Interruptible,
        payload: Payload,
        calls: list[Call],
    ) -> Awaiting:
        """Calls the job and returns its result. The call is repeated as long as the job's own transaction has to be
        repeated. Each `Call` is added to `calls` before it runs."""
        document, pause, until = attempt.document, _FIRST_PAUSE, time.monotonic() + _REPEATED
        while True:
            try:
                with interruptible, _OneProcess(), _Ungrouped(self._clock.now):
                    args = _arguments(document, payload)
                    try:
                        call = task.call(args, document.get("method") or DEFAULT_METHOD)
                    except InvalidArguments as error:
                        raise _with_missing_steps(document, error) from None
                    calls.append(call)
                    if len(calls) == 1:
                        self._tell(attempt, call, "job.started")
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
                if document.get("at_most_once"):  # the code before the transaction must not run twice
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

    def _call_after_success(self, attempt: Attempt, call: Call, result: Any, ended_at: datetime) -> Awaiting:
        """Calls finalizers and listeners after a success; returns what went wrong in the finalizers."""
        finalizers = call.finalizers
        notes: tuple[str, ...] = ()
        if finalizers:
            notes = yield from _call_finalizers(
                ("after_success", finalizers.after_success, result), ("finalize", finalizers.finalize, None)
            )
        _follow_end(attempt, AttemptEnd("succeeded"))
        seconds = (ended_at - attempt.started_at).total_seconds()
        self._tell(attempt, call, "job.ended", done=True, seconds=seconds)
        return notes

    def _settled(self, attempt: Attempt, call: Call | None, error: BaseException | None, returned: Any) -> Awaiting:
        """The outcome of a job that has ended in its own transaction. Errors and results that came after the commit
        change nothing; they are noted."""
        committed = _committed(attempt)
        assert committed is not None
        notes: tuple[str, ...] = ()
        if call is not None:
            notes = yield from self._call_after_success(attempt, call, attempt.result, self._clock.now())
        if error is not None and not (isinstance(error, JobEnded) and attempt.run.answer_was_lost):
            notes += (f"raised {exception_names(type(error))[0]} after its transaction: {said_by(error)}",)
        elif returned is not None and attempt.stored_result is None:
            notes += (
                "returned a value after its transaction; only current_job.set_result() inside the block keeps it",
            )
        if attempt.said is not None:
            attempt.said.close()
        return Settled(committed.event._replace(notes=notes), committed.document)

    # -- writes of a job -----------------------------------------------------------------------------------------

    def now(self) -> datetime:
        return self._clock.now()

    def stored_result(self, document: Mapping[str, Any], value: Any) -> Any:
        return _stored(self._registry.get(document["task"]), document, self._payload(document), value)

    def _payload(self, document: Mapping[str, Any]) -> Payload:
        payload: Payload = getattr(self.application_of(document["task"]), "payload", PLAIN)
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

    def note_session(self, attempt: Attempt, session: InTransaction) -> None:
        run = self._run_of(attempt)
        if run.stored:
            run.note(run.store.transactions.sessions.id_of(session))

    def _run_of(self, attempt: Attempt) -> Run:
        """The writer of the job, made at the first call: for its checkpoints, its waits and its own transaction."""
        if attempt.over:
            raise NoCurrentJob(f"job {id_told(attempt.id)} has ended and can write nothing more")
        owner: Any = self.application_of(attempt.document["task"])
        if owner is None:
            raise NoCurrentJob("this job runs without an application")
        succeeded, stored = partial(self._outcome_now, attempt), self.worker != HERE
        about = (lambda: owner.store, attempt.document, self.worker, attempt.started_at, succeeded)
        run: Run = attempt.made("run", lambda: Run(*about, stored=stored))
        return run

    def _outcome_now(self, attempt: Attempt) -> ToArchive:
        """The outcome of a job that ends in its own transaction: it succeeds now."""
        now = self._clock.now()
        said = {} if attempt.said is None else progress_fields(attempt.said.so_far())
        notes = tuple(filter(None, [_changed_code(attempt)]))
        execution = Execution(attempt.started_at, now, self.worker, notes=notes, span=attempt.span)
        document = {**attempt.document, **said, **_new_checkpoints(attempt)}
        return outcomes.succeeded(document, execution, now, attempt.stored_result)

    def _failed(self, attempt: Attempt, call: Call | None, error: BaseException) -> Awaiting:
        """Decides about a failed attempt, calls finalizers and listeners, and returns the outcome."""
        now = self._clock.now()
        try:
            decision = outcomes.decide_for(attempt.document, self.policy(attempt.document), now, error)
        except RecruiterError as broken:
            decision = Archive(Why.POLICY_FAILED, str(broken))
        is_last = isinstance(decision, Archive)
        notes: tuple[str, ...] = ()
        if call is not None:
            finalizers = call.finalizers
            notes = yield from _call_finalizers(
                ("after_failure", finalizers.after_failure, error),
                ("after_last_failure", finalizers.after_last_failure if is_last else (), error),
                ("finalize", finalizers.finalize, error),
            )
        execution = Execution(
            attempt.started_at,
            now,
            self.worker,
            exception=exception_names(type(error))[0],
            message=said_by(error),
            trace=said_by(error, _trace, LONGEST_TRACE),
            notes=notes,
            span=attempt.span,
        )
        outcome = outcomes.failed(_with_progress(attempt), execution, now, decision)
        self._tell(attempt, call, "job.ended", done=False, seconds=(now - attempt.started_at).total_seconds())
        retried_at = decision.at if isinstance(decision, Retry) else None
        _follow_end(attempt, AttemptEnd("failed" if is_last else "retried", error, retried_at))
        if outcome.event is not None:
            self._tell(attempt, call, outcome.event.name, **outcome.event.fields)
        return outcome

    def _cancelled(self, attempt: Attempt, call: Call | None, cancelled: JobCancelled) -> Awaiting:
        """Calls finalizers and listeners of a job that was cancelled while it ran, and returns the outcome."""
        notes: tuple[str, ...] = ()
        if call is not None:
            notes = yield from _call_finalizers(("finalize", call.finalizers.finalize, cancelled))
        now = self._clock.now()
        _follow_end(attempt, AttemptEnd("cancelled", cancelled))
        self._tell(attempt, call, "job.cancelled", by=cancelled.by, reason=cancelled.reason)
        flag = {"at": cancelled.at or now, "by": cancelled.by, "reason": cancelled.reason}
        execution = Execution(
            attempt.started_at, now, self.worker, message=str(cancelled), notes=notes, span=attempt.span
        )
        return outcomes.cancelled({**_with_progress(attempt), "cancel": flag}, now, execution)

    def _later(self, attempt: Attempt, call: Call | None, later: RetryLater | JobPauses) -> Awaiting:
        """The outcome of a job that asked to run later: nothing has failed, unless it asks for the impossible."""
        now = self._clock.now()
        try:
            until = _until(later, now)
            if attempt.document.get("at_most_once"):
                raise InvalidJob("an at-most-once job has started and cannot be run again later")
        except RecruiterError as error:
            return (yield from self._failed(attempt, call, error))
        if call is not None:
            yield from _call_finalizers(("finalize", call.finalizers.finalize, None))
        _follow_end(attempt, AttemptEnd("snoozed", next_at=until))
        self._tell(attempt, call, "job.snoozed", next=until, reason=said_by(later))
        changed = _changed_code(attempt) if isinstance(later, JobPauses) else None
        document, started_at = _with_progress(attempt), attempt.started_at
        if isinstance(later, JobPauses):
            told = str(later) if changed is None else f"{later}; {changed}"
            kept = attempt.checkpoints
            checkpoints = None if kept is None else kept.at_the_pause(later.checkpoint)
            return outcomes.paused(document, now, until, later, told, started_at, checkpoints)
        also = {"conflicts": (document.get("conflicts") or 0) + 1} if isinstance(later, _Conflict) else {}
        return outcomes.snoozed(document, now, until, said_by(later), started_at, also=also)

    def _let_instruments_follow(self, attempt: Attempt) -> None:
        if not any(owner.instruments for owner in self._owners):
            return
        owner = self.application_of(attempt.document["task"])
        if owner is None or not owner.instruments:
            return
        with suppress(RecruiterError):  # a field cannot be read; the run reports it
            start = AttemptStart(self.job(attempt.document), attempt.number, self.worker, owner)
            attempt.following = owner.instruments.attempt(start)

    def report_end(self, raw: bytes) -> None:
        """Tells the instruments how a job has ended whose process died, by its document in the archive."""
        try:
            document = decode(raw)
            job, application = archived_from(document), self.application_of(document["task"])
        except Exception:
            return  # it cannot be read: `recruiter doctor` reports it
        if is_sealed(job.args):
            with suppress(RecruiterError):  # without the key, its arguments stay sealed
                job = replace(job, args=self._payload(document).open_arguments(job.task, job.args, owner_of(document)))
        if application is not None:
            application.instruments.process_died(ProcessDeath(job, application))

    def flush(self) -> None:
        """The process is about to end: instruments send their data now."""
        for owner in self._owners:
            owner.instruments.flush()

    def _tell(self, attempt: Attempt, call: Call | None, name: str, **fields: Any) -> None:
        """Emits an event to the listeners of the application, and to the workable itself."""
        listener = call.listener if call is not None else None
        if listener is None and not any(owner.events.heard for owner in self._owners):
            return
        job = attempt.document
        about = {"job": job["_id"], "task": job["task"], "attempt": job["attempts"] + 1, "worker": self.worker}
        if attempt.trace_id is not None:
            about["trace_id"] = attempt.trace_id
        fields = {**about, **fields}
        for owner in self._owners:
            owner.events.emit(name, **fields)
        if listener is not None:
            try:
                listener(Event(name, fields))
            except BaseException as error:
                failure = {"listener": said_by(listener, repr), "event": name, "error": said_by(error, repr)}
                for owner in self._owners:
                    owner.events.emit("listener.failed", **failure)


def _stored(task: TaskDefinition, document: Mapping[str, Any], payload: Payload, result: Any) -> Any:
    """The result in its stored form. Raises UnsupportedValue."""
    if isinstance(result, StepResult) or (
        isinstance(result, list) and result and all(isinstance(item, StepResult) for item in result)
    ):
        return _delegated(task, document, result)
    try:
        encoded = task.encode_result(result)
    except UnsupportedValue:
        if contains_results(result, (StepResult, HasResult)):
            raise UnsupportedValue(
                "result: a step returns `step.result` of another step, or a list of such results, and nothing with it"
            ) from None
        raise
    return payload.seal(Sealed.RESULT, owner_of(document), encoded)


def _delegated(task: TaskDefinition, document: Mapping[str, Any], result: StepResult | list[StepResult]) -> Any:
    """The stored form of the results of other steps. It is not sealed: the leader copies those results."""
    others = result if isinstance(result, list) else [result]
    for other in others:
        if (document.get("flow") or {}).get("id") != other.flow:
            raise UnsupportedValue(f"result: {other!r} can only be returned by a step of the same flow")
        if document["flow"]["step"] == other.step:
            raise UnsupportedValue(f"result: {other!r} is the result of this step itself")
    if isinstance(task, FunctionTask):
        try:
            stored_as_argument(result, task.signature.returns)
        except Mismatch as mismatch:
            raise UnsupportedValue(f"result: {mismatch}") from None
    return [other.stored() for other in others] if isinstance(result, list) else result.stored()


def _arguments(document: Document, payload: Payload = PLAIN) -> Any:
    """The opened arguments of a job. A step that takes results of other steps has them in their places."""
    args = payload.open_arguments(document["task"], document["args"], owner_of(document))
    results = _results(document)
    if results is None:
        return args
    return filled(args, [{**result, "value": _opened(payload, result)} for result in results])


def _opened(payload: Payload, result: Document) -> Any:
    if "items" in result:
        return [as_argument(_opened(payload, item)) for item in result["items"]]
    return payload.open(Sealed.RESULT, Owner(result["of"] if "of" in result else result["step"]), result.get("value"))


def _results(document: Document) -> Sequence[Document] | None:
    """The results of other steps that are among its arguments; None of a job that takes none."""
    flow = document.get("flow")
    return flow["results"] if flow is not None and "takes" in flow else document.get("step_results")


def _with_missing_steps(document: Document, error: InvalidArguments) -> InvalidArguments:
    """The error for arguments that do not fit, with the steps that have no result although one is an argument."""
    results = {result["step"]: result for result in _results(document) or ()}
    takes = (document.get("flow") or {}).get("takes") or results
    missing = [step for step in takes if "items" not in (found := results.get(step, {})) and found.get("value") is None]
    if not missing:
        return error
    steps = ", ".join(str(step) for step in missing)
    return InvalidArguments(
        f"{error}. Its arguments need the results of other steps, and step {steps} gave no result: it returned none, "
        f"did not succeed, or returned more than can be kept; `recruiter job show {missing[0]}` shows the reason. A "
        "parameter that may be without a result is annotated `… | None`"
    )


def _follow_end(attempt: Attempt, end: AttemptEnd) -> None:
    if attempt.following is not None:
        attempt.following.ended(end)


def _committed(attempt: Attempt) -> ToArchive | None:
    """The outcome of a job that has ended in its own transaction."""
    committed: ToArchive | None = attempt.run.committed if attempt.run is not None else None
    return committed


def _with_progress(attempt: Attempt) -> Document:
    """The document with the progress and the checkpoints of this attempt, which can no longer report progress."""
    said = {} if attempt.said is None else progress_fields(attempt.said.close())
    return {**attempt.document, **said, **_new_checkpoints(attempt)}


def _new_checkpoints(attempt: Attempt) -> Document:
    fields: Document = {} if attempt.checkpoints is None else attempt.checkpoints.fields()
    return fields


def _changed_code(attempt: Attempt) -> str | None:
    """What the code of the job does differently than in an earlier run, as far as its checkpoints show; logged."""
    changed: str | None = None if attempt.checkpoints is None else attempt.checkpoints.changes()
    if changed is not None:
        _log.warning("job %s of task %s: %s", id_told(attempt.id), attempt.document["task"], changed)
    return changed


class _Timed:
    """The code inside is interrupted after this many seconds. The supervisor knows the deadline."""

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
    """A job may fork. The copy ends where the job's code ends: it must not continue as a second worker."""

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
    """A task group wraps the exceptions that leave it. A group that holds only pauses, or only exceptions that repeat
    the job, leaves as the first of them that ends; the next run meets the others."""

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


def _call_finalizers(*finalizers: tuple[str, Iterable[Callable[[Any], Any]], Any]) -> Awaiting:
    """Calls finalizers in order, each once; returns what went wrong in them."""
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
    return TransactionRepeats(f"{again}. The job has been put off for that {conflicts} times, which is the maximum")


class _Stopped(BaseException):
    """The StopIteration of a job: a generator cannot raise it unchanged."""

    def __init__(self, error: StopIteration) -> None:
        self.error = error


def _real_error(error: BaseException, interruptible: Interruptible) -> BaseException:
    """The exception of the interruption, which may have been thrown as a similar one; or the exception of the job."""
    if isinstance(error, _Stopped):
        error = error.error
    meant = interruptible.error
    if meant is None or not isinstance(error, type(meant)):
        return error
    return meant.with_traceback(error.__traceback__)


def _throwable(error: BaseException) -> BaseException:
    """A generator that is thrown a GeneratorExit must end; ours still has to return the outcome of the job."""
    return RuntimeError("the job raised GeneratorExit") if isinstance(error, GeneratorExit) else error


def _trace(error: BaseException) -> str:
    """From the first line of the user's own code on: how a worker calls it is the same for every job."""
    first = error.__traceback__
    while first is not None and first.tb_frame.f_code.co_filename.startswith(_AROUND_JOBS):
        first = first.tb_next
    return "".join(traceback.format_exception(type(error), error, first or error.__traceback__))
