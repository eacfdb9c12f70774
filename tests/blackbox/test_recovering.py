"""Recovering a job: the key that never changes, and jobs that succeeded."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from recruiter import InvalidFilter, JobNotFound, JobRecovered, JobSucceeded, Recruiter, RetryManyTimes, current_job
from recruiter.steps import recover
from tests.cli_here import here
from tests.conftest import Starter, eventually

BANK = '''
import pathlib

from recruiter import Recruiter, current_job

recruiter = Recruiter()


@recruiter.task
def charge(bank: str, order: int) -> str:
    """The bank knows each key once. It answers only when the line is open; before that, the client times out."""
    account = pathlib.Path(bank)
    (account / f"charge-{current_job.key}").touch()
    (account / f"call-{current_job.id}-{current_job.attempt}").touch()
    if not (account / "line-is-open").exists():
        raise TimeoutError("the bank does not answer")
    return str(current_job.key)
'''


@pytest.fixture
def bank(tmp_path: Path) -> Path:
    account = tmp_path / "bank"
    account.mkdir()
    return account


@pytest.fixture
def application(tmp_path: Path) -> str:
    file = tmp_path / "bank_application.py"
    file.write_text(BANK)
    return str(file)


def test_a_card_is_charged_once_however_often_the_job_is_recovered(
    recruiter: Recruiter, fleet: Starter, application: str, bank: Path, target: str
) -> None:
    # given a bank that charges, and whose answer never comes
    fleet(application)
    card = recruiter.job("charge", {"bank": str(bank), "order": 7}).with_id("order-7")
    first = card.retry_with_policy(RetryManyTimes(1, 0)).enqueue()
    assert first.wait(60).why == "tried-too-many-times"

    # when people recover the job by its id, then the new job by a filter, then that one on the command line
    second = recruiter.recover(first.id)
    assert second.wait(60).why == "tried-too-many-times"
    assert recruiter.jobs.recover(state="failed", recovered=False) == 1
    (third,) = eventually(lambda: list(recruiter.jobs.list(recovered_from=second.id, state="failed")))
    (bank / "line-is-open").touch()
    code, said = here(target, "job", "recover", str(third.id))

    # then each was a job of its own, and the bank has charged once
    assert code == 0
    last = recruiter.handle(said.split()[-1])
    assert last.result(60) == str(first.id)
    assert [path.name for path in bank.glob("charge-*")] == ["charge-order-7"]
    assert len(list(bank.glob("call-*"))) == 7
    assert {recruiter.find(each).key for each in (first.id, second.id, third.id, last.id)} == {first.id}
    assert (second.key, recruiter.recover(third.id, again=True).key) == (first.id, first.id)


def test_the_key_of_a_job_is_shown_wherever_the_job_is(local: Recruiter, target: str) -> None:
    @local.task
    def fails() -> None:
        raise ValueError("no")

    made = fails.enqueue()
    local.run("fails")
    again = local.recover(made.id)

    for id in (made.id, again.id):
        code, said = here(target, "job", "show", str(id), "--output", "json")
        assert (code, json.loads(said)["key"]) == (0, str(made.id))
    assert f"key             {made.id}" in here(target, "job", "show", str(again.id))[1]


def test_the_steps_of_a_flow_keep_their_keys_when_the_flow_is_retried(local: Recruiter) -> None:
    keys: list[object] = []

    @local.task
    def step() -> None:
        keys.append(current_job.key)
        if len(keys) < 3:
            raise TimeoutError("no answer")

    flow = local.flow("bank")
    made = flow.add(step)
    handle = flow.start()
    for _ in range(3):
        local.run_all("step")
        handle.retry()

    assert keys == [made.id] * 3


class TestAJobThatSucceeded:
    @pytest.fixture
    def done(self, local: Recruiter) -> object:
        @local.task
        def send() -> str:
            return "sent"

        handle = send.enqueue()
        local.run("send")
        assert handle.result(60) == "sent"
        return handle.id

    def test_is_not_recovered_by_mistake(self, local: Recruiter, done: str, target: str) -> None:
        with pytest.raises(JobSucceeded, match=f"job '?{done}'? succeeded; .* again=True"):
            local.recover(done)
        with pytest.raises(JobSucceeded):
            asyncio.run(local.arecover(done))
        with pytest.raises(InvalidFilter, match="second time"):
            local.jobs.recover(state="succeeded")
        with pytest.raises(InvalidFilter, match="second time"):
            local.jobs.recover(why="done")
        code, said = here(target, "job", "recover", str(done), "--yes")
        assert (code, "--again" in said) == (1, True)
        code, said = here(target, "job", "recover", "--state", "succeeded", "--yes")
        assert (code, "--again" in said) == (2, True)
        assert local.jobs.recover(task="send") == 0
        assert local.jobs.count(state="waiting").number == 0

    def test_is_recovered_on_purpose(self, local: Recruiter, done: str, target: str) -> None:
        assert local.recover(done, again=True).key == done
        assert asyncio.run(local.arecover(done, again=True)).key == done
        assert local.jobs.recover(state="succeeded", recovered=True, again=True) == 1
        assert here(target, "job", "recover", str(done), "--again")[0] == 0
        more = ("--state", "succeeded", "--recovered", "--again", "--yes")
        assert here(target, "job", "recover", *more)[0] == 0
        assert local.jobs.count(state="waiting").number == 5

    def test_is_recovered_by_a_person_who_says_yes(
        self, local: Recruiter, done: str, target: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
        for answer, code, waiting in (("no", 1, 0), ("y", 0, 1)):
            monkeypatch.setattr("builtins.input", lambda _, answer=answer: answer)
            assert here(target, "job", "recover", str(done))[0] == code
            assert local.jobs.count(state="waiting").number == waiting


class TestAJobThatWasRecovered:
    """A second recovery would do the work of the first a second time."""

    @pytest.fixture
    def failed(self, local: Recruiter) -> object:
        @local.task
        def fail() -> None:
            raise ValueError("no")

        handle = fail.enqueue()
        local.run("fail")
        assert local.find(handle.id).ended
        return handle.id

    def test_is_not_recovered_again_by_mistake(self, local: Recruiter, failed: str, target: str) -> None:
        first = local.recover(failed)

        with pytest.raises(JobRecovered, match=f"was recovered before, as '?{first.id}'?; .* again=True"):
            local.recover(failed)
        code, said = here(target, "job", "recover", str(failed), "--yes")

        assert (code, "--again" in said) == (1, True)
        assert local.jobs.count(state="waiting").number == 1

    def test_is_recovered_again_on_purpose(self, local: Recruiter, failed: str, target: str) -> None:
        local.recover(failed)
        local.recover(failed, again=True)
        moment = "2038-01-19T00:00:00Z"
        assert here(target, "job", "recover", str(failed), "--again", "--schedule-at", moment)[0] == 0
        assert local.jobs.count(state="waiting").number == 3
        assert [job.scheduled_at.isoformat() for job in local.jobs.list(state="postponed")] == [
            "2038-01-19T00:00:00+00:00"
        ]

    def test_two_people_recover_it_at_the_same_time(
        self, local: Recruiter, failed: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Given a call that has read the job, when another call recovers it, then the first call is refused."""
        read = recover.job_anew

        def late(*given: Any, **named: Any) -> Any:
            job = read(*given, **named)
            monkeypatch.undo()
            local.recover(failed)
            return job

        monkeypatch.setattr(recover, "job_anew", late)
        with pytest.raises(JobNotFound, match="just been recovered"):
            local.recover(failed)
        assert local.jobs.count(state="waiting").number == 1
