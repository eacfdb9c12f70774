from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from recruiter.domain.policy_registry import PolicyRegistry
from recruiter.domain.retry.decision import (
    LATEST,
    Archive,
    Decision,
    Failure,
    Retry,
    RetryPolicy,
    decide,
    exception_names,
)
from recruiter.domain.retry.policies import (
    DoNotDoItAgain,
    ExponentialBackoff,
    RetriableExceptionFilter,
    RetryForever,
    RetryManyTimes,
    SelectByException,
    TimeTable,
)
from recruiter.domain.state import Why

CREATED = datetime(2030, 1, 1, tzinfo=UTC)


def failed(attempt: int = 1, error: BaseException | None = None, *, age: float = 0, crashed: bool = False) -> Failure:
    if error is None and not crashed:
        error = RuntimeError("no")
    return Failure(
        attempt=attempt,
        created_at=CREATED,
        scheduled_at=CREATED,
        failed_at=CREATED + timedelta(seconds=age),
        exception=error,
        exception_classes=exception_names(type(error)) if error is not None else (),
        crashed=crashed,
    )


def delays(policy: RetryPolicy, runs: int = 20) -> list[float]:
    """The delay in seconds after each failed run, until the policy has enough."""
    found = []
    for attempt in range(1, runs + 1):
        failure = failed(attempt)
        decision = decide(policy, failure)
        if isinstance(decision, Archive):
            break
        found.append((decision.at - failure.failed_at).total_seconds())
    return found


@pytest.mark.parametrize(
    ("total", "first", "expected"),
    [
        (120, 30, [30, 60, 120]),  # the seed's example: at most 4 runs
        (119, 30, [30, 60]),
        (121, 30, [30, 60, 120]),
        (30, 30, [30]),
        ("1 second", "250ms", [0.25, 0.5, 1]),
    ],
)
def test_exponential_backoff_for_an_interval(total: Any, first: Any, expected: list[float]) -> None:
    assert delays(ExponentialBackoff.for_an_interval(total, first)) == expected


@pytest.mark.parametrize("attempt", [60, 10_000, 2**63])
def test_huge_exponents_end_at_the_latest_moment(attempt: int) -> None:
    assert ExponentialBackoff(2**63, 30).decide(failed(attempt)) == Retry(LATEST)
    assert ExponentialBackoff(2**63, 0).decide(failed(attempt)) == Retry(CREATED)


SEED_TABLE = TimeTable({"24 hours ago": "1 hour", "5 minutes ago": "1 minute", "1 hour ago": "5 minutes"})


@pytest.mark.parametrize(
    ("age", "delay"), [(-10, 60), (0, 60), (299.9, 60), (300, 300), (3599, 300), (3600, 3600), (86_399.999, 3600)]
)
def test_a_time_table_chooses_the_delay_by_the_age_of_the_job(age: float, delay: float) -> None:
    failure = failed(age=age)
    assert SEED_TABLE.decide(failure) == Retry(failure.failed_at + timedelta(seconds=delay))


def test_select_by_exception_takes_the_first_case_that_fits() -> None:
    policy = (
        SelectByException()
        .when(ConnectionResetError, RetryManyTimes(1, 1))
        .when([ConnectionError, "builtins.TimeoutError"], RetryManyTimes(1, 2))
        .otherwise(RetryManyTimes(1, 3))
    )

    def delay(error: BaseException) -> float:
        decision = policy.decide(failed(error=error))
        assert isinstance(decision, Retry)
        return (decision.at - CREATED).total_seconds()

    assert delay(ConnectionResetError()) == 1
    assert delay(BrokenPipeError()) == 2
    assert delay(TimeoutError()) == 2
    assert delay(ValueError()) == 3


class Unreachable(ConnectionError):
    pass


def test_only_counts_subclasses_and_archives_others() -> None:
    registry = PolicyRegistry()
    policy = registry.load(registry.dump(RetryManyTimes(1, 5), only=[ConnectionError]))
    again = Retry(CREATED + timedelta(seconds=5))
    assert decide(policy, failed(error=ConnectionError())) == again
    assert decide(policy, failed(error=Unreachable())) == again
    assert decide(policy, failed(error=OSError())) == Archive("non-retriable-exception")
    assert decide(policy, failed(2, Unreachable())) == Archive("tried-too-many-times")


def test_only_does_not_filter_crashes() -> None:
    policy = RetriableExceptionFilter(RetryManyTimes(3, 5), ("ConnectionError",))
    assert policy.decide(failed(crashed=True)) == Retry(CREATED + timedelta(seconds=5))


@dataclass(frozen=True)
class NightShift(RetryPolicy):
    hours: int
    fallback: RetryPolicy

    def decide(self, failure: Failure) -> Decision | None:
        return Retry(failure.failed_at + timedelta(hours=self.hours), group="night")


@dataclass(frozen=True)
class Answers(RetryPolicy):
    answer: Callable[[], Any]

    def decide(self, failure: Failure) -> Decision | None:
        answer: Decision | None = self.answer()
        return answer


def test_a_custom_policy_may_move_the_job_to_another_group_and_hold_other_policies() -> None:
    registry = PolicyRegistry()
    registry.register(NightShift)
    policy = NightShift(8, fallback=RetryManyTimes(1, "90ms"))
    document = registry.dump(policy)
    nested = {"class": "RetryManyTimes", "parameters": {"n": 1, "seconds": 0.09}}
    assert document == {"class": "NightShift", "parameters": {"hours": 8, "fallback": nested}}
    assert registry.load(document) == policy
    assert decide(policy, failed()) == Retry(CREATED + timedelta(hours=8), group="night")


@pytest.mark.parametrize(
    "answer",
    [
        lambda: 1 / 0,
        lambda: "tomorrow",
        lambda: Retry(datetime(2030, 1, 1)),
        lambda: Retry("tomorrow"),  # type: ignore[arg-type]
        lambda: Retry(CREATED, group="not a name"),
    ],
)
def test_a_policy_that_fails_archives_the_job(answer: Callable[[], Any]) -> None:
    decision = decide(Answers(answer), failed())
    assert isinstance(decision, Archive)
    assert decision.why == "policy-failed"
    assert decision.reason is not None
    assert "Answers" in decision.reason


class TestRegistry:
    def test_what_another_language_writes_is_read(self) -> None:
        table = {"class": "TimeTable", "parameters": {"time_table": {"5 minutes ago": "1 minute"}}}
        assert PolicyRegistry().load(table) == TimeTable({"5 minutes ago": 60})
        doubles = {"class": "RetryManyTimes", "parameters": {"n": 3.0, "seconds": "1 minute"}, "only": None}
        assert PolicyRegistry().load(doubles) == RetryManyTimes(3, 60)
        assert PolicyRegistry().load({"class": "DoNotDoItAgain"}) == DoNotDoItAgain()

    def test_a_policy_in_a_case_may_have_its_own_exceptions(self) -> None:
        limited = RetriableExceptionFilter(RetryForever(1), ("ConnectionError",))
        policy = SelectByException().when(OSError, limited)
        registry = PolicyRegistry()
        assert registry.load(registry.dump(policy)) == policy


def test_every_word_of_why() -> None:
    words = "done tried-too-many-times non-retriable-exception not-scheduled-by-retry-policy cancelled expired lost"
    assert {why.value for why in Why} == {
        *words.split(),
        "crashed-too-many-times",
        "worker-died-too-many-times",
        "malformed",
        "policy-failed",
        "dependency-failed",
        "not-needed",
    }


def test_a_policy_that_answers_nothing_does_not_retry() -> None:
    assert decide(Answers(lambda: None), failed()) == Archive("not-scheduled-by-retry-policy")
