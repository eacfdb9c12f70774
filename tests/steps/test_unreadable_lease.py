"""A lease or a scheduler that somebody poisoned by hand: the fleet goes on by itself."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from bson.datetime_ms import DatetimeMS

from recruiter.clock import StoppedClock
from recruiter.domain.policy_registry import SchedulePolicyRegistry
from recruiter.domain.schedule.policies import Every
from recruiter.domain.schedule.scheduler import Scheduler
from recruiter.steps.lead import Leadership
from recruiter.steps.repeat import repeat
from recruiter.store.database import Store
from tests.samples import NOW, a_job, on_the_roster

LEASE = {"_id": "leader", "term": 3, "holder": "x", "beats": 5, "host": "h", "pid": 1, "takeovers": []}
POISON: dict[str, dict[str, Any]] = {
    "a term at its end": {"term": 2**63 - 1},
    "beats at their end": {"beats": 2**63 - 1},
    "a session that is none": {"session": {"id": "x"}},
    "takeovers that are text": {"takeovers": "x"},
    "a holder that is a number": {"holder": 5},
    "a term that is text": {"term": "x"},
}


@pytest.mark.parametrize("poison", POISON.values(), ids=POISON)
def test_a_poisoned_lease_is_taken_over_and_written_anew(store: Store, poison: dict[str, Any]) -> None:
    on_the_roster(store, "w1", term=3)
    store.leases.collection.insert_one({**LEASE, **poison}, bypass_document_validation=True)
    clock = StoppedClock(NOW)
    leadership = Leadership(store, clock, 5.0)

    for _ in range(20):
        if leadership.attend():
            break
        clock.move(timedelta(seconds=leadership.look_every))

    assert leadership.leading
    assert 3 < leadership.term < 10
    assert store.leases.term() == leadership.term
    assert store.leases.unreadable() == ()


def test_a_leader_whose_lease_is_poisoned_steps_back_and_leads_again(store: Store) -> None:
    clock = StoppedClock(NOW)
    leadership = Leadership(store, clock, 5.0)
    assert leadership.attend()
    before = leadership.term
    poison = {"$set": {"beats": 2**63 - 1}}
    store.leases.collection.update_one({"_id": "leader"}, poison, bypass_document_validation=True)

    for _ in range(40):
        clock.move(timedelta(seconds=leadership.interval))
        if leadership.attend() and leadership.term > before:
            break

    assert leadership.term > before


SCHEDULES = SchedulePolicyRegistry()


def a_scheduler(urn: str) -> Scheduler:
    early = NOW - timedelta(minutes=5)
    return Scheduler(urn, a_job(), SCHEDULES.dump(Every(60)), early, early, early)


ODD: dict[str, dict[str, Any]] = {
    "a window that is no number": {"window": float("nan")},
    "a count that is text": {"made": "x"},
    "a date before all dates": {"next_at": DatetimeMS(-(2**60))},
    "a schedule that is a number": {"schedule": 5},
    "a pause that is text": {"paused": None, "overlap": "x"},
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_a_scheduler_that_cannot_be_read_stops_no_other(store: Store, odd: dict[str, Any]) -> None:
    assert store.leases.acquire(None, "me", {}) is not None
    store.schedulers.put(a_scheduler("good"))
    store.schedulers.put(a_scheduler("odd"))
    store.schedulers.collection.update_one({"_id": "odd"}, {"$set": odd}, bypass_document_validation=True)

    repetition = repeat(store, SCHEDULES, 1, "me", NOW)

    assert repetition.made == 1
    assert [urn for urn, _ in repetition.broken] == ["'odd'"]
    assert not repetition.more
    assert repeat(store, SCHEDULES, 1, "me", NOW).broken == (), "it is looked at again in a minute"
    # and it can be made anew
    store.schedulers.put(a_scheduler("odd"))
    assert store.schedulers.all().unreadable == ()


def test_a_scheduler_that_is_changed_during_a_look_keeps_its_new_definition(store: Store) -> None:
    """Given a look that has seen the old definition, when it is changed meanwhile, then it stays."""
    store.schedulers.put(a_scheduler("x"))
    (seen,) = store.schedulers.all()
    changed = Scheduler(
        "x", a_job(task="other"), SCHEDULES.dump(Every(3600)), seen.created_at, seen.handled, NOW + timedelta(hours=1)
    )
    store.schedulers.put(changed)

    store.schedulers.set_aside(seen, "old", NOW)

    (found,) = store.schedulers.all()
    assert (found.next_at, found.broken, found.revision) == (NOW + timedelta(hours=1), None, 1)
