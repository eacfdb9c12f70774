"""Whatever is said to a public call, what cannot be is refused in our own words, never with an error of Python's.

Calls that talk to MongoDB are tested in tests/steps/test_hostile_calls.py."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings

from recruiter import RecruiterError
from tests.hostile_calls import CALLS, STRANGE, TALKING, values

LONGEST_MESSAGE = 20_000
ALONE = [call for call in CALLS if call not in TALKING]


@pytest.mark.parametrize("call", ALONE)
@settings(max_examples=20)
@given(value=values)
def test_what_cannot_be_is_refused_in_our_own_words(call: str, value: Any) -> None:
    with suppress(RecruiterError):
        CALLS[call](value)


@pytest.mark.parametrize("call", ALONE)
def test_so_are_the_strangest(call: str) -> None:
    """A report of pytest would ask the value what it is, so what escapes is noted and not raised."""
    escaped = []
    for number, value in enumerate(STRANGE):
        try:
            CALLS[call](value)
        except RecruiterError as error:
            if len(str(error)) > LONGEST_MESSAGE:
                escaped.append(f"a message of {len(str(error)):,} characters about value {number}")
        except BaseException as error:
            escaped.append(f"{type(error).__name__} about value {number}")

    assert escaped == []
