"""`recruiter scheduler …`: what a person sees and what a script can rely on."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from io import StringIO

import pytest

from recruiter import Cron, Every, EveryMinutes, Recruiter, SchedulePolicy
from recruiter.store.database import Store
from tests.cli_here import here


@pytest.fixture
def recruiter(target: str, store: Store) -> Iterator[Recruiter]:
    with Recruiter(target) as recruiter:

        @recruiter.task
        def tick() -> None: ...

        rome = Cron("0 6 * * *", tz="Europe/Rome")
        recruiter.job("tick").repeat_with_policy(rome).with_urn("report:daily").unique().create()
        recruiter.job("tick").repeat_with_policy(EveryMinutes(5)).with_urn("often").create()
        yield recruiter


@pytest.mark.parametrize(
    ("schedule", "shown"),
    [
        (Cron("0 6 1 1 *", tz="Europe/Rome"), r"\d{4}-01-01 06:00:00 CET +\d{4}-01-01 05:00:00"),
        (Cron("0 6 1 7 *", tz="Europe/Rome"), r"\d{4}-07-01 06:00:00 CEST +\d{4}-07-01 04:00:00"),
        (Every("90 minutes"), r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d EST +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"),
    ],
)
def test_the_next_runs_in_local_time_with_its_zone(
    recruiter: Recruiter, target: str, schedule: SchedulePolicy, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of the schedule; or the computer's, where the schedule has none."""
    recruiter.job("tick").repeat_with_policy(schedule).with_urn("zoned").create()
    monkeypatch.setenv("TZ", "EST5")
    time.tzset()
    try:
        code, said = here(target, "scheduler", "next", "zoned", "--count", "1")
    finally:
        monkeypatch.undo()
        time.tzset()

    assert code == 0
    header, line = said.splitlines()
    assert header.split() == ["run", "UTC"]
    assert re.fullmatch(shown, line.strip())


class TestRemoveWithoutAUrn:
    """As in the original, which lists them and lets one choose."""

    @pytest.fixture
    def answered(self, target: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
        def answered(*answers: str) -> tuple[int, str]:
            terminal = StringIO("".join(f"{answer}\n" for answer in answers))
            terminal.isatty = lambda: True  # type: ignore[method-assign]
            monkeypatch.setattr("sys.stdin", terminal)
            return here(target, "scheduler", "remove")

        return answered

    @pytest.mark.parametrize("answer", ["1", "often"])
    def test_a_scheduler_is_chosen_from_the_list_and_removed(
        self, recruiter: Recruiter, answered: Callable[..., tuple[int, str]], answer: str
    ) -> None:
        code, said = answered("3", answer, "y")

        assert code == 0
        assert "1  often" in said
        assert "2  report:daily" in said
        assert "3 is not in the list" in said
        assert [each.urn for each in recruiter.schedulers()] == ["report:daily"]

    @pytest.mark.parametrize("answers", [("",), ("often", "n")])
    def test_no_scheduler_is_removed_without_a_choice(
        self, recruiter: Recruiter, answered: Callable[..., tuple[int, str]], answers: tuple[str, ...]
    ) -> None:
        code, said = answered(*answers)

        assert code == 1
        assert said.endswith("Nothing was removed.\n")
        assert len(recruiter.schedulers()) == 2
