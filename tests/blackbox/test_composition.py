"""Composition as a user sees it: named steps, steps that run only after a failure, steps before the dependents, flows
in flows, and the order in which released steps run."""

from __future__ import annotations

from runpy import run_path
from textwrap import dedent
from typing import Any

import pytest

from recruiter import FlowState, InvalidFlow, Recruiter, current_job
from recruiter.crypto import Zlib
from tests.blackbox.conftest import Written
from tests.conftest import Starter, eventually


class Shop:
    """Tasks, and the record of their runs."""

    def __init__(self, local: Recruiter) -> None:
        self.ran: list[str] = []
        self.broken: set[str] = set()
        self.recruiter = local

        @local.task
        def say(text: str) -> str:
            self.ran.append(text)
            if text in self.broken:
                raise ValueError(text)
            return text

        @local.task
        def join(texts: list[str]) -> str:
            return "+".join(texts)

        self.say, self.join = say, join

    def states(self, handle: Any) -> dict[str, str]:
        return {step.name: step.state for step in handle.steps() if step.name}


@pytest.fixture
def shop(local: Recruiter) -> Shop:
    return Shop(local)


# -- names and results -----------------------------------------------------------------------------------------------


def test_a_named_step_is_found_by_its_name_also_after_it_was_recovered(local: Recruiter, shop: Shop) -> None:
    flow = local.flow("f")
    flow.add(shop.say, "a", name="first")
    flow.add(shop.say, "b", name="second")
    shop.broken.add("a")
    handle = flow.start()
    local.flush_jobs_synchronously()
    shop.broken.clear()
    handle.retry()
    local.flush_jobs_synchronously()

    assert handle["first"].result(5) == "a"
    assert handle["second"].result(5) == "b"
    with pytest.raises(InvalidFlow, match="no step named 'third'; its named steps are 'first', 'second'"):
        handle["third"]


def test_a_parameter_called_name_stays_an_argument_of_the_task(local: Recruiter) -> None:
    greeted = []

    @local.task
    def greet(name: str) -> None:
        greeted.append(name)

    flow = local.flow("f")
    flow.add(greet, name="Ada")
    flow.add(greet.job(name="Bob"), name="second")
    handle = flow.start()
    local.flush_jobs_synchronously()
    assert greeted == ["Ada", "Bob"]
    assert [step.name for step in handle.steps()] == [None, "second"]


def test_the_results_of_a_fan_out_come_in_one_call_and_its_steps_are_known(local: Recruiter, shop: Shop) -> None:
    flow = local.fan_out(shop.say, [("a",), ("b",), ("c",)], then=shop.join)
    *parts, last = flow.steps
    handle = flow.start()
    local.flush_jobs_synchronously()
    assert handle.results(parts) == ["a", "b", "c"]
    assert handle.job(last).result(5) == "a+b+c"
    assert len(local.chain(shop.say.job("x"), shop.say, shop.say).steps) == 3


def test_a_running_step_reads_the_result_of_a_named_step(local: Recruiter, shop: Shop) -> None:
    read = []

    @local.task
    def look() -> None:
        read.append(current_job.flow["first"].result(5))

    flow = local.flow("f")
    flow.add(look, after=flow.add(shop.say, "a", name="first"))
    flow.start()
    local.flush_jobs_synchronously()
    assert read == ["a"]


def test_a_named_step_that_a_repeated_attempt_adds_again_exists_once(local: Recruiter, shop: Shop) -> None:
    tries = []

    @local.task
    def plan() -> None:
        tries.append(current_job.flow.add(shop.say, "page", name="page 1").id)
        current_job.flow.add_many(shop.say, [("x",), ("y",)], name="other")
        if len(tries) == 1:
            raise ValueError("again")

    flow = local.flow("f")
    flow.add(plan, name="plan")
    handle = flow.start()
    local.flush_jobs_synchronously()
    handle.retry()
    local.flush_jobs_synchronously()
    assert shop.states(handle) == dict.fromkeys(("plan", "page 1", "other 1", "other 2"), "succeeded")
    assert sorted(shop.ran) == ["page", "x", "y"]
    assert tries[0] == tries[1]


# -- only if it failed -----------------------------------------------------------------------------------------------


def order(local: Recruiter, shop: Shop) -> Any:
    """A saga: the money goes back only if the parcel was not sent."""
    flow = local.flow("order")
    paid = flow.add(shop.say, "charge", name="charge")
    sent = flow.add(shop.say, "ship", name="ship", after=paid)
    refunded = flow.add(shop.say, "refund", name="refund", after=paid, after_failure=sent)
    flow.add(shop.say, "sorry", name="sorry", after=refunded)
    flow.add(shop.say, "log", name="log", after_any=refunded)
    return flow.start()


def test_a_compensation_is_skipped_when_the_step_succeeds_and_the_flow_has_succeeded(
    local: Recruiter, shop: Shop
) -> None:
    handle = order(local, shop)
    local.flush_jobs_synchronously()
    assert shop.ran == ["charge", "ship", "log"]
    assert shop.states(handle)["refund"] == shop.states(handle)["sorry"] == "skipped"
    report = handle.report()
    assert report.state is FlowState.SUCCEEDED
    assert report.counts == {"succeeded": 3, "skipped": 2}
    assert handle.retry() == 0
    skipped = next(step for step in handle.steps() if step.name == "refund")
    assert "was not needed" in local.explain(skipped.job)
    assert local.find(skipped.job).why == "not-needed"


def test_a_compensation_runs_when_the_step_fails(local: Recruiter, shop: Shop) -> None:
    shop.broken.add("ship")
    handle = order(local, shop)
    local.flush_jobs_synchronously()
    assert shop.ran == ["charge", "ship", "refund", "sorry", "log"]
    assert handle.report().state is FlowState.FAILED


def test_a_compensation_is_given_up_when_a_step_that_it_needs_fails(local: Recruiter, shop: Shop) -> None:
    shop.broken.add("charge")
    handle = order(local, shop)
    local.flush_jobs_synchronously()
    assert shop.ran == ["charge", "log"]
    (refund,) = [step for step in handle.steps() if step.name == "refund"]
    assert (refund.state, refund.why) == ("skipped", "dependency-failed")


def test_of_several_steps_one_failure_is_enough_and_all_must_have_ended(local: Recruiter, shop: Shop) -> None:
    shop.broken.add("b")
    flow = local.flow("f")
    parts = [flow.add(shop.say, text) for text in "abc"]
    flow.add(shop.say, "cleanup", after_failure=parts)
    flow.start()
    local.flush_jobs_synchronously()
    assert shop.ran == ["a", "b", "c", "cleanup"]


# -- before the dependents -------------------------------------------------------------------------------------------


def replacing(local: Recruiter, shop: Shop) -> Any:
    """A step that knows its parts only when it runs, and a step that takes its result."""

    @local.task
    def split(text: str) -> str:
        flow = current_job.flow
        parts = flow.add_many(shop.say, [(letter,) for letter in text], name="part", before_dependents=True)
        total = flow.add(shop.join.job([part.result for part in parts]), name="total", before_dependents=True)
        return total.result

    flow = local.flow("f")
    whole = flow.add(split, "abc", name="split")
    flow.add(shop.say, whole.result, name="after")
    return flow.start()


def test_steps_that_wait_for_a_running_step_wait_for_the_steps_that_it_adds(local: Recruiter, shop: Shop) -> None:
    handle = replacing(local, shop)
    local.flush_jobs_synchronously()
    assert shop.ran == ["a", "b", "c", "a+b+c"]
    assert handle["split"].result(5) == "a+b+c"
    assert handle.report().state is FlowState.SUCCEEDED


def test_a_result_of_another_step_is_opened_with_a_codec(target: str) -> None:
    with Recruiter(target, codec=Zlib()) as recruiter:
        shop = Shop(recruiter)
        handle = replacing(recruiter, shop)
        recruiter.flush_jobs_synchronously()
        assert shop.ran[-1] == "a+b+c"
        assert handle["split"].result(5) == "a+b+c"


def test_a_failure_of_an_added_step_gives_up_the_dependents_until_it_is_recovered(local: Recruiter, shop: Shop) -> None:
    shop.broken.add("b")
    handle = replacing(local, shop)
    local.flush_jobs_synchronously()
    assert shop.states(handle)["after"] == "skipped"
    shop.broken.clear()
    handle.retry()
    local.flush_jobs_synchronously()
    assert shop.states(handle)["after"] == "succeeded"
    assert shop.ran[-1] == "a+b+c"


def test_a_step_that_the_added_step_waits_for_does_not_wait_for_it(local: Recruiter, shop: Shop) -> None:
    """Given a step that waits for the running step, when the running step adds one after it and before its dependents,
    then neither waits for the other for ever."""

    @local.task
    def plan() -> None:
        flow = current_job.flow
        first = flow.add(shop.say, "first", after=flow.current)
        flow.add(shop.say, "second", after=first, before_dependents=True)

    flow = local.flow("f")
    flow.add(shop.say, "last", after=flow.add(plan))
    flow.start()
    local.flush_jobs_synchronously()
    assert shop.ran == ["first", "second", "last"]


def test_before_dependents_is_refused_outside_of_a_running_step(local: Recruiter, shop: Shop) -> None:
    flow = local.flow("f")
    with pytest.raises(InvalidFlow, match="before_dependents is for a running step"):
        flow.add(shop.say, "a", before_dependents=True)
    flow.add(shop.say, "a")
    with pytest.raises(InvalidFlow, match="before_dependents is for a running step"):
        flow.start().add(shop.say, "b", before_dependents=True)


# -- flows in flows --------------------------------------------------------------------------------------------------


def test_a_flow_in_a_flow_is_waited_for_as_one_step(local: Recruiter, shop: Shop) -> None:
    inner = local.fan_out(shop.say, [("a",), ("b",)], then=shop.join, name="inner")
    outer = local.flow("outer")
    first = outer.add(shop.say, "first", name="first")
    sub = outer.add(inner, after=first)
    outer.add(shop.say, sub.result, name="last")
    handle = outer.start()
    local.flush_jobs_synchronously()
    assert shop.ran == ["first", "a", "b", "a+b"]
    assert list(shop.states(handle)) == ["first", "inner/1", "inner/2", "inner/3", "last"]
    assert handle.results(sub) == ["a", "b", "a+b"]
    assert handle.job(inner.steps[0]).result(5) == "a"


def test_flows_are_nested_four_deep(local: Recruiter, shop: Shop) -> None:
    flow = local.chain(shop.say.job("4"), name="d")
    for depth in "321":
        outer = local.flow(f"level {depth}")
        outer.add(shop.join, [outer.add(shop.say, depth).result, outer.add(flow).result])
        flow = outer
    handle = flow.start()
    local.flush_jobs_synchronously()
    assert handle.job(flow.steps[-1]).result(5) == "1+2+3+4"


def test_the_compensation_of_an_inner_flow_does_not_skip_the_steps_after_it(local: Recruiter, shop: Shop) -> None:
    inner = local.flow("inner")
    inner.add(shop.say, "undo", after_failure=inner.add(shop.say, "do"))
    inner.on_success(shop.say, "well").on_failure(shop.say, "badly")
    outer = local.flow("outer")
    outer.add(shop.say, "after", after=outer.add(inner))
    outer.start()
    local.flush_jobs_synchronously()
    assert sorted(shop.ran) == ["after", "do", "well"]


def test_a_flow_can_be_added_only_once_and_only_before_it_is_started(local: Recruiter, shop: Shop) -> None:
    inner = local.chain(shop.say.job("a"), name="inner")
    local.flow("one").add(inner)
    with pytest.raises(InvalidFlow, match="started already"):
        local.flow("two").add(inner)
    with pytest.raises(InvalidFlow, match="no steps"):
        local.flow("two").add(local.flow("empty"))


# -- order, and kills ------------------------------------------------------------------------------------------------


def test_a_released_step_runs_before_jobs_that_are_younger_than_its_flow(local: Recruiter, shop: Shop) -> None:
    local.chain(shop.say.job("1"), shop.say.job("2"), shop.say.job("3")).start()
    for _ in range(5):
        shop.say.enqueue("young")
    local.flush_jobs_synchronously()
    assert shop.ran[:3] == ["1", "2", "3"]
    assert shop.ran.count("young") == 5


APPLICATION = """
    import os, signal, sys
    from recruiter import Recruiter, RetryManyTimes, current_job

    recruiter = Recruiter()
    FOLDER = {folder!r}

    @recruiter.task
    def part(number: int) -> int:
        return number

    @recruiter.task
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    @recruiter.task(retry=RetryManyTimes(5, 0))
    def split(count: int) -> int:
        flow = current_job.flow
        parts = flow.add_many(part, [(number,) for number in range(count)], name="part", before_dependents=True)
        died = os.path.join(FOLDER, "died")
        if not os.path.exists(died):
            open(died, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return flow.add(total.job([step.result for step in parts]), name="total", before_dependents=True).result

    @recruiter.task
    def fails() -> None:
        raise ValueError("no")

    @recruiter.task
    def note(text: str | int) -> str | int:
        return text
"""


def test_a_process_that_is_killed_between_the_steps_that_it_adds_adds_them_once(
    target: str, start: Starter, application: Written, tmp_path: Any
) -> None:
    """Given a worker whose process dies when half of the steps are added, then each step exists once, the dependents
    wait for all of them, and the compensation is skipped."""
    bootstrap = application(dedent(APPLICATION).format(folder=str(tmp_path)))
    start("start", "recruiter", "--bootstrap", bootstrap)
    start("start", "worker", "--bootstrap", bootstrap, "--processes", "2")
    tasks = run_path(bootstrap)
    tasks["recruiter"].point_at(target)
    with tasks["recruiter"] as recruiter:
        flow = recruiter.flow("f")
        whole = flow.add(tasks["split"], 5, name="split")
        flow.add(tasks["note"], whole.result, name="after")
        flow.add(tasks["note"], "undo", name="undo", after_failure=whole)
        failing = flow.add(tasks["fails"], name="fails")
        flow.add(tasks["note"], "sorry", name="sorry", after_failure=failing)
        handle = flow.start()
        eventually(lambda: (tmp_path / "died").exists(), 60)
        report = handle.wait(60)
        assert report.state is FlowState.FAILED
        assert handle["after"].result(10) == 10
        assert handle["sorry"].result(10) == "sorry"
        states = {step.name: step.state for step in handle.steps()}
        assert states["undo"] == "skipped"
        assert sorted(name or "" for name in states) == sorted(
            ["after", "fails", "sorry", "split", "total", "undo", *(f"part {number}" for number in range(1, 6))]
        )
