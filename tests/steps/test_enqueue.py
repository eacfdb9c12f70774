"""Enqueue: durable when it returns, together with whoever does the same, or with the caller's transaction."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from recruiter import Recruiter, RetryManyTimes
from recruiter.errors import InvalidArguments, InvalidName, JobExists, JobTooLarge, RecruiterError, StoreUnreachable
from recruiter.results import JobHandle
from recruiter.steps.enqueue import LARGEST_BATCH, Enqueuer
from recruiter.store.codec import LARGEST_JOB, encode_job
from recruiter.store.connection import Target
from recruiter.store.database import Store
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


@pytest.mark.parametrize("expires", [None, "1h"])
def test_a_call_of_enqueue_stores_the_same_as_its_builder(recruiter: Recruiter, expires: str | None) -> None:
    """Given a task with options, then `enqueue`, which encodes what all its jobs share only once, changes nothing."""

    @recruiter.task(retry=RetryManyTimes(3, "1 minute"), expires=expires, priority=2, tags=["a"], at_most_once=True)
    def work(text: str) -> None:
        del text

    work.enqueue("the first makes the template")
    shortcut, built = (document(recruiter.store, id) for id in (work.enqueue("ü").id, work.job("ü").enqueue().id))

    moments = ("_id", "created_at", "scheduled_at", "expires_at")
    assert list(shortcut) == list(built)
    assert {name: shortcut[name] for name in built if name not in moments} == {
        name: built[name] for name in built if name not in moments
    }
    assert shortcut["created_at"] == shortcut["scheduled_at"]
    assert timedelta() <= built["created_at"] - shortcut["created_at"] < timedelta(seconds=60)


class TestMany:
    def test_what_cannot_be_stored_is_named_in_its_place(self, store: Store) -> None:
        """Given duplicates, when many are enqueued, then the rest are stored."""
        enqueuer = Enqueuer(store)
        enqueuer.one(a_job("taken"))

        errors = enqueuer.many([encode_job(a_job(id)) for id in ("a", "taken", "b", "b")])

        assert {place: type(error) for place, error in errors.items()} == {1: JobExists, 3: JobExists}
        assert "'taken'" in str(errors[1])
        assert {d["_id"] for d in store.scheduled.collection.find()} == {"taken", "a", "b"}

    def test_more_than_a_batch(self, watched: Store, recorder: Recorder) -> None:
        count = LARGEST_BATCH + 5
        jobs = [encode_job(a_job(number)) for number in range(count)]
        Enqueuer(watched).one(a_job(LARGEST_BATCH + 2))

        with recorder.only_these():
            errors = Enqueuer(watched).many(jobs)

        assert list(errors) == [LARGEST_BATCH + 2]
        assert len(recorder.named("insert")) == 2
        assert watched.scheduled.collection.count_documents({}) == count

    def test_none_at_all(self, store: Store) -> None:
        assert Enqueuer(store).many([]) == {}

    def test_a_call_that_does_not_fit_stands_in_its_place(self, recruiter: Recruiter) -> None:
        @recruiter.task
        def add_two(a: int, b: int) -> int:
            return a + b

        answers = add_two.enqueue_many([(1, 2), (1,), {"a": 5, "b": 6}], errors="return")

        assert [type(answer) for answer in answers] == [JobHandle, InvalidArguments, JobHandle]
        stored = recruiter.store.scheduled.collection.find().sort("args.a", 1)
        assert [d["args"] for d in stored] == [{"a": 1, "b": 2}, {"a": 5, "b": 6}]

    def test_one_that_is_too_large_stands_in_its_place(self, recruiter: Recruiter) -> None:
        @recruiter.task
        def keep(blob: str) -> None:
            del blob

        answers = keep.enqueue_many([("a",), ("x" * LARGEST_JOB,), ("b",)], errors="return")

        assert [type(answer) for answer in answers] == [JobHandle, JobTooLarge, JobHandle]
        assert recruiter.store.scheduled.collection.count_documents({}) == 2

    def test_an_option_that_is_wrong_is_wrong_for_all(self, recruiter: Recruiter) -> None:
        @recruiter.task
        def nothing() -> None: ...

        answers = nothing.enqueue_many([(), ()], group="no name", errors="return")

        assert [type(answer) for answer in answers] == [InvalidName, InvalidName]
        assert recruiter.store.scheduled.collection.count_documents({}) == 0

    def test_each_is_the_same_as_if_it_were_enqueued_alone(self, recruiter: Recruiter) -> None:
        """Given a task with options, when jobs are made together, then their documents are those of single jobs."""

        @recruiter.task(retry=RetryManyTimes(3, "1 minute"), expires="1h", needs={"proc": 2}, tags=["a"], timeout="5s")
        def work(n: int) -> None:
            del n

        alone = work.job(1).in_group("mail").tagged_as("b").with_priority(3).schedule_in("1 minute").enqueue()
        (together,) = work.enqueue_many([(1,)], group="mail", tags=["b"], priority=3, schedule_in="1 minute")

        one, other = (document(recruiter.store, handle.id) for handle in (alone, together))
        assert list(one) == list(other)
        moments = ("_id", "created_at", "scheduled_at", "expires_at")
        assert all(abs(one[name] - other[name]) < timedelta(seconds=60) for name in moments[1:])
        assert {name: one[name] for name in one if name not in moments} == {
            name: other[name] for name in other if name not in moments
        }
