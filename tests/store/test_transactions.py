"""The transactions that move jobs: all or nothing, only by whoever has the right, and harmless when repeated."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from bson.binary import UUID_SUBTYPE, Binary

from recruiter.domain.job import Execution, JobId
from recruiter.errors import DocumentRefused, StoreError, Superseded
from recruiter.events import Event, Events
from recruiter.steps.settle import settle
from recruiter.store import outcomes
from recruiter.store.codec import Document, decode, encode, job_document
from recruiter.store.database import Store
from recruiter.store.outcomes import OutcomeBatch, rescheduled
from recruiter.store.roster_fields import Holding, LastEntry
from tests.samples import NOW, a_job, beat, document, done, hold, places, to_retry


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

    def test_signals_that_cannot_be_read_do_not_keep_a_job_and_its_batch_from_being_settled(self, store: Store) -> None:
        """Given a job whose signals were written by hand, when it ends, then it and the others are archived."""
        hostile, signalled, good = jobs = a_job(), a_job(), a_job()
        ids = hold(store, *jobs)
        signals = [{"name": "go", "at": NOW}]
        for job, value in ((hostile, Binary(b"abc", UUID_SUBTYPE)), (signalled, signals)):
            store.scheduled.collection.update_one({"_id": job.id}, {"$set": {"signals": value}})

        store.transactions.settle("w1", OutcomeBatch({job.id: done(job) for job in jobs}), {})

        assert set(places(store, ids).values()) == {"archived"}
        archived = {job["_id"]: job for job in store.archived.collection.find()}
        assert archived[signalled.id]["signals"] == signals
        assert archived[good.id]["done"]

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


LATER = NOW + timedelta(minutes=5)
HUGE = Binary(bytes(17 * 1024 * 1024))


def settled(store: Store, *outcomes: tuple[JobId, outcomes.Outcome | None], **facts: Any) -> list[str]:
    """What was said while these were settled."""
    heard: list[Event] = []
    events = Events()
    events.listen(heard.append)
    settle(store, "w1", list(outcomes), facts, lambda id, _: events.emit("job.reduced", job=id))
    return [f"{event.name} {event.fields['job']}" for event in heard]


def archived(store: Store, id: JobId) -> Document:
    found = store.archived.collection.find_one({"_id": id})
    assert found is not None
    return found


def nested(depth: int) -> Document:
    value: Document = {}
    for _ in range(depth):
        value = {"a": value}
    return value


def test_a_retry_that_has_grown_too_large_runs_again_without_its_history(store: Store) -> None:
    # given a job to retry, whose record of attempts makes it larger than a document may be, and its neighbours
    job, before, after = jobs = a_job(), a_job(), a_job()
    hold(store, *jobs)
    again = rescheduled(job.id, 0, {"attempts": 1, "scheduled_at": LATER, "postponed": True, "executions": [HUGE]})

    # when they are settled
    told = settled(store, (before.id, done(before)), (job.id, again), (after.id, done(after)))

    # then the job waits for its retry with its arguments, and its neighbours are as they should be
    assert told == [f"job.reduced {job.id}"]
    kept = document(store, job.id)
    assert (kept["attempts"], kept["scheduled_at"], kept["args"]) == (1, LATER, {"a": 1, "b": 2})
    assert [archived(store, each.id)["result"] for each in (before, after)] == [3, 3]
    assert store.roster.held() == set()


def test_a_retry_that_cannot_be_stored_at_all_is_archived_with_its_original(store: Store) -> None:
    job = a_job()
    hold(store, job)

    settled(store, (job.id, rescheduled(job.id, 0, {"attempts": "many"})))

    kept = archived(store, job.id)
    assert (kept["done"], kept["why"]) == (False, "malformed")
    assert "could not be stored as it was" in kept["reason"]
    assert (kept["original"]["task"], kept["original"]["args"]) == ("add", {"a": 1, "b": 2})
    assert places(store, [job.id]) == {job.id: "archived"}


def test_a_retry_of_a_job_that_somebody_has_removed_is_let_go(store: Store) -> None:
    job = a_job()
    hold(store, job)
    again = rescheduled(job.id, 0, {"attempts": 1, "executions": [HUGE]})
    store.scheduled.collection.delete_one({"_id": job.id})

    settled(store, (job.id, again))

    assert places(store, [job.id]) == {job.id: "nowhere"}
    assert store.roster.held() == set()


@pytest.mark.parametrize("result", [nested(190), nested(250)], ids=["deep", "deeper"])
def test_a_result_that_cannot_be_stored_costs_the_result_only(store: Store, result: Document) -> None:
    job = a_job()
    hold(store, job)
    try:
        outcome = outcomes.succeeded(job_document(job), Execution(NOW, NOW, "w1"), NOW, result)
    except RecursionError:
        pytest.skip("the driver does not encode it")

    told = settled(store, (job.id, outcome))

    kept = archived(store, job.id)
    assert (kept["done"], kept["why"], kept["args"]) == (True, "done", {"a": 1, "b": 2})
    assert ("result" in kept) is not bool(told)


def test_a_word_that_the_validator_refuses_costs_only_what_is_refused(store: Store) -> None:
    job = a_job()
    hold(store, job)
    refused = encode({**decode(done(job).document), "done": "maybe"})
    outcome = done(job)._replace(document=refused)

    settled(store, (job.id, outcome))

    assert archived(store, job.id)["why"] == "malformed"


def test_if_its_own_roster_document_is_refused_no_outcome_is_touched(store: Store) -> None:
    """Given facts of a worker that the roster's validator refuses, when it settles, then the jobs stay as they are."""
    job = a_job()
    hold(store, job)

    with pytest.raises(StoreError, match="roster document of worker w1") as raised:
        settled(store, (job.id, done(job)), prefetch="many")

    assert not isinstance(raised.value, DocumentRefused)
    assert places(store, [job.id]) == {job.id: "scheduled"}
    assert store.roster.held() == {job.id}
