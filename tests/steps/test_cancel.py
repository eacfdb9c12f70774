"""Cancel: a flag, and whoever may act on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import pytest
from pymongo.errors import WriteError

from recruiter.clock import StoppedClock
from recruiter.domain.job import JobId
from recruiter.errors import Superseded
from recruiter.steps.cancel import archive_cancelled, cancel
from recruiter.store.codec import adopted_fields
from recruiter.store.database import Store
from tests.inbox import Leader, by_hand
from tests.samples import NOW, a_job, document, insert, places

CLOCK = StoppedClock(NOW)


@pytest.fixture
def archives(store: Store) -> Callable[[], Sequence[JobId]]:
    """The leader archives what was cancelled and nobody holds."""
    assert store.leases.acquire(None, "me", {}) is not None
    return lambda: archive_cancelled(store, CLOCK, 1, "me")


def test_an_old_leader_archives_nothing(store: Store, archives: Callable[[], Sequence[JobId]]) -> None:
    (id,) = insert(store, a_job())
    cancel(store, CLOCK, id)
    store.leases.acquire(store.leases.read(), "somebody else", {})

    with pytest.raises(Superseded):
        archives()

    assert places(store, [id]) == {id: "scheduled"}


def test_a_document_that_is_not_adopted_yet_stays_cancelled(store: Store) -> None:
    """Given a job that another program has just inserted, when cancelled, then it does not run after all."""
    leader = Leader(store)
    by_hand(store, {"_id": "x", "task": "add"})

    cancel(store, CLOCK, "x")
    leader.adopts()
    archive_cancelled(store, CLOCK, 1, "me")

    assert places(store, ["x"]) == {"x": "archived"}


@pytest.mark.parametrize(
    "flag", [{}, {"cancel": None}, {"cancel": "now"}, {"cancel": {"reason": {"$gt": ""}}}], ids=str
)
def test_a_flag_written_by_hand_does_not_stop_the_leader(
    store: Store, archives: Callable[[], Sequence[JobId]], flag: dict[str, object]
) -> None:
    """Given a document in the lane of cancelled jobs with a strange flag, then the others are still archived."""
    good, bad = insert(store, a_job(), a_job())
    with suppress(WriteError):  # the validator may refuse it
        store.scheduled.collection.update_one({"_id": bad}, {"$set": {"lane": "/cancelled", **flag}})
    cancel(store, CLOCK, good)

    archives()

    assert places(store, [good]) == {good: "archived"}
    assert store.scheduled.flagged(10) == []


def test_a_flag_raised_while_the_leader_adopts_is_not_lost(store: Store) -> None:
    """Given a leader that has read the inbox, when the job is cancelled before it writes, then the flag stands."""
    leader = Leader(store)
    by_hand(store, {"_id": "x", "task": "add"})
    read = document(store, "x")

    cancel(store, CLOCK, "x")
    store.scheduled.adopt([(read, adopted_fields(read, NOW))])
    leader.adopts()
    archive_cancelled(store, CLOCK, 1, "me")

    assert places(store, ["x"]) == {"x": "archived"}
