"""Enqueue: durable when it returns, together with whoever does the same, or with the caller's transaction."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from recruiter import Recruiter, RetryManyTimes
from recruiter.errors import (
    InvalidJob,
    InvalidName,
    JobExists,
    JobTimedOut,
    JobTooLarge,
    RecruiterError,
    StoreUnreachable,
)
from recruiter.many import ManyOptions
from recruiter.results import JobHandle
from recruiter.steps import enqueue
from recruiter.steps.enqueue import LARGEST_BATCH, Enqueuer
from recruiter.store.codec import LARGEST_JOB, encode_job
from recruiter.store.collections.scheduled import Scheduled
from recruiter.store.connection import Target
from recruiter.store.database import Store
from tests.commands import Recorder, recorded
from tests.conftest import eventually
from tests.samples import a_job, document
from tests.threads import JobThread


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


class Held:
    """Writes that are held up until they may go on."""

    def __init__(self, insert: Callable[..., dict[int, str]]) -> None:
        self._insert = insert
        self.writing = threading.Semaphore(0)
        self.may_go = threading.Semaphore(0)

    def __call__(self, *args: Any) -> dict[int, str]:
        self.writing.release()
        assert self.may_go.acquire(timeout=20)
        return self._insert(*args)

    async def begun(self) -> None:
        assert await asyncio.to_thread(self.writing.acquire, timeout=20)

    def go_on(self) -> None:
        for _ in range(10):
            self.may_go.release()


@pytest.fixture
def held(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    held = Held(store.scheduled.insert)
    monkeypatch.setattr(store.scheduled, "insert", held)
    yield held
    held.go_on()


def note(text: str) -> str:
    return text


def test_a_job_that_is_too_large_is_refused_before_anything_is_sent(watched: Store, recorder: Recorder) -> None:
    with recorder.only_these(), pytest.raises(JobTooLarge, match="'add'"):
        Enqueuer(watched).one(a_job(args={"blob": "x" * LARGEST_JOB}))

    assert recorder.named("insert") == []


def test_threads_that_enqueue_at_the_same_time_share_their_writes(watched: Store, recorder: Recorder) -> None:
    """Given 32 threads with 50 jobs each, then few inserts carry them, and each is durable when its call returns."""
    enqueuer, threads, each = Enqueuer(watched), 32, 50
    assert watched.due_jobs.lanes() == []
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


# -- callers that are interrupted ------------------------------------------------------------------------------------


def test_the_timeout_of_one_job_is_not_raised_in_the_calls_of_others(store: Store, held: Held) -> None:
    """Given three jobs that enqueue together, when the time of the one that came first is over while the others wait
    for the same write, then only that one hears of it, and the jobs of the others are stored."""
    enqueuer = Enqueuer(store)
    first = JobThread(lambda: enqueuer.one(a_job("first")))
    assert held.writing.acquire(timeout=20)
    late = JobThread(lambda: enqueuer.one(a_job("late")))
    others = [JobThread(partial(enqueuer.one, a_job(id))) for id in ("a", "b")]

    held.may_go.release()
    assert held.writing.acquire(timeout=20)
    late.interruptible.interrupt(JobTimedOut("the time of this one is over"))
    for _ in range(3):
        held.may_go.release()
    for job in (first, late, *others):
        job.join(20)

    assert isinstance(late.raised, JobTimedOut)
    assert [job.raised for job in (first, *others)] == [None, None, None]
    assert store.scheduled.which_exist(["first", "a", "b"]) == {"first", "a", "b"}


# Python may throw the interruption into a thread that its target has just started, and that one says so and dies.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_whoever_is_interrupted_at_any_point_leaves_the_others_able_to_enqueue(store: Store) -> None:
    """Given jobs whose time is over at any instruction of their enqueue, then a later call still returns."""
    for number in range(150):
        enqueuer = Enqueuer(store)
        job = JobThread(partial(_enqueue_some, enqueuer, number))
        threading.Event().wait(number / 100_000)
        job.interruptible.interrupt(JobTimedOut("over"))
        later = JobThread(partial(enqueuer.one, a_job(f"later {number}")))
        job.join(20)
        later.join(20)
        enqueuer.close()

        assert not job.is_alive()
        assert not later.is_alive()
        assert later.raised is None
    assert store.scheduled.exists("later 149")


def test_the_writing_thread_ends_with_the_connection(recruiter: Recruiter) -> None:
    task = recruiter.task(note)
    task.enqueue("x")
    writing = recruiter._enqueuer._thread
    eventually(lambda: writing.alive)

    recruiter.close()

    eventually(lambda: not writing.alive)
    assert recruiter.find(task.enqueue("y").id).args == {"text": "y"}


def test_where_no_thread_can_be_started_the_caller_writes_itself(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """As at the end of the interpreter: Python starts no more threads."""

    def refuse(*_: object) -> int:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr("recruiter.interruption._thread.start_new_thread", refuse)

    Enqueuer(store).one(a_job("x"))

    assert store.scheduled.exists("x")


def test_a_call_that_comes_after_closing_does_not_hang(store: Store) -> None:
    enqueuer = Enqueuer(store)
    enqueuer.one(a_job("a"))
    enqueuer.close()

    late = JobThread(lambda: enqueuer.one(a_job("b")))
    late.join(10)

    assert not late.is_alive()


def _enqueue_some(enqueuer: Enqueuer, number: int) -> None:
    for each in range(3):
        enqueuer.one(a_job(f"{number}-{each}"))


# -- coroutines ------------------------------------------------------------------------------------------------------


def pool_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("recruiter_")}


def test_coroutines_share_their_writes_and_need_no_threads_of_their_own(recruiter: Recruiter) -> None:
    """Given a recruiter that is connected, when 100 coroutines enqueue one job after another, then no other thread than
    the writing one works for them, and each job is durable when its call returns."""
    task = recruiter.task(note)
    assert recruiter.store is not None
    before, missing = pool_threads(), []

    async def caller(number: int) -> None:
        for each in range(5):
            text = f"{number} {each}"
            await task.aenqueue(text)
            if not recruiter.store.scheduled.collection.count_documents({"args.text": text}, limit=1):
                missing.append(text)

    async def main() -> None:
        await asyncio.gather(*map(caller, range(100)))

    asyncio.run(main())

    assert missing == []
    assert recruiter.store.scheduled.collection.count_documents({}) == 500
    assert pool_threads() == before


def test_when_the_time_is_over_it_is_said_that_the_job_may_be_stored(store: Store, held: Held) -> None:
    enqueuer = Enqueuer(store)

    async def main() -> None:
        with pytest.raises(StoreUnreachable, match=r"within 0.05 s; it is not known whether job 'late' is stored"):
            await enqueuer.aone(a_job("late"), 0.05)

    asyncio.run(main())

    held.go_on()
    eventually(lambda: store.scheduled.exists("late"))  # it was on its way


def test_cancelled_before_it_is_on_its_way_it_is_not_stored(store: Store, held: Held) -> None:
    """Given one job on its way and two behind it, when one of these is cancelled, then the others are stored."""
    enqueuer = Enqueuer(store)

    async def main() -> None:
        first = asyncio.ensure_future(enqueuer.aone(a_job("first")))
        await held.begun()
        gone, other = (asyncio.ensure_future(enqueuer.aone(a_job(id))) for id in ("gone", "other"))
        await asyncio.sleep(0)  # both have left their calls
        gone.cancel()
        await asyncio.wait([gone])
        held.go_on()
        await asyncio.gather(first, other)
        assert gone.cancelled()

    asyncio.run(main())

    assert store.scheduled.which_exist(["first", "gone", "other"]) == {"first", "other"}


def test_cancelled_on_its_way_it_is_stored_and_others_go_on(store: Store, held: Held) -> None:
    """Given a loop that has ended before the answer comes, then the writing thread answers the next one."""
    enqueuer = Enqueuer(store)

    async def leave() -> None:
        going = asyncio.ensure_future(enqueuer.aone(a_job("gone")))
        await held.begun()
        going.cancel()

    asyncio.run(leave())
    held.go_on()
    asyncio.run(asyncio.wait_for(enqueuer.aone(a_job("next")), 20))

    assert store.scheduled.which_exist(["gone", "next"]) == {"gone", "next"}


def test_somebody_is_told_when_mongodb_is_silent(store: Store, held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enqueue, "SILENCE_SECONDS", 0.02)
    told: list[str] = []
    enqueuer = Enqueuer(store, told.append)

    async def main() -> None:
        waiting = asyncio.ensure_future(enqueuer.aone(a_job("x")))
        await asyncio.to_thread(eventually, lambda: told)
        held.go_on()
        await waiting

    asyncio.run(main())

    assert told == ["job 'x' is not stored yet"]


def test_the_code_of_a_codec_does_not_run_in_the_loop(target: str) -> None:
    """Given a codec, which is code of the application and may take long, then jobs are sealed in other threads."""
    sealed_in: list[threading.Thread] = []

    class Codec:
        name = "plain"

        def encode(self, payload: bytes, context: bytes) -> bytes:
            sealed_in.append(threading.current_thread())
            return payload

        def decode(self, payload: bytes, context: bytes) -> bytes:
            return payload

    with Recruiter(target, codec=Codec()) as recruiter:
        task = recruiter.task(note)
        assert recruiter.store is not None
        asyncio.run(task.aenqueue("x"))

    assert sealed_in
    assert threading.current_thread() not in sealed_in


# -- many ------------------------------------------------------------------------------------------------------------


class TestMany:
    def test_what_cannot_be_stored_is_named_in_its_place(self, store: Store) -> None:
        """Given duplicates, when many are enqueued, then the rest are stored."""
        enqueuer = Enqueuer(store)
        enqueuer.one(a_job("taken"))

        errors = enqueuer.many([[encode_job(a_job(id)) for id in ("a", "taken", "b", "b")]])

        assert {place: type(error) for place, error in errors.items()} == {1: JobExists, 3: JobExists}
        assert "'taken'" in str(errors[1])
        assert {d["_id"] for d in store.scheduled.collection.find()} == {"taken", "a", "b"}

    def test_an_option_that_is_wrong_is_wrong_for_all(self, recruiter: Recruiter) -> None:
        @recruiter.task
        def nothing() -> None: ...

        answers = nothing.enqueue_many([(), ()], group="no name", errors="return")

        assert [type(answer) for answer in answers] == [InvalidName, InvalidName]
        assert recruiter.store.scheduled.collection.count_documents({}) == 0

    def test_each_is_the_same_as_if_it_were_enqueued_alone(self, recruiter: Recruiter) -> None:
        """Given a task with options, when jobs are made together, then their documents are those of single jobs."""

        @recruiter.task(retry=RetryManyTimes(3, "1 minute"), expires="1h", needs={"proc": 2}, tags=["a"], timeout="5s")
        def work(n: int) -> None: ...

        job = work.job(1).in_group("mail").tagged_as("b").with_priority(3).owned_by("ada").limited_by(customer=7)
        alone = job.timeout("9s").schedule_in("1 minute").enqueue()
        options: ManyOptions = {"group": "mail", "tags": ["b"], "priority": 3, "timeout": "9s"}
        options |= {"owner": "ada", "limited_by": "customer:7", "schedule_in": "1 minute"}
        (together,) = work.enqueue_many([(1,)], **options)

        one, other = (document(recruiter.store, handle.id) for handle in (alone, together))
        assert list(one) == list(other)
        moments = ("_id", "created_at", "scheduled_at", "expires_at")
        assert all(abs(one[name] - other[name]) < timedelta(seconds=60) for name in moments[1:])
        assert {name: one[name] for name in one if name not in moments} == {
            name: other[name] for name in other if name not in moments
        }


COUNT = 2 * LARGEST_BATCH + 500


def stored(recruiter: Recruiter) -> dict[Any, Any]:
    return {job["_id"]: job["args"]["number"] for job in recruiter.store.scheduled.collection.find()}


def test_each_answer_is_that_of_its_call(recruiter: Recruiter) -> None:
    """Given calls of which some cannot be stored, in the first part, at its end and in the last one, then each of the
    others has its handle, in its place."""

    @recruiter.task
    def note(number: Any) -> None: ...

    too_large = "x" * LARGEST_JOB
    wrong = {3: object(), LARGEST_BATCH - 1: too_large, LARGEST_BATCH: object(), COUNT - 1: too_large}
    calls = [(wrong.get(number, number),) for number in range(COUNT)]

    answers = note.enqueue_many(calls, errors="return")

    assert {place for place, answer in enumerate(answers) if isinstance(answer, InvalidJob)} == set(wrong)
    told = {answer.id: place for place, answer in enumerate(answers) if isinstance(answer, JobHandle)}
    assert told == stored(recruiter)


def test_a_part_without_an_answer_is_told_of(recruiter: Recruiter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given that MongoDB does not answer for the second part, then its jobs may be stored and the rest is not."""

    @recruiter.task
    def note(number: int) -> None: ...

    insert, parts = Scheduled.insert, []

    def silent(self: Scheduled, documents: Any) -> dict[int, str]:
        parts.append(len(documents))
        if len(parts) == 2:
            raise StoreUnreachable("no answer")
        return insert(self, documents)

    monkeypatch.setattr(Scheduled, "insert", silent)

    answers = note.enqueue_many([(number,) for number in range(COUNT)], errors="return")

    assert parts == [LARGEST_BATCH, LARGEST_BATCH]
    assert sorted(stored(recruiter).values()) == list(range(LARGEST_BATCH))
    behind = 2 * LARGEST_BATCH
    assert all(isinstance(answer, JobHandle) for answer in answers[:LARGEST_BATCH])
    assert all("not known whether" in str(answer) for answer in answers[LARGEST_BATCH:behind])
    assert all("is not stored" in str(answer) for answer in answers[behind:])


def test_a_mistake_of_the_caller_stores_nothing(recruiter: Recruiter) -> None:
    """Given a call in the last part that breaks when it is read, then nothing of the first parts is stored."""

    class Broken(dict[str, Any]):
        def keys(self) -> Any:
            raise LookupError("broken")

        __iter__ = keys

    @recruiter.task
    def note(number: int) -> None: ...

    calls: list[Any] = [(number,) for number in range(COUNT)]

    with pytest.raises(LookupError):
        note.enqueue_many([*calls, Broken(number=1)])

    assert stored(recruiter) == {}


def test_jobs_are_stored_at_the_end_of_the_interpreter(recruiter: Recruiter, target: str) -> None:
    """Given a program that enqueues when it ends, where Python starts no more threads, then all is stored."""
    program = f"""
import atexit
from recruiter import Recruiter
recruiter = Recruiter({target!r})
@recruiter.task
def note(number):
    pass
atexit.register(lambda: note.enqueue_many([(number,) for number in range({COUNT})]))
"""

    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)

    assert (ended.returncode, ended.stderr) == (0, "")
    assert len(stored(recruiter)) == COUNT
