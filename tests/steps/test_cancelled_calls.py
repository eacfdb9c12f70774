"""Calls of the async face that run jobs: when the awaiting task is cancelled, nothing goes on behind it. And none of
them takes the threads that others wait for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from recruiter import Recruiter, Task
from tests.conftest import eventually


class Slow:
    """What a job waits for, and how many have begun."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.begun: list[str] = []
        self.threads: list[str] = []


slow = Slow()


def wait(text: str) -> str:
    slow.begun.append(text)
    slow.threads.append(threading.current_thread().name)
    assert slow.go_on.wait(20)
    return text


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    global slow
    slow = Slow()
    yield
    slow.go_on.set()


@pytest.fixture
def task(recruiter: Recruiter) -> Task[[str], str, str]:
    return recruiter.task(wait)


CALLS: dict[str, Callable[[Recruiter, Any], Awaitable[Any]]] = {
    "arun": lambda recruiter, task: recruiter.arun(task),
    "arun_all": lambda recruiter, task: recruiter.arun_all(task),
    "awatch": lambda recruiter, task: recruiter.awatch(task),
}


@pytest.mark.parametrize("name", CALLS)
def test_cancelled_it_finishes_the_running_job_and_stops(
    recruiter: Recruiter, task: Task[[str], str, str], name: str
) -> None:
    """Given three jobs of which the first runs, when the call is cancelled, then that one ends, the others wait, and
    the caller is off the roster when the cancellation is raised."""
    first, *_ = task.enqueue_many([("a",), ("b",), ("c",)])

    async def cancel() -> None:
        calling = asyncio.ensure_future(CALLS[name](recruiter, task))
        await asyncio.to_thread(eventually, lambda: slow.begun)
        calling.cancel()
        await asyncio.sleep(0)
        slow.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(calling, 20)

    asyncio.run(cancel())

    assert slow.begun == ["a"]
    assert recruiter.find(first.id).state == "succeeded"
    assert recruiter.jobs.count(state="waiting").number == 2
    assert recruiter.store.roster.collection.count_documents({}) == 0


def test_arun_that_waits_for_a_job_is_cancelled_at_once(recruiter: Recruiter, task: Task[[str], str, str]) -> None:
    """Given a job that another recruiter, which is not there, would have to give away."""
    recruiter.controls.pause_group("generic")
    task.enqueue("a")

    async def cancel() -> None:
        calling = asyncio.ensure_future(recruiter.arun(task, wait="60s"))
        await asyncio.to_thread(eventually, lambda: recruiter.store.roster.collection.count_documents({}) == 1)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(calling, 20)

    asyncio.run(cancel())

    assert slow.begun == []
    assert recruiter.store.roster.collection.count_documents({}) == 0
