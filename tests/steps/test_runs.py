"""The token of a run: it proves the hold, and whatever ends the hold takes it away.

Each test is one of the rules without which the model of the protocol finds effects of a run that had lost its job.
"""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from recruiter.domain.policy_registry import PolicyRegistry
from recruiter.errors import Superseded
from recruiter.processes.worker.held_job import HeldJob, crashed
from recruiter.steps.rescue import Rescue
from recruiter.steps.settle import settle
from recruiter.store.codec import Document, encode, job_document
from recruiter.store.collections.scheduled import ProgressMark
from recruiter.store.database import Store
from recruiter.store.runs import Run
from tests.conftest import eventually
from tests.prepared import connected
from tests.samples import NOW, a_job, done, hold, on_the_roster

__all__ = ["connected"]


@pytest.fixture
def job(store: Store) -> Any:
    job = a_job()
    hold(store, job)
    return job


def run_of(store: Store, job: Any, worker: str = "w1") -> Run:
    return Run(lambda: store, job_document(job), worker, NOW, lambda: done(job), stored=True)


def document(store: Store, job: Any) -> Document:
    found = store.scheduled.document(job.id)
    assert found is not None
    return found


def test_threads_of_one_run_get_the_same_one(store: Store, job: Any) -> None:
    """Given two steps that are the first of their job, in two threads: there is one token, and neither loses it."""
    run, begun = run_of(store, job), list[int]()
    begin_run, both = store.transactions.begin_run, threading.Barrier(2)

    def begin_late(*args: Any) -> bool:
        begun.append(1)
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.5)  # for another one that begins meanwhile
        return begin_run(*args)

    store.transactions.begin_run = begin_late  # type: ignore[method-assign, assignment]
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda _: run.prove(), range(2)))

    assert begun == [1]
    assert document(store, job)["token"] == run.token


def test_a_worker_that_does_not_hold_the_job_gets_no_token(store: Store, job: Any) -> None:
    on_the_roster(store, "w2")
    for worker in ("w2", "nobody"):
        with pytest.raises(Superseded):
            run_of(store, job, worker).prove()

    assert "token" not in document(store, job)


def test_a_job_that_has_been_tried_since_gives_none(store: Store, job: Any) -> None:
    store.scheduled.collection.update_one({"_id": job.id}, {"$inc": {"attempts": 1}})

    with pytest.raises(Superseded):
        run_of(store, job).prove()


def test_its_sessions_are_on_the_roster_before_it_writes(store: Store, job: Any) -> None:
    run_of(store, job).prove()

    (worker,) = store.roster.read()
    assert store.transactions.session_id in worker.sessions


def test_retiring_the_worker_takes_it(store: Store, job: Any) -> None:
    run_of(store, job).prove(transaction=True)
    rescue = Rescue(store, store.clock, 0.2, PolicyRegistry())

    eventually(lambda: rescue.retire_silent(store.roster.read()))

    assert not {"token", "transaction", "started_by"} & document(store, job).keys()


def test_after_a_death_an_archived_outcome_stays(store: Store, job: Any) -> None:
    """The child had committed: its supervisor, which believes in a crash, changes nothing and counts nothing."""
    run_of(store, job).prove(transaction=True)
    store.scheduled.collection.delete_one({"_id": job.id})
    archived = {"_id": job.id, "done": True, "why": "done", "archived_at": NOW, "attempts": 1}
    store.archived.collection.insert_one(dict(archived))
    for most in (None, 1):  # to be tried again, and for good
        raw = encode({**job_document(job), "max_crashes": most})
        settle(store, "w1", [(job.id, crashed(HeldJob.read(job.id, raw), PolicyRegistry(), "w1", NOW, "died", {}))], {})

    assert store.archived.document(job.id) == archived
    assert not store.scheduled.exists(job.id)


def test_progress_is_not_written_on_a_job_in_its_own_transaction(store: Store, job: Any) -> None:
    """It would have to wait for the end of the transaction, and all other progress with it."""
    mark = ProgressMark(job.id, 0, None, "w1", NOW, {"progress": 0.5})
    run_of(store, job).prove(transaction=True)

    store.scheduled.mark_progress([mark])

    assert "progress" not in document(store, job)
