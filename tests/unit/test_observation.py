"""Silence is a counter that stands still, measured on the observer's own clock, and only while it could look."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from recruiter.domain.observation import Observation


def test_an_hour_without_looking_counts_as_one_gap() -> None:
    """Given dead after 15 s with gaps of at most 5, when MongoDB was away for an hour, then nobody is dead."""
    observation = Observation()
    observation.still_for("w", 7, 0.0, longest_gap=5)

    assert observation.still_for("w", 7, 3600.0, longest_gap=5) == 5
    assert observation.still_for("w", 8, 3601.0, longest_gap=5) == 0


def test_a_worker_that_left_is_forgotten() -> None:
    observation = Observation()
    for who in ("a", "b"):
        observation.still_for(who, 1, 0.0, longest_gap=10)

    observation.forget_all_but({"b", "c"})

    assert observation.still_for("a", 1, 5.0, longest_gap=10) == 0
    assert observation.still_for("b", 1, 5.0, longest_gap=10) == 5


@given(st.lists(st.floats(min_value=0, max_value=1e6), min_size=1, max_size=20))
def test_never_more_than_the_looks_can_prove(gaps: list[float]) -> None:
    observation, now, longest = Observation(), 0.0, 0.0
    observation.still_for("w", 1, now, longest_gap=5)
    for gap in gaps:
        now += gap
        longest = observation.still_for("w", 1, now, longest_gap=5)

    assert longest <= 5 * len(gaps) + 1e-6
    assert longest <= now + 1e-6
