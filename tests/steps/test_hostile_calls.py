"""Whatever is said to a public call that talks to MongoDB, what cannot be is refused in our own words."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from recruiter import RecruiterError
from tests.hostile_calls import CALLS, STRANGE, TALKING, nowhere


@pytest.fixture(autouse=True)
def connected(target: str) -> Iterator[None]:
    nowhere.point_at(target)
    nowhere.patience = 30.0
    yield
    nowhere.close()
    nowhere.point_at(None)


@pytest.mark.parametrize("call", sorted(TALKING))
def test_what_cannot_be_is_refused_in_our_own_words(call: str) -> None:
    escaped = []
    for number, value in enumerate(STRANGE):
        try:
            CALLS[call](value)
        except RecruiterError:
            pass
        except BaseException as error:  # pytest would ask the value what it is
            escaped.append(f"{type(error).__name__} about value {number}")

    assert escaped == []
