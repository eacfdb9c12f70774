"""Offers: the write itself checks that the worker can start the job now."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from recruiter.domain.planning.arrivals import Offer
from recruiter.store.database import Store
from tests.samples import facts_of_a_worker, on_the_roster

QUIET_AFTER = 7.5
"""Seconds."""


def takes(store: Store, *jobs: str, slots: int = 2, term: int = 1) -> bool:
    """Whether the worker takes these; what it holds changes only then."""
    before = held(store)
    taken = store.roster.offer({"w1": Offer(jobs, slots, QUIET_AFTER)}, term)
    assert held(store) == ([*before, *jobs] if taken else before)
    return taken


def held(store: Store) -> list[Any]:
    holding = store.roster.holding("w1")
    return holding.assigned if holding is not None else []


@pytest.mark.parametrize(
    "change",
    [
        {"ready": False},
        {"draining": True},
        {"drained": {"by": "ada"}},
        {"term": 2},
        {"seen_at": datetime.now(UTC) - timedelta(minutes=1)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_some_workers_take_none(store: Store, change: dict[str, Any]) -> None:
    on_the_roster(store)
    assert takes(store, "a"), "it would otherwise"

    store.roster.collection.update_one({"_id": "w1"}, {"$set": change})

    assert not takes(store, "b")


def test_every_answer_is_later_than_what_was_written_before(store: Store) -> None:
    """The floor of the leader: raising a term that nobody has to raise counts, too."""
    times = [store.roster.answered_at]
    for write in (
        lambda: store.roster.raise_term(1),
        lambda: store.roster.join("w1", facts_of_a_worker()),
        lambda: store.roster.raise_term(1),
        lambda: store.roster.become_ready("w1", 1),
        lambda: store.roster.assign({"w1": ["a"]}, 1),
        lambda: store.roster.offer({"w1": Offer(("b",), 4, QUIET_AFTER)}, 1),
        lambda: store.scheduled.collection.insert_one({"_id": "foreign"}),
        lambda: store.roster.raise_term(1),
    ):
        write()
        times.append(store.roster.answered_at)

    assert times[0] == 0
    assert times[1] > 0
    assert times == sorted(times)
    assert len(set(times[2:])) == 5, "each of the leader's writes moves it, others do not"
