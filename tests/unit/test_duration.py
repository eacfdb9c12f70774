from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recruiter.domain.duration import DurationLike, brief, humanize, to_seconds, to_timedelta


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (90, timedelta(seconds=90)),
        (0.25, timedelta(milliseconds=250)),
        (0, timedelta(0)),
        (timedelta(hours=2), timedelta(hours=2)),
        ("5 minutes", timedelta(minutes=5)),
        ("30s", timedelta(seconds=30)),
        ("500ms", timedelta(milliseconds=500)),
        ("5days", timedelta(days=5)),
        ("1h30m", timedelta(minutes=90)),
        ("1.5 hours", timedelta(minutes=90)),
        ("  1 minute,\t24 secs ", timedelta(seconds=84)),
        ("90", timedelta(seconds=90)),
        ("2 weeks", timedelta(days=14)),
    ],
)
def test_reads_what_people_write(value: DurationLike, expected: timedelta) -> None:
    assert to_timedelta(value) == expected
    assert to_seconds(value) == expected.total_seconds()


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (timedelta(seconds=90), "1m 30s"),
        (timedelta(0), "0s"),
        (timedelta(milliseconds=1500), "1s 500ms"),
        (timedelta(microseconds=1250), "1.25ms"),
        (timedelta(days=3, hours=4), "3d 4h"),
        (timedelta(seconds=-90), "-1m 30s"),
    ],
)
def test_a_duration_is_shown_in_units(duration: timedelta, text: str) -> None:
    assert humanize(duration) == text


@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=36_500)))
@settings(deadline=None)
def test_what_is_shown_can_be_read_back(duration: timedelta) -> None:
    assert to_timedelta(humanize(duration)) == duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (0, "<0.1ms"),
        (-1, "<0.1ms"),
        (0.0004, "0.4ms"),
        (0.25, "250ms"),
        (0.9999, "999ms"),
        (2, "2s"),
        (3.21, "3.2s"),
        (59.9, "59s"),
        (77, "1m 17s"),
        (192, "3m 12s"),
        (7200, "2h"),
        (86_400 + 300, "1d"),
    ],
)
def test_a_brief_duration_has_two_units_at_most(seconds: float | None, text: str) -> None:
    assert brief(seconds) == text
