"""Names of tasks and groups, and the lane that both make."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recruiter.domain.lane import Lane
from recruiter.domain.names import CANCELLED_LANE, check_name, group_and_task
from recruiter.errors import InvalidName

GOOD = ["add", "a", "send_welcome", "shop.mail.send", "Größe", "日本", "a$b", "-x", "1", "x" * 200, "a:b", "a\\b"]
BAD = ["", " ", "a b", "a\tb", "a\n", "\na", "a/b", "/", "$where", "a\x00b", "\x1f", "x" * 201, "\u2003", "a\u00a0b"]


@pytest.mark.parametrize("name", GOOD)
def test_a_name(name: str) -> None:
    assert check_name("task", name) == name


@pytest.mark.parametrize("name", BAD, ids=ascii)
def test_not_a_name(name: str) -> None:
    with pytest.raises(InvalidName, match=r"group .* is not a name: 1 to 200 characters"):
        check_name("group", name)


@pytest.mark.parametrize("value", [None, 5, b"add", ["add"], {"$gt": ""}, True], ids=repr)
def test_only_text(value: object) -> None:
    with pytest.raises(InvalidName, match=f"task must be one text, not {type(value).__name__}"):
        check_name("task", value)


def test_a_long_one_is_not_repeated_in_full() -> None:
    with pytest.raises(InvalidName) as refused:
        check_name("task", "x" * 100_000)

    assert len(str(refused.value)) < 300


@given(st.text(min_size=1, max_size=30), st.text(min_size=1, max_size=30))
def test_a_lane_says_its_group_and_task(group: str, task: str) -> None:
    try:
        check_name("group", group)
        check_name("task", task)
    except InvalidName:
        return
    lane = str(Lane(group, task))
    assert group_and_task(lane) == (group, task)
    assert lane != CANCELLED_LANE
