"""Enqueue: durable when it returns, together with whoever does the same, or with the caller's transaction."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from recruiter import Recruiter
from recruiter.errors import InvalidArguments, JobExists, JobTooLarge, RecruiterError, StoreUnreachable
from recruiter.results import JobHandle
from recruiter.steps.enqueue import LARGEST_BATCH, Enqueuer
from recruiter.store.codec import LARGEST_JOB
from recruiter.store.database import Store
from recruiter.store.target import Target
from tests.commands import Recorder, recorded
from tests.samples import a_job, document


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def watched(target: str, store: Store, recorder: Recorder) -> Iterator[Store]:
    """The test's database through a connection whose commands are recorded."""
    assert store.database.name in target
    watched = recorded(target, recorder)
    yield watched
    watched.close()


def test_a_lone_job_goes_straight_through(watched: Store, recorder: Recorder) -> None:
    """Given nobody else, when a job is enqueued, then one insert makes it durable."""
    job = a_job(tags=("a", "b"), urn="u", owner="ada", priority=2.5, at_most_once=True)

    with recorder.only_these():
        Enqueuer(watched).one(job)

    (insert,) = recorder.named("insert")
    assert insert["writeConcern"] == {"w": "majority", "j": True}
    assert watched.scheduled.get(job.id) == job


def test_a_second_job_of_the_same_id_is_refused_and_the_first_left(store: Store) -> None:
    enqueuer = Enqueuer(store)
    enqueuer.one(a_job("same", args={"a": 1}))

    with pytest.raises(JobExists, match="'same'"):
        enqueuer.one(a_job("same", args={"a": 2}))

    assert document(store, "same")["args"] == {"a": 1}


def test_after_a_refusal_others_go_on(store: Store) -> None:
    enqueuer = Enqueuer(store)
    enqueuer.one(a_job("a"))
    with pytest.raises(JobExists):
        enqueuer.one(a_job("a"))

    enqueuer.one(a_job("b"))

    assert store.scheduled.get("b") is not None


def test_a_job_that_is_too_large_is_refused_before_anything_is_sent(watched: Store, recorder: Recorder) -> None:
    with recorder.only_these(), pytest.raises(JobTooLarge, match="'add'"):
        Enqueuer(watched).one(a_job(args={"blob": "x" * LARGEST_JOB}))

    assert recorder.named("insert") == []


def test_threads_that_enqueue_at_the_same_time_share_their_writes(watched: Store, recorder: Recorder) -> None:
    """Given 32 threads with 50 jobs each, then few inserts carry them, and each is durable when its call returns."""
    enqueuer, threads, each = Enqueuer(watched), 32, 50
    assert watched.scheduled.lanes() == []
    together = threading.Barrier(threads)
    missing: list[Any] = []

    def produce(number: int) -> None:
        together.wait()
        for place in range(each):
            job = a_job(number * each + place)
            enqueuer.one(job)
            if place % 10 == 0 and watched.scheduled.get(job.id) is None:
                missing.append(job.id)

    with recorder.only_these(), ThreadPoolExecutor(threads) as pool:
        list(pool.map(produce, range(threads)))

    assert missing == []
    assert watched.scheduled.collection.count_documents({}) == threads * each
    inserts = recorder.named("insert")
    assert len(inserts) < threads * each / 4
    assert sum(len(insert["documents"]) for insert in inserts) == threads * each


def test_a_duplicate_among_others_harms_only_itself(store: Store) -> None:
    """Given 16 threads of which all want the same id, then one has it and fifteen hear so."""
    enqueuer, together = Enqueuer(store), threading.Barrier(16)

    def produce(number: int) -> str:
        together.wait()
        enqueuer.one(a_job(f"own {number}"))
        try:
            enqueuer.one(a_job("shared"))
        except JobExists:
            return "refused"
        return "stored"

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(produce, range(16)))

    assert sorted(answers) == ["refused"] * 15 + ["stored"]
    assert store.scheduled.collection.count_documents({}) == 17


def test_large_jobs_of_many_threads_do_not_fail_each_other(store: Store) -> None:
    """Given jobs that do not fit into one message together, then each is stored."""
    enqueuer, together = Enqueuer(store), threading.Barrier(6)

    def produce(number: int) -> None:
        together.wait()
        enqueuer.one(a_job(number, args={"blob": "x" * (10 * 1024 * 1024)}))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(produce, range(6)))

    assert store.scheduled.collection.count_documents({}) == 6


def test_when_no_server_answers_every_caller_hears_of_it() -> None:
    nowhere = Store(Target.parse("127.0.0.1:1"), patience=0.1)
    enqueuer, together = Enqueuer(nowhere), threading.Barrier(4)

    def produce(number: int) -> type[BaseException] | None:
        together.wait()
        try:
            enqueuer.one(a_job(number))
        except RecruiterError as error:
            return type(error)
        return None

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(produce, range(4)))
    nowhere.close()

    assert answers == [StoreUnreachable] * 4


def test_a_caller_that_is_interrupted_does_not_stop_the_others(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given Ctrl-C while a caller waits for its turn, when it is caught, then later callers are still served."""
    enqueuer, insert = Enqueuer(store), store.scheduled.insert
    writing, go_on = threading.Semaphore(0), threading.Event()

    def slow_insert(*args: Any) -> dict[int, str]:
        writing.release()
        go_on.wait()
        return insert(*args)

    monkeypatch.setattr(store.scheduled, "insert", slow_insert)
    first = threading.Thread(target=enqueuer.one, args=(a_job("first"),), daemon=True)
    first.start()
    assert writing.acquire(timeout=20)

    def interrupt() -> None:
        writing.acquire(timeout=20)  # when its job is being written, by somebody else
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        enqueuer.one(a_job("interrupted"))
    go_on.set()
    first.join()

    later = threading.Thread(target=enqueuer.one, args=(a_job("later"),), daemon=True)
    later.start()
    later.join(timeout=5)

    assert not later.is_alive(), "it waits for somebody who has gone"
    assert store.scheduled.get("later") is not None


class TestMany:
    def test_what_cannot_be_stored_is_named_in_its_place(self, store: Store) -> None:
        """Given a duplicate and a job that is too large, when many are enqueued, then the rest are stored."""
        enqueuer = Enqueuer(store)
        enqueuer.one(a_job("taken"))
        huge = a_job("huge", args={"blob": "x" * LARGEST_JOB})

        errors = enqueuer.many([a_job("a"), a_job("taken"), huge, a_job("b"), a_job("b")])

        assert [type(error) for error in errors] == [type(None), JobExists, JobTooLarge, type(None), JobExists]
        assert "'taken'" in str(errors[1])
        assert store.archived.which_exist([]) == set()
        assert {d["_id"] for d in store.scheduled.collection.find()} == {"taken", "a", "b"}

    def test_more_than_a_batch(self, watched: Store, recorder: Recorder) -> None:
        count = LARGEST_BATCH + 5
        jobs = [a_job(number) for number in range(count)]
        Enqueuer(watched).one(a_job(LARGEST_BATCH + 2))

        with recorder.only_these():
            errors = Enqueuer(watched).many(jobs)

        assert [place for place, error in enumerate(errors) if error is not None] == [LARGEST_BATCH + 2]
        assert len(recorder.named("insert")) == 2
        assert watched.scheduled.collection.count_documents({}) == count

    def test_none_at_all(self, store: Store) -> None:
        assert Enqueuer(store).many([]) == []

    def test_a_call_that_does_not_fit_stands_in_its_place(self, recruiter: Recruiter) -> None:
        @recruiter.task
        def add_two(a: int, b: int) -> int:
            return a + b

        answers = add_two.enqueue_many([(1, 2), (1,), {"a": 5, "b": 6}], errors="return")

        assert [type(answer) for answer in answers] == [JobHandle, InvalidArguments, JobHandle]
        stored = recruiter.store.scheduled.collection.find().sort("args.a", 1)
        assert [d["args"] for d in stored] == [{"a": 1, "b": 2}, {"a": 5, "b": 6}]
