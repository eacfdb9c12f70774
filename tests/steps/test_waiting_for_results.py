"""Waiting for results: for jobs that there are, as long as somebody is there to look."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from recruiter import Recruiter, Workable, results
from recruiter.errors import JobNotFound, StoreError
from tests.conftest import eventually
from tests.samples import a_job, insert


def note(text: str) -> str:
    return text


class TestUnknownJobs:
    def test_a_wait_ends_when_its_job_is_removed(self, recruiter: Recruiter, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(results, "_ASSUMED_SECONDS", 0.3)
        insert(recruiter.store, a_job("x"))
        with ThreadPoolExecutor(1) as thread:
            waiting = thread.submit(recruiter.handle("x").result, "60s")
            eventually(lambda: "x" in recruiter._results._existing)
            recruiter.store.scheduled.collection.delete_one({"_id": "x"})

            assert isinstance(waiting.exception(30), JobNotFound)


def test_a_wait_ends_when_the_recruiter_is_closed(recruiter: Recruiter) -> None:
    insert(recruiter.store, a_job("x"))
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(recruiter.handle("x").result)
        eventually(lambda: recruiter._results._waiting)

        recruiter.close()

        error = waiting.exception(20)
    assert isinstance(error, StoreError)
    assert "'x'" in str(error)


class Slow(Workable, name="waiting.Slow"):
    """Runs until it is let go, and enqueues over the async face meanwhile."""

    began = threading.Semaphore(0)
    go = threading.Event()

    def execute(self) -> str:
        Slow.began.release()
        assert Slow.go.wait(60)
        return "done"


def test_user_code_does_not_take_the_threads_that_others_wait_for(recruiter: Recruiter) -> None:
    """Given more optimistic jobs than there are threads, all of them running, then the async face still answers."""
    task = recruiter.task(note)
    Slow.go.clear()

    async def use() -> list[str]:
        running = [asyncio.create_task(Slow().as_job_of(recruiter).aexecute()) for _ in range(70)]
        for _ in range(64):
            await asyncio.to_thread(Slow.began.acquire, True, 20)
        async with asyncio.timeout(20):
            await task.aenqueue("x")
        Slow.go.set()
        return [handle.result(60) for handle in await asyncio.gather(*running)]

    try:
        assert asyncio.run(use()) == ["done"] * 70
    finally:
        Slow.go.set()


def test_a_cancelled_awatch_ends(recruiter: Recruiter) -> None:
    """Given a loop that watches, when it is cancelled, then no thread goes on watching."""
    task = recruiter.task(note)

    async def watch() -> None:
        watching = asyncio.create_task(recruiter.awatch(task))
        await (await task.aenqueue("x")).aresult(60)
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(watching, 20)

    asyncio.run(watch())

    assert recruiter.store.roster.collection.count_documents({}) == 0
