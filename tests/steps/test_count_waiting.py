"""Where very many jobs wait, they are counted now and then for all who look."""

from __future__ import annotations

from datetime import timedelta

import pytest

from recruiter.domain.statistics import MINUTE, Backlog
from recruiter.steps import clean
from recruiter.steps.clean import count_waiting
from recruiter.store.database import Store
from recruiter.views.analytics import analyse, count
from tests.samples import a_job, insert

LONG = timedelta(minutes=10)


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clean, "MAX_COUNTED_BY_READERS", 3)
    monkeypatch.setattr(clean, "_MIN_PAUSE_BETWEEN_COUNTS", LONG)


def wait(store: Store, number: int, **of: str) -> None:
    insert(store, *(a_job(scheduled_at=store.clock.now() - MINUTE, **of) for _ in range(number)))


def queued(store: Store, **which: str) -> int:
    return analyse(store, store.clock.now(), MINUTE, **which).jobs.queued


def test_many_are_not_counted_by_whoever_looks(store: Store) -> None:
    wait(store, 3, group="mail")
    wait(store, 2, task="sub")

    assert count_waiting(store) is True

    kept = store.queues.kept(store.clock.now())
    assert kept is not None
    wait(store, 7)
    told = analyse(store, store.clock.now(), MINUTE)
    assert (told.jobs.queued, queued(store, group="mail"), queued(store, task="sub")) == (5, 3, 2)
    assert told.counted_at == kept.counted_at
    assert count(store, "task", store.clock.now(), MINUTE)["sub"] == {"waiting": 2}


def test_they_are_counted_again_only_when_it_is_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    wait(store, 5)
    assert [count_waiting(store), count_waiting(store)] == [True, False]

    monkeypatch.setattr(store.clock, "now", lambda now=store.clock.now: now() + 1.1 * LONG)
    wait(store, 1)

    assert queued(store) == 5
    assert count_waiting(store) is True
    assert queued(store) == 6


def test_names_that_begin_alike_are_not_mixed(store: Store) -> None:
    """Lanes of a kind need not stand together in the index: `a/b`, `a/b-c`, `a/b//key`."""
    now = store.clock.now()
    wait(store, 1, group="a", task="b")
    wait(store, 2, group="a", task="b-c")
    insert(store, *(a_job(group="a", task="b", limited_by="k", scheduled_at=now + MINUTE) for _ in range(3)))
    insert(store, *(a_job(group="a", task="b0", worker_deaths=2, scheduled_at=now - MINUTE) for _ in range(4)))

    assert store.queues.count(now).of == {
        ("a", "b"): Backlog(1, 3),
        ("a", "b-c"): Backlog(2, 0),
        ("a", "b0"): Backlog(4, 0),
    }
