"""Two features that meet: sub-flows that are paused, cancelled and recovered while they grow, compensations of steps
that are recovered, kills between the parts that a step adds, signals and expiry, a cancellation inside a step."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from runpy import run_path
from typing import Any

import pytest

from recruiter import FlowState, Recruiter, current_job
from recruiter.testing import Sandbox
from tests.blackbox.conftest import Written
from tests.conftest import Starter, eventually

pytestmark = pytest.mark.usefixtures("store")  # prepared


@pytest.fixture
def jobs(local: Recruiter, target: str) -> Iterator[Sandbox]:
    """A clock that can be moved."""
    sandbox = Sandbox(local, target)
    yield sandbox
    sandbox.close()


class Trip:
    """A step `book` that is replaced by a flow of three parts and their sum, and a step that takes its result."""

    def __init__(self, local: Recruiter) -> None:
        self.ran: list[str] = []
        self.broken: set[str] = set()
        self.before: dict[str, Any] = {}
        """Called by the steps of this name, before they do anything."""
        self.recruiter = local

        @local.task
        def say(text: str) -> str:
            self.ran.append(text)
            self.before.get(text, lambda: None)()
            if text in self.broken:
                raise ValueError(text)
            return text

        @local.task
        def join(texts: list[str]) -> str:
            return "+".join(texts)

        @local.task
        def book() -> Any:
            self.before.get("begin", lambda: None)()
            hotel = local.flow("hotel")
            parts = hotel.add_many(say, [(letter,) for letter in "abc"], name="part")
            hotel.add(join.job([part.result for part in parts]), name="sum")
            hotel.add(say.job("undo"), after_failure=parts, name="undo")
            result = current_job.flow.add(hotel, before_dependents=True).result
            self.before.get("book", lambda: None)()
            if "book" in self.broken:
                raise ValueError("book")
            return result

        self.say = say
        flow = local.flow("trip")
        booked = flow.add(book, name="book")
        flow.add(say, booked.result, name="last")
        self.handle = flow.start()

    def run(self) -> list[str]:
        """Runs what can run; returns what has run."""
        self.ran.clear()
        self.recruiter.flush_jobs_synchronously()
        return sorted(self.ran)

    def states(self) -> dict[str | None, str]:
        return {step.name: step.state for step in self.handle.steps()}


@pytest.fixture
def trip(local: Recruiter) -> Trip:
    return Trip(local)


DONE = {
    **dict.fromkeys(("book", "last", "hotel/part 1", "hotel/part 2", "hotel/part 3", "hotel/sum"), "succeeded"),
    "hotel/undo": "skipped",
}


WHEN = {"before it adds": "begin", "after it has added": "book", "in the sub-flow": "a"}


@pytest.mark.parametrize("when", WHEN)
def test_a_sub_flow_grows_in_a_paused_flow_and_goes_on_when_it_is_resumed(trip: Trip, when: str) -> None:
    trip.before[WHEN[when]] = trip.handle.pause
    assert trip.run() == (["a"] if when == "in the sub-flow" else [])
    assert trip.handle.report().state is FlowState.PAUSED
    assert trip.handle.sub_flow("hotel").report().ended is False
    trip.before.clear()
    trip.handle.resume()
    trip.run()
    assert trip.states() == DONE
    assert trip.handle["last"].result(5) == "a+b+c"
    assert trip.handle.sub_flow("hotel").report().state == "succeeded"


@pytest.mark.parametrize("when", WHEN)
def test_a_sub_flow_that_was_cancelled_while_it_grew_is_completed_when_its_flow_is_recovered(
    trip: Trip, when: str
) -> None:
    """Given a flow that is cancelled before, while or after a step of it adds a flow, when the flow is recovered, then
    each part is there once and runs, and the compensation does not."""
    trip.before[WHEN[when]] = trip.handle.cancel
    trip.run()
    trip.handle.wait(5)
    assert trip.handle.report().state is FlowState.CANCELLED
    assert "a+b+c" not in trip.ran
    trip.before.clear()
    trip.handle.recover()
    trip.run()
    assert trip.handle.report().state is FlowState.SUCCEEDED
    assert trip.states() == DONE
    assert trip.handle["last"].result(5) == "a+b+c"


def test_a_part_of_a_sub_flow_that_fails_twice_is_recovered_twice_and_compensated_once(trip: Trip) -> None:
    trip.broken = {"b"}
    assert trip.run() == ["a", "b", "c", "undo"]
    assert trip.states()["last"] == "skipped"
    assert trip.handle.recover() == 1
    assert trip.run() == ["b"]
    assert trip.states()["last"] == "skipped"
    trip.broken.clear()
    assert trip.handle.recover() == 1
    assert trip.run() == ["a+b+c", "b"]
    assert trip.states() == {**DONE, "hotel/undo": "succeeded"}
    assert trip.handle.report().state is FlowState.SUCCEEDED


@pytest.mark.parametrize("broken", [True, False], ids=["fails again", "succeeds"])
def test_a_compensation_that_has_not_started_is_decided_again_when_its_step_is_recovered(
    local: Recruiter, trip: Trip, broken: bool
) -> None:
    """Given a compensation that waits for the resumption of its flow, when the step that failed is recovered, then the
    compensation runs only if the step fails again."""
    trip.broken = {"ship"}
    flow = local.flow("order")
    shipped = flow.add(trip.say, "ship", name="ship")
    flow.add(trip.say.job("undo"), after_failure=shipped, name="undo")
    handle = flow.start()
    trip.before["ship"] = handle.pause
    trip.run()
    trip.before.clear()
    if not broken:
        trip.broken.clear()
    handle.recover()
    handle.resume()
    assert trip.run() == (["ship", "undo"] if broken else ["ship"])
    assert {step.name: step.state for step in handle.steps()}["undo"] == ("succeeded" if broken else "skipped")


def test_a_step_that_failed_after_it_had_added_steps_adds_them_once_when_it_is_recovered(trip: Trip) -> None:
    trip.broken = {"book"}
    trip.run()
    assert trip.states()["last"] == "skipped"
    trip.broken.clear()
    trip.handle.recover()
    trip.run()
    assert trip.states() == DONE
    assert trip.handle["last"].result(5) == "a+b+c"


APPLICATION = """
    import os, signal
    from recruiter import Recruiter, current_job

    recruiter = Recruiter()
    FOLDER = {folder!r}

    def died(name: str) -> None:
        file = os.path.join(FOLDER, name)
        if not os.path.exists(file):
            open(file, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)

    @recruiter.task
    def part(number: int) -> int:
        with open(os.path.join(FOLDER, f"part {{number}}"), "a") as file:
            file.write("x")
        return number

    @recruiter.task
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    @recruiter.task(max_crashes=1)
    def split(count: int) -> int:
        flow = current_job.flow
        parts = flow.add_many(part, [(number,) for number in range(count)], name="part", before_dependents=True)
        died("after the parts")
        sum = flow.add(total.job([part.result for part in parts]), name="total", before_dependents=True)
        died("after the sum")
        return sum.result
"""


def test_a_step_that_was_given_up_after_kills_adds_each_step_once_when_it_is_recovered(
    target: str, start: Starter, application: Written, tmp_path: Any
) -> None:
    """Given a step that may not crash and whose process dies after each of its additions, when it is recovered, twice,
    then each step exists and runs once, and the step after it has the result."""
    bootstrap = application(APPLICATION.format(folder=str(tmp_path)))
    start("start", "recruiter", "--bootstrap", bootstrap)
    start("start", "worker", "--bootstrap", bootstrap, "--processes", "2")
    tasks = run_path(bootstrap)
    tasks["recruiter"].point_at(target)
    with tasks["recruiter"] as recruiter:
        flow = recruiter.flow("f")
        whole = flow.add(tasks["split"], 4, name="split")
        flow.add(tasks["part"], whole.result, name="last")
        handle = flow.start()
        for _ in range(2):
            assert handle.wait(60).state is FlowState.FAILED
            assert handle["last"].wait(10).why == "dependency-failed"
            eventually(lambda: handle.retry(), 10)
        assert handle.wait(60).state is FlowState.SUCCEEDED
        assert handle["last"].result(10) == sum(range(4))
        names = sorted(str(step.name) for step in handle.steps())
        assert names == sorted(["last", "split", "total", *(f"part {number}" for number in range(1, 5))])
        assert all(os.path.getsize(tmp_path / f"part {number}") == 1 for number in range(4))


def test_a_job_that_waits_for_one_of_several_signals_does_not_expire(local: Recruiter, jobs: Sandbox) -> None:
    """Given a job with an expiry, when it has begun to wait, then it waits beyond that; a job that has not begun
    expires, although a signal has come."""

    @local.task(expires="1 hour")
    def decide() -> str:
        return current_job.wait_for_any("yes", "no", timeout="1 day").name

    begun = decide.enqueue()
    jobs.run_due()
    late = decide.enqueue()
    local.signal(late.id, "yes")
    jobs.move_clock("2 hours")
    jobs.run_due()
    local.signal(begun.id, "no")
    jobs.run_due()
    assert begun.result(5) == "no"
    assert local.find(late.id).why == "expired"


def test_a_step_of_a_flow_that_expires_or_gets_no_signal_is_compensated(local: Recruiter, jobs: Sandbox) -> None:
    ran = []

    @local.task
    def ask(name: str) -> str:
        ran.append(name)
        return current_job.wait_for_any("yes", "no", timeout="1 day").name

    @local.task
    def undo(name: str) -> None:
        ran.append(f"undo {name}")

    flow = local.flow("f")
    asked = flow.add(ask, "asked")
    expired = flow.add(ask.job("expired").expires_in("1 hour").schedule_in("30 minutes"))
    for step, name in ((asked, "asked"), (expired, "expired")):
        flow.add(undo.job(name), after_failure=step)
    handle = flow.start()
    jobs.run_due()
    jobs.move_clock("3 days")
    while jobs.run_due():
        pass
    assert sorted(ran) == ["asked", "asked", "undo asked", "undo expired"]
    assert handle.report().state is FlowState.FAILED


def test_signals_that_make_a_job_which_is_unique_until_it_starts_reach_one_job_each(local: Recruiter) -> None:
    """Given signals from many threads while jobs start, when all jobs have ended, then each signal was taken by one
    job, or stayed with the job that it had reached."""
    taken: list[int] = []

    @local.task
    def collect() -> None:
        taken.append(current_job.wait_for("number"))

    send = collect.job().unique("one", until="started").enqueue_with_signal
    handles: list[Any] = []
    threads = [threading.Thread(target=lambda n=n: handles.append(send("number", n))) for n in range(16)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        local.run_all(collect)
    local.run_all(collect)
    found = [local.find(id) for id in {handle.id for handle in handles}]
    assert all(job.done for job in found)
    kept = [signal.data for job in found for signal in job.signals]
    assert len(handles) == 16
    assert sorted(kept) == list(range(16)), "every signal is with one job"
    assert len(taken) == len(found) == sum(handle.created for handle in handles)


CANCELLING = """
    import os, time
    from recruiter import Recruiter, RetryManyTimes, current_job

    recruiter = Recruiter()
    FOLDER = {folder!r}

    def slow() -> None:
        with open(os.path.join(FOLDER, "slow"), "a") as file:
            file.write("x")
        time.sleep(60)

    @recruiter.task(retry=RetryManyTimes(5, 0))
    def order(timeout: str) -> None:
        current_job.once("slow", slow, retry=RetryManyTimes(5, "1 hour"), timeout=timeout)
"""


@pytest.mark.parametrize("where", ["in the step", "between two tries of the step"])
def test_a_job_is_cancelled_in_a_step_with_a_policy_and_a_timeout(
    target: str, start: Starter, application: Written, tmp_path: Any, where: str
) -> None:
    bootstrap = application(CANCELLING.format(folder=str(tmp_path)))
    start("start", "recruiter", "--bootstrap", bootstrap)
    start("start", "worker", "--bootstrap", bootstrap, "--processes", "1")
    tasks = run_path(bootstrap)
    tasks["recruiter"].point_at(target)
    with tasks["recruiter"] as recruiter:
        job = tasks["order"].enqueue("50s" if where == "in the step" else "100ms")
        if where == "in the step":
            eventually(lambda: (tmp_path / "slow").exists())
        else:
            eventually(lambda: "step 'slow' failed" in recruiter.explain(job.id))
        began = time.monotonic()
        recruiter.cancel(job.id)
        assert job.wait(30).why == "cancelled"
        assert time.monotonic() - began < 20
        assert os.path.getsize(tmp_path / "slow") == 1
