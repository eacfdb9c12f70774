"""Groups that tenants share: the leader takes turns."""

from __future__ import annotations

from typing import Any

import pytest
from pymongo import MongoClient

from recruiter import Recruiter
from recruiter.clock import SystemClock
from recruiter.steps.assign import assign
from recruiter.store.connection import Target
from recruiter.store.database import Store
from tests.commands import Recorder
from tests.samples import on_the_roster


@pytest.fixture
def send(recruiter: Recruiter) -> Any:
    @recruiter.task(name="add", group="mail")
    def send(number: int) -> int:
        return number

    return send


def given(store: Store, worker: str = "w1") -> list[Any]:
    """The owner, or the key, of each job that the worker holds, in order."""
    documents = {document["_id"]: document for document in store.scheduled.collection.find({})}
    ids = store.roster.holders()[worker]
    return [documents[id].get("username") or documents[id].get("key") for id in ids]


def round_of(store: Store, recruiter: Recruiter) -> None:
    assign(store, 1, SystemClock().now(), recruiter.controls.rules())


def test_without_it_nothing_more_is_asked(recruiter: Recruiter, send: Any, target: str) -> None:
    recorder = Recorder()
    for number in range(10):
        send.job(number).owned_by("ada").enqueue()
    on_the_roster(recruiter.store, slots=4, prefetch=0)
    client: Any = MongoClient(target, event_listeners=[recorder])
    watched = Store(Target.parse(target), application_client=client)
    rules = watched.limits.read()
    recorder.commands.clear()
    assign(watched, 1, SystemClock().now(), rules)

    assert not [command for command in recorder.commands if "turn_by_owner" in str(command)]
    client.close()


def test_what_they_hold_already_counts(recruiter: Recruiter, store: Store, send: Any) -> None:
    recruiter.controls.share_group("mail", "owner")
    on_the_roster(store, slots=4, prefetch=0)
    for number in range(10):
        send.job(number).owned_by("ada").enqueue()
    round_of(store, recruiter)
    for number in range(10):
        send.job(number).owned_by("bob").enqueue()
    on_the_roster(store, "w2", slots=4, prefetch=0)

    round_of(store, recruiter)

    assert given(store, "w1") == ["ada"] * 4
    assert given(store, "w2") == ["bob"] * 4


def test_with_limits(recruiter: Recruiter, store: Store, send: Any) -> None:
    """A task under a limit is planned in another way; turns are taken all the same."""
    recruiter.controls.share_group("mail", "owner")
    recruiter.controls.set_limit("task:add", 3)
    for number in range(200):
        send.job(number).owned_by("ada").enqueue()
    for owner in ("bob", "eve"):
        send.job(1).owned_by(owner).enqueue()
    on_the_roster(store, slots=8, prefetch=0)

    round_of(store, recruiter)

    assert sorted(given(store)) == ["ada", "bob", "eve"]


def test_jobs_of_nobody_come_in_the_order_of_their_time(recruiter: Recruiter, store: Store, send: Any) -> None:
    recruiter.controls.share_group("mail", "owner")
    send.enqueue(1)
    send.job(2).owned_by("ada").enqueue()
    on_the_roster(store, slots=4, prefetch=0)

    round_of(store, recruiter)

    assert len(given(store)) == 2


def test_a_share_that_was_written_by_hand_and_makes_no_sense_is_not_in_force(
    recruiter: Recruiter, store: Store
) -> None:
    store.limits.collection.insert_one({"_id": "fair:mail", "by": "nobody", "weights": [{"tenant": 5}]})

    rules = recruiter.controls.rules()

    assert rules.fair == {}
    assert len(rules.unreadable) == 1
