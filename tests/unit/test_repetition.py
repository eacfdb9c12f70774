"""What is said once, after a while; and what is said at once, but not every time."""

from __future__ import annotations

import pytest

from recruiter.events import LastingFacts, RareReports


@pytest.fixture
def facts() -> LastingFacts[str]:
    return LastingFacts(grace=30.0)


def test_after_the_grace_and_once(facts: LastingFacts[str]) -> None:
    told = [facts.due({"a": "is broken"}, now) for now in (0.0, 29.9, 30.0, 31.0, 5000.0)]

    assert told == [{}, {}, {"a": "is broken"}, {}, {}]


def test_again_when_it_was_mended_in_between(facts: LastingFacts[str]) -> None:
    facts.due({"a": "is broken"}, 0.0)
    facts.due({"a": "is broken"}, 30.0)
    facts.due({}, 31.0)
    facts.due({"a": "is broken"}, 32.0)

    assert facts.due({"a": "is broken"}, 62.0) == {"a": "is broken"}


class TestSeldom:
    def test_the_first_time_and_then_once_in_a_while_with_how_often(self) -> None:
        reports = RareReports(interval=60.0)

        told = [reports.due("a", now) for now in (0.0, 1.0, 59.9, 60.0, 61.0, 500.0)]

        assert told == [1, 0, 0, 3, 0, 2]

    def test_what_others_have_counted_already(self) -> None:
        reports = RareReports(interval=60.0)

        assert [reports.due("a", now, times=5) for now in (0.0, 10.0, 70.0)] == [5, 0, 10]
