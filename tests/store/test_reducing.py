"""An outcome whose document MongoDB refuses: as much of it is kept as can be, and nobody else's is touched."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from bson.binary import Binary

from recruiter.domain.job import Execution, JobId
from recruiter.errors import DocumentRefused, StoreError
from recruiter.events import Event, Events
from recruiter.steps.settle import settle
from recruiter.store import outcomes
from recruiter.store.codec import Document, decode, encode, job_document
from recruiter.store.database import Store
from recruiter.store.outcomes import rescheduled
from tests.samples import NOW, a_job, document, done, hold, places

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
