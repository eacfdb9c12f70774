"""Making jobs: what the builder promises, on a real MongoDB with nothing running."""

from __future__ import annotations

import asyncio
from datetime import datetime

import pytest

from recruiter import ArchivedJob, Job, Recruiter, RetryManyTimes, Workable
from recruiter.errors import InvalidArguments, InvalidJob, JobExists, JobFailed


def divide(a: int, b: int) -> float:
    return a / b


class Parcel(Workable):
    def __init__(self, number: int) -> None:
        self.number = number

    def execute(self) -> str:
        return f"parcel {self.number}"

    def weigh(self) -> int:
        return self.number * 2


def test_an_optimistic_job_runs_before_the_call_returns_and_is_archived(recruiter: Recruiter) -> None:
    task = recruiter.task(divide)

    handle = task.job(6, 3).here().execute()

    found = recruiter.find(handle.id)
    assert isinstance(found, ArchivedJob)
    assert (found.done, found.why, handle.result(timeout=5)) == (True, "done", 2.0)


def test_an_optimistic_job_that_fails_waits_for_its_retry_only_if_it_has_one(recruiter: Recruiter) -> None:
    task = recruiter.task(divide)

    retried = task.job(1, 0).retry_with_policy(RetryManyTimes(3, "1 hour"), only=[ZeroDivisionError]).here().execute()
    ended = task.job(1, 0).here().execute()

    waiting = recruiter.find(retried.id)
    assert isinstance(waiting, Job)
    assert (waiting.attempts, waiting.executions[0].exception) == (1, "ZeroDivisionError")
    with pytest.raises(JobFailed, match="not-scheduled-by-retry-policy"):
        ended.result(timeout=5)


def test_an_id_of_ones_own_is_used_once_whether_its_job_waits_or_has_ended(recruiter: Recruiter) -> None:
    task = recruiter.task(divide)
    task.job(1, 1).with_id("waits").in_background().execute()
    task.job(1, 1).with_id("ended").here().execute()

    for id in ("waits", "ended"):
        with pytest.raises(JobExists, match=id):
            task.job(2, 1).with_id(id).in_background().execute()

    waiting = recruiter.find("waits")
    assert isinstance(waiting, Job)
    assert waiting.args == {"a": 1, "b": 1}


def test_what_is_said_of_a_job_is_stored(recruiter: Recruiter) -> None:
    task = recruiter.task(group="maths", tags=["slow"])(divide)

    handle = task.job(1, 1).tagged_as("a", "slow").owned_by("ada").with_urn("u:1").with_priority(2).in_background()
    found = recruiter.find(handle.execute().id)

    assert isinstance(found, Job)
    assert (found.group, found.tags, found.owner) == ("maths", ("slow", "a"), "ada")
    assert (found.urn, found.priority) == ("u:1", 2)


def test_any_method_of_a_workable_can_be_the_one_to_run(recruiter: Recruiter) -> None:
    assert Parcel(4).as_job_of(recruiter).execute().result(timeout=5) == "parcel 4"
    assert Parcel(4).as_job_of(recruiter).weigh().result(timeout=5) == 8
    with pytest.raises(InvalidArguments, match="fly"):
        Parcel(4).as_job_of(recruiter).in_background().fly()
    with pytest.raises(InvalidArguments, match="export"):
        Parcel(4).as_job_of(recruiter).in_background().export()


def test_the_async_face(recruiter: Recruiter) -> None:
    task = recruiter.task(divide)

    async def use() -> float:
        waiting = await task.aenqueue(4, 2)
        assert isinstance(recruiter.find(waiting.id), Job)
        return await task.job(8, 2).here().execute().aresult(timeout="5s")

    assert asyncio.run(use()) == 4.0


def test_nonsense_is_refused_when_it_is_said(recruiter: Recruiter) -> None:
    job = recruiter.task(divide).job(1, 1)

    with pytest.raises(InvalidJob, match="priority"):
        job.with_priority(float("nan"))
    with pytest.raises(InvalidJob, match="time zone"):
        job.schedule_at(datetime(2038, 1, 19))
    with pytest.raises(InvalidJob, match="id"):
        job.with_id(1.5)  # type: ignore[arg-type]
