"""Several jobs at once in one child: `async def` jobs in one event loop, the others in threads."""

from __future__ import annotations

import asyncio
import contextvars
import multiprocessing
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from bson import ObjectId

from recruiter import ArchivedJob, JobHandle, Task
from recruiter.clock import FollowingClock
from recruiter.embedded import EmbeddedServer
from recruiter.processes.child import pipe
from recruiter.processes.child.claims import Claims
from recruiter.processes.child.concurrent import ConcurrentChild
from recruiter.processes.child.pipe import CancelListener, SupervisorLink
from recruiter.store.codec import encode, job_document
from recruiter.store.connection import Target
from recruiter.store.database import Store
from tests.applications import concurrency as jobs
from tests.bench import Bench
from tests.bench import ended as archived
from tests.conftest import Process, Starter, eventually
from tests.samples import a_job

APPLICATION = jobs.__file__
PATIENCE = 60.0

WorkerOf = Callable[..., Process]


@pytest.fixture(scope="module")
def target(server: EmbeddedServer) -> Iterator[str]:
    """One database for all tests here, so that one leader can serve them all."""
    name = f"test_{ObjectId()}"
    uri = server.uri.replace("/?", f"/{name}?")
    store = Store(Target.parse(uri))
    store.prepare()
    yield uri
    store.client.drop_database(name)
    store.close()


@contextmanager
def launched(target: str, folder: Path, *arguments: str) -> Iterator[Process]:
    """A process that outlives a test, and ends like a good one."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RECRUITER_")}
    options = ["--bootstrap", APPLICATION, "--target", target]
    process = Process(["start", *arguments, *options], environment, folder / "log", None)
    try:
        yield process
        process.stop()
    finally:
        process.popen.kill()
        process.popen.wait()


@pytest.fixture(scope="module")
def leader(target: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with launched(target, tmp_path_factory.mktemp("leader"), "recruiter") as process:
        process.says("is the leader now")
        yield


@pytest.fixture(scope="class")
def ten(target: str, leader: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """A worker with one child and ten places, for tests that do it no harm."""
    with launched(target, tmp_path_factory.mktemp("ten"), "worker", "--concurrency", "10") as process:
        process.says("joined the roster")
        yield process


@pytest.fixture
def worker(start: Starter, leader: None, store: Store, tmp_path: Path) -> Iterator[WorkerOf]:
    """Starts a worker with one child and so many places; when the test is over it stops, and nothing waits for it."""
    started: list[Process] = []

    def worker(concurrency: int, grace: str = "5s") -> Process:
        options = ("--concurrency", str(concurrency), "--grace", grace)
        process = start("start", "worker", "--bootstrap", APPLICATION, *options)
        process.says("joined the roster")
        started.append(process)
        return process

    yield worker
    (tmp_path / "gate").touch()
    for process in started:
        if process.popen.poll() is None:
            process.stop()
    store.scheduled.collection.delete_many({})


@pytest.fixture(autouse=True)
def pointed(target: str) -> Iterator[None]:
    jobs.recruiter.point_at(target)
    yield
    jobs.recruiter.close()


def many(task: Task[..., Any, Any], *calls: tuple[Any, ...]) -> list[JobHandle[Any]]:
    answers = task.enqueue_many(calls)
    assert all(isinstance(answer, JobHandle) for answer in answers), answers
    return answers


def ended(handles: list[JobHandle[Any]]) -> list[ArchivedJob]:
    return [handle.wait(PATIENCE) for handle in handles]


def starts(folder: Path, *names: str) -> list[int]:
    """How often each has been started."""
    files = [folder / name for name in names]
    return [len(file.read_text().splitlines()) if file.exists() else 0 for file in files]


def times(job: ArchivedJob) -> tuple[Any, Any]:
    assert job.last_execution is not None
    return job.last_execution.started_at, job.last_execution.ended_at


def test_a_hundred_that_wait_wait_at_once(worker: WorkerOf, tmp_path: Path) -> None:
    worker(100)
    names = [f"number {number}" for number in range(100)]

    handles = many(jobs.wait_async, *[(str(tmp_path), name) for name in names])

    eventually(lambda: starts(tmp_path, *names) == [1] * 100)  # the last one has started, and none has ended
    (tmp_path / "gate").touch()
    assert {(job.done, job.attempts) for job in ended(handles)} == {(True, 1)}


@pytest.mark.usefixtures("ten")
class TestTogether:
    def test_one_that_blocks_the_loop_holds_up_no_answer(self, store: Store, tmp_path: Path) -> None:
        """Given jobs in threads and an `async def` that does not await, then the threads' results still arrive."""
        threads_folder, loop_folder = tmp_path / "threads", tmp_path / "loop"
        threads_folder.mkdir()
        loop_folder.mkdir()
        names = ["a", "b", "c"]
        threads = many(jobs.wait_in_a_thread, *[(str(threads_folder), name) for name in names])
        eventually(lambda: starts(threads_folder, *names) == [1, 1, 1])
        blocker = jobs.block_the_loop.enqueue(str(loop_folder), "blocker")
        eventually(lambda: starts(loop_folder, "blocker") == [1])

        (threads_folder / "gate").touch()
        assert [job.result for job in ended(threads)] == names
        assert store.archived.get(blocker.id) is None

        (loop_folder / "gate").touch()
        assert blocker.result(PATIENCE) == "blocker"


class TestDeath:
    def test_all_that_ran_in_a_killed_child_run_again(self, worker: WorkerOf, tmp_path: Path) -> None:
        process = worker(5)
        names = ["one", "two", "three", "four", "five"]
        handles = [
            *many(jobs.wait_async, *[(str(tmp_path), name) for name in names[:3]]),
            *many(jobs.wait_in_a_thread, *[(str(tmp_path), name) for name in names[3:]]),
        ]
        eventually(lambda: starts(tmp_path, *names) == [1] * 5)
        (child,) = process.children()

        os.kill(child, signal.SIGKILL)

        eventually(lambda: starts(tmp_path, *names) == [2] * 5)
        (tmp_path / "gate").touch()
        finished = ended(handles)
        assert [job.result for job in finished] == names
        assert {(job.attempts, job.crashes) for job in finished} == {(2, 1)}
        assert all("SIGKILL" in str(job.executions[0].message) for job in finished)
        assert starts(tmp_path, *names) == [2] * 5


class TestTimeouts:
    @pytest.mark.parametrize(
        "task", [jobs.hold_the_interpreter, jobs.swallow_in_a_thread, jobs.swallow_async], ids=lambda task: task.name
    )
    def test_one_that_does_not_leave_is_ended_and_the_others_lose_nothing(
        self, ten: Process, tmp_path: Path, task: Task[[str], Any, None]
    ) -> None:
        # given two that run beside it in the same child
        beside = [
            jobs.wait_at_first_async.enqueue(str(tmp_path), "a"),
            jobs.wait_at_first_in_a_thread.enqueue(str(tmp_path), "b"),
        ]
        eventually(lambda: starts(tmp_path, "a", "b") == [1, 1])

        # when its time is over and it stays
        late = task.job(str(tmp_path)).timeout("500ms").in_background().execute().wait(PATIENCE)

        # then it is ended soon, with its reason
        assert (late.done, late.why, late.attempts) == (False, "not-scheduled-by-retry-policy", 1)
        assert late.last_execution is not None
        assert late.last_execution.exception == "recruiter.errors.JobTimedOut"
        # where it cannot be known at once who holds up the others, each of them runs alone, and it is told alone
        told = (
            "(let itself be interrupted|end when told so)" if task is jobs.hold_the_interpreter else "end when told so"
        )
        assert re.search(f"did not {told}", str(late.last_execution.message))
        began, over = times(late)
        assert timedelta(seconds=0.5) <= over - began < timedelta(seconds=jobs.LONGEST / 4)

        # and the others run again as if nothing had happened
        eventually(lambda: starts(tmp_path, "a", "b") == [2, 2])
        assert [(job.result, job.attempts, job.crashes) for job in ended(beside)] == [("a", 1, 0), ("b", 1, 0)]

    def test_those_that_leave_when_told_leave_the_child_alone(self, ten: Process, tmp_path: Path) -> None:
        child = jobs.my_pid.enqueue().result(PATIENCE)
        beside = jobs.wait_async.enqueue(str(tmp_path), "beside")
        eventually(lambda: starts(tmp_path, "beside") == [1])

        late = jobs.sleep_async.job(20.0).timeout("100ms").in_background().execute().wait(PATIENCE)

        assert late.last_execution is not None
        assert late.last_execution.exception == "recruiter.errors.JobTimedOut"
        assert jobs.my_pid.enqueue().result(PATIENCE) == child
        (tmp_path / "gate").touch()
        assert (beside.result(PATIENCE), starts(tmp_path, "beside")) == ("beside", [1])


# -- the concurrent child by itself ----------------------------------------------------------------------------------


class ConcurrentChildren:
    """A concurrent child at work in a thread of the test, with its pipes and its claims."""

    def __init__(self, bench: Bench, places: int) -> None:
        self._to, self._from, self._control = os.pipe(), os.pipe(), os.pipe()
        self._claims = Claims(multiprocessing.get_context("forkserver"))
        executor, clock = bench.executor, FollowingClock()
        control = CancelListener(self._control[0], self._claims, clock, by_signal=False)
        link = SupervisorLink(self._to[0], self._from[1], clock)
        self._child = ConcurrentChild(link, self._claims, executor, control, clock, places)
        self._thread = threading.Thread(target=self._child.work)

    def run(self, *tasks: str) -> list[Any]:
        """Sends jobs all at once; returns their results in the same order."""
        frames = []
        for number, task in enumerate(tasks):
            self._claims.open(number)
            frames.append(pipe.job_frame(number, pipe.Time(0.0, 0.0), encode(job_document(a_job(task=task, args={})))))
        os.write(self._to[1], b"".join(frames))
        self._thread.start()
        try:
            return self._answers(len(tasks))
        finally:
            os.close(self._to[1])
            os.close(self._control[1])
            self._thread.join(20)
            assert not self._thread.is_alive()
            eventually(lambda: not any(thread.name == "control" for thread in threading.enumerate()))
            for end in (self._to[0], *self._from, self._control[0]):
                os.close(end)

    def _answers(self, count: int) -> list[Any]:
        frames, results = pipe.Frames(), dict[int, Any]()
        while len(results) < count:
            for kind, number, payload in frames.feed(os.read(self._from[0], pipe.READ_AT_ONCE)):
                results[number] = archived(pipe.outcome_of(kind, "", payload))["result"]
        return [results[number] for number in range(count)]


whose: contextvars.ContextVar[str] = contextvars.ContextVar("whose", default="nobody's")


async def take_it() -> str:
    before = whose.get()
    whose.set("another job's")
    await asyncio.sleep(0)
    return before


def take_it_in_a_thread() -> str:
    before = whose.get()
    whose.set("another job's")
    return before


@pytest.mark.parametrize("function", [pytest.param(take_it), pytest.param(take_it_in_a_thread)])
def test_context_variables_of_one_job_are_not_seen_by_the_next(function: Callable[[], Any]) -> None:
    """What a job sets (a request id for the log, a tenant, a session) is its own."""
    bench = Bench()
    bench.recruiter.task(name="take_it")(function)

    assert ConcurrentChildren(bench, places=2).run(*["take_it"] * 8) == ["nobody's"] * 8


def test_a_thread_takes_its_next_job_while_another_job_blocks_the_loop() -> None:
    bench = Bench()
    blocks, last_has_run = threading.Event(), threading.Event()

    @bench.recruiter.task
    def first() -> bool:
        return blocks.wait(20)

    @bench.recruiter.task
    async def blocker() -> bool:
        blocks.set()
        return last_has_run.wait(20)  # in the event loop, which does nothing else meanwhile

    @bench.recruiter.task
    def second() -> str:
        return "second"

    @bench.recruiter.task
    def last() -> str:
        last_has_run.set()
        return "last"

    answers = ConcurrentChildren(bench, places=2).run(*(task.name for task in (first, blocker, second, last)))

    assert answers == [True, True, "second", "last"]
