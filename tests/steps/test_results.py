"""Waiting for results: one thread looks for everybody, and nothing that it finds may stop it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from recruiter import Recruiter, current_job
from recruiter.errors import RecruiterError, ResultTimeout
from recruiter.store import outcomes
from recruiter.store.codec import decode
from tests.samples import a_job, done, insert


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
