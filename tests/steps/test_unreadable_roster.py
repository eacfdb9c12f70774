"""Entries of the roster, and jobs, that nobody can plan with: the others are served, and these are taken away."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import bson
import pytest
from bson import Int64
from bson.binary import Binary
from bson.datetime_ms import DatetimeMS
from bson.raw_bson import RawBSONDocument

from recruiter.clock import Clock, StoppedClock
from recruiter.domain.planning.limits import Limit
from recruiter.domain.planning.rules import Rules
from recruiter.domain.planning.workers import RosterWorker
from recruiter.domain.policy_registry import PolicyRegistry
from recruiter.steps.adopt import set_jobs_aside
from recruiter.steps.assign import assign
from recruiter.steps.lead import Leadership
from recruiter.steps.rescue import MAX_RETIRED_PER_TRANSACTION, Rescue, Retired
from recruiter.store.codec import job_document
from recruiter.store.database import Store
from tests.conftest import eventually
from tests.samples import NOW, a_job, facts_of_a_worker, insert, on_the_roster, places

ENTRY: dict[str, Any] = {
    "_id": "odd",
    "host": "h",
    "pid": 1,
    "groups": None,
    "tasks": ["add"],
    "slots": 9,
    "prefetch": 0,
    "ready": True,
    "draining": False,
    "term": 0,
    "beats": 7,
    "settled": 0,
    "given": 0,
    "resources": "",
    "joined_at": NOW,
    "seen_at": NOW,
    "running": [],
    "assigned": [],
}
ODD: dict[str, dict[str, Any]] = {
    "a task that is a document": {"tasks": [{}]},
    "a note that is a number": {"metered": [1]},
    "resources that are a document": {"resources": {}},
    "resources that make no sense": {"resources": "lots"},
    "a group that is a document": {"groups": [{}]},
    "a term that nobody can reach": {"term": 2**62},
    "beats at their end": {"beats": 2**63 - 1},
    "a session that is none": {"session": {"id": "x"}},
    "more slots than there are": {"slots": 2**31 - 1},
}


def by_hand(store: Store, **fields: Any) -> None:
    store.roster.collection.insert_one({**ENTRY, **fields})


@pytest.mark.parametrize("fields", ODD.values(), ids=ODD)
def test_an_entry_that_cannot_be_read_keeps_nobody_from_work(store: Store, fields: dict[str, Any]) -> None:
    on_the_roster(store, "w1", slots=5)
    by_hand(store, **fields)
    (job,) = insert(store, a_job())

    round = assign(store, 1, NOW)

    assert store.roster.holders()["w1"] == [job]
    assert [entry.id for entry in round.unreadable] == ["'odd'"]


def retired(store: Store) -> int:
    """How many entries are retired because nobody could read them for long."""
    clock = StoppedClock(NOW)
    rescue = Rescue(store, clock, 15.0, PolicyRegistry())
    count = 0
    for _ in range(5):
        entries = store.roster.read()
        count += len(rescue.retire_silent((), entries.unreadable))
        clock.move(timedelta(seconds=5))
    return count


def test_a_job_that_an_unreadable_entry_holds_is_not_given_to_another_before_it_is_retired(store: Store) -> None:
    """Given an entry with a run that has no date, when it is retired, then its jobs are free."""
    on_the_roster(store, "w1", slots=5)
    ran, waited = insert(store, a_job(), a_job())
    by_hand(store, assigned=[ran, waited], running=[{"job": ran}])

    assert assign(store, 1, NOW).assigned == 0
    assert store.roster.entries().unreadable
    # its planning fields can be read, so it is a worker like any other: it is silent, and that is enough
    clock = StoppedClock(NOW)
    rescue = Rescue(store, clock, 15.0, PolicyRegistry())
    for _ in range(5):
        entries = store.roster.read()
        rescue.retire_silent([worker for worker in entries if worker.id == "odd"], entries.unreadable)
        clock.move(timedelta(seconds=5))

    assert "odd" not in store.roster.holders()
    assert store.roster.held() == set()
    assert places(store, [ran, waited]) == {ran: "scheduled", waited: "scheduled"}


def test_an_entry_that_can_be_read_again_stays(store: Store) -> None:
    by_hand(store, tasks=[{}])
    seen = store.roster.read().unreadable
    store.roster.collection.update_one({"_id": "odd"}, {"$set": {"tasks": ["add"]}})

    clock = StoppedClock(NOW)
    rescue = Rescue(store, clock, 15.0, PolicyRegistry())
    for _ in range(5):
        assert rescue.retire_silent((), seen) == []
        clock.move(timedelta(seconds=5))

    assert [worker.id for worker in store.roster.read()] == ["odd"]


JOB = {**job_document(a_job()), "lane": "generic/add"}
MALFORMED: dict[str, dict[str, Any]] = {
    "a UUID of three bytes": {"_id": Binary(b"abc", 4)},
    "a UUID of the old kind": {"_id": Binary(b"a" * 16, 3)},
    "bytes": {"_id": b"abc"},
    "a text of two thousand characters": {"_id": "x" * 2000},
    "a lane of nine megabytes": {"_id": "x", "lane": "generic/" + "x" * 9 * 2**20},
    "a second lane of nine megabytes": {"_id": "y", "lane": "generic/" + "y" * 9 * 2**20},
}


def bypassed(store: Store, *documents: dict[str, Any] | RawBSONDocument) -> None:
    """Past the validator, as somebody with the right to do so may."""
    for document in documents:
        store.scheduled.collection.insert_one(document, bypass_document_validation=True)


def test_jobs_that_cannot_be_given_to_anybody_are_set_aside_and_the_others_run(store: Store) -> None:
    raw = bson.encode({**JOB, "_id": "ZZZZ"}).replace(b"ZZZZ", b"\xff\xfe\xff\xfe")
    bypassed(store, RawBSONDocument(raw), *({**JOB, **fields} for fields in MALFORMED.values()))
    on_the_roster(store, "w1", slots=50)
    (good,) = insert(store, a_job())
    assert store.leases.acquire(None, "me", {}) is not None

    round = assign(store, 1, NOW)
    set_jobs_aside(store, 1, "me", NOW, round.malformed)

    assert store.roster.held() == {good}
    assert places(store, [good]) == {good: "scheduled"}
    assert store.scheduled.collection.count_documents({}) == 1
    assert store.archived.collection.count_documents({"why": "malformed"}) == len(MALFORMED) + 1


@pytest.mark.parametrize("moment", [DatetimeMS(-(2**60)), datetime(1, 1, 1, tzinfo=UTC)], ids=repr)
def test_a_date_before_all_dates_among_limited_lanes(store: Store, moment: Any) -> None:
    """Given a limit, so that jobs are planned by their dates, then one that has none is set aside."""
    bypassed(store, {**JOB, "_id": "x", "scheduled_at": moment})
    on_the_roster(store, "w1", slots=5)
    (good,) = insert(store, a_job())

    round = assign(store, 1, NOW, Rules((Limit("task:add", 10),)))

    assert store.roster.held() == {good}
    assert [document.id for document in round.malformed] == ["'x'"]


def enter(store: Store, worker: str, **fields: Any) -> None:
    """A worker that is ready, with some fields as nobody should write them."""
    store.roster.join(worker, facts_of_a_worker(seen_at=store.clock.now()))
    store.roster.become_ready(worker, 0)
    store.roster.collection.update_one({"_id": worker}, {"$set": fields}, bypass_document_validation=True)


@pytest.mark.parametrize("field", [{"given": "x"}, {"given": None}, {"given": Int64(2**63 - 1)}, {"metered": None}])
def test_an_entry_that_cannot_be_given_jobs_does_not_stop_assignment(store: Store, field: dict[str, Any]) -> None:
    # given a fake worker whose document cannot take a job, beside a good one
    enter(store, "fake", **field)
    enter(store, "good")
    insert(store, *(a_job() for _ in range(4)))

    # when
    round = assign(store, 1, NOW)

    # then
    assert round.assigned > 0
    assert [entry.id for entry in round.unreadable] == ["'fake'"]
    assert list(store.roster.holders()["good"]) != []


@pytest.mark.parametrize("term", [Int64(2**53), Int64(2**53 - 1), Int64(2**52), Int64(2**62)])
def test_no_term_on_the_roster_makes_the_lease_unreadable(store: Store, term: Int64) -> None:
    # given
    enter(store, "fake", term=term)

    # when a leader takes one term after the other
    leadership = Leadership(store, store.clock, 5.0)
    for _ in range(3):
        assert leadership.attend()
        leadership.doubt()

    # then
    lease = store.leases.read()
    assert lease is not None
    assert lease.holder is not None


def test_pausing_reaches_the_others(store: Store) -> None:
    # given
    enter(store, "fake", pauses="x")
    enter(store, "good")

    # when
    store.roster.tell_of_pauses()

    # then
    good = store.roster.collection.find_one({"_id": "good"})
    assert good is not None
    assert good["pauses"] == 1


class TestAQuietWorker:
    def rescue(self, store: Store, clock: Clock) -> Rescue:
        return Rescue(store, clock, 15.0, PolicyRegistry())

    def test_one_that_nobody_saw_move_is_given_nothing_until_it_moves(self, store: Store) -> None:
        # given an entry of an hour ago
        rescue = self.rescue(store, store.clock)
        enter(store, "fake", seen_at=store.clock.now() - timedelta(hours=1))
        insert(store, a_job())

        # then it is given nothing
        assert assign(store, 1, NOW, is_quiet=rescue.is_quiet).assigned == 0
        rescue.retire_silent(store.roster.read())
        assert assign(store, 1, NOW, is_quiet=rescue.is_quiet).assigned == 0

        # until its counter moves
        store.roster.collection.update_one({"_id": "fake"}, {"$inc": {"beats": 1}})
        assert assign(store, 1, NOW, is_quiet=rescue.is_quiet).assigned == 1

    def test_many_are_retired_together(self, store: Store) -> None:
        # given more than one transaction takes
        rescue = Rescue(store, store.clock, 0.0, PolicyRegistry())
        for number in range(MAX_RETIRED_PER_TRANSACTION + 5):
            enter(store, f"fake-{number}", **({"groups": 5} if number % 2 else {}))
        roster = store.roster.read()

        # when
        retired: list[Retired] = []

        def all_retired() -> bool:
            retired.extend(rescue.retire_silent(roster, roster.unreadable))
            return len(retired) >= MAX_RETIRED_PER_TRANSACTION + 5

        eventually(all_retired)

        # then
        assert len(retired) == MAX_RETIRED_PER_TRANSACTION + 5
        assert [worker for worker in store.roster.read() if isinstance(worker, RosterWorker)] == []
