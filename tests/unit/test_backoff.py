"""Exponential backoff with a longest delay, and with jitter."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

from recruiter import ExponentialBackoff
from recruiter.domain.policy_registry import PolicyRegistry
from recruiter.domain.retry.decision import Failure, Retry

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def delays(policy: ExponentialBackoff) -> list[float]:
    decisions = [policy.decide(Failure(attempt, NOW, NOW, NOW)) for attempt in range(1, policy.n + 2)]
    return [(each.at - NOW).total_seconds() for each in decisions if isinstance(each, Retry)]


def stored(policy: ExponentialBackoff) -> Any:
    registry = PolicyRegistry()
    return registry.load(registry.dump(policy))


def test_no_delay_is_longer_than_most() -> None:
    policy = ExponentialBackoff(6, "10 minutes", most="1 hour")

    assert delays(policy) == [600, 1200, 2400, 3600, 3600, 3600]
    assert delays(ExponentialBackoff(200, 1, most="1 hour"))[-1] == 3600
    assert stored(policy) == policy


def test_jitter_takes_a_part_off_and_can_be_seeded() -> None:
    policy = ExponentialBackoff(5, 100, most=400, jitter=0.1)

    random.seed(7)
    first = delays(policy)
    random.seed(7)

    assert delays(policy) == first
    assert delays(policy) != first
    for delay, exact in zip(first, [100, 200, 400, 400, 400], strict=True):
        assert exact * 0.9 <= delay < exact
    assert stored(policy) == policy
    assert len({*delays(ExponentialBackoff(50, 1, most=1, jitter=1))}) == 50
