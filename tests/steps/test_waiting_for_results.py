"""Waiting for results: for jobs that there are, as long as somebody is there to look."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from recruiter import Recruiter, Workable, current_job, results
from recruiter.errors import JobNotFound, RecruiterError, ResultTimeout, StoreError
from recruiter.store import outcomes
from recruiter.store.codec import decode
from tests.conftest import eventually
from tests.samples import a_job, done, insert


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


def archive(recruiter: Recruiter, id: str, **fields: Any) -> None:
    document = decode(done(a_job(id), result=f"result of {id}").document)
    recruiter.store.archived.collection.insert_one(document | fields)


def test_after_a_timeout_it_can_be_asked_again(recruiter: Recruiter) -> None:
    insert(recruiter.store, a_job("x"))
    handle = recruiter.handle("x")
    with pytest.raises(ResultTimeout):
        handle.result("10ms")

    archive(recruiter, "x")

    assert handle.result(60) == "result of x"


@pytest.mark.parametrize("strange", [{"executions": ["often"]}, {"executions": 5}, {"last_execution": "x"}], ids=str)
def test_a_document_that_cannot_be_read_stops_nobody_else(recruiter: Recruiter, strange: dict[str, Any]) -> None:
    """Given an archived job with a field that makes no sense, when one waits for it, then others still get theirs."""
    archive(recruiter, "strange", **strange)
    archive(recruiter, "good")

    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(recruiter.handle("strange").result, "1s")
        assert other.exception() is None or isinstance(other.exception(), RecruiterError)

    assert recruiter.handle("good").result(60) == "result of good"


def test_a_job_that_sets_no_result_in_its_transaction_has_none(recruiter: Recruiter) -> None:
    @recruiter.task
    def forgetful() -> int:
        with current_job.transaction():
            pass
        return 5

    job = forgetful.enqueue()
    recruiter.run(forgetful)

    assert job.result(timeout=60) is None


def test_a_step_that_takes_a_result_that_was_not_kept_says_so(
    recruiter: Recruiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcomes, "LARGEST_JOB", 4_000)

    @recruiter.task
    def large() -> str:
        return "x" * 5_000

    @recruiter.task
    def length(text: str) -> int:
        return len(text)

    flow = recruiter.flow("sizes")
    first = flow.add(large)
    second = flow.add(length, first.result)
    handle = flow.start()
    recruiter.run_all(large)
    recruiter.run_all(length)

    last = handle.job(second).wait(timeout=60).last_execution
    assert last is not None
    assert f"step {first.id} gave no result" in str(last.message)
    assert f"recruiter job show {first.id}" in str(last.message)
