"""A child's place of work, for tests that run jobs without a child."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from recruiter import Recruiter
from recruiter.clock import StoppedClock
from recruiter.domain.job import Job
from recruiter.domain.retry.decision import RetryPolicy
from recruiter.steps.execute import Executor
from recruiter.store.codec import Document, decode, encode, job_document
from recruiter.store.outcomes import Outcome, ToArchive
from tests.samples import NOW, a_job


class Bench:
    """Tasks, policies, and an executor for them."""

    def __init__(self) -> None:
        self.recruiter = Recruiter("127.0.0.1:1")  # never asked
        self.clock = StoppedClock(NOW)
        self.executor = Executor(self.recruiter.registry, self.recruiter.policies, self.clock, "w1")

    def run(self, function: Callable[..., Any], *args: Any, **options: Any) -> Outcome | None:
        name = f"tried{len(self.recruiter.registry.names())}"
        task = self.recruiter.task(name=name)(function)
        return self.of_job(a_job(task=task.name, args=list(args), **options))

    def of_job(self, job: Job) -> Outcome | None:
        return self.executor.run(encode(job_document(job)))

    def archived(self, function: Callable[..., Any], *args: Any, **options: Any) -> Document:
        return ended(self.run(function, *args, **options))

    def policy(self, policy: RetryPolicy) -> Mapping[str, Any]:
        return self.recruiter.policies.dump(policy)


def ended(outcome: Outcome | None) -> Document:
    assert isinstance(outcome, ToArchive), f"not archived: {outcome!r}"
    return decode(outcome.document)


def failing() -> None:
    raise ValueError("no good")


def raising(error: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail
