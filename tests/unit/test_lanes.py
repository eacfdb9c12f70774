"""The lane of a job: one text for all that decides where and when it may run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recruiter.domain.lane import Lane
from recruiter.domain.names import CANCELLED_LANE
from recruiter.domain.planning.needs import Needs


@pytest.mark.parametrize(
    ("text", "lane"),
    [
        ("a/b/rubbish", Lane("a", "b")),
        ("a/b/mem=lots", Lane("a", "b")),
        ("a/b/proc=-1/customer:1", Lane("a", "b", key="customer:1")),
        ("a/b//no name", Lane("a", "b")),
        ("a/b///together", Lane("a", "b")),
        ("a/b//k/isolated/and/more", Lane("a", "b", key="k", isolated=True)),
        ("a/b///", Lane("a", "b")),
        ("a/b/proc=2,mem=1/", Lane("a", "b", Needs.of(mem=1, proc=2))),
        ("a", Lane("a", "")),
        ("", Lane("", "")),
        (CANCELLED_LANE, Lane("", "cancelled")),
    ],
)
def test_a_lane_written_by_hand_is_read_as_far_as_it_makes_sense(text: str, lane: Lane) -> None:
    """What makes no sense asks for nothing, and the rest counts."""
    assert Lane.parse(text) == lane


@given(st.text(max_size=60) | st.lists(st.sampled_from("/a=1,:$ \x00proc"), max_size=20).map("".join))
def test_no_text_breaks_it(text: str) -> None:
    lane = Lane.parse(text)

    assert Lane.parse(str(lane)) == lane
    assert str(Lane.parse(str(lane))) == str(lane)
