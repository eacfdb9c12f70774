"""Counting durations without keeping each: sums are exact, percentiles close, and the order does not matter."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from recruiter.domain.statistics import Spread

durations = some.floats(min_value=0, max_value=1e6)


def spread_of(seconds: list[float]) -> Spread:
    spread = Spread()
    for each in seconds:
        spread.add(each)
    return spread


@given(some.lists(durations, min_size=1), some.sampled_from([1, 50, 95, 99, 100]))
def test_percentiles_are_within_a_tenth_of_the_truth(seconds: list[float], percent: int) -> None:
    truth = sorted(seconds)[max(0, -(-len(seconds) * percent // 100) - 1)]

    told = spread_of(seconds).percentile(percent)

    assert told is not None
    assert abs(told - truth) <= max(0.1 * truth, 1e-4)


@given(some.lists(durations), some.lists(durations))
def test_two_spreads_add_up(one: list[float], other: list[float]) -> None:
    merged = spread_of(one)
    merged.merge(spread_of(other))

    whole = spread_of(one + other)
    assert (merged.count, merged.longest, merged.buckets) == (whole.count, whole.longest, whole.buckets)
    assert merged.total == pytest.approx(whole.total)
