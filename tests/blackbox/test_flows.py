"""Flows as a user sees them: their outcome, their ends, pauses and cancels, and mistakes in making them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from recruiter import ArchivedJob, FlowState, InvalidFlow, JobExists, Recruiter, State, Task
from recruiter.crypto import Zlib
from recruiter.testing import Sandbox

pytestmark = pytest.mark.usefixtures("store")  # prepared


@pytest.fixture
def ran() -> list[str]:
    return []


@pytest.fixture
def broken() -> set[str]:
    """The steps that fail."""
    return set()


@pytest.fixture
def say(local: Recruiter, ran: list[str], broken: set[str]) -> Task[..., Any, str]:
    @local.task
    def say(name: str) -> str:
        ran.append(name)
        if name in broken:
            raise ValueError(name)
        return name

    return say


def with_ends(local: Recruiter, say: Any) -> Any:
    flow = local.flow("f")
    return flow.on_success(say, "success").on_failure(say, "failure").on_end(say, "end")


@pytest.mark.parametrize("again", ["retry", "recover"])
def test_a_flow_whose_last_step_is_repeated_and_succeeds_has_succeeded(
    local: Recruiter, say: Any, ran: list[str], broken: set[str], again: str
) -> None:
    """Given a flow that failed, when its step runs again and succeeds, then the flow has succeeded, whether the worker
    or the leader comes first."""
    for number in range(2):
        broken.add("step")
        flow = with_ends(local, say)
        step = flow.add(say, "step")
        handle = flow.start()
        local.run_all(say)
        assert handle.wait(10).state is FlowState.FAILED
        failed_at = handle.report().ended_at
        broken.clear()
        ran.clear()

        if again == "retry":
            handle.retry()
        else:
            local.recover(step.id)
        local.run_all(say)

        assert handle.wait(10).state is FlowState.SUCCEEDED, f"flow {number}"
        assert ran == ["step", "success"]
        ended_at = handle.report().ended_at
        assert failed_at is not None
        assert ended_at is not None
        assert ended_at > failed_at


def test_a_step_that_is_added_to_a_flow_that_succeeded_and_fails_makes_it_fail(
    local: Recruiter, say: Any, ran: list[str], broken: set[str]
) -> None:
    flow = with_ends(local, say)
    flow.add(say, "step")
    handle = flow.start()
    local.run_all(say)
    broken.add("late")

    handle.add(say, "late")
    local.run_all(say)

    assert handle.wait(10).state is FlowState.FAILED
    assert sorted(ran) == ["end", "failure", "late", "step", "success"]


def test_a_retry_leaves_a_flow_paused(local: Recruiter, say: Any, ran: list[str], broken: set[str]) -> None:
    broken.add("step")
    flow = local.flow("f")
    flow.add(say, "step")
    handle = flow.start()
    local.run_all(say)
    handle.pause(by="ada", reason="the bank is closed")
    broken.clear()

    handle.retry()
    local.run_all(say)

    assert handle.report().state is FlowState.PAUSED
    handle.resume()
    local.run_all(say)
    assert handle.wait(10).state is FlowState.SUCCEEDED
    assert ran == ["step", "step"]


def test_an_end_whose_id_is_taken_meanwhile_runs_all_the_same(local: Recruiter, say: Any, ran: list[str]) -> None:
    flow = local.flow("f")
    flow.add(say, "step")
    flow.on_end(say.job("end").with_id("report"))
    handle = flow.start()
    say.job("other").with_id("report").enqueue()

    local.run_all(say)

    assert handle.wait(10).state is FlowState.SUCCEEDED
    assert sorted(ran) == ["end", "other", "step"]


def test_an_end_whose_id_is_taken_before_is_refused(local: Recruiter, say: Any) -> None:
    say.job("other").with_id("report").enqueue()
    flow = local.flow("f")
    flow.add(say, "step")
    flow.on_end(say.job("end").with_id("report"))

    with pytest.raises(JobExists, match="report"):
        flow.start()


class TestMistakes:
    def test_a_step_that_must_succeed_and_need_not(self, local: Recruiter, say: Any) -> None:
        flow = local.flow("f")
        first = flow.add(say, "first")

        with pytest.raises(InvalidFlow, match="use one of them"):
            flow.add(say, "second", after=first, after_any=first)

    @pytest.mark.parametrize("use", [bool, "{}".format, str], ids=["if", "f-string", "str"])
    def test_a_result_is_used_before_it_is_there(self, local: Recruiter, say: Any, use: Callable[[Any], Any]) -> None:
        step = local.flow("f").add(say, "first")

        with pytest.raises(InvalidFlow, match="Pass it to a step as an argument"):
            use(step.result)


@pytest.mark.parametrize("change", ["nothing", "run now", "reschedule"])
def test_a_pause_leaves_a_released_step_its_time(local: Recruiter, target: str, say: Any, change: str) -> None:
    """Given a step that was released with a delay of one hour, when its flow is paused and resumed again and again 50
    minutes later, then the step is due when it was due before."""
    sandbox = Sandbox(local, target, now=datetime(2030, 1, 1, tzinfo=UTC))
    flow = local.flow("f")
    step = flow.add(say.job("late").schedule_in("1 hour").expires_in("1 hour"), after=flow.add(say, "first"))
    handle = flow.start()
    sandbox.run_due()
    sandbox.move_clock("50 minutes")
    if change == "run now":
        local.run_now(step.id)
    elif change == "reschedule":
        local.reschedule(step.id, in_="5 minutes")
    before = local.find(step.id)

    handle.pause()
    handle.resume()
    handle.pause()
    sandbox.move_clock("1 minute")
    handle.resume()
    sandbox.move_clock("1 second")
    sandbox.run_due()

    after = local.find(step.id)
    assert (after.scheduled_at, after.expires_at) == (before.scheduled_at, before.expires_at)
    sandbox.move_clock("9 minutes")
    sandbox.run_due()
    assert local.find(step.id).state is State.SUCCEEDED


def test_the_delay_of_a_step_counts_from_its_release_also_if_its_flow_was_paused_before(
    local: Recruiter, target: str, say: Any
) -> None:
    sandbox = Sandbox(local, target, now=datetime(2030, 1, 1, tzinfo=UTC))
    flow = local.flow("f")
    step = flow.add(say.job("late").schedule_in("1 hour"), after=flow.add(say, "first"))
    handle = flow.start()
    handle.pause()
    sandbox.move_clock("30 minutes")
    handle.resume()
    sandbox.run_due()

    assert local.find(step.id).scheduled_at == datetime(2030, 1, 1, 1, 30, tzinfo=UTC)


@pytest.mark.parametrize("one_by_one", [True, False], ids=["by id", "by filter"])
@pytest.mark.parametrize("codec", [None, Zlib()], ids=["plain", "sealed"])
def test_a_step_that_succeeded_is_repeated_with_the_results_that_it_takes(
    target: str, codec: Zlib | None, one_by_one: bool
) -> None:
    """Given a step that took the results of others, one of which gave none, when it is repeated, and its repetition
    too, then all of them return the same, and the flow stays as it is."""
    with Recruiter(target, codec=codec) as recruiter:

        @recruiter.task
        def part(name: str) -> str:
            if name == "bad":
                raise ValueError(name)
            return name

        @recruiter.task
        def whole(parts: list[str | None]) -> str:
            return repr(parts)

        flow = recruiter.flow("f")
        good, bad = flow.add(part, "good"), flow.add(part, "bad")
        step = flow.add(whole.job([good.result, bad.result]), after_any=[bad])
        handle = flow.start()
        recruiter.flush_jobs_synchronously()
        assert handle.job(step).result(60) == "['good', None]"

        last = step.id
        for _ in range(2):
            if one_by_one:
                recruiter.recover(last, again=True)
            else:
                assert recruiter.jobs.recover(ids=[last], state="succeeded", again=True) == 1
            recruiter.flush_jobs_synchronously()
            ended = recruiter.find(last)
            assert isinstance(ended, ArchivedJob)
            assert ended.recovered_as is not None
            last = ended.recovered_as
            assert recruiter.handle(last).result(60) == "['good', None]"
        assert handle.report().total == 3
