"""What producers say and are told: enqueue and here, many at once, ids, the shape of a job, silence, first use."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pymongo import MongoClient

import recruiter as package
from recruiter import ArchivedJob, Recruiter, RetryManyTimes, Task, errors
from recruiter.errors import InvalidJob, JobExists, JobsRefused, StoreUnreachable
from tests.commands import Recorder

Add = Task[[int, int], int, int]
ran: list[tuple[int, int]] = []


def add(a: int, b: int) -> int:
    ran.append((a, b))
    return a + b


@pytest.fixture
def task(recruiter: Recruiter) -> Add:
    ran.clear()
    return recruiter.task(add)


class TestEnqueueAndHere:
    def test_a_task_goes_to_the_background_whatever_is_said_of_it(self, recruiter: Recruiter, task: Add) -> None:
        for handle in (task.job(1, 2).enqueue(), task.job(1, 2).in_group("mail").execute()):
            assert recruiter.find(handle.id).state == "waiting"

        assert ran == []

    def test_to_run_here_must_be_asked_for(self, recruiter: Recruiter, task: Add) -> None:
        handle = task.job(1, 2).here().execute()

        assert ran == [(1, 2)]
        assert recruiter.find(handle.id).done
        with pytest.raises(InvalidJob, match="execute"):
            task.job(1, 2).here().enqueue()


def test_a_job_has_one_shape_whether_it_has_ended_or_not(recruiter: Recruiter, task: Add) -> None:
    waiting = recruiter.find(task.enqueue(1, 2).id)
    ended = recruiter.find(task.job(1, 2).here().execute().id)

    assert (waiting.ended, waiting.done, waiting.why, waiting.result, waiting.reason) == (
        False,
        False,
        None,
        None,
        None,
    )
    assert waiting.archived_at is None
    assert (ended.ended, ended.done, ended.why, ended.result) == (True, True, "done", 3)
    assert isinstance(ended, ArchivedJob)


def test_every_exception_can_be_imported_from_the_package() -> None:
    classes = {
        name for name, value in vars(errors).items() if isinstance(value, type) and value.__module__ == errors.__name__
    }

    assert classes - set(package.__all__) == set()
    assert all(hasattr(package, name) for name in package.__all__)


class TestAFreshDatabase:
    def test_the_first_use_prepares_it(self, target: str) -> None:
        with Recruiter(target) as recruiter:
            handle = recruiter.task(add).enqueue(1, 2)

            assert [job.id for job in recruiter.jobs.list()] == [handle.id]
            assert recruiter.store.differences() == []


class TestAClientOfTheApplication:
    @pytest.fixture
    def recorder(self) -> Recorder:
        return Recorder()

    @pytest.fixture
    def client(self, target: str, recorder: Recorder) -> Iterator[MongoClient[dict[str, Any]]]:
        with MongoClient[dict[str, Any]](target, w=1, event_listeners=[recorder]) as client:
            yield client

    def test_it_is_used_durably_and_left_open(
        self, client: MongoClient[dict[str, Any]], store: Any, recorder: Recorder
    ) -> None:
        with Recruiter(client) as recruiter:
            handle = recruiter.task(add).enqueue(1, 2)
        (insert,) = recorder.named("insert")

        assert insert["writeConcern"] == {"w": "majority", "j": True}
        assert store.scheduled.get(handle.id).args == {"a": 1, "b": 2}
        assert client.admin.command("ping")["ok"] == 1


class TestSilence:
    def test_it_is_told_after_a_second_and_given_up_in_time(self, caplog: pytest.LogCaptureFixture) -> None:
        """Given no server and two seconds of patience, then the log says so before the call gives up."""
        recruiter = Recruiter("127.0.0.1:1", server_timeout="2s")
        task = recruiter.task(add)
        began = time.monotonic()

        with caplog.at_level(logging.WARNING, "recruiter"), pytest.raises(StoreUnreachable):
            task.enqueue(1, 2)

        assert time.monotonic() - began < 15
        assert "has not answered for a second" in caplog.text

    def test_one_call_may_have_less_time(self, task: Add) -> None:
        assert task.job(1, 2).enqueue(server_timeout="20s").id is not None
        began = time.monotonic()

        with pytest.raises(StoreUnreachable):
            Recruiter("127.0.0.1:1").task(add).job(1, 2).enqueue(server_timeout="300ms")

        assert time.monotonic() - began < 10


def test_a_job_is_never_due_before_its_time(recruiter: Recruiter, task: Add) -> None:
    """Given moments that are finer than MongoDB's, then what is stored is not earlier."""
    moment = datetime(2040, 1, 1, 12, 0, 0, 123_456, tzinfo=UTC)

    stored = recruiter.find(task.job(1, 2).schedule_at(moment).enqueue().id).scheduled_at

    assert moment <= stored <= moment + timedelta(milliseconds=1)


class Blocker:
    began = threading.Event()
    go_on = threading.Event()


def wait_for_it(fails: bool) -> str:
    Blocker.began.set()
    assert Blocker.go_on.wait(30)
    if fails:
        raise ConnectionError("not yet")
    return "here"


@pytest.mark.parametrize("fails", [False, True], ids=["it succeeds", "it is to be retried"])
def test_an_optimistic_job_leaves_another_that_took_its_id_meanwhile(recruiter: Recruiter, fails: bool) -> None:
    """Given an optimistic job X that runs, when a background job X is accepted, then that one stays."""
    task, other = recruiter.task(wait_for_it), recruiter.task(add)
    Blocker.began.clear()
    Blocker.go_on.clear()
    raised: list[BaseException] = []

    def run() -> None:
        job = task.job(fails).with_id("X").retry_with_policy(RetryManyTimes(3, "1 hour"))
        try:
            job.here().execute()
        except BaseException as error:
            raised.append(error)

    running = threading.Thread(target=run)
    running.start()
    assert Blocker.began.wait(20)
    accepted = other.job(1, 2).with_id("X").enqueue()
    Blocker.go_on.set()
    running.join(30)

    assert [type(error) for error in raised] == [JobExists]
    assert recruiter.find("X").task == "add"
    recruiter.flush_jobs_synchronously()
    assert accepted.result(timeout=60) == 3


class TestMany:
    def test_ids_that_are_taken_are_named(self, recruiter: Recruiter, task: Add) -> None:
        task.job(1, 1).with_id("waits").enqueue()
        task.job(1, 1).with_id("ended").here().execute()

        with pytest.raises(JobsRefused) as refused:
            task.enqueue_many([(1, 1)] * 4, ids=["waits", "new", "ended", "new"])

        assert {place: type(error) for place, error in refused.value.errors.items()} == dict.fromkeys(
            (0, 2, 3), JobExists
        )
        assert recruiter.find("new").state == "waiting"
