"""Limits that the application declares in code: written by its workers, held by the leader, overruled by people."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recruiter import Recruiter, Workable
from recruiter.domain.planning.limits import Limit, Rate
from recruiter.errors import LimitNotFound, SettingsError
from recruiter.store.database import Store
from recruiter.workable import WORKABLES
from tests.cli_here import here
from tests.conftest import Starter, eventually

APPLICATION = """
import time
from recruiter import Recruiter, Workable

recruiter = Recruiter("127.0.0.1:1/not_here")

@recruiter.task({said})
def work() -> None:
    time.sleep(0.05)

@recruiter.task
def other() -> None: ...
"""


@pytest.fixture
def recruiter(target: str, store: Store) -> Iterator[Recruiter]:
    del store  # prepared
    with Recruiter(target) as recruiter:
        yield recruiter


def an_application(folder: Path, said: str) -> str:
    file = folder / "limited_app.py"
    file.write_text(APPLICATION.format(said=said))
    return str(file)


def most_at_once(store: Store, task: str) -> int:
    runs = [run["last_execution"] for run in store.archived.collection.find({"task": task})]
    moments = sorted([(run["ended_at"], -1) for run in runs] + [(run["started_at"], 1) for run in runs])
    running = most = 0
    for _, change in moments:
        running += change
        most = max(most, running)
    return most


def listed(target: str) -> dict[str, Any]:
    return {row["subject"]: row for row in json.loads(here(target, "limit", "list", "--output", "json")[1])}


def test_a_fleet_holds_what_the_application_declares(
    start: Starter, store: Store, recruiter: Recruiter, target: str, tmp_path: Path
) -> None:
    """Only the worker has loaded the application; nobody has set anything; jobs wait from the first moment on."""
    # given many jobs, and a recruiter that does not know the application
    for _ in range(40):
        recruiter.job("work").in_background().execute()
        recruiter.job("other").in_background().execute()
    start("start", "recruiter")

    # when a worker with ten slots brings the declaration
    bootstrap = an_application(tmp_path, "max_running=2")
    worker = start("start", "worker", "--bootstrap", bootstrap, "--concurrency", "10")
    eventually(lambda: not store.scheduled.waiting(), within=30)

    # then never more than two ran at once, from the very first
    assert most_at_once(store, "work") == 2
    assert listed(target)["task:work"]["source"] == "declared"

    # and when the declaration changes with the next version, the limit follows
    worker.stop()
    an_application(tmp_path, "max_running=3, rate='1000/1 minute'")
    worker = start("start", "worker", "--bootstrap", bootstrap)
    eventually(lambda: recruiter.controls.limits() == [Limit("task:work", 3, Rate(1000, 60))])

    # and when it goes, so does the limit
    worker.stop()
    an_application(tmp_path, "")
    start("start", "worker", "--bootstrap", bootstrap)
    eventually(lambda: recruiter.controls.limits() == [])


def test_what_people_set_is_in_force_instead(store: Store, recruiter: Recruiter, target: str) -> None:
    # given a declared limit
    store.limits.declare(["work"], [Limit("task:work", 2)], recruiter.clock.now())

    # when somebody sets another
    here(target, "limit", "set", "task:work", "5")

    # then that one is in force, and both are shown
    assert recruiter.controls.limits() == [Limit("task:work", 5)]
    assert listed(target)["task:work"]["source"].endswith(", declared: 2 at once")
    assert not store.limits.declare(["work"], [Limit("task:work", 2)], recruiter.clock.now()), "nothing has changed"

    # and when that is removed, the declared one is back, and stays
    code, said = here(target, "limit", "remove", "task:work")
    assert (code, said) == (0, "task:work has the limit of the application again: 2 at once\n")
    assert recruiter.controls.limits() == [Limit("task:work", 2)]
    with pytest.raises(LimitNotFound, match="declared in the application"):
        recruiter.controls.remove_limit("task:work")


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
    def test_rates(self, text: str, rate: Rate) -> None:
        assert Rate.parse(text) == rate

    @pytest.mark.parametrize(
        "words",
        [{"max_running": -1}, {"max_running": 1.5}, {"rate": "5"}, {"rate": "x/1s"}, {"rate": "0/1s"}, {"rate": 5}],
    )
    def test_what_cannot_be_is_refused_when_the_task_is_defined(
        self, recruiter: Recruiter, words: dict[str, Any]
    ) -> None:
        with pytest.raises(SettingsError):
            recruiter.task(name="work", **words)(lambda: 1)
