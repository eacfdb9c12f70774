"""`current_job`: what a job can know about itself while it runs, in this thread or task and whatever they call.

from recruiter import current_job

@recruiter.task(retry=RetryManyTimes(3, "1 minute"))
def import_orders() -> None:
    if current_job.is_last_attempt:
        warn_somebody(current_job.id, current_job.previous_failure)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from recruiter.domain.job import Execution, Job, JobId
from recruiter.domain.retry import Failure, RetryPolicy, is_last
from recruiter.errors import NoCurrentJob, RecruiterError

if TYPE_CHECKING:
    from recruiter.app import Recruiter


class Runner(Protocol):
    """Whoever runs jobs here, to be asked about one of them."""

    @property
    def worker(self) -> str: ...

    def job(self, document: Mapping[str, Any]) -> Job: ...

    def policy(self, document: Mapping[str, Any]) -> RetryPolicy | None: ...

    def owner(self, task: str) -> Any: ...

    def stop_asked(self) -> bool: ...


class Attempt:
    """One run of a job. Cheap to make: everything is found out when somebody asks."""

    __slots__ = ("document", "runner", "started_at")

    def __init__(self, document: Mapping[str, Any], started_at: datetime, runner: Runner) -> None:
        self.document = document
        self.started_at = started_at
        self.runner = runner

    @property
    def id(self) -> JobId:
        identity: JobId = self.document["_id"]
        return identity

    @property
    def number(self) -> int:
        """1 for the first attempt."""
        return int(self.document.get("attempts") or 0) + 1


running: ContextVar[Attempt | None] = ContextVar("recruiter_job", default=None)


class CurrentJob:
    """The job that runs here. Outside of a job it is false, and asking it anything raises NoCurrentJob."""

    def __bool__(self) -> bool:
        return running.get() is not None

    @property
    def id(self) -> JobId:
        return self._attempt.id

    @property
    def job(self) -> Job:
        """The whole job, as it waited."""
        attempt = self._attempt
        return attempt.runner.job(attempt.document)

    @property
    def task(self) -> str:
        return self.job.task

    @property
    def args(self) -> Mapping[str, Any] | Sequence[Any]:
        """The arguments as they are stored."""
        return self.job.args

    @property
    def group(self) -> str:
        return self.job.group

    @property
    def tags(self) -> tuple[str, ...]:
        return self.job.tags

    @property
    def urn(self) -> str | None:
        return self.job.urn

    @property
    def owner(self) -> str | None:
        """Whose job it is, as `owned_by` said."""
        return self.job.username

    @property
    def worker(self) -> str:
        """Where it runs: the worker's id on the roster, or "here" in the process that made it."""
        return self._attempt.runner.worker

    @property
    def attempt(self) -> int:
        """1 in the first attempt."""
        return self._attempt.number

    @property
    def started_at(self) -> datetime:
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

    @property
    def recruiter(self) -> Recruiter:
        """The application it belongs to, to enqueue more jobs with."""
        owner = self._attempt.runner.owner(self.task)
        if owner is None:
            raise NoCurrentJob("this job runs without an application")
        recruiter: Recruiter = owner
        return recruiter

    @property
    def _attempt(self) -> Attempt:
        attempt = running.get()
        if attempt is None:
            raise NoCurrentJob("no job runs here; current_job works inside a task or workable while it runs as a job")
        return attempt

    def __repr__(self) -> str:
        attempt = running.get()
        return "CurrentJob(none)" if attempt is None else f"CurrentJob({attempt.id!r}, attempt={attempt.number})"


current_job = CurrentJob()
