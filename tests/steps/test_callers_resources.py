"""A caller brings what its host has: `run`, `run_all` and `watch` take jobs that need something."""

from __future__ import annotations

import threading

import pytest

from recruiter import Recruiter
from recruiter.domain.planning.needs import Needs
from recruiter.steps.assign import assign
from recruiter.store.database import Store
from tests.conftest import eventually
from tests.samples import NOW, a_job, insert, on_the_roster


@pytest.fixture
def needs_proc(recruiter: Recruiter) -> list[int]:
    """The numbers of the jobs that have run, of a task that needs a processor."""
    ran: list[int] = []

    @recruiter.task(needs={"proc": 1, "mem": "1MiB"})
    def needs_proc(number: int) -> None:
        ran.append(number)

    for number in range(3):
        needs_proc.enqueue(number)
    return ran


def test_watch_takes_them_as_they_come(recruiter: Recruiter, needs_proc: list[int]) -> None:
    stop = threading.Event()
    watching = threading.Thread(target=recruiter.watch, args=("needs_proc",), kwargs={"stop": stop})
    watching.start()
    try:
        eventually(lambda: len(needs_proc) == 3)
    finally:
        stop.set()
        watching.join()


def test_resources_of_the_settings_count_for_a_caller(
    recruiter: Recruiter, needs_proc: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECRUITER_RESOURCES", "proc=0.5,mem=1MiB")

    assert recruiter.run("needs_proc", wait="1s") is None
    assert needs_proc == []


def test_one_who_says_less_of_a_host_takes_nothing_away(store: Store) -> None:
    """Given a worker that knows of 4 processors and a process of its host that knows of none, then there are 4."""
    on_the_roster(store, "a worker", resources="proc=4", host="here")
    on_the_roster(store, "b somebody", resources="", host="here", tasks=[])
    insert(store, a_job(needs=Needs.of(proc=4)))

    assert assign(store, 1, NOW).assigned == 1
