"""Lanes and limits: what decides where and when a job may run, what is left of it, and when the next one may start."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recruiter.domain.lane import Lane
from recruiter.domain.names import CANCELLED_LANE
from recruiter.domain.planning.limits import FleetBusy, KeptFor, Limit, Meter, Rate, Start, split_subject
from recruiter.domain.planning.needs import Needs
from tests.samples import NOW


class TestSubject:
    @pytest.mark.parametrize(
        ("subject", "kind", "name"),
        [
            ("task:resize", "task", "resize"),
            ("task:shop:resize", "task", "shop:resize"),
            ("group:mail", "group", "mail"),
            ("key:customer", "key", "customer"),
            ("resource:mem", "resource", "mem"),
            ("resource:licence:matlab", "resource", "licence:matlab"),
        ],
    )
    def test_the_subject_of_a_limit_has_a_kind_and_a_name(self, subject: str, kind: str, name: str) -> None:
        assert split_subject(subject) == (kind, name)
        limit = Limit(subject, 1)
        assert (limit.kind, limit.name) == (kind, name)


@pytest.mark.parametrize(
    ("subject", "lane", "bucket"),
    [
        ("task:send", "mail/send", "task:send"),
        ("task:send", "mail/other", None),
        ("task:mail", "mail/send", None),
        ("group:mail", "mail/send/proc=1/customer:1/isolated", "group:mail"),
        ("group:send", "mail/send", None),
        ("key:customer", "mail/send//customer:42", "key:customer:42"),
        ("key:customer", "mail/send//customer", "key:customer"),
        ("key:customer", "mail/send//customers:42", None),
        ("key:customer", "mail/send", None),
        ("key:None", "mail/send", None),
        ("resource:mem", "a/b/mem=1,proc=1", "resource:mem"),
        ("resource:mem", "a/b/proc=1", None),
        ("resource:licence:matlab", "a/b/licence:matlab=1", "resource:licence:matlab"),
    ],
)
def test_a_limit_covers_the_lanes_of_its_subject(subject: str, lane: str, bucket: str | None) -> None:
    limit = Limit(subject, 0)

    assert limit.bucket(Lane.parse(lane)) == bucket
    assert limit.covers(Lane.parse(lane)) == (bucket is not None)
    meter = Meter([limit], {}, NOW)
    assert meter.is_limited(Lane.parse(lane)) == (bucket is not None)
    assert (meter.room(Lane.parse(lane)) == 0) == (bucket is not None)


class TestRate:
    def test_the_log_stays_short(self) -> None:
        rate, log = Rate(100_000, 60), list[Start]()
        for step in range(2_000):
            log = rate.noted(log, NOW + step * timedelta(milliseconds=50), 10)

        assert len(log) <= 102
        assert 12_000 <= sum(count for _, count in log) <= 12_000 * 1.02


steps = st.lists(st.tuples(st.integers(0, 3_000_000), st.integers(1, 5)), max_size=40)


@given(steps, st.integers(1, 6), st.sampled_from([0.01, 0.5, 1, 2.5]))
def test_no_window_holds_more(steps: list[tuple[int, int]], count: int, seconds: float) -> None:
    """Whoever asks first and notes what it did never exceeds the rate, in any window, with or without a short log."""
    rate, now = Rate(count, seconds), NOW
    exact, noted, began = list[Start](), list[Start](), list[datetime]()
    for pause, wanted in steps:
        now += timedelta(microseconds=pause)
        given = min(wanted, rate.left(noted, now))
        assert given <= rate.left(exact, now), "a short log allows no more than a full one"
        exact.append((now, given))
        noted = rate.noted(noted, now, given)
        began += [now] * given
        later = rate.next_at(exact, now)
        assert rate.left(exact, later) > 0
        assert later == now or rate.left(exact, later - timedelta(microseconds=1)) == 0

    for first in began:
        assert sum(first <= other < first + rate.window for other in began) <= count


class TestMeter:
    def test_what_the_fleet_may_use(self) -> None:
        meter = Meter([Limit.of("resource:mem", "10GB")], {}, NOW)
        lane = Lane("g", "a", Needs.of(mem="4GB", proc=1))
        meter.take(lane, 1)
        assert meter.room(lane) == 1
        meter.take(lane, 2)

        assert not meter.suffices(lane)
        assert meter.allows(lane)
        assert meter.shortage(lane) == FleetBusy("mem", 4 * 10**12, 2 * 10**12, 10**13)
        assert meter.suffices(Lane("g", "a", Needs.of(mem="2GB")))
        assert meter.never(Lane("g", "a", Needs.of(mem="11GB"))) == ("mem", 10**13)
        assert meter.never(lane) is None

    def test_what_is_kept_for_one_that_waits(self) -> None:
        limits = [Limit("task:a", 2), Limit("resource:mem", 100), Limit("group:g", rate=Rate(1, 10))]
        meter = Meter(limits, {}, NOW)
        big, small = Lane("g", "a", Needs.of(mem=80)), Lane("h", "b", Needs.of(mem=30))
        meter.take(Lane("h", "a"), 1)

        meter.keep(big, 7)

        assert isinstance(meter.refusal(Lane("h", "a"), [7]), KeptFor)
        assert isinstance(meter.refusal(Lane("g", "c"), [7]), KeptFor), "the one start that is left"
        assert isinstance(meter.shortage(small, [7]), KeptFor)
        assert meter.shortage(Lane("h", "b", Needs.of(mem=20)), [7]) is None
        assert meter.refusal(big) is None, "not from the one for which it is kept"
        assert meter.shortage(small) is None, "nor from one that comes before it"
        assert not meter.can_keep(small), "who lacks what another waits for comes after it"
        assert meter.can_keep(Lane("h", "b", Needs.of(mem=20)))


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
