"""Execute: whatever the user's code does, one outcome comes out, and it can be stored."""

from __future__ import annotations

from datetime import timedelta

import pytest

from recruiter import RetryManyTimes, Workable
from recruiter.domain.text import MAX_MESSAGE_CHARACTERS
from recruiter.errors import JobPauses, TransactionRepeats
from recruiter.steps.execute import LONGEST_TRACE, _Ungrouped
from recruiter.store.codec import encode, job_document
from recruiter.store.outcomes import Rescheduled
from tests.bench import Bench, ended, failing, raising
from tests.samples import NOW, a_job


class TestSuccess:
    def test_a_result_that_is_too_large_is_not_kept_but_the_success_is(self, bench: Bench) -> None:
        job = bench.archived(lambda: "x" * (16 * 1024 * 1024))

        assert (job["done"], job["why"]) == (True, "done")
        assert "result" not in job
        assert "was not kept" in job["reason"]


class TestFailure:
    def test_an_at_most_once_job_is_not_tried_again(self, bench: Bench) -> None:
        job = bench.archived(failing, retry_policy=bench.policy(RetryManyTimes(3, 1)), at_most_once=True)

        assert job["why"] == "not-scheduled-by-retry-policy"

    @pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), ValueError()], ids=repr)
    def test_an_async_one_too_and_the_next_still_runs(self, bench: Bench, error: BaseException) -> None:
        async def fail() -> None:
            raise error

        async def succeed() -> int:
            return 1

        assert bench.archived(fail)["last_execution"]["class"] == type(error).__name__
        assert bench.archived(succeed)["result"] == 1

    def test_an_unknown_task_waits_a_while_and_burns_no_attempt(self, bench: Bench) -> None:
        move = bench.of_job(a_job(task="never_heard_of", attempts=2))

        assert isinstance(move, Rescheduled)
        assert (move.updates[0].query["attempts"], set(move.fields)) == (2, {"scheduled_at", "postponed"})
        assert move.fields["scheduled_at"] > NOW

    @pytest.mark.parametrize(
        "raw",
        [
            encode(job_document(a_job("x")) | {"note": "broken!"}).replace(b"broken!", b"br\xff\xfeen!"),
            encode({"_id": "x"}),
            encode({"_id": "x", "task": ["add"]}),
            encode({"_id": "x", "task": "Counting"}),
            encode(job_document(a_job("x", task="Exploding", args={})) | {"attempts": "many"}),
            encode(job_document(a_job("x", task="Exploding", args={})) | {"executions": 5}),
        ],
        ids=["not utf-8", "no task", "task is a list", "no args", "attempts is text", "executions is a number"],
    )
    def test_a_document_that_is_no_job_is_archived_as_what_it_is(self, bench: Bench, raw: bytes) -> None:
        job = ended(bench.executor.run(raw))

        assert (job["_id"], job["done"]) == ("x", False)
        assert job["why"] == "malformed" or job["last_execution"]["class"] in ("KeyError", "ZeroDivisionError")

    def test_a_function_has_no_methods(self, bench: Bench) -> None:
        assert not bench.archived(lambda: 1, method="__call__")["done"]


class TestTrace:
    def test_of_a_failure_before_its_code_all_is_kept(self, bench: Bench) -> None:
        trace = bench.archived(lambda number: number)["last_execution"]["trace"]

        assert "execute.py" in trace
        assert "InvalidArguments" in trace


class TestHostileErrors:
    def test_a_huge_message_and_trace_are_cut_and_say_so(self, bench: Bench) -> None:
        execution = bench.archived(raising(ValueError("x" * 10_000_000)))["last_execution"]

        assert MAX_MESSAGE_CHARACTERS < len(execution["message"]) < MAX_MESSAGE_CHARACTERS + 100
        assert LONGEST_TRACE < len(execution["trace"]) < LONGEST_TRACE + 100
        assert "characters cut" in execution["message"]

    @pytest.mark.parametrize("raised", [RuntimeError, RecursionError, SystemExit])
    def test_an_exception_that_cannot_say_what_it_is(self, bench: Bench, raised: type[BaseException]) -> None:
        class Mute(Exception):
            def __str__(self) -> str:
                raise raised()

        job = bench.archived(raising(Mute()))

        assert job["last_execution"]["class"].endswith("Mute")
        assert "Mute" in job["last_execution"]["message"]


class Counting(Workable):
    constant = 5

    def __init__(self, start: int) -> None:
        self.start = start

    def execute(self) -> int:
        return self.start + 1

    def down(self) -> int:
        return self.start - 1


class Exploding(Workable):
    def __init__(self) -> None:
        raise ZeroDivisionError("in the constructor")

    def execute(self) -> None:
        pass


class TestGroups:
    """What leaves a task group, if nothing in it has failed."""

    def test_a_transaction_that_repeats_comes_first(self) -> None:
        inner = BaseExceptionGroup("inner", [JobPauses("it sleeps", delay=timedelta(seconds=1))])
        with pytest.raises(TransactionRepeats), _Ungrouped(lambda: NOW):
            raise BaseExceptionGroup("outer", [inner, TransactionRepeats("it met another")])

    def test_the_earliest_pause_of_a_group_counts(self) -> None:
        pauses = [JobPauses(f"it sleeps {each}", delay=timedelta(seconds=each)) for each in (60, 5, 30)]
        with pytest.raises(JobPauses, match="sleeps 5"), _Ungrouped(lambda: NOW):
            raise BaseExceptionGroup("outer", pauses)

    def test_a_failure_stays_one(self) -> None:
        with pytest.raises(BaseExceptionGroup), _Ungrouped(lambda: NOW):
            raise BaseExceptionGroup("outer", [JobPauses("it sleeps"), ValueError("no good")])
