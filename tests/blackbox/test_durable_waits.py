"""Durable steps as a user sees them: the first of several signals, a signal that makes its job, a step with its own
retry policy and timeout, and code that has changed while jobs wait."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from runpy import run_path
from textwrap import dedent
from typing import Any

import pytest

from recruiter import (
    InvalidArguments,
    InvalidJob,
    InvalidName,
    JobNotFound,
    Recruiter,
    RetryLater,
    RetryManyTimes,
    UnsupportedValue,
    current_job,
)
from recruiter.testing import Sandbox
from tests.blackbox.conftest import Written
from tests.cli_here import here
from tests.conftest import Starter, eventually

pytestmark = pytest.mark.usefixtures("store")  # prepared


# -- the first of several signals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [True, False], ids=["sent before it waits", "sent while it waits"])
@pytest.mark.parametrize("asynchronous", [True, False], ids=["async", "plain"])
def test_a_job_goes_on_with_the_first_of_several_signals(
    local: Recruiter, jobs: Sandbox, before: bool, asynchronous: bool
) -> None:
    @local.task(name="plain")
    def plain() -> list[Any]:
        answer = current_job.wait_for_any("approved", "rejected", timeout="7 days")
        return [answer.name, answer.data]

    @local.task(name="async")
    async def coroutine() -> list[Any]:
        name, data = await current_job.await_for_any("approved", "rejected", timeout="7 days")
        return [name, data]

    job = coroutine.enqueue() if asynchronous else plain.enqueue()
    if not before:
        assert not jobs.run_due()[0].done
        assert "waits for the signal 'approved' or 'rejected' since" in local.explain(job.id)
    local.signal(job.id, "other")
    local.signal(job.id, "rejected", {"by": "ada"})
    local.signal(job.id, "approved")
    assert jobs.run_due()[-1].result == ["rejected", {"by": "ada"}]


def test_each_wait_takes_one_signal_and_the_others_stay(local: Recruiter, jobs: Sandbox) -> None:
    @local.task
    def listen() -> list[Any]:
        first = current_job.wait_for_any("a", "b")
        second = current_job.wait_for("a")
        third = current_job.wait_for_any("b", "a")
        return [tuple(first), second, tuple(third)]

    job = listen.enqueue()
    jobs.run_due()
    for number, name in enumerate(["a", "b", "a"], 1):
        local.signal(job.id, name, number)
        jobs.run_due()
    assert job.result(5) == [("a", 1), 3, ("b", 2)]


def test_a_wait_for_several_signals_times_out(local: Recruiter, jobs: Sandbox) -> None:
    @local.task
    def listen() -> str:
        try:
            current_job.wait_for_any("a", "b", timeout="1 day")
        except TimeoutError:
            return "late"
        return "in time"

    job = listen.enqueue()
    jobs.run_due()
    jobs.move_clock("2 days")
    jobs.run_due()
    assert job.result(5) == "late"


def test_wait_for_any_wants_several_names(local: Recruiter, jobs: Sandbox) -> None:
    errors = []

    @local.task
    def listen() -> None:
        for names in (("a", "a"), (["a", "b"],)):
            try:
                current_job.wait_for_any(*names)
            except (InvalidArguments, InvalidName) as error:
                errors.append(str(error))

    listen.enqueue()
    jobs.run_due()
    assert "two or more different names" in errors[0]
    assert "the name of a signal" in errors[1]


# -- a signal that makes its job -------------------------------------------------------------------------------------


def test_a_signal_makes_the_unique_job_once_and_reaches_it(local: Recruiter, jobs: Sandbox) -> None:
    @local.task
    def basket(customer: str) -> list[str]:
        return [customer, current_job.wait_for("item"), current_job.wait_for("item")]

    first = basket.job("ada").unique("basket of ada").enqueue_with_signal("item", "tea")
    jobs.run_due()
    second = asyncio.run(basket.job("ada").unique("basket of ada").aenqueue_with_signal("item", "cup", by="web"))
    assert (first.created, second.created, first.id) == (True, False, second.id)
    jobs.run_due()
    assert first.result(5) == ["ada", "tea", "cup"]
    third = basket.job("ada").unique("basket of ada").enqueue_with_signal("item", "milk")
    assert third.created


def test_signals_of_many_threads_make_one_job(local: Recruiter, jobs: Sandbox) -> None:
    @local.task
    def collect() -> list[int]:
        return sorted(current_job.wait_for("number") for _ in range(8))

    handles: list[Any] = []
    send = collect.job().unique("one").enqueue_with_signal
    threads = [threading.Thread(target=lambda n=n: handles.append(send("number", n))) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(handle.created for handle in handles) == 1
    jobs.run_due()
    assert handles[0].result(5) == list(range(8))


def test_a_signal_makes_no_job_that_is_not_unique(local: Recruiter) -> None:
    @local.task
    def basket() -> None: ...

    with pytest.raises(InvalidJob, match="needs a unique job"):
        basket.job().enqueue_with_signal("item")
    assert not list(local.jobs.list())


# -- a step with its own policy --------------------------------------------------------------------------------------


def test_a_step_is_tried_again_without_using_up_an_attempt_of_its_job(local: Recruiter, jobs: Sandbox) -> None:
    calls: list[str] = []

    def charge(order: int) -> str:
        calls.append("charge")
        if calls.count("charge") < 3:
            raise ConnectionError("the bank is closed")
        return f"receipt {order}"

    @local.task
    def order(number: int) -> str:
        current_job.once("note", calls.append, "note")
        return current_job.once("charge", charge, number, retry=RetryManyTimes(3, "10s"))

    job = order.enqueue(7)
    assert not jobs.run_due()[0].done
    assert "step 'charge' failed with ConnectionError: the bank is closed" in local.explain(job.id)
    assert jobs.run_due() == []
    for _ in range(2):
        jobs.move_clock("11s")
        jobs.run_due()
    assert job.result(5) == "receipt 7"
    assert calls == ["note", "charge", "charge", "charge"]
    assert local.find(job.id).attempts == 1


def test_a_step_times_out_and_is_tried_again(local: Recruiter, jobs: Sandbox) -> None:
    over = threading.Event()
    calls = []

    def ask() -> str:
        calls.append("ask")
        if len(calls) == 1:
            over.wait(60)
        return "answer"

    @local.task
    def order() -> str:
        return current_job.once("ask", ask, retry=RetryManyTimes(1, 0), timeout="50ms")

    job = order.enqueue()
    jobs.run_due()
    assert "TimeoutError: step 'ask' has not ended within" in str(local.find(job.id).checkpoints[0].problem)
    jobs.run_due()
    over.set()
    assert job.result(5) == "answer"


def test_a_coroutine_step_times_out_and_has_its_own_policy(local: Recruiter, jobs: Sandbox) -> None:
    calls = []

    async def ask() -> str:
        calls.append("ask")
        if len(calls) == 1:
            await asyncio.sleep(60)
        return "answer"

    @local.task
    async def order() -> str:
        return await current_job.aonce("ask", ask, retry=RetryManyTimes(1, 0), timeout="50ms")

    job = order.enqueue()
    jobs.run_due()
    jobs.run_due()
    assert job.result(5) == "answer"


def test_a_function_with_a_parameter_timeout_is_given_it(local: Recruiter, jobs: Sandbox) -> None:
    def ask(timeout: int) -> int:
        return timeout

    @local.task
    def order() -> int:
        return current_job.once("ask", ask, timeout=5)

    job = order.enqueue()
    jobs.run_due()
    assert job.result(5) == 5


# -- changed code ----------------------------------------------------------------------------------------------------


def release(local: Recruiter, function: Any) -> Any:
    """The task `order` with other code."""
    function.__name__ = function.__qualname__ = "order"
    return local.task(name="order")(function)


def paused_order(target: str) -> Any:
    """A job that waits in its first release."""
    with Recruiter(target) as first:

        def order() -> None:
            current_job.once("charge", str, 7)
            current_job.once("mail", str, 8)
            current_job.wait_for("go")

        job = release(first, order).enqueue()
        first.run("order")
        return job.id


def test_a_checkpoint_that_the_code_does_not_use_any_more_is_reported(
    target: str, caplog: pytest.LogCaptureFixture
) -> None:
    id = paused_order(target)
    with Recruiter(target) as second:

        def order() -> str:
            current_job.once("pay", str, 7)
            current_job.once("mail", str, 8)
            current_job.wait_for("go")
            current_job.wait_for("on")
            return "done"

        release(second, order)
        second.signal(id, "go")
        second.run("order")
        told = "1 checkpoint of an earlier run that the code no longer uses: 'charge'"
        assert told in second.explain(id)
        assert told in caplog.text
        second.signal(id, "on")
        second.run("order")
        assert "succeeded" in second.explain(id)
        assert told in second.explain(id)


def test_checkpoints_in_another_order_are_reported(target: str) -> None:
    id = paused_order(target)
    with Recruiter(target) as second:

        def order() -> str:
            current_job.once("mail", str, 8)
            current_job.once("charge", str, 7)
            current_job.wait_for("go")
            return "done"

        release(second, order)
        second.signal(id, "go")
        second.run("order")
        assert "checkpoints in another order than in an earlier run: 'mail', 'charge'" in second.explain(id)


def test_unchanged_code_is_not_reported(target: str) -> None:
    id = paused_order(target)
    with Recruiter(target) as second:

        def order() -> str:
            current_job.once("charge", str, 7)
            current_job.once("mail", str, 8)
            current_job.wait_for("go")
            return "done"

        release(second, order)
        second.signal(id, "go")
        second.run("order")
        assert "checkpoint" not in second.explain(id)


def test_a_stored_result_of_another_type_names_the_step(target: str) -> None:
    id = paused_order(target)
    with Recruiter(target) as second:

        def charge(order: int) -> dict[str, int]:
            return {"order": order}

        def order() -> None:
            current_job.once("charge", charge, 7)

        release(second, order)
        second.signal(id, "go")
        second.run("order")
        ended = second.find(id)
        assert ended.error is not None
        assert ended.error.endswith(UnsupportedValue.__name__)
        assert ended.message is not None
        assert "step 'charge'" in ended.message
        assert "Give the new step another name" in ended.message


# -- kills -----------------------------------------------------------------------------------------------------------

APPLICATION = """
    import os, signal
    from recruiter import Recruiter, RetryManyTimes, current_job

    recruiter = Recruiter()
    FOLDER = {folder!r}

    def noted(name: str) -> int:
        with open(os.path.join(FOLDER, name), "a") as file:
            file.write("x")
        return os.path.getsize(os.path.join(FOLDER, name))

    def charge() -> str:
        if noted("charge") == 1:
            raise ConnectionError("the bank is closed")
        if noted("killed") == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return "receipt"

    @recruiter.task(retry=RetryManyTimes(3, 0))
    def order() -> list[str]:
        receipt = current_job.once("charge", charge, retry=RetryManyTimes(5, "100ms"))
        answer = current_job.wait_for_any("approved", "rejected")
        if noted("waited") == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return [receipt, answer.name]
"""


def test_step_retries_and_waits_survive_kills(target: str, start: Starter, application: Written, tmp_path: Any) -> None:
    """Given a job whose process is killed inside a step that had failed before, and again after the first of two
    signals came, then the job ends with the step's result and with that signal."""
    bootstrap = application(dedent(APPLICATION).format(folder=str(tmp_path)))
    start("start", "recruiter", "--bootstrap", bootstrap)
    start("start", "worker", "--bootstrap", bootstrap, "--processes", "1")
    tasks = run_path(bootstrap)
    tasks["recruiter"].point_at(target)
    with tasks["recruiter"] as recruiter:
        job = tasks["order"].enqueue()
        eventually(lambda: "waits for the signal" in recruiter.explain(job.id), 60)
        recruiter.signal(job.id, "rejected")
        recruiter.signal(job.id, "approved")
        assert job.result(60) == ["receipt", "rejected"]
        assert os.path.getsize(tmp_path / "charge") == 3


# -- a step that has given up ----------------------------------------------------------------------------------------


class Closed(Exception):
    """The error of a bank."""


@pytest.mark.parametrize("asynchronous", [True, False], ids=["async", "plain"])
def test_a_job_that_has_taken_another_way_does_not_do_the_failed_step_later(
    local: Recruiter, jobs: Sandbox, asynchronous: bool
) -> None:
    """Given a step whose retry policy gave up, and a job that went on after its error, when the job sleeps and runs
    again, then the step is not called again: it raises the same error."""
    calls, errors = [], []

    def charge() -> str:
        calls.append("charge")
        if len(calls) < 4:
            raise Closed("the bank is closed")
        return "receipt"

    @local.task(name="plain")
    def plain() -> str:
        try:
            return current_job.once("charge", charge, retry=RetryManyTimes(2, 0))
        except Closed as error:
            errors.append(str(error))
            current_job.once("cancel", calls.append, "cancelled")
        current_job.sleep("1 day")
        return "nothing to ship"

    @local.task(name="async")
    async def coroutine() -> str:
        try:
            return await current_job.aonce("charge", charge, retry=RetryManyTimes(2, 0))
        except Closed as error:
            errors.append(str(error))
        current_job.sleep("1 day")
        return "nothing to ship"

    job = coroutine.enqueue() if asynchronous else plain.enqueue()
    while jobs.run_due():
        pass
    jobs.move_clock("1 day")
    jobs.run_due()
    assert job.result(5) == "nothing to ship"
    assert calls.count("charge") == 3
    assert errors == ["the bank is closed"] * 2
    assert local.find(job.id).last_execution.notes == ()  # type: ignore[union-attr]


def test_a_step_that_gave_up_is_tried_again_in_the_next_attempt_of_its_job_and_after_recover(
    local: Recruiter, jobs: Sandbox
) -> None:
    calls: list[int] = []

    def charge() -> None:
        calls.append(1)
        raise Closed("the bank is closed")

    @local.task(retry=RetryManyTimes(1, 0))
    def order() -> None:
        current_job.once("charge", charge, retry=RetryManyTimes(2, 0))

    job = order.enqueue()
    while jobs.run_due():
        pass
    assert len(calls) == 6, "three tries of the step in each of two attempts of the job"
    assert str(local.find(job.id).error).endswith("Closed")
    again = local.recover(job.id)
    while jobs.run_due():
        pass
    assert (len(calls), local.find(again.id).why) == (12, "tried-too-many-times")


def test_a_job_that_waits_for_a_signal_after_a_step_gave_up_does_not_do_the_step_later(
    local: Recruiter, jobs: Sandbox
) -> None:
    calls: list[int] = []

    def charge() -> str:
        calls.append(1)
        if len(calls) < 3:
            raise Closed("the bank is closed")
        return "receipt"

    @local.task
    def order() -> Any:
        try:
            return current_job.once("charge", charge, retry=RetryManyTimes(1, 0))
        except Closed:
            return current_job.wait_for("paid in cash")

    job = order.enqueue()
    while jobs.run_due():
        pass
    local.signal(job.id, "paid in cash", "a note")
    jobs.run_due()
    assert (job.result(5), len(calls)) == ("a note", 2)


@pytest.mark.parametrize("how", ["a sleep", "a step that is tried again"])
def test_a_step_that_ends_beside_a_pause_is_kept(local: Recruiter, jobs: Sandbox, how: str) -> None:
    """Given a job with two threads, when one of them pauses the job and the other one ends a step after that, then the
    step is not called again."""
    calls: list[str] = []
    begun, paused = threading.Event(), threading.Event()

    def slow() -> str:
        calls.append("slow")
        begun.set()
        paused.wait(60)
        return "slow"

    def fails_once() -> None:
        calls.append("fails")
        if calls.count("fails") == 1:
            raise Closed("the bank is closed")

    @local.task
    def order() -> str:
        with ThreadPoolExecutor() as pool:
            beside = pool.submit(copy_context().run, lambda: current_job.once("slow", slow))
            begun.wait(60)
            try:
                if how == "a sleep":
                    current_job.sleep(0)
                else:
                    current_job.once("fails", fails_once, retry=RetryManyTimes(1, 0))
            finally:
                paused.set()
        return beside.result()

    job = order.enqueue()
    while jobs.run_due():
        pass
    assert (job.result(5), calls.count("slow")) == ("slow", 1)


def test_failures_of_steps_that_run_side_by_side_are_counted_each(local: Recruiter, jobs: Sandbox) -> None:
    calls: list[str] = []

    @local.task
    async def order() -> None:
        both = asyncio.Barrier(2)

        async def ask(bank: str) -> None:
            calls.append(bank)
            await both.wait()
            raise Closed(bank)

        async with asyncio.TaskGroup() as group:
            for bank, tries in (("a", 1), ("b", 5)):
                group.create_task(current_job.aonce(bank, ask, bank, retry=RetryManyTimes(tries, 0)))

    job = order.enqueue()
    while jobs.run_due():
        pass
    assert (calls.count("a"), local.find(job.id).done) == (2, False)


@pytest.mark.parametrize("policy", [None, RetryManyTimes(1, 0)], ids=["no policy", "policy of the job"])
def test_the_timeout_of_the_job_is_no_failure_of_its_step(local: Recruiter, jobs: Sandbox, policy: Any) -> None:
    never, calls = threading.Event(), list[str]()

    def endless() -> None:
        calls.append("endless")
        while True:
            never.wait(0.01)

    @local.task(timeout="100ms", retry=policy)
    def order() -> None:
        current_job.once("endless", endless, retry=RetryManyTimes(50, 0))

    job = order.enqueue()
    while jobs.run_due():
        pass
    ended = local.find(job.id)
    assert (ended.attempts, ended.error) == (1 if policy is None else 2, "recruiter.errors.JobTimedOut")
    assert len(calls) == ended.attempts


def test_a_step_may_ask_to_run_later(local: Recruiter, jobs: Sandbox) -> None:
    calls: list[int] = []

    def fetch() -> str:
        calls.append(1)
        if len(calls) == 1:
            raise RetryLater("1 hour", reason="the file is not there")
        return "file"

    @local.task
    def order() -> str:
        return current_job.once("fetch", fetch, retry=RetryManyTimes(1, 0))

    job = order.enqueue()
    jobs.run_due()
    assert "the file is not there" in local.explain(job.id)
    assert jobs.run_due() == []
    jobs.move_clock("1 hour")
    jobs.run_due()
    assert (job.result(5), [kept.name for kept in local.find(job.id).checkpoints]) == ("file", ["fetch"])


@pytest.mark.parametrize("second", ["other arguments", "another function", "the same"])
def test_a_second_call_under_the_name_of_a_step_is_refused_unless_it_is_the_same(
    local: Recruiter, jobs: Sandbox, second: str
) -> None:
    """A loop that gives all its steps one name would do only the first of them."""
    charged: list[int] = []

    def charge(order: int) -> int:
        charged.append(order)
        return order

    def token() -> int:
        return current_job.once("token", lambda: charge(1))

    @local.task
    async def orders() -> list[int]:
        if second == "the same":
            return [token(), token()]
        current_job.once("charge", charge, 7)
        if second == "another function":
            await current_job.aonce("charge", str, 7)
        return [current_job.once("charge", charge, 8)]

    job = orders.enqueue()
    jobs.run_due()
    if second == "the same":
        assert (job.result(5), charged) == ([1, 1], [1])
    else:
        assert "step 'charge' was called before in this run" in str(local.find(job.id).message)
        assert charged == [7]


def test_a_step_that_is_called_by_the_program_and_not_by_once_is_refused(local: Recruiter, jobs: Sandbox) -> None:
    @local.task
    def order() -> str:
        return current_job.once("charge", str(7))  # type: ignore[call-overload, no-any-return]

    job = order.enqueue()
    jobs.run_due()
    assert "once('charge', …) needs a function and then its arguments, not '7'" in str(local.find(job.id).message)


def test_a_slow_step_is_named_in_its_error(local: Recruiter, jobs: Sandbox) -> None:
    @local.task
    async def late() -> None:
        await current_job.aonce("slow", asyncio.sleep, 5, timeout="10ms")

    job = late.enqueue()
    jobs.run_due()
    assert "step 'slow' has not ended within" in local.find(job.id).last_execution.message  # type: ignore[union-attr, operator]


@pytest.mark.parametrize("name", ["sleep 1", "wait_for approved 1", "wait_for_any a, b 1", "gave up a", "failure 1 of"])
def test_a_step_cannot_have_the_name_of_a_sleep_or_a_wait(local: Recruiter, jobs: Sandbox, name: str) -> None:
    @local.task
    def nap() -> None:
        current_job.once(name, str)

    job = nap.enqueue()
    jobs.run_due()
    assert "a step cannot be named" in local.find(job.id).last_execution.message  # type: ignore[union-attr, operator]


def test_the_failures_of_a_step_are_kept_as_one_and_shown(local: Recruiter, jobs: Sandbox, target: str) -> None:
    """Given a step that fails twelve times, then the job keeps one checkpoint of its failures, and its history tells
    the number and the last error."""
    calls: list[int] = []

    def charge() -> str:
        calls.append(1)
        if len(calls) <= 12:
            raise Closed(f"closed for the {len(calls)}th time")
        return "receipt"

    @local.task
    def order() -> str:
        return current_job.once("charge", charge, retry=RetryManyTimes(20, 0))

    job = order.enqueue()
    while jobs.run_due():
        pass
    ended = local.find(job.id)
    assert (ended.done, len(calls), ended.attempts) == (True, 13, 1)
    assert [done.name for done in ended.checkpoints] == ["failure of charge", "charge"]
    (entry,) = [entry for entry in ended.history if entry.what == "step-failed"]
    assert str(entry).startswith("step 'charge' failed: failure 12 in attempt 1: ")
    shown = here(target, "job", "show", str(job.id))[1]
    assert "failure of charge: tests.blackbox.test_durable_waits.Closed: closed for the 12th time" in shown


def test_a_field_that_the_type_of_a_result_has_lost_is_reported(local: Recruiter, jobs: Sandbox) -> None:
    """Given a stored result of a dataclass, when its field gets another name with a default, then the job says so."""

    @dataclass
    class Receipt:
        number: int
        note: str = ""

    @dataclass
    class NewReceipt:
        number: int
        remark: str = ""

    renamed: list[bool] = []

    def charge() -> Receipt:
        return Receipt(1, "thanks")

    def charge_anew() -> NewReceipt:
        raise AssertionError

    charge.__annotations__["return"] = Receipt
    charge_anew.__annotations__["return"] = NewReceipt

    @local.task
    def order() -> str:
        receipt: Any = current_job.once("charge", charge_anew if renamed else charge)
        current_job.wait_for("sent")
        return str(receipt.number)

    job = order.enqueue()
    jobs.run_due()
    renamed.append(True)
    local.signal(job.id, "sent")
    jobs.run_due()
    assert job.result(5) == "1"
    assert "fields of stored results that the code no longer uses: note of 'charge'" in local.explain(job.id)


def test_changed_code_is_reported_by_a_job_that_ends_in_its_own_transaction(local: Recruiter, jobs: Sandbox) -> None:
    names = ["charge"]

    @local.task
    def order() -> None:
        current_job.once(names[0], str, 7)
        current_job.wait_for("sent")
        with current_job.transaction():
            pass

    job = order.enqueue()
    jobs.run_due()
    names[0] = "pay"
    local.signal(job.id, "sent")
    jobs.run_due()
    assert "that the code no longer uses: 'charge'" in local.explain(job.id)


# -- signals that no wait takes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["succeeds", "fails", "in its own transaction"])
def test_a_signal_that_comes_in_the_last_run_stays_with_the_job(local: Recruiter, jobs: Sandbox, how: str) -> None:
    @local.task
    def order() -> None:
        local.signal(current_job.id, "paid", 500)
        if how == "fails":
            raise ValueError("no")
        if how == "in its own transaction":
            with current_job.transaction():
                pass

    job = order.enqueue()
    jobs.run_due()
    ended = local.find(job.id)
    assert [(signal.name, signal.data) for signal in ended.signals] == [("paid", 500)]
    assert ("it ended without taking 1 signal that it was sent" in local.explain(job.id)) == (how != "fails")


def test_a_recovered_job_takes_the_signal_that_came_in_the_last_run(local: Recruiter, jobs: Sandbox) -> None:
    runs = []

    @local.task
    def order() -> int:
        runs.append(1)
        if len(runs) == 1:
            local.signal(current_job.id, "paid", 500)
            raise ValueError("before its wait")
        return current_job.wait_for("paid")  # type: ignore[no-any-return]

    job = order.enqueue()
    jobs.run_due()
    again = local.recover(job.id)
    jobs.run_due()
    assert again.result(5) == 500


def test_a_signal_for_a_key_whose_job_has_ended_says_so(local: Recruiter, jobs: Sandbox) -> None:
    @local.task
    def order() -> Any:
        return current_job.wait_for("paid")

    order.job().unique("order 7", until="1 hour").enqueue_with_signal("paid", 1)
    jobs.run_due()
    with pytest.raises(JobNotFound, match="cannot be sent the signal 'paid': it has ended"):
        order.job().unique("order 7", until="1 hour").enqueue_with_signal("paid", 2)
