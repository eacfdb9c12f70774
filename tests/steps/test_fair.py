"""Groups that tenants share: the leader takes turns."""

from __future__ import annotations

from typing import Any

import pytest

from recruiter import Recruiter
from recruiter.clock import SystemClock
from recruiter.steps.assign import assign
from recruiter.store.database import Store
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


def test_jobs_that_a_tenant_holds_count_for_its_share(recruiter: Recruiter, store: Store, send: Any) -> None:
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


def test_a_share_that_was_written_by_hand_and_makes_no_sense_is_not_in_force(
    recruiter: Recruiter, store: Store
) -> None:
    store.limits.collection.insert_one({"_id": "fair:mail", "by": "nobody", "weights": [{"tenant": 5}]})

    rules = recruiter.controls.rules()

    assert rules.fair == {}
    assert len(rules.unreadable) == 1


def test_a_group_is_shared_by_key(recruiter: Recruiter, store: Store, send: Any) -> None:
    recruiter.controls.share_group("mail", "key")
    for number in range(20):
        send.job(number).limited_by("customer:1").enqueue()
    send.job(1).limited_by("customer:2").enqueue()
    on_the_roster(store, slots=4, prefetch=0)

    round_of(store, recruiter)

    assert given(store).count("customer:2") == 1
