"""The async face: each call that talks to MongoDB has an async form; a thousand waiting callers cost as much as one."""

from __future__ import annotations

import asyncio
import gc
import inspect
import threading
import warnings
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import pytest
from pymongo.monitoring import CommandStartedEvent

from recruiter import ArchivedJob, Job, JobHandle, Recruiter, RecruiterError, Task
from recruiter.builder import JobBuilder, WorkableJob
from recruiter.errors import InvalidArguments, JobExists, JobNotFound, ResultTimeout
from recruiter.jobs import Jobs
from recruiter.results import Results
from recruiter.store.codec import decode
from recruiter.store.database import Store
from tests.commands import Recorder, recorded
from tests.conftest import eventually
from tests.samples import Parcel, a_job, done, insert

TALKING: dict[type, set[str]] = {
    Recruiter: {
        *("create", "find", "cancel", "schedulers", "create_schedulers", "explain", "recover", "remove", "signal"),
        *("analytics", "counts", "prepare", "reschedule", "reprioritise", "run_now"),
        *("run", "run_all", "watch", "flush_jobs_synchronously"),
    },
    Task: {"enqueue", "enqueue_many", "create", "create_many"},
    JobBuilder: {"enqueue", "enqueue_with_signal", "execute", "create"},
    WorkableJob: {"enqueue", "enqueue_with_signal", "execute", "create"},
    JobHandle: {"wait", "result"},
    Jobs: {
        *("list", "count", "cancel", "recover", "remove", "id_of", "recognize"),
        *("reschedule", "reprioritise", "run_now"),
    },
}
"""What talks to MongoDB."""

_SAYING = {
    *("at_most_once", "in_background", "in_group", "owned_by", "repeat_with_policy", "retry_with_policy"),
    *("needing", "limited_by", "here", "creation", "max_crashes", "expires_at", "expires_in", "keep_failed"),
    *("unique", "unique_if", "unique_job", "made", "debounce", "throttle"),
    *("schedule_at", "schedule_in", "tagged_as", "timeout", "with_id", "with_priority", "with_urn"),
}
SILENT: dict[type, set[str]] = {
    Recruiter: {
        *("task", "job", "job_of", "every", "declare", "definition_of", "repeatable_job_of", "scheduler"),
        *("handle", "listen", "point_at", "close", "on_became_leader", "on_stepped_down", "instrument"),
        # A flow is put together; `start` and `astart` store it.
        *("flow", "chain", "fan_out"),
        # What the builder delegates to; its own last words have async forms.
        *("send", "asend", "send_many", "produce", "run_here", "signalling"),
    },
    Task: {"job", "after_success", "after_failure", "after_last_failure", "finalize", "repeat", "repeat_with_policy"},
    JobBuilder: {*_SAYING, "build", "as_step", "as_template"},
    WorkableJob: {*_SAYING, "build", "as_step", "as_template", "with_method", "repeated_as"},
    JobHandle: set(),
    Jobs: {"iterate", "aiterate"},  # one for `for`, one for `async for`
}
"""What says something about a job to be, or needs no server; a new method must be put here or there."""


def async_name(name: str) -> str:
    return "await_" if name == "wait" else f"a{name}"


def public(cls: type) -> set[str]:
    names = (name for name in dir(cls) if not name.startswith("_"))
    return {name for name in names if inspect.isfunction(inspect.getattr_static(cls, name))}


def add(a: int, b: int) -> int:
    return a + b


class Gate(Recorder):
    """A MongoDB that is slow on demand: whoever sends a command while the gate is closed waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self._closed = False
        self._opened = threading.Event()
        self.reached = threading.Event()
        self.gave_up = False

    def close(self) -> None:
        self._closed = True

    def open(self) -> None:
        self._closed = False
        self._opened.set()

    def started(self, event: CommandStartedEvent) -> None:
        super().started(event)
        if self._closed:
            self.reached.set()
            self.gave_up = not self._opened.wait(10) or self.gave_up

    def looks(self) -> list[list[Any]]:
        """The ids that were asked for in each look at the archive."""
        finds = [command for command in list(self.commands) if command.get("find") == "recruiter.archived"]
        return [list(find["filter"]["_id"]["$in"]) for find in finds if "$in" in find["filter"].get("_id", {})]


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def recruiter(target: str, gate: Gate) -> Iterator[Recruiter]:
    """An application whose commands go through the gate."""
    with Recruiter(target) as recruiter:
        recruiter.__dict__["store"] = recorded(target, gate)
        recruiter.store.check()
        yield recruiter


class TestTwins:
    @pytest.mark.parametrize("cls", TALKING, ids=lambda cls: cls.__name__)
    def test_every_call_that_talks_to_mongodb_has_one(self, cls: type) -> None:
        async_names = {async_name(name) for name in TALKING[cls]}

        assert public(cls) - TALKING[cls] - SILENT[cls] - async_names == set(), "does it talk to MongoDB?"
        assert async_names - public(cls) == set(), "without an async form"

    @pytest.mark.parametrize(
        ("cls", "name"), [(cls, name) for cls in TALKING for name in sorted(TALKING[cls])], ids=str
    )
    def test_it_takes_the_same_and_says_what_it_is(self, cls: type, name: str) -> None:
        call, awaited = getattr(cls, name), getattr(cls, async_name(name))

        assert inspect.iscoroutinefunction(awaited)
        assert not inspect.iscoroutinefunction(call)
        assert inspect.signature(awaited).parameters == inspect.signature(call).parameters
        assert awaited.__name__ == async_name(name)
        assert f"Like `{name}`" in (awaited.__doc__ or "")

    def test_errors_reach_the_awaiting_caller(self, recruiter: Recruiter) -> None:
        task = recruiter.task(add)

        async def misuse() -> None:
            await task.job(1, 1).with_id("x").in_background().aexecute()
            with pytest.raises(JobExists):
                await task.job(1, 1).with_id("x").in_background().aexecute()
            with pytest.raises(JobNotFound):
                await recruiter.afind("y")
            with pytest.raises(InvalidArguments):
                await task.aenqueue("one", 2)  # type: ignore[arg-type]

        asyncio.run(misuse())

    def test_giving_up_waiting_does_not_undo_what_is_on_its_way(self, recruiter: Recruiter, gate: Gate) -> None:
        task = recruiter.task(add)

        async def give_up() -> None:
            gate.close()
            enqueuing = asyncio.create_task(task.job(1, 2).with_id("x").in_background().aexecute())
            await reached(gate)
            enqueuing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await enqueuing
            gate.open()

        asyncio.run(give_up())

        assert eventually(lambda: recruiter.store.scheduled.get("x"))


async def reached(gate: Gate) -> None:
    """Waits until somebody stands at the gate."""
    while not gate.reached.is_set():
        await asyncio.sleep(0.001)


Call = Callable[[Recruiter, Task[[int, int], int, int]], Awaitable[Any]]

CALLS: dict[str, tuple[Call, Callable[[Any], bool]]] = {
    "aenqueue": (lambda _, task: task.aenqueue(1, 2), lambda handle: handle.id is not None),
    "aenqueue_many": (
        lambda _, task: task.aenqueue_many([(1, 2), (3,)], errors="return"),
        lambda answers: len(answers) == 2,
    ),
    "Task.acreate": (lambda _, task: task.acreate(1, 2), lambda handle: handle.created),
    "aexecute later": (lambda _, task: task.job(1, 2).in_background().aexecute(), lambda handle: handle.created),
    "aexecute with an id": (
        lambda _, task: task.job(1, 2).with_id("new").in_background().aexecute(),
        lambda handle: handle.id == "new",
    ),
    "aexecute now": (lambda _, task: task.job(1, 2).here().aexecute(), lambda handle: handle.result(60) == 3),
    "JobBuilder.acreate": (lambda _, task: task.job(1, 2).acreate(), lambda handle: handle.created),
    "WorkableJob.aexecute": (
        lambda recruiter, _: Parcel(4).as_job_of(recruiter).with_method("weigh").aexecute(),
        lambda handle: handle.result(60) == 8,
    ),
    "WorkableJob.acreate": (lambda r, _: Parcel(4).as_job_of(r).acreate(), lambda handle: handle.created),
    "Recruiter.acreate": (lambda r, _: r.acreate("add", {"a": 1, "b": 2}), lambda handle: handle.created),
    "afind": (lambda recruiter, _: recruiter.afind("waits"), lambda job: isinstance(job, Job)),
    "acancel": (lambda recruiter, _: recruiter.acancel("waits", by="me"), lambda nothing: nothing is None),
    "await_": (lambda recruiter, _: recruiter.handle("ended").await_(60), lambda job: job.id == "ended"),
    "aresult": (lambda recruiter, _: recruiter.handle("ended").aresult(60), lambda result: result == "of ended"),
    "aschedulers": (lambda recruiter, _: recruiter.aschedulers(), lambda schedulers: schedulers == []),
    "arun": (lambda recruiter, task: recruiter.arun(task), lambda report: report.id == "waits"),
    "aflush": (lambda recruiter, _: recruiter.aflush_jobs_synchronously(), lambda reports: len(reports) == 1),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_loop_goes_on_while_mongodb_takes_its_time(recruiter: Recruiter, gate: Gate, name: str) -> None:
    """Given a server that answers only when the loop has gone round a few times, then the call returns."""
    call, is_right = CALLS[name]
    task = recruiter.task(add)
    task.job(1, 2).with_id("waits").in_background().execute()
    archive(recruiter.store, "ended")

    async def use() -> Any:
        gate.close()
        using = asyncio.ensure_future(call(recruiter, task))
        await reached(gate)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not using.done()
        gate.open()
        async with asyncio.timeout(60):
            return await using

    answer = asyncio.run(use())

    assert not gate.gave_up, "the loop stood still"
    assert is_right(answer), answer


# -- waiting for results ---------------------------------------------------------------------------------------------


def archive(store: Store, *ids: str) -> None:
    store.archived.collection.insert_many(decode(done(a_job(id), result=f"of {id}").document) for id in ids)


def are_waited_for(recruiter: Recruiter, *ids: str) -> None:
    """There are such jobs, and they have not ended."""
    insert(recruiter.store, *(a_job(id) for id in ids))


def nobody_waits(recruiter: Recruiter) -> None:
    """And nobody looks for what nobody waits for."""
    assert recruiter._results._waiting == {}
    eventually(lambda: not recruiter._results._thread.alive)


class TestWaiting:
    def test_a_task_that_is_cancelled_leaves_nothing_behind(self, recruiter: Recruiter) -> None:
        are_waited_for(recruiter, "x")

        async def cancel() -> str:
            handle = recruiter.handle("x")
            tasks = [asyncio.create_task(handle.aresult()) for _ in range(3)]
            await asyncio.sleep(0.02)
            for task in tasks[:2]:
                task.cancel()
            gone = await asyncio.gather(*tasks[:2], return_exceptions=True)
            assert {type(each) for each in gone} == {asyncio.CancelledError}
            assert len(recruiter._results._waiting["x"]) == 1
            await asyncio.to_thread(archive, recruiter.store, "x")
            answer: str = await tasks[2]
            return answer

        assert asyncio.run(cancel()) == "of x"
        nobody_waits(recruiter)

    def test_a_result_that_comes_when_the_time_is_over_is_no_strange_error(self, recruiter: Recruiter) -> None:
        class Late(Future[ArchivedJob]):
            def result(self, timeout: float | None = None) -> ArchivedJob:
                if self.done():
                    return super().result(timeout)
                self.set_result(ended)
                raise TimeoutError

        class LateResults(Results):
            def add_waiter(self, id: Any) -> Future[ArchivedJob]:
                return Late()

        archive(recruiter.store, "x")
        ended = recruiter.handle("x").wait("20s")
        handle: JobHandle[Any] = JobHandle("x", LateResults(lambda: recruiter.store))

        with suppress(ResultTimeout):
            assert handle.result("1ms") == "of x"


# -- async jobs in the calling process -------------------------------------------------------------------------------


class TestOptimisticAsyncJobs:
    def test_with_the_async_form_they_run_beside_the_loop(self, recruiter: Recruiter) -> None:
        loops: list[asyncio.AbstractEventLoop] = []

        async def add_later(a: int, b: int) -> int:
            loops.append(asyncio.get_running_loop())
            await asyncio.sleep(0)
            return a + b

        task = recruiter.task(add_later)

        async def use() -> int:
            handle = await task.job(1, 2).here().aexecute()
            return await handle.aresult(60)

        try:
            assert asyncio.run(use()) == 3
        finally:
            for loop in loops:
                loop.close()

    def test_without_it_they_run_or_the_call_is_refused(self, recruiter: Recruiter) -> None:
        """Given a running loop and the call that is not for loops."""

        async def add_later(a: int, b: int) -> int:
            return a + b

        task = recruiter.task(add_later)
        loops: list[Any] = []

        async def use() -> JobHandle[int] | None:
            try:
                return task.job(1, 2).here().execute()
            except RecruiterError:
                return None
            finally:
                loops.append(getattr(recruiter._executor._loops, "runner", None))

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            handle = asyncio.run(use())
            for runner in filter(None, loops):
                runner.close()
            gc.collect()

        assert handle is None or handle.result(60) == 3
