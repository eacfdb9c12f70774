"""One attempt of a job: what it knows of itself, who hears of it, what is called after it, when its time is over."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, ClassVar

import pytest

from recruiter import (
    DoNotDoItAgain,
    Event,
    ExponentialBackoff,
    JobTimedOut,
    Recruiter,
    RecruiterError,
    Retry,
    RetryForever,
    RetryLater,
    RetryManyTimes,
    RetryPolicy,
    SelectByException,
    TimeTable,
    Workable,
    current_job,
    interruption,
)
from recruiter.attempt import OnProgress, ignore_progress
from recruiter.current import CurrentJob
from recruiter.domain.job import Job
from recruiter.domain.policy_registry import PolicyRegistry
from recruiter.domain.retry.decision import Decision, Failure
from recruiter.domain.retry.policies import RetriableExceptionFilter
from recruiter.errors import NoCurrentJob
from recruiter.interruption import Interruptible
from recruiter.steps.execute import Executor, Limit, no_limit
from recruiter.steps.settle import settle
from recruiter.store import outcomes
from recruiter.store.codec import Document, encode, job_document
from recruiter.store.database import Store
from recruiter.store.outcomes import Outcome, Rescheduled, ToArchive
from tests.bench import Bench, ended, failing, raising
from tests.own_process import BY_SIGNAL, run_alone
from tests.samples import NOW, a_job, document, give, hold

MINUTE = timedelta(minutes=1)


@pytest.fixture
def bench() -> Iterator[Bench]:
    """A place of work that belongs to an application, as every child does."""
    bench = Bench()
    bench.executor = executor(bench)
    yield bench
    bench.executor.close()


def executor(bench: Bench, **options: Any) -> Executor:
    owners = [bench.recruiter]
    return Executor(
        bench.recruiter.registry, bench.recruiter.policies, bench.clock, "w1", **{"owners": owners, **options}
    )


def both_colours(function: Callable[[], Any]) -> list[Any]:
    """The same as `def` and as `async def`; the latter gives the loop a chance to mix things up."""

    async def asynchronous() -> Any:
        await asyncio.sleep(0)
        return function()

    return [pytest.param(function, id="def"), pytest.param(asynchronous, id="async def")]


def as_finalizer(colour: str, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    async def asynchronous(argument: Any) -> Any:
        await asyncio.sleep(0)
        return function(argument)

    return function if colour == "def" else asynchronous


def next_attempt(bench: Bench, job: Document, outcome: Outcome | None) -> Document:
    """The document of a job that was rescheduled."""
    assert isinstance(outcome, Rescheduled), f"not rescheduled: {outcome!r}"
    return {**job, **outcome.fields}


def a_task(bench: Bench, function: Callable[..., Any], **options: Any) -> Job:
    """A job of a task that runs this function."""
    name = f"task{len(bench.recruiter.registry.names())}"
    bench.recruiter.task(name=name)(function)
    return a_job(task=name, **{"args": {}, **options})


# -- what a job knows ------------------------------------------------------------------------------------------------


def everything() -> dict[str, Any]:
    me = current_job
    return {
        "id": me.id,
        "task": me.task,
        "args": me.args,
        "group": me.group,
        "tags": list(me.tags),
        "urn": me.urn,
        "owner": me.owner,
        "worker": me.worker,
        "attempt": me.attempt,
        "started_at": me.started_at,
        "stop_asked": me.stop_asked,
        "previous": me.previous_failure,
        "is_one": bool(me),
        "whole": me.job.id,
    }


class TestCurrentJob:
    @pytest.mark.parametrize("function", both_colours(everything))
    def test_it_knows_everything_about_itself(self, bench: Bench, function: Callable[[], Any]) -> None:
        job = a_task(bench, function, id="me", group="night", tags=("a", "b"), urn="u:1", owner="ada", attempts=4)

        known = ended(bench.of_job(job))["result"]

        assert known == {
            "id": "me",
            "task": job.task,
            "args": {},
            "group": "night",
            "tags": ["a", "b"],
            "urn": "u:1",
            "owner": "ada",
            "worker": "w1",
            "attempt": 5,
            "started_at": NOW,
            "stop_asked": False,
            "previous": None,
            "is_one": True,
            "whole": "me",
        }

    def test_a_job_inside_a_job_is_itself_and_then_it_is_the_outer_one_again(self, bench: Bench) -> None:
        inner = a_task(bench, lambda: str(current_job.id), id="inner")

        def outer() -> list[str]:
            return [str(current_job.id), ended(bench.of_job(inner))["result"], str(current_job.id)]

        assert ended(bench.of_job(a_task(bench, outer, id="outer")))["result"] == ["outer", "inner", "outer"]

    def test_jobs_in_threads_do_not_mix_themselves_up(self, bench: Bench) -> None:
        together = threading.Barrier(5, timeout=20)

        def look() -> list[str]:
            together.wait()
            before = str(current_job.id)
            together.wait()
            return [before, str(current_job.id)]

        jobs = [a_task(bench, look, id=f"job{number}") for number in range(5)]
        with ThreadPoolExecutor(5) as threads:
            results = [ended(outcome)["result"] for outcome in threads.map(bench.of_job, jobs)]

        assert results == [[f"job{number}"] * 2 for number in range(5)]

    @pytest.mark.parametrize(
        "name", [name for name, value in vars(CurrentJob).items() if isinstance(value, property) and name[0] != "_"]
    )
    def test_outside_of_a_job_it_is_false_and_every_question_says_why(self, name: str) -> None:
        assert not current_job
        assert repr(current_job) == "CurrentJob(none)"
        with pytest.raises(NoCurrentJob, match="inside a task or workable while it runs as a job"):
            getattr(current_job, name)


class TestItsApplication:
    def test_a_task_belongs_to_the_application_that_has_it(self, bench: Bench) -> None:
        other = Recruiter("127.0.0.1:1")
        bench.executor = executor(bench, owners=[other, bench.recruiter])
        found: list[Recruiter] = []

        bench.run(lambda: found.append(current_job.recruiter))

        assert found == [bench.recruiter]

    def test_without_one_it_says_so(self, bench: Bench) -> None:
        bench.executor = executor(bench, owners=[])

        job = bench.archived(lambda: current_job.recruiter)

        assert job["last_execution"]["class"] == "recruiter.errors.NoCurrentJob"
        assert "without an application" in job["last_execution"]["message"]


@dataclass(frozen=True)
class UpTo(RetryPolicy):
    """A policy of the application's own."""

    attempts: int

    def decide(self, failure: Failure) -> Decision | None:
        return Retry(failure.failed_at) if failure.attempt < self.attempts else None


class TestIsLastAttempt:
    @pytest.mark.parametrize(
        ("policy", "attempts", "last"),
        [
            (None, 0, True),
            (DoNotDoItAgain(), 0, True),
            (RetryManyTimes(2, 1), 0, False),
            (RetryManyTimes(2, 1), 1, False),
            (RetryManyTimes(2, 1), 2, True),
            (RetryManyTimes(0, 1), 0, True),
            (ExponentialBackoff(1, 1), 0, False),
            (ExponentialBackoff(1, 1), 1, True),
            (RetryForever(1), 100_000, False),
            (TimeTable({"1 hour ago": "1 minute"}), 50, False),
            (TimeTable({"10 minutes ago": "1 minute"}), 0, True),
            (RetriableExceptionFilter(RetryManyTimes(1, 1), ("ValueError",)), 0, False),
            (RetriableExceptionFilter(RetryManyTimes(1, 1), ("ValueError",)), 1, True),
            (SelectByException().when(ValueError, RetryManyTimes(1, 1)), 0, False),
            (SelectByException().when(ValueError, RetryManyTimes(1, 1)), 1, True),
            (SelectByException().when(OSError, DoNotDoItAgain()).otherwise(RetryForever(1)), 9, False),
            (UpTo(3), 1, False),
            (UpTo(3), 2, True),
            (RetriableExceptionFilter(UpTo(3), ("ValueError",)), 2, True),
            (SelectByException().when(ValueError, UpTo(3)), 2, True),
        ],
        ids=repr,
    )
    def test_it_says_what_a_failure_will_then_mean(
        self, bench: Bench, policy: RetryPolicy | None, attempts: int, last: bool
    ) -> None:
        """Given a job that asks and then fails, then what it was told is what happens."""
        bench.recruiter.policies.register(UpTo)
        told: list[bool] = []

        def ask_and_fail() -> None:
            told.append(current_job.is_last_attempt)
            raise ValueError("no good")

        stored = bench.policy(policy) if policy is not None else None
        half_an_hour_old = NOW - timedelta(minutes=30)
        outcome = bench.run(ask_and_fail, retry_policy=stored, attempts=attempts, created_at=half_an_hour_old)

        assert told == [last]
        assert isinstance(outcome, ToArchive) is last


class TestPreviousFailure:
    def test_the_death_of_its_process_is_one(self, bench: Bench) -> None:
        def look() -> list[Any]:
            before = current_job.previous_failure
            assert before is not None
            return [before.crashed, before.message, current_job.attempt]

        job = job_document(a_task(bench, look))
        died = outcomes.crashed(job, PolicyRegistry(), worker="w0", started_at=None, at=NOW, message="killed")

        result = ended(bench.executor.run(encode(next_attempt(bench, job, died))))["result"]

        assert result == [True, "killed", 2]


# -- finalizers ------------------------------------------------------------------------------------------------------

COLOURS = pytest.mark.parametrize("colour", ["def", "async def"])
PARTS = ("after_success", "after_failure", "after_last_failure", "finalize")


def with_finalizers(bench: Bench, function: Callable[..., Any], colour: str, log: list[tuple[str, Any]]) -> str:
    """A task with two of each finalizer that write down what they were called with; its name."""
    task = bench.recruiter.task(name="finalized")(function)
    for part in PARTS:
        for number in (1, 2):

            def note(argument: Any, what: str = f"{part} {number}") -> None:
                log.append((what, argument))

            getattr(task, part)(as_finalizer(colour, note))
    return task.name


class Diary(Workable):
    """Writes down what happens to it; `break_in` names the parts that raise."""

    written: ClassVar[list[tuple[str, Any]]] = []
    break_in: ClassVar[dict[str, BaseException]] = {}

    def __init__(self, colour: str = "def", fail: bool = False) -> None:
        self.colour = colour
        self.fail = fail

    def execute(self) -> str:
        if self.fail:
            raise ValueError("no good")
        return "well"

    async def execute_async(self) -> str:
        await asyncio.sleep(0)
        return self.execute()

    def later(self) -> None:
        raise RetryLater(60)

    def after_success(self, result: Any) -> Any:
        return self._note("after_success", result)

    def after_failure(self, error: BaseException) -> Any:
        return self._note("after_failure", error)

    def after_last_failure(self, error: BaseException) -> Any:
        return self._note("after_last_failure", error)

    def finalize(self, error: BaseException | None) -> Any:
        return self._note("finalize", error)

    def _note(self, what: str, argument: Any) -> Any:
        def note(argument: Any) -> None:
            self.written.append((what, argument))
            if what in self.break_in:
                raise self.break_in[what]

        return as_finalizer(self.colour, note)(argument)


@pytest.fixture
def diary() -> Iterator[list[tuple[str, Any]]]:
    Diary.written.clear()
    yield Diary.written
    Diary.break_in.clear()


def named(log: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Exceptions by class, so that they can be compared."""
    return [(what, type(value) if isinstance(value, BaseException) else value) for what, value in log]


@COLOURS
class TestFinalizersOfATask:
    def test_a_result_that_cannot_be_stored_is_a_failure(self, bench: Bench, colour: str) -> None:
        log: list[tuple[str, Any]] = []
        task = with_finalizers(bench, lambda: object(), colour, log)

        bench.of_job(a_job(task=task, args={}))

        assert [what for what, _ in log if what.endswith("1")] == [
            "after_failure 1",
            "after_last_failure 1",
            "finalize 1",
        ]


class TestFinalizersOfAWorkable:
    @COLOURS
    @pytest.mark.parametrize("method", ["execute", "execute_async"])
    @pytest.mark.parametrize(
        ("fail", "retries", "parts"),
        [
            (False, 0, [("after_success", "well"), ("finalize", None)]),
            (True, 1, [("after_failure", ValueError), ("finalize", ValueError)]),
            (True, 0, [("after_failure", ValueError), ("after_last_failure", ValueError), ("finalize", ValueError)]),
        ],
        ids=["success", "failure", "last failure"],
    )
    def test_each_once_and_in_order(
        self,
        bench: Bench,
        diary: list[tuple[str, Any]],
        colour: str,
        method: str,
        fail: bool,
        retries: int,
        parts: list[tuple[str, Any]],
    ) -> None:
        args = {"colour": colour, "fail": fail}
        policy = bench.policy(RetryManyTimes(retries, 0))

        bench.of_job(a_job(task="Diary", args=args, method=method, retry_policy=policy))

        assert named(diary) == parts


# -- events ----------------------------------------------------------------------------------------------------------


class Listening(Workable):
    heard: ClassVar[list[Event]] = []
    raises: ClassVar[list[BaseException]] = []

    def __init__(self, outcome: str = "well") -> None:
        self.outcome = outcome

    def execute(self) -> str:
        if self.outcome == "fails":
            raise ValueError("no good")
        if self.outcome == "later":
            raise RetryLater("1 minute", reason="not yet")
        return "well"

    def on_event(self, event: Event) -> None:
        self.heard.append(event)
        for error in self.raises:
            raise error


@pytest.fixture
def heard() -> Iterator[list[Event]]:
    Listening.heard.clear()
    yield Listening.heard
    Listening.raises.clear()


@pytest.fixture
def told(bench: Bench) -> list[Event]:
    """What a listener of the application hears."""
    told: list[Event] = []
    bench.recruiter.listen(told.append)
    return told


class TestEvents:
    @pytest.mark.parametrize(
        ("outcome", "retries", "event", "fields"),
        [
            ("well", 0, None, {}),
            ("fails", 1, "job.failed", {"error": "ValueError: no good", "next": NOW + MINUTE}),
            ("fails", 0, "job.failure.last", {"error": "ValueError: no good", "why": "tried-too-many-times"}),
            ("later", 0, "job.snoozed", {"next": NOW + MINUTE, "reason": "not yet"}),
        ],
    )
    def test_start_and_outcome_once_each_to_listeners_and_to_the_workable(
        self,
        bench: Bench,
        told: list[Event],
        heard: list[Event],
        outcome: str,
        retries: int,
        event: str | None,
        fields: dict[str, Any],
    ) -> None:
        policy = bench.policy(RetryManyTimes(retries, MINUTE))

        bench.of_job(a_job("me", task="Listening", args={"outcome": outcome}, retry_policy=policy))

        about = {"job": "me", "task": "Listening", "attempt": 1, "worker": "w1"}
        assert heard == told
        trace = told[-1].fields.pop("trace", None)
        expected = [Event("job.started", about)]
        if outcome != "later":  # success or failure, as in the original
            expected.append(Event("job.ended", {**about, "done": outcome == "well", "seconds": 0.0}))
        if event is not None:
            expected.append(Event(event, {**about, **fields}))
        assert told == expected
        assert (trace is not None and "ValueError: no good" in trace) == (event == "job.failure.last")

    @pytest.mark.parametrize(
        "error", [ValueError("oh"), SystemExit(1), KeyboardInterrupt(), JobTimedOut("x"), RetryLater(1)], ids=repr
    )
    def test_a_listener_that_raises_harms_nothing(self, bench: Bench, heard: list[Event], error: BaseException) -> None:
        def broken(event: Event) -> None:
            raise error

        bench.recruiter.listen(broken)
        told: list[Event] = []
        bench.recruiter.listen(told.append)
        Listening.raises.append(error)

        job = ended(bench.of_job(a_job(task="Listening", args={})))

        assert (job["done"], job["result"]) == (True, "well")
        assert [event.name for event in heard] == ["job.started", "job.ended"]
        names = [event.name for event in told]
        assert [name for name in names if name != "listener.failed"] == ["job.started", "job.ended"]
        assert names.count("listener.failed") == 4, "the application's and the workable's, for each of the two events"
        failures = [event.fields for event in told if event.name == "listener.failed"]
        assert all(type(error).__name__ in failure["error"] for failure in failures)


# -- RetryLater ------------------------------------------------------------------------------------------------------


class TestRetryLater:
    @pytest.mark.parametrize(
        ("later", "seconds"),
        [
            (RetryLater(5), 5),
            (RetryLater(0.5), 0.5),
            (RetryLater(timedelta(hours=2)), 7200),
            (RetryLater("5 minutes"), 300),
            (RetryLater(0), 0),
            (RetryLater(at=NOW + MINUTE), 60),
            (RetryLater(at=(NOW + MINUTE).astimezone(timezone(timedelta(hours=-9)))), 60),
            (RetryLater(at=NOW - MINUTE), -60),
        ],
        ids=lambda value: str(value),
    )
    @pytest.mark.parametrize("colour", ["def", "async def"])
    def test_it_is_run_again_then_with_no_attempt_counted(
        self, bench: Bench, colour: str, later: RetryLater, seconds: float
    ) -> None:
        async def asynchronous() -> None:
            raise later

        outcome = bench.run(raising(later) if colour == "def" else asynchronous, attempts=2)

        assert isinstance(outcome, Rescheduled)
        due = NOW + timedelta(seconds=seconds)
        assert dict(outcome.fields) == {
            "scheduled_at": due,
            "postponed": seconds > 0,
            "snoozes": 1,
            "snoozed": str(later),
            "begun_at": NOW,
        }, "and nothing else: no attempt, no execution"
        (update,) = outcome.updates
        assert (update.query["attempts"], update.query["snoozes"]) == (2, {"$in": [None, 0]})
        marks = {"started_by", "started_at", "locked_by", "locked_at", "reported_at", "token", "transaction"}
        assert set(update.update["$unset"]) == marks

    def test_an_answer_that_comes_twice_changes_nothing_the_second_time(self, bench: Bench, store: Store) -> None:
        """Given an unknown outcome: the first snooze is settled again after the second one."""
        job = a_task(bench, raising(RetryLater(1)))
        hold(store, job)
        first = bench.of_job(job)
        settle(store, "w1", [(job.id, first)], {})
        bench.clock.move(MINUTE)
        give(store, job.id)
        settle(store, "w1", [(job.id, bench.executor.run(encode(document(store, job.id))))], {})
        give(store, job.id)

        settle(store, "w1", [(job.id, first)], {})

        found = document(store, job.id)
        assert (found["snoozes"], found["attempts"]) == (2, 0)
        assert found["scheduled_at"] == NOW + MINUTE + timedelta(seconds=1)

    @pytest.mark.parametrize(
        ("later", "error", "words"),
        [
            (RetryLater(at=datetime(2030, 1, 1)), "InvalidJob", "time zone"),
            (RetryLater(at="tomorrow"), "InvalidJob", "tomorrow"),  # type: ignore[arg-type]
            (RetryLater(-1), "InvalidDuration", "negative"),
            (RetryLater("soon"), "InvalidDuration", "soon"),
            (RetryLater(float("nan")), "InvalidDuration", "nan"),
            (RetryLater(True), "InvalidDuration", "True"),
        ],
        ids=lambda value: str(value) if not isinstance(value, RetryLater) else "",
    )
    def test_an_invalid_retry_later_is_a_failure_that_names_the_mistake(
        self, bench: Bench, later: RetryLater, error: str, words: str
    ) -> None:
        job = bench.archived(raising(later))

        assert (job["attempts"], job["last_execution"]["class"]) == (1, f"recruiter.errors.{error}")
        assert words in job["last_execution"]["message"]


# -- timeouts --------------------------------------------------------------------------------------------------------

SHORT = 0.05


def stay() -> None:
    """In Python, line by line."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        pass


async def stay_async() -> None:
    await asyncio.sleep(20)


def stay_for(seconds: float) -> str:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass
    return "in time"


async def stay_for_async(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "in time"


class BySignal(Executor):
    """As in a child with one place."""

    def run(
        self,
        raw: bytes,
        interruptible: Interruptible | None = None,
        hard: Limit = no_limit,
        on_progress: OnProgress = ignore_progress,
    ) -> Outcome:
        return super().run(raw, interruptible or Interruptible(by_signal=True), hard, on_progress)


def test_interruptions_by_signal_work_in_a_process_of_their_own() -> None:
    units = [Path(__file__).parents[1] / "unit" / name for name in ("test_interruption.py", "test_shielded.py")]
    run_alone(__file__, *map(str, units), which="main or BySignal")


class TestTimeout:
    @pytest.fixture(params=["in a thread", pytest.param("in the main thread", marks=BY_SIGNAL)])
    def timed(self, bench: Bench, request: pytest.FixtureRequest) -> Iterator[Bench]:
        """With each way of interrupting; the second one is what a child with one place uses."""
        before = signal.getsignal(interruption.SIGNAL)
        if request.param == "in the main thread":
            interruption.obey_signals()
            bench.executor = BySignal(bench.recruiter.registry, bench.recruiter.policies, bench.clock, "w1")
        yield bench
        signal.signal(interruption.SIGNAL, before)

    @pytest.mark.timeout(120, method="thread")  # its usual method is the same signal
    @pytest.mark.parametrize("function", [stay, stay_async])
    def test_it_is_raised_where_the_job_stands(self, timed: Bench, function: Callable[[], Any]) -> None:
        job = timed.archived(function, timeout=SHORT)

        execution = job["last_execution"]
        assert (job["why"], execution["class"]) == ("not-scheduled-by-retry-policy", "recruiter.errors.JobTimedOut")
        assert execution["message"] == "the job's time of 50ms is over"
        assert function.__name__ in execution["trace"] or function is stay_async

    @pytest.mark.timeout(120, method="thread")
    def test_one_that_catches_it_and_returns_has_succeeded(self, timed: Bench) -> None:
        def clean_up() -> str:
            try:
                stay()
            except JobTimedOut:
                return "cleaned up"
            return "never told"

        async def clean_up_async() -> str:
            try:
                await stay_async()
            except asyncio.CancelledError:
                return "cleaned up"
            return "never told"

        for function in (clean_up, clean_up_async):
            job = timed.archived(function, timeout=SHORT)
            assert (job["done"], job["result"]) == (True, "cleaned up")

    @pytest.mark.timeout(120, method="thread")
    @pytest.mark.parametrize("only", [JobTimedOut, RecruiterError])
    @pytest.mark.parametrize("function", [stay, stay_async])
    def test_a_policy_can_retry_on_it(
        self, timed: Bench, function: Callable[[], Any], only: type[BaseException]
    ) -> None:
        policy = timed.recruiter.policies.dump(RetryManyTimes(1, "1 minute"), only=[only])

        outcome = timed.run(function, timeout=SHORT, retry_policy=policy)

        assert isinstance(outcome, Rescheduled)
        assert (outcome.fields["scheduled_at"], outcome.fields["attempts"]) == (NOW + MINUTE, 1)

    @pytest.mark.parametrize("colour", ["def", "async def"])
    def test_a_timeout_of_the_jobs_own_is_not_ours(self, bench: Bench, colour: str) -> None:
        async def gives_up() -> None:
            async with asyncio.timeout(0.001):
                await asyncio.sleep(20)

        job = bench.archived(raising(TimeoutError("mine")) if colour == "def" else gives_up, timeout=20)

        assert job["last_execution"]["class"] == "TimeoutError"

    # Where the interpreter itself calls Python (a weak reference that dies), it swallows what is raised, and says so.
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    @pytest.mark.timeout(120, method="thread")
    @pytest.mark.parametrize("function", [stay_for, stay_for_async])
    def test_it_never_reaches_the_next_job_nor_the_worker(self, timed: Bench, function: Callable[..., Any]) -> None:
        """Given jobs that take about as long as they may, then each has an outcome, and after them all is quiet."""
        task = timed.recruiter.task(name="close")(function)
        plain = timed.recruiter.task(name="plain")(stay_for)
        outcomes: set[str] = set()
        between_threads = sys.getswitchinterval()
        sys.setswitchinterval(0.00005)  # or the timer would hardly ever get its turn in so short a time
        try:
            for number in range(200):
                args = {"seconds": 0.002 + (number % 20 - 10) * 0.00015}
                job = ended(timed.of_job(a_job(task=task.name, args=args, timeout=0.002)))
                outcomes.add(job["last_execution"].get("class", "done"))
                after = ended(timed.of_job(a_job(task=plain.name, args={"seconds": 0.0005})))
                assert after["done"], f"hit by the time of the one before: {after}"
        finally:
            sys.setswitchinterval(between_threads)

        assert outcomes == {"done", "recruiter.errors.JobTimedOut"}

    def test_it_reaches_the_right_one_of_several_threads(self, bench: Bench) -> None:
        """Given threads of which every other one runs slow jobs, then these and no others are told."""
        bench.recruiter.task(name="slow")(stay)
        bench.recruiter.task(name="quick")(stay_for)

        def work(place: int) -> set[str]:
            slow = place % 2 == 0
            name, args = ("slow", {}) if slow else ("quick", {"seconds": 0.02})
            jobs = [a_job(task=name, args=args, timeout=0.03 if slow else 20) for _ in range(5)]
            return {ended(bench.of_job(job))["last_execution"].get("class", "done") for job in jobs}

        with ThreadPoolExecutor(4) as threads:
            outcomes = list(threads.map(work, range(4)))

        assert outcomes == [{"recruiter.errors.JobTimedOut"}, {"done"}] * 2

    def test_the_supervisor_is_told_when_the_clock_starts_and_stops(self, bench: Bench) -> None:
        told: list[Any] = []

        class Told:
            def __init__(self, seconds: float) -> None:
                told.append(seconds)

            def __enter__(self) -> None:
                told.append("starts")

            def __exit__(self, *_: object) -> None:
                told.append("stops")

        task = bench.recruiter.task(name="timed")(lambda: told.append("runs"))
        task.finalize(lambda _: told.append("finalizes"))
        bench.executor.run(encode(job_document(a_job(task="timed", args={}, timeout=7))), hard=Told)
        bench.executor.run(encode(job_document(a_job(task="timed", args={}))), hard=Told)

        assert told == [7, "starts", "runs", "stops", "finalizes", "runs", "finalizes"]


@pytest.mark.timeout(120, method="thread")
@pytest.mark.parametrize(
    "by_signal", [pytest.param(False, id="in a thread"), pytest.param(True, id="in the main thread", marks=BY_SIGNAL)]
)
class TestReach:
    """Interruptions come from other threads, whenever they like: they must hit the user's code, and nothing else."""

    @pytest.fixture(autouse=True)
    def handler(self) -> Iterator[None]:
        before = signal.getsignal(interruption.SIGNAL)
        interruption.obey_signals()
        yield
        signal.signal(interruption.SIGNAL, before)

    def test_after_the_code_has_ended_it_does_nothing(self, bench: Bench, by_signal: bool) -> None:
        interruptible = Interruptible(by_signal)
        for function in (lambda: 1, failing, stay_a_moment):
            bench.executor.run(encode(job_document(a_task(bench, function))), interruptible)

            interruptible.interrupt(JobTimedOut("too late"))
            signal.raise_signal(interruption.SIGNAL)  # one that was on its way
            stay_for(0.005)

            interruptible = Interruptible(by_signal)

    @pytest.mark.parametrize("colour", ["def", "async def"])
    def test_before_it_begins_nothing_is_run(self, bench: Bench, by_signal: bool, colour: str) -> None:
        ran: list[int] = []

        async def run_async() -> None:
            ran.append(1)

        job = a_task(bench, run_async if colour == "async def" else lambda: ran.append(1))
        interruptible = Interruptible(by_signal)
        interruptible.interrupt(JobTimedOut("before it began"))

        last = ended(bench.executor.run(encode(job_document(job)), interruptible))["last_execution"]

        assert (last["class"], last["message"], ran) == ("recruiter.errors.JobTimedOut", "before it began", [])

    @pytest.mark.parametrize("function", [stay, stay_async])
    def test_it_comes_from_another_thread_and_the_first_one_counts(
        self, bench: Bench, by_signal: bool, function: Callable[[], Any]
    ) -> None:
        interruptible = Interruptible(by_signal)

        def interrupt() -> None:
            interruptible.interrupt(JobTimedOut("the first"))
            interruptible.interrupt(JobTimedOut("the second"))

        gc.collect()  # in a callback of the collector, the interpreter would drop the interruption
        other = threading.Timer(0.02, interrupt)
        other.start()
        job = ended(bench.executor.run(encode(job_document(a_task(bench, function))), interruptible))
        other.join()

        assert job["last_execution"]["message"] == "the first"

    def test_a_cancellation_of_the_jobs_own_is_not_ours(self, bench: Bench, by_signal: bool) -> None:
        async def cancel_myself() -> None:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(20)

        job = ended(bench.executor.run(encode(job_document(a_task(bench, cancel_myself))), Interruptible(by_signal)))

        assert job["last_execution"]["class"] == "asyncio.exceptions.CancelledError"


async def stay_a_moment() -> None:
    await asyncio.sleep(0.001)


# -- what else a job may do to whoever runs it -----------------------------------------------------------------------


class TestOutcome:
    @pytest.mark.parametrize("timeout", [None, pytest.param(20)])
    def test_stop_iteration_is_kept_as_what_it_is(self, bench: Bench, timeout: float | None) -> None:
        """`next(empty)` is an everyday mistake; `only=[StopIteration]` must find it."""
        job = bench.archived(lambda: next(iter([])), timeout=timeout)

        assert job["last_execution"]["class"] == "StopIteration"

    def test_a_task_that_an_earlier_job_left_behind_cannot_fail_the_next(self, bench: Bench) -> None:
        """Given a job that left a task alone which exits later, in a child with one place."""

        async def exit_later() -> None:
            await asyncio.sleep(0.01)
            sys.exit(3)

        async def leave_it_alone() -> None:
            left.append(asyncio.create_task(exit_later()))

        async def innocent() -> str:
            await asyncio.sleep(0.1)
            return "well"

        left: list[asyncio.Task[None]] = []
        assert bench.archived(leave_it_alone)["done"]

        job = bench.archived(innocent)
        for task in left:
            with pytest.raises(SystemExit):
                task.result()

        assert (job["done"], job.get("result")) == (True, "well")
