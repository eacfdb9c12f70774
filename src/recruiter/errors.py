"""Every exception that Recruiter raises. docs/reference/errors.md shows them as a tree."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Self


class RecruiterError(Exception):
    """The root of every error that Recruiter raises itself."""


class InvalidJob(RecruiterError):
    """The job is invalid; nothing was stored."""


class InvalidName(InvalidJob):
    """The name of a task, group, tag or urn is invalid."""


class InvalidArguments(InvalidJob):
    """The arguments do not fit the task's signature; correct the call, nothing was stored."""


class UnsupportedValue(InvalidJob):
    """A value that cannot travel through BSON; the message names the path to it."""


class InvalidDuration(InvalidJob):
    """Not a duration; write a number of seconds, a timedelta or a string such as "5 minutes"."""


class InvalidSchedule(InvalidJob):
    """A cron expression, a time zone or a schedule policy that cannot be used; the message names what to correct."""


class InvalidFlow(InvalidJob):
    """The flow is invalid: its steps wait for each other, or for a step of another flow; or it has ended, or was
    cancelled, and this can no longer be done. Nothing was stored."""


class JobTooLarge(InvalidJob):
    """The job is larger than a MongoDB document may be; store the data elsewhere and pass its key."""


class JobExists(InvalidJob):
    """A job with this id exists already; it was not changed."""


class InvalidSession(InvalidJob):
    """A session that cannot carry this job: it must be awaited, or is of another deployment, or has no transaction."""


class JobsRefused(RecruiterError, ExceptionGroup[RecruiterError]):
    """Some of many jobs were not stored, or it is not known whether they are (StoreUnreachable); the others are.

    `errors` has the error of each refused job by its position in the call; `handles` has the handle of each stored job,
    and None for the others. It is an exception group: `except* JobExists` works.
    """

    errors: dict[int, RecruiterError]
    handles: list[Any]

    def __new__(cls, errors: dict[int, RecruiterError], handles: list[Any]) -> Self:
        first = "; ".join(f"number {place}: {error}" for place, error in list(errors.items())[:_MAX_ERRORS_NAMED])
        left = len(errors) - _MAX_ERRORS_NAMED
        more = f"; and {left} more" if left > 0 else ""
        text = f"{len(errors)} of {len(handles)} jobs were not stored: {first}{more}"
        refused = super().__new__(cls, text, list(errors.values()))
        refused.errors, refused.handles = dict(errors), list(handles)
        return refused

    def __init__(self, *_: object) -> None:
        pass

    def derive(self, excs: Sequence[Any], /) -> ExceptionGroup[Any]:
        """A part of it, for `except*`: a plain group."""
        return ExceptionGroup(self.message, excs)


_MAX_ERRORS_NAMED = 5


class UnreadableDocument(RecruiterError):
    """A document in MongoDB does not fit its collection; another program, or a person, wrote it. `recruiter doctor`
    names each such document, with the reason and the remedy."""


class InvalidFilter(RecruiterError):
    """The filter or the cursor is invalid; the message names what to correct."""


class UnknownTask(RecruiterError):
    """No task of this name is registered here; import the module that defines it."""


class TaskExists(RecruiterError):
    """Two different functions or classes have the same task name; give one a `name=`."""


class JobNotFound(RecruiterError):
    """No job with this id, neither waiting nor archived (the cleaner may have removed it)."""


class JobSucceeded(RecruiterError):
    """The job succeeded, so recovering it would do its work a second time; give `again=True` if you mean that."""


class JobRecovered(RecruiterError):
    """The job was recovered before, so recovering it would do the work of that recovery a second time; give
    `again=True` if you mean that."""


class JobNotWaiting(RecruiterError):
    """The job cannot be changed now: a worker holds it, it waits for a signal or for other steps of its flow, or it is
    being cancelled. Nothing was changed."""


class FlowNotFound(RecruiterError):
    """There is no flow with this id: it was removed with its jobs, or never existed."""


class SchedulerNotFound(RecruiterError):
    """No scheduler with this urn."""


class WorkerNotFound(RecruiterError):
    """No worker with this id is on the roster."""


class LimitNotFound(RecruiterError):
    """No limit on this subject."""


class JobFailed(RecruiterError):
    """The job ended without a result. The message has the reason; `recruiter job show ID` has the details."""


class ResultTimeout(RecruiterError, TimeoutError):
    """The job has not ended yet; it continues, and you can wait again or wait longer."""


class JobTimedOut(RecruiterError):
    """The job's time has expired. Raised inside it, so that it cleans up and ends; a job that does not end is killed
    with its process.

    It is not a TimeoutError, which is an OSError: code that handles an OSError would swallow it.
    """

    def __str__(self) -> str:
        return super().__str__() or "the job's time is over"


class JobOutOfMemory(RecruiterError):
    """The job used more memory than it asked for, or than the worker allows; its process was killed."""


class JobBlockedOthers(RecruiterError):
    """A job held the event loop or the interpreter of its process until the time of another job there expired; it was
    killed with its process. Await long operations, or write the job as a plain `def`, which runs in a thread."""


class JobCancelled(BaseException):
    """The job was cancelled. Raised inside it, so that it cleans up and ends; a job that does not end is killed
    with its process.

    Not an Exception, like asyncio's CancelledError: code that catches everything must not continue as if nothing
    happened.
    """

    def __init__(self, by: str | None = None, reason: str | None = None, at: datetime | None = None) -> None:
        super().__init__(f"cancelled by {by or 'somebody'}" + (f": {reason}" if reason else ""))
        self.by = by
        self.reason = reason
        self.at = at


class RetryLater(RecruiterError):
    """Raise it in a job to be run again later, with no attempt counted: `raise RetryLater("5 minutes")`.

    For "not yet" (the file has not arrived, the API asks to slow down), where nothing has failed.
    """

    def __init__(
        self, delay: timedelta | int | float | str | None = None, *, at: datetime | None = None, reason: str = ""
    ) -> None:
        if (delay is None) == (at is None):
            raise TypeError('RetryLater needs either a delay, as in RetryLater("5 minutes"), or at=datetime')
        super().__init__(reason or f"not before {at if at is not None else delay}")
        self.delay = delay
        self.at = at


class JobEnded(RecruiterError):
    """The job has ended in its own transaction (`current_job.transaction`). The commit is final: the job cannot change
    anything after it."""


class TransactionFailed(RecruiterError):
    """The job's own transaction (`current_job.transaction`) could not be committed, and running it again would not
    help: its block caught the error of an operation, took longer than MongoDB allows, or got a client that does not
    find its MongoDB. Nothing was written, and the attempt has failed."""


class TransactionRepeats(BaseException):
    """The job's own transaction conflicted with another, or MongoDB changed its primary. Nothing was written, and the
    job runs again from its beginning, with no attempt counted. If it keeps happening, the attempt fails with it.

    Not an Exception: code that catches everything must not continue as if the transaction had been committed. A job
    that catches even this, and ends, still runs again.
    """


class PayloadSealed(RecruiterError):
    """Arguments or a result were encrypted or compressed by a codec, and this process does not have it, or not the key.
    Give it the same `codec=` as the producers have."""


class SignalTimeout(RecruiterError, TimeoutError):
    """No signal came within the time that `current_job.wait_for` was given. It is raised again in every later run."""


class JobPauses(BaseException):
    """The job sleeps, or waits for a signal: it leaves its slot, and runs again from its beginning when it is time.

    Not an Exception: code that catches everything must not continue before the pause has ended.
    """

    def __init__(
        self,
        message: str,
        *,
        delay: timedelta | None = None,
        until: datetime | None = None,
        checkpoint: Any = None,
        waits_for: Any = None,
        signals: Sequence[tuple[str, int]] = (),
    ) -> None:
        super().__init__(message)
        self.delay = delay
        self.until = until
        self.checkpoint = checkpoint
        self.waits_for = waits_for
        self.signals = signals


class CommandFailed(RecruiterError):
    """A program was not allowed to run, could not be started, or ended with a code outside its `ok_codes`. `code` is
    its exit code (-9 if signal 9 ended it), or None if it never ran."""

    def __init__(self, message: str, code: int | None = None, stdout: str = "", stderr: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.stdout = stdout
        self.stderr = stderr


class NoCurrentJob(RecruiterError):
    """`current_job` was asked where no job runs; it works inside a task or workable while it runs as a job."""


class ApplicationError(RecruiterError):
    """The bootstrap file or module cannot be loaded; the message holds its own error."""


class SettingsError(RecruiterError):
    """An option, an environment variable or the settings file is invalid; the message names it."""


class StoreError(RecruiterError):
    """MongoDB cannot be used."""


class StoreUnreachable(StoreError):
    """No server answers at this address, or it could not finish: a new primary, a lock, not enough time. Try again."""


class DocumentLocked(StoreError):
    """Another transaction has written the same document and has not ended yet. Nothing was written; try again
    later."""


class DocumentRefused(StoreError):
    """A document that cannot be stored: too large, not valid BSON, or refused by the validator of its collection."""


class StoreRefused(StoreError):
    """The server refuses the request: authentication or rights."""


class NotAReplicaSet(StoreError):
    """The server is standalone. Recruiter needs a replica set; one node is enough."""


class ServerTooOld(StoreError):
    """The server is older than Recruiter supports."""


class ForeignCollection(StoreError):
    """A collection that Recruiter needs was made by another program; nothing was read from it or written to it."""


class SchemaMismatch(StoreError):
    """The database has a schema that this release of Recruiter does not support; the message names both versions."""


class InvalidTarget(StoreError):
    """The address cannot be understood."""


class EmbeddedError(RecruiterError):
    """The private MongoDB for development and tests."""


class NoServerBinary(EmbeddedError):
    """No mongod on this machine; the message lists the ways to get one."""


class ServerDidNotStart(EmbeddedError):
    """mongod was started and did not come up; the message ends with its last log lines."""


class NotAlone(RecruiterError):
    """Other processes work on this database; stop them, or use a separate database, as tests should."""


class Superseded(RecruiterError):
    """This process lost its place: its worker was retired, or its term as leader has ended."""


class ReadOnly(RecruiterError):
    """The web console is read-only; start it with `--actions`, or give `actions=True`."""


class TooManyViewers(RecruiterError):
    """The web console serves as many live pages and actions on many jobs as it can; close some, or wait."""


if not TYPE_CHECKING:  # type checkers understand no computed list
    __all__ = [name for name, value in globals().items() if isinstance(value, type) and value.__module__ == __name__]
