"""The cleaner keeps how many jobs wait and run, minute by minute, for the lines of the web console."""

from __future__ import annotations

import threading
from datetime import timedelta

from recruiter.domain.policy_registry import PolicyRegistry
from recruiter.domain.statistics import HOUR, MINUTE, Depth, hour_of
from recruiter.events import Events
from recruiter.processes.cleaner import CleanerProcess
from recruiter.processes.loop import Stop
from recruiter.settings import Settings
from recruiter.steps.clean import clean_counts, sample_waiting
from recruiter.store.database import Store
from tests.conftest import eventually
from tests.samples import a_job, insert, on_the_roster


def sample(store: Store, *, always: bool = False) -> bool:
    return sample_waiting(store, store.roster.read(), always=always)


def lately(store: Store, *, hours: bool = False) -> list[Depth]:
    now = store.clock.now()
    return store.queues.depths(now - HOUR, now + MINUTE, hours=hours)


def test_what_waits_and_runs_is_kept_by_the_minute_and_the_most_by_the_hour(store: Store) -> None:
    now = store.clock.now()
    due = [a_job(scheduled_at=now - MINUTE, group=group) for group in ("mail", "mail", "images")]
    insert(store, *due, a_job(scheduled_at=now + HOUR, group="mail"))
    on_the_roster(store, seen_at=now)
    store.roster.assign({"w1": [due[0].id]}, term=1)

    assert sample(store) is True

    (depth,) = lately(store)
    slots = store.roster.read()[0].slots
    assert (depth.due, depth.running, depth.slots) == (2, 1, slots)
    assert depth.groups == {"mail": 3, "images": 1}
    assert abs(depth.at - now) < 2 * MINUTE
    store.queues.sample(Depth(now, 1, 0, slots))
    (most,) = [each for each in lately(store, hours=True) if each.at == hour_of(now)]
    assert (most.due, most.running) == (2, 1)


def test_an_idle_fleet_is_kept_only_now_and_then(store: Store) -> None:
    assert sample(store) is False
    assert lately(store) == []

    assert sample(store, always=True) is False
    assert [(each.due, each.running) for each in lately(store)] == [(0, 0)]


def test_an_hour_that_somebody_has_overwritten_begins_anew(store: Store) -> None:
    id = {"depth": hour_of(store.clock.now())}
    store.statistics.collection.insert_one({"_id": id, "due": 1, "minutes": "many"})
    assert lately(store) == []

    for _ in range(2):
        sample(store, always=True)

    assert len(lately(store)) == 1


def test_they_go_with_the_other_counts_and_are_not_taken_for_one_of_them(store: Store) -> None:
    now = store.clock.now()
    store.queues.sample(Depth(now - timedelta(days=40), 5, 1, 4, {"mail": 6}))
    sample(store, always=True)
    assert store.statistics.unreadable(10) == []

    clean_counts(store, now, timedelta(days=5))

    assert [each.due for each in store.queues.depths(now - timedelta(days=60), now + MINUTE)] == [0]


def test_the_cleaner_keeps_them(store: Store) -> None:
    insert(store, a_job(scheduled_at=store.clock.now() - MINUTE))
    stop = Stop()
    cleaner = CleanerProcess(store, Events(), stop, Settings(), PolicyRegistry())
    thread = threading.Thread(target=cleaner.run)
    thread.start()
    try:
        eventually(lambda: [each.due for each in lately(store)] == [1])
    finally:
        stop.ask()
        thread.join(10)
