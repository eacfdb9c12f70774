"""Composition as a user sees it: named steps, steps that run only after a failure, steps before the dependents, flows
in flows, and the order in which released steps run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from runpy import run_path
from textwrap import dedent
from typing import Any

import pytest
from pymongo.errors import OperationFailure

from recruiter import (
    FlowState,
    InvalidArguments,
    InvalidFlow,
    JobFailed,
    Recruiter,
    ResultTimeout,
    Superseded,
    Workable,
    current_job,
)
from recruiter.crypto import Zlib
from recruiter.testing import Sandbox
from tests.blackbox.conftest import Written
from tests.cli_here import here
from tests.conftest import Starter, eventually

pytestmark = pytest.mark.usefixtures("store")  # prepared


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


class Letter(Workable, name="composition.Letter"):
    """A letter."""


Shown = Callable[..., str]


@pytest.fixture
def show(target: str) -> Shown:
    """The output of `recruiter flow show`."""
    return lambda handle, output="table": here(target, "flow", "show", str(handle.id), "--output", output)[1]


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


@pytest.mark.parametrize("asynchronous", [True, False], ids=["async", "plain"])
def test_the_result_of_a_step_that_is_returned_is_waited_for(local: Recruiter, shop: Shop, asynchronous: bool) -> None:
    """Given a step that adds a step without `before_dependents` and returns its result, then the steps that take the
    result wait for it; so does a step that is added after the first one has ended."""
    handles: list[Any] = []

    @local.task
    def forgot() -> str:
        handles.append(current_job.flow)
        return current_job.flow.add(shop.say, "late", name="late").result

    flow = local.flow("f")
    first = flow.add(forgot, name="first")
    flow.add(shop.say, first.result, name="second")
    flow.add(shop.say, "third", after=first, name="third")
    handle = flow.start()
    local.flush_jobs_synchronously()
    handle.add(shop.say, first.result, name="fourth")
    local.flush_jobs_synchronously()
    assert sorted(shop.ran) == ["late", "late", "late", "third"]
    job = handle["first"]
    assert (asyncio.run(job.aresult(5)) if asynchronous else job.result(5)) == "late"


def test_the_failure_of_a_step_whose_result_was_returned_gives_up_the_steps_that_take_it(
    local: Recruiter, shop: Shop
) -> None:
    @local.task
    def forgot() -> str:
        return current_job.flow.add(shop.say, "late", name="late").result

    shop.broken.add("late")
    flow = local.flow("f")
    flow.add(shop.say, flow.add(forgot, name="first").result, name="second")
    handle = flow.start()
    local.flush_jobs_synchronously()
    assert shop.states(handle) == {"first": "succeeded", "second": "skipped", "late": "failed"}
    shop.broken.clear()
    handle.retry()
    local.flush_jobs_synchronously()
    assert shop.states(handle)["second"] == "succeeded"
    assert handle["late"].result(5) == handle["first"].result(5) == "late"


@pytest.mark.parametrize(
    ("form", "error"),
    [
        ("in a dict", "returns `step.result` of another step, or a list of such results, and nothing with it"),
        ("beside a value", "returns `step.result` of another step, or a list of such results, and nothing with it"),
        ("the step", "returns `step.result` of another step, or a list of such results, and nothing with it"),
        ("another type", "expected int, got the result of a step, which is str"),
        ("a list", "expected int, got a list of results"),
    ],
)
def test_a_step_that_returns_results_in_another_way_is_told_how(
    local: Recruiter, shop: Shop, form: str, error: str
) -> None:
    @local.task
    def delegate() -> int:
        step: Any = current_job.flow.add(shop.say, "a")
        forms = {
            "in a dict": {"a": step.result},
            "beside a value": [1, step.result],
            "the step": step,
            "another type": step.result,
            "a list": [step.result],
        }
        return forms[form]  # type: ignore[no-any-return]

    flow = local.flow("f")
    flow.add(delegate)
    handle = flow.start()
    local.flush_jobs_synchronously()
    assert error in str(handle.steps()[0].error)


@pytest.mark.parametrize("use", ["==", "for", "[0]"])
def test_a_result_is_not_compared_or_read_before_it_is_there(local: Recruiter, shop: Shop, use: str) -> None:
    result: Any = local.flow("f").add(shop.say, "a").result
    uses: dict[str, Callable[[], Any]] = {
        "==": lambda: result == "a",
        "for": lambda: list(result),
        "[0]": lambda: result[0],
    }
    with pytest.raises(InvalidFlow, match="Pass it to a step as an argument"):
        uses[use]()


def test_a_result_of_a_step_of_another_flow_cannot_be_returned(local: Recruiter, shop: Shop) -> None:
    @local.task
    def foreign() -> str:
        return local.flow("never started").add(shop.say, "a").result

    flow = local.flow("f")
    flow.add(foreign, name="foreign")
    handle = flow.start()
    local.flush_jobs_synchronously()
    assert "can only be returned by a step of the same flow" in str(handle.steps()[0].error)


def test_two_steps_that_take_results_of_each_other_are_not_left_waiting(local: Recruiter, shop: Shop) -> None:
    """Given a step that returns the result of a step that waits for a step that takes it, then that one is ended."""

    @local.task
    def circle() -> str:
        return current_job.flow.add(shop.say.job("x"), after=ids[0]).result

    flow = local.flow("f")
    ids = [flow.add(shop.say, flow.add(circle, name="circle").result, name="taker")]
    handle = flow.start()
    local.flush_jobs_synchronously()
    report = handle.wait(5)
    taker = next(step for step in handle.steps() if step.name == "taker")
    assert (report.state, taker.state) == (FlowState.FAILED, "failed")
    assert "which waits for this step" in str(taker.error)


@pytest.mark.parametrize("codec", [None, Zlib()], ids=["plain", "sealed"])
@pytest.mark.parametrize("count", [3, 1, 0])
def test_a_running_step_is_replaced_by_a_group_of_any_size(target: str, count: int, codec: Any) -> None:
    with Recruiter(target, codec=codec) as recruiter:

        @recruiter.task
        def double(number: int) -> int:
            return 2 * number

        @recruiter.task
        def total(numbers: list[int]) -> int:
            return sum(numbers)

        @recruiter.task
        def doubles(count: int) -> list[int]:
            parts = recruiter.fan_out(double, [(number,) for number in range(count)], name="parts")
            numbers: list[int] = current_job.flow.add(parts, before_dependents=True).result
            return numbers

        flow = recruiter.flow("f")
        flow.add(total, flow.add(doubles.job(count), name="doubles").result, name="total")
        handle = flow.start()
        recruiter.flush_jobs_synchronously()
        assert handle["total"].result(5) == sum(2 * number for number in range(count))
        assert handle["doubles"].result(5) == [2 * number for number in range(count)]


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
    with pytest.raises(InvalidFlow, match=r"no step named 'inner'; a sub-flow has this name: flow.sub_flow\('inner'\)"):
        handle["inner"]
    with pytest.raises(InvalidFlow, match=r"SubFlow.* is no single step; a flow that was added is flow.sub_flow"):
        handle.job(sub)  # type: ignore[arg-type]
    with pytest.raises(InvalidFlow, match="a step is given as `add` returned it, not as 'first'"):
        handle.results(["first"])  # type: ignore[list-item]


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
    with pytest.raises(InvalidFlow, match="is a part of another flow"):
        local.flow("two").add(inner)
    with pytest.raises(InvalidFlow, match="no steps"):
        local.flow("two").add(local.flow("empty"))


def album(local: Recruiter, shop: Shop) -> Any:
    inner = local.fan_out(shop.say, [("a",), ("b",)], name="letters")
    middle = local.flow("middle")
    middle.add(shop.join, middle.add(inner).result, name="joined")
    outer = local.flow("outer")
    first = outer.add(shop.say, "first", name="first")
    sub = outer.add(middle, after=first)
    outer.add(shop.say, sub.result, name="last")
    return outer.start()


def test_a_sub_flow_has_one_state_and_one_result(local: Recruiter, shop: Shop, show: Shown) -> None:
    handle = album(local, shop)
    assert [(sub.name, sub.state) for sub in handle.sub_flows()] == [
        ("middle", "blocked"),
        ("middle/letters", "blocked"),
    ]
    with pytest.raises(ResultTimeout, match="sub-flow 'middle' has not ended within"):
        handle.sub_flow("middle").wait(0)
    last = next(step for step in handle.steps() if step.name == "last")
    assert "waits for other steps of flow 'outer'" in local.explain(last.job)
    assert "sub-flow 'middle'; 0 of 3 have ended" in local.explain(last.job)
    local.flush_jobs_synchronously()
    middle = handle.sub_flow("middle")
    assert middle.wait(5).counts == {"succeeded": 3}
    assert middle.result(5) == "a+b"
    assert handle.sub_flow("middle/letters").result(5) == ["a", "b"]
    assert [step.name for step in middle.steps()] == ["middle/letters/1", "middle/letters/2", "middle/joined"]
    with pytest.raises(InvalidFlow, match="no sub-flow 'other'; its sub-flows: 'middle', 'middle/letters'"):
        handle.sub_flow("other").report()
    shown = show(handle)
    assert "sub-flow middle: succeeded, 3 steps: 3 succeeded." in shown
    assert json.loads(show(handle, "json"))["sub_flows"] == [
        {"name": "middle", "state": "succeeded", "counts": {"succeeded": 3}},
        {"name": "middle/letters", "state": "succeeded", "counts": {"succeeded": 2}},
    ]


@pytest.mark.parametrize(
    ("broken", "state"), [("a", "failed"), ("first", "skipped"), ("last", "succeeded"), ("nothing", "succeeded")]
)
def test_the_state_of_a_sub_flow_is_that_of_one_step(local: Recruiter, shop: Shop, broken: str, state: str) -> None:
    shop.broken.add(broken if broken != "last" else "a+b")
    handle = album(local, shop)
    local.flush_jobs_synchronously()
    assert handle.sub_flow("middle").report().state == state
    shop.broken.clear()
    handle.retry()
    local.flush_jobs_synchronously()
    assert handle.sub_flow("middle").report().state == "succeeded"
    assert handle.sub_flow("middle").result(5) == "a+b"


def test_two_flows_of_the_same_form_in_one_flow_do_not_share_the_steps_that_they_add(
    local: Recruiter, shop: Shop
) -> None:
    """Given a step that adds named steps and reads their results, in two flows of one flow."""

    @local.task
    def split(text: str) -> str:
        flow = current_job.flow
        parts = flow.add_many(shop.say, [(letter,) for letter in text], name="part", before_dependents=True)
        return flow.add(shop.join.job([part.result for part in parts]), name="whole", before_dependents=True).result

    @local.task
    def look(text: str) -> str:
        return f"{text}: {current_job.flow['part 1'].result(5)}"

    def build(text: str) -> Any:
        flow = local.flow(text)
        flow.add(look, flow.add(split, text).result)
        return flow

    outer = local.flow("outer")
    subs = [outer.add(build("ab")), outer.add(build("cd"))]
    outer.add(shop.join, [sub.result for sub in subs], name="both")
    handle = outer.start()
    local.flush_jobs_synchronously()
    assert handle["both"].result(5) == "a+b: a+c+d: c"
    assert handle["cd/part 2"].result(5) == "d"
    assert [step.name for step in handle.sub_flow(subs[1]).steps()] == [
        "cd/1",
        "cd/2",
        "cd/part 1",
        "cd/part 2",
        "cd/whole",
    ]


def test_a_flow_in_a_flow_takes_results_of_the_outer_flow(local: Recruiter, shop: Shop) -> None:
    outer = local.flow("outer")
    first = outer.add(shop.say, "x")
    inner = local.flow("inner")
    parts = [inner.add(shop.say, first.result), inner.add(shop.say, first.result)]
    inner.add(shop.join, [part.result for part in parts])
    outer.add(shop.say, outer.add(inner).result, name="last")
    handle = outer.start()
    local.flush_jobs_synchronously()
    assert handle["last"].result(5) == "x+x"


def test_a_flow_that_takes_results_of_another_flow_cannot_be_started_by_itself(local: Recruiter, shop: Shop) -> None:
    outer = local.flow("outer")
    inner = local.flow("inner")
    inner.add(shop.say, outer.add(shop.say, "x").result)
    with pytest.raises(InvalidFlow, match=r"say .* takes the result of step .*Add this flow to the flow of that step"):
        inner.start()


@pytest.mark.parametrize("count", [2, 1, 0])
def test_a_group_in_a_flow_has_a_list_of_any_length(local: Recruiter, shop: Shop, count: int) -> None:
    outer = local.flow("outer")
    first = outer.add(shop.say, "first")
    group = outer.add(local.fan_out(shop.say, [("a",)] * count, name="group"), after=first)
    outer.add(shop.join, group.result, name="joined")
    outer.add(shop.say, "after", after=[group], name="after")
    handle = outer.start()
    local.flush_jobs_synchronously()
    assert handle["joined"].result(5) == "+".join(["a"] * count)
    assert shop.ran == ["first", *["a"] * count, "after"]
    assert handle.results(group) == ["a"] * count


def test_no_step_can_wait_for_the_failure_of_a_flow_without_steps(local: Recruiter, shop: Shop) -> None:
    outer = local.flow("outer")
    group = outer.add(local.fan_out(shop.say, [], name="group"))
    with pytest.raises(InvalidFlow, match="has no steps and cannot fail"):
        outer.add(shop.say, "undo", after_failure=group)


# -- the end of a flow -----------------------------------------------------------------------------------------------


def test_a_flow_whose_job_for_the_end_failed_says_so(local: Recruiter, shop: Shop, show: Shown) -> None:
    shop.broken.add("well")
    flow = local.flow("f").on_success(shop.say, "well").on_end(shop.say, "over")
    flow.add(shop.say, "a")
    handle = flow.start()
    local.flush_jobs_synchronously()
    report = handle.report()
    assert report.state is FlowState.SUCCEEDED
    assert report.ends == {"success": "failed", "end": "succeeded"}
    assert "on success: failed; on end: succeeded" in show(handle)


def test_waiting_for_a_flow_does_not_wait_for_its_jobs_for_the_end(local: Recruiter, shop: Shop) -> None:
    flow = local.flow("f").on_success(shop.join, ["well"])
    flow.add(shop.say, "a")
    handle = flow.start()
    local.run_all(shop.say)
    assert handle.wait(5).ends == {"success": "waiting"}
    assert shop.ran == ["a"]


def test_a_flow_is_drawn_as_a_mermaid_diagram(local: Recruiter, shop: Shop, show: Shown) -> None:
    flow = local.flow("f").on_failure(shop.say, "bad")
    first = flow.add(shop.say, 'a "quoted" name', name='a "quoted" name')
    sub = flow.add(local.fan_out(shop.say, [("b",), ("c",)], name="sub"), after=first)
    flow.add(shop.say, "undo", after_failure=first, name="undo")
    flow.add(shop.say, "log", after_any=sub, name="log")
    shop.broken.add("b")
    handle = flow.start()
    local.flush_jobs_synchronously()
    task = shop.say.name
    assert show(handle, "mermaid").splitlines()[:17] == [
        "flowchart TD",
        f'    s1["a #34;quoted#34; name: {task}<br/>succeeded"]:::succeeded',
        f'    s4["undo: {task}<br/>skipped"]:::skipped',
        f'    s5["log: {task}<br/>succeeded"]:::succeeded',
        f'    s6["on failure: {task}<br/>succeeded"]:::succeeded',
        '    subgraph p5["sub: failed"]',
        f'    s2["sub/1: {task}<br/>failed"]:::failed',
        f'    s3["sub/2: {task}<br/>succeeded"]:::succeeded',
        "    end",
        "    s1 --> s2",
        "    s1 --> s3",
        "    s1 -.->|failed| s4",
        "    s2 -.->|any end| s5",
        "    s3 -.->|any end| s5",
        "    classDef succeeded fill:#cfead0",
        "    classDef failed fill:#f6caca",
        "    classDef lost fill:#f6caca",
    ]


# -- small print ------------------------------------------------------------------------------------------------------


def test_two_running_steps_share_a_named_step(local: Recruiter, jobs: Sandbox, shop: Shop) -> None:
    """Given two steps that add the same named step before their dependents, then the dependents of both wait for it."""

    @local.task
    def report() -> None:
        current_job.flow.add(shop.say.job("fetch").schedule_in("1h"), name="fetch", before_dependents=True)

    flow = local.flow("f")
    for name in "ab":
        flow.add(shop.say, f"use {name}", after=flow.add(report, name=name))
    flow.start()
    jobs.run_due()
    assert shop.ran == []
    jobs.move_clock("2h")
    jobs.run_due()
    assert shop.ran == ["fetch", "use a", "use b"]


@pytest.mark.parametrize("codec", [None, Zlib()], ids=["plain", "sealed"])
@pytest.mark.parametrize("form", ["steps", "flows"])
def test_steps_of_one_name_that_two_steps_add_are_not_mistaken_for_each_other(
    target: str, form: str, codec: Any
) -> None:
    """Given two steps that add steps of the same names with other arguments, then the second is told to use another
    name, and does not get the results of the first."""
    with Recruiter(target, codec=codec) as recruiter:

        @recruiter.task
        def double(number: int) -> int:
            return 2 * number

        @recruiter.task
        def total(numbers: list[int]) -> int:
            return sum(numbers)

        @recruiter.task
        def doubles(number: int, name: str) -> Any:
            calls = [(number,), (number + 1,)]
            if form == "flows":
                parts = recruiter.fan_out(double, calls, then=total, name=name)
                return current_job.flow.add(parts, before_dependents=True).result
            steps = current_job.flow.add_many(double, calls, name=name)
            return current_job.flow.add(total, [step.result for step in steps], name=f"sum of {name}").result

        flow = recruiter.flow("f")
        for number, name in ((1, "a"), (3, "b"), (5, "a")):
            flow.add(doubles.job(number, name), name=str(number))
        handle = flow.start()
        recruiter.flush_jobs_synchronously()
        results = sorted((step.name, step.state) for step in handle.steps() if step.name in ("1", "3", "5"))
        assert [state for _, state in results] == ["succeeded", "succeeded", "failed"]
        assert (handle["1"].result(5), handle["3"].result(5)) == (6, 14)
        error = next(str(step.error) for step in handle.steps() if step.name == "5")
        assert "already, with other arguments; another step added it. Give this one" in error


def test_a_repeated_attempt_that_adds_a_flow_again_returns_its_result(local: Recruiter, shop: Shop) -> None:
    tries: list[int] = []

    @local.task
    def whole() -> Any:
        tries.append(1)
        inner = local.flow("inner")
        inner.add(local.fan_out(shop.say, [("a",), ("b",)], name="letters"))
        added = current_job.flow.add(inner, before_dependents=True)
        if len(tries) == 1:
            raise ValueError("again")
        return added.result

    flow = local.flow("outer")
    flow.add(shop.join, flow.add(whole, name="whole").result, name="last")
    handle = flow.start()
    local.flush_jobs_synchronously()
    handle.recover()
    local.flush_jobs_synchronously()
    assert handle["last"].result(5) == "a+b"
    assert sorted(shop.ran) == ["a", "b"]


def test_a_run_that_has_lost_its_job_adds_no_step(local: Recruiter, shop: Shop) -> None:
    """Given a running step whose worker was retired meanwhile, when the run adds a step, then it is refused."""
    errors = []

    @local.task
    def plan() -> None:
        flow = current_job.flow
        flow.add(shop.say, "first")
        local.store.scheduled.collection.update_one({"_id": current_job.id}, {"$unset": {"token": ""}})
        with pytest.raises(Superseded) as caught:
            flow.add(shop.say, "second")
        errors.append(str(caught.value))

    flow = local.flow("f")
    flow.add(plan)
    flow.start()
    local.flush_jobs_synchronously()
    assert shop.ran == ["first"]
    assert "has lost its job" in errors[0]


def test_a_flow_is_started_again_when_its_transaction_is_repeated(local: Recruiter, shop: Shop) -> None:
    flow = local.flow("f")
    flow.add(shop.say, "a")
    calls: list[Any] = []

    def place(session: Any) -> None:
        calls.append(flow.start(session=session))
        if len(calls) == 1:
            raise OperationFailure("conflict", 112, {"errorLabels": ["TransientTransactionError"]})

    local.prepare()
    with local.store.client.start_session() as session:
        session.with_transaction(place)
    local.flush_jobs_synchronously()
    assert shop.ran == ["a"]
    assert calls[1].report().state is FlowState.SUCCEEDED


def test_a_refused_sub_flow_stays_usable_and_a_used_one_says_what_it_is(local: Recruiter, shop: Shop) -> None:
    outer = local.flow("outer")
    outer.add(shop.say, "x", name="part/1")
    part = local.chain(shop.say.job("a"), name="part")
    with pytest.raises(InvalidFlow, match="have the name 'part/1'"):
        outer.add(part)
    outer.add(part, name="other")
    two = local.fan_out(shop.say, [("b",), ("c",)], name="two")
    outer.add(shop.say, "x", name="two/2")
    with pytest.raises(InvalidFlow, match="have the name 'two/2'"):
        outer.add(two)
    with pytest.raises(InvalidFlow, match="two steps of flow 'outer' have the id 'twice'"):
        outer.add_many(shop.say, [shop.say.job(text).with_id("twice") for text in "de"])
    with pytest.raises(InvalidFlow, match="flow 'part' is a part of another flow"):
        part.start()
    handle = outer.start()
    local.flush_jobs_synchronously()
    assert list(shop.states(handle)) == ["part/1", "other/1", "two/2"]
    assert sorted(shop.ran) == ["a", "x", "x"], "a refused flow leaves no step behind"


def test_a_task_whose_code_is_elsewhere_takes_no_results(local: Recruiter, shop: Shop) -> None:
    flow = local.flow("f")
    first = flow.add(shop.say, "a")
    with pytest.raises(InvalidArguments, match="only a task whose code is imported here takes results of steps"):
        flow.add("elsewhere", first.result)


def test_the_results_of_a_sub_flow_leave_out_a_compensation_that_was_not_needed(local: Recruiter, shop: Shop) -> None:
    hotel = local.flow("hotel")
    hotel.add(shop.say, "undo", after_failure=hotel.add(shop.say, "room"))
    trip = local.flow("trip")
    booked = trip.add(hotel)
    handle = trip.start()
    local.flush_jobs_synchronously()
    assert handle.results(booked) == ["room"]


def test_a_row_of_steps_that_stand_for_the_next_one_has_the_result_of_the_last(local: Recruiter) -> None:
    last = 8

    @local.task
    def page(number: int) -> int:
        if number == last:
            return number
        added = current_job.flow.add(page, number + 1, name=f"page {number + 1}")
        return added.result

    @local.task
    def read(number: int) -> int:
        return number

    flow = local.flow("pages")
    flow.add(read, flow.add(page, 1, name="page 1").result, name="read")
    handle = flow.start()
    local.flush_jobs_synchronously()
    assert handle["read"].result(5) == handle["page 1"].result(5) == last


def test_a_step_cannot_return_its_own_result(local: Recruiter) -> None:
    @local.task
    def myself() -> Any:
        assert current_job.flow.current is not None
        return current_job.flow.current.result

    flow = local.flow("f")
    flow.add(myself)
    handle = flow.start()
    local.flush_jobs_synchronously()
    assert "is the result of this step itself" in str(handle.steps()[0].error)


def test_a_compensation_cannot_take_the_result_of_the_step_that_must_fail(local: Recruiter, shop: Shop) -> None:
    flow = local.flow("f")
    first = flow.add(shop.say, "a")
    with pytest.raises(InvalidFlow, match=r"takes the result of step .*, which must fail"):
        flow.add(shop.say, first.result, after_failure=first)


@pytest.mark.parametrize("how", ["after", "result"])
@pytest.mark.parametrize("case", ["the job for the end fails", "a failure that the last step tolerates"])
def test_the_result_of_a_sub_flow_is_taken_only_when_the_whole_sub_flow_has_succeeded(
    local: Recruiter, shop: Shop, how: str, case: str
) -> None:
    """Given a sub-flow that has failed although its last step has succeeded, then neither a step that waits for it nor
    a step that takes its result runs."""

    @local.task
    def in_any_case(text: str | None) -> str | None:
        return text

    shop.broken = {"bad"}
    inner = local.flow("inner")
    done = inner.add(shop.say, "done")
    if case == "the job for the end fails":
        inner.on_success(shop.say, "bad")
    else:
        inner.add(shop.join, [done.result], after_any=inner.add(shop.say, "bad"))
    outer = local.flow("outer")
    sub = outer.add(inner)
    if how == "after":
        outer.add(shop.say, "next", after=sub, name="next")
    else:
        outer.add(shop.say, sub.result, name="next")
    outer.add(in_any_case, sub.result, after_any=sub, name="in any case")
    outer.add(shop.say, "sorry", after_failure=sub, name="sorry")
    handle = outer.start()
    local.flush_jobs_synchronously()
    assert handle.sub_flow("inner").report().state == "failed"
    states = shop.states(handle)
    assert (states["next"], states["in any case"], states["sorry"]) == ("skipped", "succeeded", "succeeded")


def test_a_step_that_takes_the_result_of_an_empty_group_waits_for_what_the_group_waits_for(
    local: Recruiter, shop: Shop
) -> None:
    shop.broken = {"first"}
    group = local.fan_out(shop.say, [])
    handle = local.chain(shop.say.job("first"), group, shop.join).start()
    local.flush_jobs_synchronously()
    assert [step.state for step in handle.steps()] == ["failed", "skipped"]


def test_dependents_do_not_need_a_compensation_that_was_added_before_them(local: Recruiter, shop: Shop) -> None:
    """Given a running step that adds a flow with a compensation before its dependents, when the compensation is not
    needed, then the dependents run."""

    @local.task
    def whole() -> Any:
        inner = local.flow("inner")
        inner.add(shop.say, "undo", after_failure=inner.add(shop.say, "do"))
        return current_job.flow.add(inner, before_dependents=True).result

    flow = local.flow("outer")
    first = flow.add(whole)
    flow.add(shop.say, first.result, name="takes")
    flow.add(shop.say, "waits", after=first, name="waits")
    handle = flow.start()
    local.flush_jobs_synchronously()
    assert shop.states(handle) == {
        "takes": "succeeded",
        "waits": "succeeded",
        "inner/1": "succeeded",
        "inner/2": "skipped",
    }


def test_a_parameter_that_takes_no_none_cannot_take_the_result_of_a_step_that_may_fail(
    local: Recruiter, shop: Shop
) -> None:
    """Given a step that need not succeed, then its result is for a parameter that takes None, and a flow that was
    refused as a part stays as it was."""

    @local.task
    def tell(text: str | None, texts: list[str | None] = []) -> str:  # noqa: B006
        return f"{text} {texts}"

    shop.broken = {"a"}
    flow = local.flow("f")
    first, second = flow.add(shop.say, "a", name="a"), flow.add(shop.say, "b")
    refused = r"say takes the result of step a .*, which is None if that step fails, .* annotate it `… \| None`"
    for way in ({"after_any": first}, {"after_failure": [first, second]}):
        with pytest.raises(InvalidFlow, match=refused):
            flow.add(shop.say.job(first.result), **way)
    with pytest.raises(InvalidFlow, match=refused.replace("say", "join")):
        flow.add(shop.join.job([second.result, first.result]), after_any=first)
    inner = local.flow("inner")
    takes = inner.add(shop.say, first.result)
    with pytest.raises(InvalidFlow, match=refused):
        flow.add(inner, after_any=first)
    flow.add(inner, after_any=second)
    with pytest.raises(InvalidFlow, match=refused):
        flow.let_wait(takes, after_any=first)
    flow.add(tell.job(first.result, [second.result, first.result]), after_any=[first, second], name="tell")
    handle = flow.start()
    local.flush_jobs_synchronously()
    assert handle["tell"].result(5) == "None ['b', None]"
    assert shop.states(handle)["inner/1"] == "skipped"


def test_a_step_without_the_result_that_it_needs_names_the_step_that_returned_none(
    local: Recruiter, shop: Shop
) -> None:
    @local.task
    def nothing():  # type: ignore[no-untyped-def]
        ...

    flow = local.flow("f")
    first = flow.add(nothing)
    flow.add(shop.say, first.result, name="next")
    handle = flow.start()
    local.flush_jobs_synchronously()
    error = str(handle.steps()[1].error)
    assert f"step {first.id} gave no result" in error
    assert "annotated `… | None`" in error


def test_many_steps_are_added_as_jobs_too(local: Recruiter, shop: Shop) -> None:
    flow = local.flow("f")
    parts = flow.add_many(shop.say, [("a",), {"text": "b"}, shop.say.job("c").with_priority(7)], name="part")
    flow.add(shop.join, [part.result for part in parts], name="all")
    with pytest.raises(InvalidArguments, match=r"JobBuilder\('say'\) is no job of Task\('join'\)"):
        flow.add_many(shop.join, [shop.say.job("c")])
    handle = flow.start()
    assert local.find(parts[2].id).priority == 7
    local.flush_jobs_synchronously()
    assert handle["all"].result(5) == "a+b+c"


def test_slips_in_building_a_flow_are_explained(local: Recruiter, shop: Shop) -> None:
    flow = local.flow("f")
    first = flow.add(shop.say, "a")
    with pytest.raises(InvalidFlow, match="after_failure names no step"):
        flow.add(shop.say, "b", after_failure=[])
    with pytest.raises(InvalidFlow, match="cannot be a part of itself"):
        flow.add(flow)
    job: Any = local.flow("g")
    with pytest.raises(InvalidFlow, match="cannot be a job for the end of a flow"):
        flow.on_success(job)
    job = shop.say.job("c")
    with pytest.raises(InvalidArguments, match=r"has its arguments already, and 4, after_al= was given .* Only after="):
        flow.add(job, 4, after_al=first)
    with pytest.raises(InvalidArguments, match=r"and after= was given next to it\. A job for the end takes no options"):
        flow.on_end(job, after=first)
    with pytest.raises(InvalidArguments, match=r"add_many.. takes no priority=: the arguments of a task are in"):
        flow.add_many(shop.say, [("x",)], priority=5)  # type: ignore[call-overload]
    with pytest.raises(InvalidFlow, match=r"not <class .*; give it its data: Letter"):
        flow.add(Letter)
    flow.add(local.chain(shop.say.job("d"), name="sub"))
    again = local.chain(shop.say.job("e"), name="sub")
    with pytest.raises(InvalidFlow, match="two sub-flows have the name 'sub'"):
        flow.add(again)
    flow.add(again, name="other")


def test_the_delay_and_the_expiry_of_a_job_for_the_end_count_from_the_end(
    local: Recruiter, jobs: Sandbox, shop: Shop
) -> None:
    """Given a flow that takes a day, when it ends, then the jobs for its end are due after their own delay, at their
    own time, or at once if they would have expired meanwhile."""

    @local.task(expires="1 hour")
    def quick() -> None:
        shop.ran.append("at once")

    flow = local.flow("f")
    flow.add(shop.say.job("step").schedule_in("1 day"))
    flow.on_success(shop.say.job("a day later").schedule_in("1 day"))
    flow.on_end(shop.say.job("in a week").schedule_at(jobs.clock.now() + timedelta(days=7)))
    flow.on_end(quick)
    handle = flow.start()
    ran: list[list[str]] = []
    for days in (0, 1, 1, 4, 1):
        shop.ran.clear()
        jobs.move_clock(f"{days} days")
        jobs.run_due()
        ran.append([*shop.ran])
    assert ran == [[], ["step", "at once"], ["a day later"], [], ["in a week"]]
    assert handle.report().ends == {"success": "succeeded", "end": "succeeded"}


def test_a_second_cancel_and_a_pause_after_the_end_change_nothing(local: Recruiter, shop: Shop) -> None:
    cancelled = local.chain(shop.say.job("a"), shop.say.job("b")).start()
    assert cancelled.cancel(by="ada", reason="no more") == 2
    assert cancelled.cancel() == 0
    assert cancelled.report().note == "cancelled by ada: no more"
    with pytest.raises(InvalidFlow, match="cancelled by ada; recover it before you add steps"):
        cancelled.add(shop.say, "c")
    succeeded = local.chain(shop.say.job("a")).start()
    local.flush_jobs_synchronously()
    with pytest.raises(InvalidFlow, match=r"has ended already .succeeded.; nothing to pause"):
        succeeded.pause()
    assert succeeded.recover() == 0
    assert (succeeded.report().state, succeeded.report().note) == (FlowState.SUCCEEDED, None)


def test_waiting_for_a_paused_flow_names_the_person_who_paused_it(local: Recruiter, shop: Shop) -> None:
    handle = local.chain(shop.say.job("a")).start()
    handle.pause(by="ada")
    with pytest.raises(ResultTimeout, match="has not ended within 10ms; it was paused by ada"):
        handle.wait("10ms")


def test_the_result_of_a_skipped_step_names_the_step_that_failed_first(local: Recruiter, shop: Shop) -> None:
    shop.broken = {"a"}
    flow = local.flow("f")
    first = flow.add(shop.say, "a", name="first")
    second = flow.add(shop.say, first.result, name="second")
    flow.add(shop.say, second.result, name="third")
    handle = flow.start()
    local.flush_jobs_synchronously()
    with pytest.raises(JobFailed, match=rf"'dependency-failed': step 'first' .{first.id}. has not succeeded"):
        handle["third"].result(5)


@pytest.mark.parametrize("unrelated", [True, False], ids=["with a failure elsewhere", "alone"])
def test_a_failed_step_counts_more_than_one_that_was_not_needed(
    local: Recruiter, jobs: Sandbox, shop: Shop, unrelated: bool
) -> None:
    """Given a step that waits for one that fails late and one that is not needed, then its compensation runs, whatever
    else has failed in the flow before."""
    shop.broken = {"fails", "unrelated"}
    flow = local.flow("f")
    if unrelated:
        flow.add(shop.say, "unrelated")
    fails = flow.add(shop.say.job("fails").schedule_in("1 day"))
    skipped = flow.add(shop.say, "not needed", after_failure=flow.add(shop.say, "good"))
    both = flow.add(shop.say, "both", after=[fails, skipped], name="both")
    flow.add(shop.say, "undo", after_failure=both, name="undo")
    handle = flow.start()
    jobs.run_due()
    jobs.move_clock("1 day")
    while jobs.run_due():
        pass
    steps = {step.name: step for step in handle.steps()}
    assert (steps["both"].why, steps["undo"].state) == ("dependency-failed", "succeeded")


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
