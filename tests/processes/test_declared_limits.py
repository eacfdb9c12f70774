"""Limits that the application declares in code: written by its workers, held by the leader, overruled by people."""

from __future__ import annotations

import pytest

from recruiter import Recruiter, Workable
from recruiter.domain.planning.limits import Limit, Rate
from recruiter.store.database import Store
from recruiter.workable import WORKABLES


def test_an_application_says_nothing_of_tasks_that_it_does_not_know(store: Store, recruiter: Recruiter) -> None:
    now = recruiter.clock.now()
    store.limits.declare(["work"], [Limit("task:work", 2)], now)

    store.limits.declare(["other"], [Limit("task:other", 1)], now)

    assert set(recruiter.controls.limits()) == {Limit("task:work", 2), Limit("task:other", 1)}


def test_a_caller_declares_too(store: Store, recruiter: Recruiter) -> None:
    recruiter.task(name="work", max_running=1, rate="1000/hour")(lambda: 1)
    recruiter.job("work").in_background().execute()

    assert [report.done for report in recruiter.run_all("work")] == [True]

    assert recruiter.controls.limits() == [Limit("task:work", 1, Rate(1000, 3600))]
    assert store.limits.read().declared.keys() == {"task:work"}


class TestWhatIsSaid:
    def test_of_a_workable_and_of_the_class_it_extends(self, recruiter: Recruiter) -> None:
        try:

            class LimitedOne(Workable, max_running=2, aliases=["LimitedOnce"]): ...

            class LimitedToo(LimitedOne): ...

            assert [limit for limit in recruiter.registry.limits() if "Limited" in limit.subject] == [
                Limit("task:LimitedOnce", 2),
                Limit("task:LimitedOne", 2),
                Limit("task:LimitedToo", 2),
            ]
        finally:
            for name in ("LimitedOne", "LimitedOnce", "LimitedToo"):
                WORKABLES.pop(name, None)

    @pytest.mark.parametrize(
        ("text", "rate"),
        [
            ("5/1s", Rate(5, 1)),
            ("100/minute", Rate(100, 60)),
            ("1000 / 24 hours", Rate(1000, 86400)),
            ("1/0.5s", Rate(1, 0.5)),
        ],
    )
    def test_each_form_of_a_rate_is_read(self, text: str, rate: Rate) -> None:
        assert Rate.parse(text) == rate
