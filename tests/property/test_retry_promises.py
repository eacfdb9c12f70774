"""What retry policies promise, for any numbers."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from bson import decode, encode
from hypothesis import given, settings
from hypothesis import strategies as st

from recruiter.domain.policy_registry import PolicyRegistry
from recruiter.domain.retry.decision import LATEST, Archive, Failure, Retry, RetryPolicy, decide
from recruiter.domain.retry.policies import (
    DoNotDoItAgain,
    ExponentialBackoff,
    RetryForever,
    RetryManyTimes,
    SelectByException,
    TimeTable,
)
from tests.depth import examples

moments = st.datetimes(min_value=datetime(1970, 1, 1), max_value=datetime(9998, 1, 1), timezones=st.just(UTC))
durations = st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=36_500))
positive = st.timedeltas(min_value=timedelta(microseconds=1), max_value=timedelta(days=36_500))
names = st.lists(st.sampled_from(["OSError", "ConnectionError", "shop.errors.Refused"]), max_size=3)


def rows(table: dict[timedelta, timedelta]) -> TimeTable:
    return TimeTable(table.items())


simple: st.SearchStrategy[RetryPolicy] = st.one_of(
    st.builds(DoNotDoItAgain),
    st.builds(RetryManyTimes, st.integers(0, 2**62), durations),
    st.builds(ExponentialBackoff, st.integers(0, 2**62), durations),
    st.builds(RetryForever, durations),
    st.builds(rows, st.dictionaries(positive, durations, min_size=1, max_size=4)),
)


def selects(inner: st.SearchStrategy[RetryPolicy]) -> st.SearchStrategy[RetryPolicy]:
    case = st.tuples(names.filter(bool).map(tuple), inner)
    return st.builds(SelectByException, st.lists(case, max_size=3).map(tuple), inner)


policies = st.recursive(simple, selects, max_leaves=5)


@st.composite
def failures(draw: st.DrawFn) -> Failure:
    failed_at = draw(moments)
    return Failure(
        attempt=draw(st.integers(1, 2**63)),
        created_at=draw(moments),
        scheduled_at=failed_at,
        failed_at=failed_at,
        exception_classes=tuple(draw(names)),
        crashed=draw(st.booleans()),
    )


@given(policies, names, failures())
@settings(max_examples=examples(150), deadline=None)
def test_a_stored_policy_decides_like_the_one_that_was_stored(
    policy: RetryPolicy, only: list[str], failure: Failure
) -> None:
    registry = PolicyRegistry()
    stored = decode(encode(registry.dump(policy, only)))
    loaded = registry.load(stored)
    if not only:
        assert loaded == policy
    again = registry.load(registry.dump(loaded))
    assert again == loaded
    if not only or failure.crashed or failure.is_a(only):
        assert decide(loaded, failure) == decide(policy, failure)
    else:
        assert decide(loaded, failure) == Archive("non-retriable-exception")


@given(policies, failures())
@settings(max_examples=examples(150), deadline=None)
def test_no_built_in_policy_ever_fails_or_retries_in_the_past(policy: RetryPolicy, failure: Failure) -> None:
    decision = decide(policy, failure)
    if isinstance(decision, Retry):
        assert failure.failed_at <= decision.at <= LATEST
    else:
        assert decision.why in {"tried-too-many-times", "not-scheduled-by-retry-policy"}


@given(st.integers(0, 40), st.sampled_from([RetryManyTimes, ExponentialBackoff]), moments)
@settings(max_examples=examples(50), deadline=None)
def test_n_retries_are_n_plus_one_runs(n: int, cls: type[RetryManyTimes], at: datetime) -> None:
    runs, policy = 1, cls(n, 0)
    while isinstance(decide(policy, Failure(runs, at, at, at)), Retry):
        runs += 1
    assert runs == n + 1


@given(positive, positive)
@settings(max_examples=examples(100), deadline=None)
def test_an_interval_allows_every_delay_it_can_hold_and_no_longer_one(one: timedelta, other: timedelta) -> None:
    first, total = sorted((one, other))
    policy = ExponentialBackoff.for_an_interval(total, first)
    assert policy.delay_before_retry(policy.n) <= total
    assert policy.delay_before_retry(policy.n) * 2 > total


@given(st.none() | policies, failures(), st.integers(1, 10), st.booleans())
@settings(max_examples=examples(100), deadline=None)
def test_no_job_survives_three_crashes(
    policy: RetryPolicy | None, failure: Failure, crashes: int, at_most_once: bool
) -> None:
    failure = replace(failure, crashed=True)
    decision = decide(policy, failure, crashes=crashes, at_most_once=at_most_once)
    if at_most_once or crashes >= 3:
        assert isinstance(decision, Archive)
        assert decision.why == ("lost" if at_most_once else "crashed-too-many-times")
    else:
        assert decision == (Retry(failure.failed_at) if policy is None else decide(policy, failure))
