"""The README of Job Manager, typed literally: every example, in the order of the seed."""

from __future__ import annotations

import threading
import time
from typing import Any

from pymongo import MongoClient

from recruiter import Recruiter, current_job
from recruiter.store.connection import Target
from tests.blackbox.conftest import Written
from tests.conftest import Starter, eventually


def test_initialization_names_the_database(recruiter: Recruiter) -> None:
    """`const jm = await JobManager('databaseName')`: here the server is part of the address."""
    host = Target.parse(recruiter.address).uri.partition("://")[2].partition("/")[0]

    assert Recruiter(f"{host}/databaseName").target.database == "databaseName"
    with MongoClient[dict[str, Any]](recruiter.address) as client, Recruiter(client) as jm:
        assert jm.target.database == recruiter.target.database


def test_a_producer_and_a_consumer(recruiter: Recruiter, capsys: Any) -> None:
    with Recruiter(recruiter.address) as jm:  # a producer knows no executor
        jm.create(task="myJob", data={"inputField1": "a", "inputField2": 1})

    jm = recruiter
    stop = threading.Event()

    @jm.task(name="myJob")
    async def my_job(inputField1: str, inputField2: int) -> None:
        print(f"Executing myJob. Input 1: {inputField1}, input 2: {inputField2}")
        stop.set()

    # Continuously execute and poll for new jobs of type 'myJob'
    jm.watch("myJob", stop=stop)

    assert "Executing myJob. Input 1: a, input 2: 1" in capsys.readouterr().out


def test_the_second_argument_of_an_executor_is_the_recruiter_itself(recruiter: Recruiter) -> None:
    """An executor may make more jobs with the Recruiter of its module, and `current_job` tells of its own job."""
    jm = recruiter

    @jm.task
    def second(parent: str) -> str:
        return parent

    @jm.task
    def first() -> None:
        jm.create(task="second", data={"parent": str(current_job.id)})

    handle = jm.create(task="first", data={})
    jm.run_all("first")
    (report,) = jm.run_all("second")
    assert report.result == str(handle.id)


def test_creating_jobs(recruiter: Recruiter) -> None:
    jm = recruiter

    first = jm.create(task="a", data={"a": 1})
    again = jm.create(task="a", data={"a": 1})
    assert (first.created, again.created, again.id) == (True, False, first.id)
    assert jm.create(id="doItAgain", task="a", data={"a": 1}).created
    assert not jm.create(id="doItAgain", task="a", data={"a": 1}).created


def test_recurring_jobs_have_a_date_in_their_data(recruiter: Recruiter) -> None:
    jm = recruiter

    assert jm.create(task="springCleanup", data={"date": time.time_ns()}).created
    assert jm.create(task="springCleanup", data={"date": time.time_ns()}).created


def test_running_jobs(recruiter: Recruiter) -> None:
    jm, ran, stop = recruiter, list[tuple[str, int]](), threading.Event()

    @jm.task
    def a(number: int) -> int:
        ran.append(("a", number))
        return number

    @jm.task
    def b(number: int) -> None:
        ran.append(("b", number))
        stop.set()

    for number in range(4):
        jm.create(task="a", data={"number": number})

    # Run one job of type 'a'
    report = jm.run("a")
    assert report is not None
    assert report.result == 0
    # Run all jobs of type 'a'
    assert [report.result for report in jm.run_all("a")] == [1, 2, 3]
    assert jm.run("a") is None
    # Continuously run and poll for any jobs of type 'a' or 'b'
    watching = threading.Thread(target=jm.watch, args=("a", "b"), kwargs={"stop": stop})
    watching.start()
    jm.create(task="a", data={"number": 4})
    eventually(lambda: ("a", 4) in ran)
    jm.create(task="b", data={"number": 5})
    watching.join(timeout=60)

    assert ran == [("a", number) for number in range(5)] + [("b", 5)]


def test_each_job_is_executed_by_one_worker_only(recruiter: Recruiter, start: Starter, application: Written) -> None:
    """An arbitrary number of workers may be connected and execute jobs in parallel."""
    source = """
        import os
        from recruiter import Recruiter

        recruiter = Recruiter()

        @recruiter.task
        def work(number: int) -> int:
            return os.getpid()
    """
    start("start", "recruiter")
    path = application(source)
    for _ in range(3):
        start("start", "worker", "--bootstrap", path)
    handles = [recruiter.create(task="work", data={"number": number}) for number in range(60)]
    handles += [recruiter.create(task="work", data={"number": number}) for number in range(60)]

    assert all(handle.wait(timeout=60).done for handle in handles)
    assert recruiter.jobs.count(task="work").number == 60
    assert {job.attempts for job in recruiter.jobs.iterate(task="work")} == {1}
