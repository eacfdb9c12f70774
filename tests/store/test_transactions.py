"""The transactions that move jobs: all or nothing, only by whoever has the right, and harmless when repeated."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from recruiter.errors import DocumentRefused, StoreError, Superseded
from recruiter.store.codec import Document, encode
from recruiter.store.database import Store
from recruiter.store.outcomes import OutcomeBatch, rescheduled
from recruiter.store.roster_fields import Holding, LastEntry
from tests.samples import (
    NOW,
    a_job,
    beat,
    document,
    done,
    hold,
    places,
    to_retry,
)


class TestSettle:
    def test_a_retired_worker_writes_nothing(self, store: Store) -> None:
        """Given a worker off the roster, when it settles, then its results are dropped and nothing changes."""
        ended, again = a_job(), a_job()
        ids = hold(store, ended, again)
        store.roster.leave("w1")
        before = [document(store, id) for id in ids]

        with pytest.raises(Superseded, match="w1"):
            store.transactions.settle("w1", OutcomeBatch({ended.id: done(ended)}, [to_retry(again)]), {})

        assert [document(store, id) for id in ids] == before
        assert store.archived.which_exist(ids) == set()
        assert store.roster.read() == []

    def test_if_one_document_cannot_be_written_nothing_is(self, store: Store) -> None:
        """Given an archive document that the validator refuses, when settled, then the other one stays held too."""
        good, bad = a_job(), a_job()
        ids = hold(store, good, bad)
        batch = OutcomeBatch(
            {good.id: done(good), bad.id: done(bad)._replace(document=encode({"_id": bad.id, "done": "maybe"}))}
        )

        with pytest.raises(StoreError):
            store.transactions.settle("w1", batch, {})

        assert set(places(store, ids).values()) == {"scheduled"}
        assert store.roster.held() == set(ids)

    def test_settling_again_after_an_unknown_outcome_is_harmless(self, store: Store) -> None:
        """Given a settlement that was written, when it is repeated, then the first one stands."""
        ended, again, fresh = jobs = a_job(), a_job(), a_job()
        ids = hold(store, *jobs)
        later = NOW + timedelta(minutes=5)
        first = OutcomeBatch({ended.id: done(ended, result=1)}, [to_retry(again, later)])
        store.transactions.settle("w1", first, {})

        repeated = OutcomeBatch(
            {ended.id: done(ended, result=2), fresh.id: done(fresh)}, [to_retry(again, later + timedelta(days=1))]
        )
        holding = store.transactions.settle("w1", repeated, {})

        assert holding.assigned == []
        assert places(store, ids) == {ended.id: "archived", again.id: "scheduled", fresh.id: "archived"}
        archived = store.archived.get(ended.id)
        assert archived is not None
        assert archived.result == 1
        assert (document(store, again.id)["scheduled_at"], document(store, again.id)["attempts"]) == (later, 1)

    def test_a_job_cancelled_meanwhile_does_not_come_back_to_a_lane(self, store: Store) -> None:
        job = a_job()
        hold(store, job)
        store.scheduled.flag_cancelled(job.id, NOW, None, None)

        again = rescheduled(job.id, 0, {"attempts": 1, "group": "night", "lane": "night/add"})
        store.transactions.settle("w1", OutcomeBatch(reschedule=[again]), {})

        assert document(store, job.id)["lane"] == "/cancelled"
        assert store.roster.held() == set()

    def test_an_outcome_of_an_earlier_attempt_changes_nothing(self, store: Store) -> None:
        """Given a job whose attempt was counted meanwhile, when the outcome of that attempt comes late."""
        job = a_job(attempts=1)
        hold(store, job)

        late = rescheduled(job.id, 0, {"attempts": 1, "scheduled_at": NOW.replace(year=2040)})
        store.transactions.settle("w1", OutcomeBatch(reschedule=[late]), {})

        assert document(store, job.id)["scheduled_at"] != NOW.replace(year=2040)

    def test_two_settlements_of_one_job_leave_one_record(self, store: Store) -> None:
        """Given the same outcome settled by eight threads at once, then the job is archived once."""
        jobs = [a_job() for _ in range(10)]
        ids = hold(store, *jobs)
        together = threading.Barrier(8)

        def settle(number: int) -> Holding:
            together.wait()
            return store.transactions.settle("w1", OutcomeBatch({job.id: done(job, result=number) for job in jobs}), {})

        with ThreadPoolExecutor(8) as threads:
            holdings = list(threads.map(settle, range(8)))

        assert set(places(store, ids).values()) == {"archived"}
        assert all(holding.assigned == [] for holding in holdings)
        assert len({ended.result for ended in store.archived.get_many(ids).values()}) == 1, "one settlement won"


def nothing_happens(_: LastEntry, __: list[Document]) -> OutcomeBatch:
    return OutcomeBatch()


class TestRetire:
    def test_a_worker_that_showed_life_stays(self, store: Store) -> None:
        (job,) = hold(store, a_job())
        (seen,) = store.roster.read()
        beat(store, "w1", {})

        assert store.transactions.retire_all([("w1", seen.beats)], nothing_happens)[0] is None

        assert store.roster.held() == {job}

    def test_if_its_jobs_cannot_be_moved_it_stays(self, store: Store) -> None:
        (job,) = hold(store, a_job())
        (seen,) = store.roster.read()
        refused = done(a_job())._replace(document=encode({"_id": job}))

        with pytest.raises(StoreError):
            store.transactions.retire_all([("w1", seen.beats)], lambda _, __: OutcomeBatch({job: refused}))[0]

        assert store.roster.held() == {job}


def test_a_lease_that_cannot_be_written_says_nothing_about_the_document_that_is_set_aside(store: Store) -> None:
    """Given a lease that MongoDB refuses to write, then the document is not blamed: it stays where it is."""
    lease = store.leases.acquire(None, "me", {})
    assert lease is not None
    store.scheduled.collection.insert_one({"_id": "odd"}, bypass_document_validation=True)
    store.database.command("collMod", store.name_of("leases"), validator={"never": True}, validationLevel="strict")

    try:
        with pytest.raises(StoreError, match="the lease") as raised:
            store.transactions.set_aside({"_id": "record"}, {"_id": "odd"}, lease.term, "me")
    finally:
        store.prepare()  # other tests use this database

    assert not isinstance(raised.value, DocumentRefused)
    assert places(store, ["odd"]) == {"odd": "scheduled"}
