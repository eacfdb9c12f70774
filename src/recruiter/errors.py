"""Every exception Recruiter raises, in one place.

RecruiterError
├── InvalidJob                     a job that must not be stored
│   ├── InvalidName                the name of a task, group, tag or urn is invalid
│   ├── InvalidArguments           arguments that do not fit the task's signature
│   ├── UnsupportedValue           a value that cannot travel through BSON
│   ├── InvalidDuration            not a number, a timedelta or a text such as "5 minutes"
│   ├── InvalidSchedule            a cron expression, time zone or schedule policy that cannot be used
│   ├── InvalidFlow                a flow with a cycle, an unknown step, or no step
│   ├── JobTooLarge                larger than a MongoDB document may be
│   ├── JobExists                  a job with this id is already there
│   └── InvalidSession             a session that cannot carry this job
├── JobsRefused                    some of many jobs were not stored (an exception group)
├── UnreadableDocument             a document in MongoDB that is not what its collection holds
├── InvalidFilter                  a filter for jobs, or the place to go on from, that cannot be used
├── UnknownTask                    no task of this name is registered here
├── TaskExists                     two different functions have the same name
├── JobNotFound                    no job with this id
├── JobSucceeded                   a job that succeeded is recovered only with again=True
├── JobNotWaiting                  a job that cannot be rescheduled or reprioritised now
├── FlowNotFound                   no flow with this id
├── SchedulerNotFound              no scheduler with this urn
├── WorkerNotFound                 no worker with this id is on the roster
├── LimitNotFound                  no limit on this subject
├── JobFailed                      waited for a result; the job ended without one
├── ResultTimeout                  waited for a result; the time is over
├── JobTimedOut                    raised inside a job whose time is over
├── JobOutOfMemory                 a job used more memory than it may, and was ended with its process
├── JobBlockedOthers               a job held up the others in its process, and was ended with it
├── RetryLater                     raised by a job that wants to be run again later
├── CommandFailed                  a program was not allowed, could not be started, or ended badly
├── NoCurrentJob                   current_job was asked outside of a job
├── ApplicationError               the bootstrap file or module cannot be loaded
├── SettingsError                  an option, variable or the settings file is invalid
├── StoreError                     MongoDB cannot be used
│   ├── StoreUnreachable           no server answers, or what was asked was interrupted: it passes, try again
│   ├── DocumentLocked             another transaction has written a document, and is still open: it passes
│   ├── DocumentRefused            the server or the driver cannot store this document
│   ├── StoreRefused               the server answers, and says no (authentication, rights)
│   ├── NotAReplicaSet             the server is standalone; transactions need a replica set
│   ├── ServerTooOld               the server is older than Recruiter supports
│   ├── ForeignCollection          a collection that Recruiter needs belongs to another program
│   ├── SchemaMismatch             the database is prepared for a much older or newer Recruiter
│   └── InvalidTarget              the address cannot be understood
├── EmbeddedError                  the private MongoDB
│   ├── NoServerBinary             no mongod anywhere on this machine
│   └── ServerDidNotStart          mongod was started and did not come up
├── NotAlone                       a flush on a database where other processes work
├── ReadOnly                       the web console was asked to act, and is read-only
├── TooManyViewers                 the web console serves as many live pages and large actions as it can
├── JobEnded                       a job that has ended in its own transaction wants to go on
├── PayloadSealed                  arguments or a result that this process cannot open
├── SignalTimeout                  a job waited for a signal; the time is over
├── JobPauses                      raised inside a job that sleeps, or waits for a signal (a BaseException)
├── TransactionFailed              a job's own transaction that can never be committed
├── TransactionRepeats             raised inside a job whose own transaction must run again (a BaseException)
├── JobCancelled                   raised inside a job that somebody has cancelled (a BaseException)
└── Superseded                     this process lost its place: its worker was retired or its term is over
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Self


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
    """Not a duration; write a number of seconds, a timedelta or a text such as "5 minutes"."""


class InvalidSchedule(InvalidJob):
    """A cron expression, a time zone or a schedule policy that cannot be used; the message names what to correct."""


class InvalidFlow(InvalidJob):
    """The flow is invalid: its steps wait for each other, or for a step of another flow; or it has ended, or was
    cancelled, and this can no longer be done. Nothing was stored."""


class JobTooLarge(InvalidJob):
    """The job is larger than a MongoDB document may be; store the data elsewhere and pass its key."""


class JobExists(InvalidJob):
    """A job with this id is already there; it was left as it is."""


class InvalidSession(InvalidJob):
    """A session that cannot carry this job: it must be awaited, or is of another deployment, or has no transaction."""


class JobsRefused(RecruiterError, ExceptionGroup[RecruiterError]):
    """Some of many jobs were not stored, or it is not known whether they are (StoreUnreachable); the others are.

    `errors` has the error of each by its position in what was given, `handles` the handle of each that is stored, or
    None. It is an exception group: `except* JobExists` works.
    """

    errors: dict[int, RecruiterError]
    handles: list[Any]

    def __new__(cls, errors: dict[int, RecruiterError], handles: list[Any]) -> Self:
        told = "; ".join(f"number {place}: {error}" for place, error in list(errors.items())[:_TOLD])
        more = f"; and {len(errors) - _TOLD} more" if len(errors) > _TOLD else ""
        text = f"{len(errors)} of {len(handles)} jobs were not stored: {told}{more}"
        refused = super().__new__(cls, text, list(errors.values()))
        refused.errors, refused.handles = dict(errors), list(handles)
        return refused

    def __init__(self, *_: object) -> None:
        pass

    def derive(self, excs: Sequence[Any], /) -> ExceptionGroup[Any]:
        """A part of it, for `except*`: a plain group."""
        return ExceptionGroup(self.message, excs)


_TOLD = 5


class UnreadableDocument(RecruiterError):
    """A document in MongoDB is not what its collection holds; somebody wrote it by hand. `recruiter doctor` names each,
    with its reason and what to do."""


class InvalidFilter(RecruiterError):
    """The filter or the cursor is invalid; the message names what to correct."""


class UnknownTask(RecruiterError):
    """No task of this name is registered here; import the module that defines it."""


class TaskExists(RecruiterError):
    """Two different functions or classes have the same task name; give one of them `name=`."""


class JobNotFound(RecruiterError):
    """No job with this id, neither waiting nor archived (the cleaner may have removed it)."""


class JobSucceeded(RecruiterError):
    """The job succeeded, so recovering it would do its work a second time; give `again=True` if you mean that."""


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
    """The job ended without a result; the message says why, `recruiter job show ID` says everything."""


class ResultTimeout(RecruiterError, TimeoutError):
    """The job has not ended yet; it goes on, and you can wait again or wait longer."""


class JobTimedOut(RecruiterError):
    """The job's time is over. Raised inside it, so that it cleans up and ends; a job that does not end is ended
    with its process.

    No TimeoutError, which is an OSError: code that expects one of those would swallow it.
    """

    def __str__(self) -> str:
        return super().__str__() or "the job's time is over"


class JobOutOfMemory(RecruiterError):
    """The job used more memory than it asked for, or than the worker allows; its process was ended."""


class JobBlockedOthers(RecruiterError):
    """A job held the event loop or the interpreter of its process until the time of another job there was over; it was
    ended with its process. Await what takes long, or write it as a plain `def`, which runs in a thread."""


class JobCancelled(BaseException):
    """The job was cancelled. Raised inside it, so that it cleans up and ends; a job that does not end is ended
    with its process.

    Not an Exception, like asyncio's CancelledError: code that catches everything must not go on as if nothing happened.
    """

    def __init__(self, by: str | None = None, reason: str | None = None, at: datetime | None = None) -> None:
        told = f"cancelled by {by or 'somebody'}" + (f": {reason}" if reason else "")
        super().__init__(told)
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
    """The job has ended in its own transaction (`current_job.transaction`): the commit is final, and what it does after
    that changes nothing."""


class TransactionFailed(RecruiterError):
    """The job's own transaction (`current_job.transaction`) could not be committed, and would not be if it ran again:
    its block caught the error of an operation, took longer than MongoDB allows, or got a client that does not find its
    MongoDB. Nothing was written, and the attempt has failed."""


class TransactionRepeats(BaseException):
    """The job's own transaction met another one, or MongoDB changed its primary: nothing was written, and the job runs
    again from its beginning, with no attempt counted. If it happens without end, the attempt fails with it.

    Not an Exception: code that catches everything must not go on as if the transaction had been committed. A job that
    catches even this, and ends, is run again all the same.
    """


class PayloadSealed(RecruiterError):
    """Arguments or a result were encrypted or compressed by a codec, and this process does not have it, or not the key.
    Give it the same `codec=` as the producers have."""


class SignalTimeout(RecruiterError, TimeoutError):
    """No signal came within the time that `current_job.wait_for` was given. It is raised again in every later run."""


class JobPauses(BaseException):
    """The job sleeps, or waits for a signal: it leaves its slot, and runs again from its beginning when it is time.

    Not an Exception: code that catches everything must not go on as if the pause were over.
    """

    def __init__(
        self,
        told: str,
        *,
        delay: timedelta | None = None,
        until: datetime | None = None,
        checkpoints: list[dict[str, Any]] | None = None,
        waits_for: Any = None,
        signal: tuple[str, int] | None = None,
    ) -> None:
        super().__init__(told)
        self.delay = delay
        self.until = until
        self.checkpoints = checkpoints
        self.waits_for = waits_for
        self.signal = signal


class CommandFailed(RecruiterError):
    """A program was not allowed to run, could not be started, or ended with a code that is not one of its
    `ok_codes`. `code` is its exit code (-9 if signal 9 ended it), or None if it never ran."""

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
    """Another transaction has written a document that is to be written here, and has not ended yet. Nothing was
    written; try again later."""


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
    """Others work on this database; stop them, or use a database of your own, as tests should."""


class Superseded(RecruiterError):
    """This process lost its place: its worker was retired, or its term as leader is over."""


class ReadOnly(RecruiterError):
    """The web console is read-only; start it with `--actions`, or give `actions=True`."""


class TooManyViewers(RecruiterError):
    """The web console serves as many live pages and actions on many jobs as it can; close some, or wait."""
