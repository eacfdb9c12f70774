"""Whatever is said to a public call, what cannot be is refused in our own words, never with an error of Python's.

Calls that talk to MongoDB are tested in tests/steps/test_hostile_calls.py."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings

from recruiter import RecruiterError
from tests.hostile_calls import CALLS, STRANGE, TALKING, values

ALONE = [call for call in CALLS if call not in TALKING]


@pytest.mark.parametrize("call", ALONE)
@settings(max_examples=20)
@given(value=values)
def test_what_cannot_be_is_refused_in_our_own_words(call: str, value: Any) -> None:
    with suppress(RecruiterError):
        CALLS[call](value)


@pytest.mark.parametrize("call", ALONE)
def test_so_are_the_strangest(call: str) -> None:
    for value in STRANGE:
        with suppress(RecruiterError):
            CALLS[call](value)
