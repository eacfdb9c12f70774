"""Whatever is said to a public call, what cannot be is refused in our own words, never with an error of Python's.

Calls that talk to MongoDB are tested in tests/steps/test_hostile_calls.py."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as some

from recruiter import RecruiterError
from tests.depth import examples
from tests.hostile_calls import CALLS, TALKING, escaping, values

ALONE = sorted(CALLS.keys() - TALKING)


@settings(max_examples=examples(1000))
@given(call=some.sampled_from(ALONE), value=values)
def test_every_random_value_is_refused_with_an_error_of_ours(call: str, value: Any) -> None:
    with suppress(RecruiterError):
        CALLS[call](value)


def test_the_strangest_values_are_refused_with_an_error_of_ours() -> None:
    assert escaping(ALONE) == []
