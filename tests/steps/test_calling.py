"""Jobs in the calling process, with no other process anywhere: one, all that are due, all that come."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from recruiter import Recruiter, RetryManyTimes, Workable
from recruiter.domain.planning.needs import Needs
from recruiter.errors import Superseded
from recruiter.steps.assign import assign
from recruiter.store.codec import Document
from recruiter.store.database import Store
from tests.commands import WHOLE_DATABASE, Recorder, recorded
from tests.conftest import eventually
from tests.samples import NOW, a_job, document, insert, marked_as_started, on_the_roster


class Postcard(Workable):
    def __init__(self, to: str) -> None:
        self.to = to

    def execute(self) -> str:
        return f"to {self.to}"


class Background:
    """A call in a thread of its own, and what it returned or raised."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.answer: Any = None
        self.error: BaseException | None = None
        self._call = call
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.answer = self._call()
        except BaseException as error:
            self.error = error

    def join(self) -> Any:
        self._thread.join(timeout=20)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error
        return self.answer


def nothing_is_left_behind(store: Store) -> bool:
    lease = store.leases.read()
    return store.roster.entries() == [] and lease is not None and lease.holder is None


def archived(store: Store) -> list[Document]:
    return list(store.archived.collection.find({}))


@pytest.fixture
def add(recruiter: Recruiter) -> Any:
    @recruiter.task
    def add(a: int, b: int) -> int:
        return a + b

    return add


class TestRun:
    def test_it_returns_nothing_when_there_is_nothing_to_do_now(
        self, recruiter: Recruiter, store: Store, add: Any
    ) -> None:
        @recruiter.task
        def other() -> None: ...

        other.enqueue()
        add.job(1, 2).schedule_in("1h").execute()

        assert recruiter.run(add) is None
        assert nothing_is_left_behind(store)

    def test_a_task_is_a_name_a_function_or_a_workable_class(self, recruiter: Recruiter, add: Any) -> None:
        for task in ("add", add):
            add.enqueue(1, 2)
            assert recruiter.run(task) is not None
        Postcard("Ada").as_job_of(recruiter).in_background().execute()
        report = recruiter.run(Postcard)
        assert report is not None
        assert report.result == "to Ada"

    def test_an_at_most_once_job_that_started_elsewhere_is_lost(self, recruiter: Recruiter, store: Store) -> None:
        @recruiter.task(at_most_once=True)
        def once() -> None: ...

        handle = once.enqueue()
        marked_as_started(store, "a worker that is no more", handle.id)

        assert recruiter.run(once) is None

        (ended,) = archived(store)
        assert (ended["_id"], ended["why"]) == (handle.id, "lost")

    def test_it_leads_when_the_lease_of_a_killed_leader_has_run_out(
        self, recruiter: Recruiter, store: Store, add: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("RECRUITER_LEASE_TIME", "1s")
        store.leases.acquire(None, "a leader that was killed", {})
        add.enqueue(1, 2)

        assert recruiter.run(add, wait=0.1) is None  # nobody can have given it to us yet
        report = recruiter.run(add)

        assert report is not None
        assert report.result == 3

    def test_a_result_after_the_registration_is_lost_is_refused(self, recruiter: Recruiter, store: Store) -> None:
        @recruiter.task
        def freeze() -> None:
            for entry in store.roster.entries():
                store.roster.leave(entry.id)  # as if it had been silent for too long

        handle = freeze.enqueue()

        with pytest.raises(Superseded, match=str(handle.id)):
            recruiter.run(freeze)

        assert document(store, handle.id)["attempts"] == 0
        assert archived(store) == []
        assert nothing_is_left_behind(store)


class TestRunAll:
    def test_retries_that_are_due_at_once_are_run_too(self, recruiter: Recruiter) -> None:
        attempts: list[int] = []

        @recruiter.task(retry=RetryManyTimes(5, 0))
        def stubborn() -> str:
            attempts.append(1)
            if len(attempts) < 3:
                raise ConnectionError("not yet")
            return "at last"

        handle = stubborn.enqueue()

        reports = recruiter.run_all(stubborn)

        assert [report.id for report in reports] == [handle.id] * 3
        assert [report.error for report in reports] == ["ConnectionError: not yet"] * 2 + [None]
        assert reports[-1].result == "at last"

    def test_it_goes_on_under_a_new_id_when_its_registration_is_lost(self, recruiter: Recruiter, store: Store) -> None:
        workers: list[str] = []

        @recruiter.task
        def freeze_once(number: int) -> int:
            workers.extend(entry.id for entry in store.roster.entries())
            if len(workers) == 1:
                store.roster.leave(workers[0])
            return number

        freeze_once.enqueue_many([(1,), (2,), (3,)])

        reports = recruiter.run_all(freeze_once)

        assert len(workers) == 4  # the result of the first run was refused
        assert len(set(workers)) == 2
        assert sorted(report.result for report in reports) == [1, 2, 3]
        assert len(archived(store)) == 3
        assert {job["last_execution"]["worker"] for job in archived(store)} == {workers[-1]}
        assert nothing_is_left_behind(store)


def asks_nothing_for_five_beats(recorder: Recorder) -> bool:
    with recorder.only_these():
        eventually(lambda: len(recorder.named("findAndModify")) >= 5)
        return not recorder.named("find", "distinct", "aggregate")


class TestWatch:
    @pytest.fixture
    def stop(self) -> Iterator[threading.Event]:
        stop = threading.Event()
        yield stop
        stop.set()

    def test_a_new_job_wakes_it_and_nobody_asks_all_the_time(
        self, target: str, stop: threading.Event, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # given one that only a change waiter can wake
        for name in ("BACKOFF_FROM", "BACKOFF_TO", "LEASE_TIME", "CONSIDERED_DEAD_AFTER"):
            monkeypatch.setenv(f"RECRUITER_{name}", "100s")
        monkeypatch.setenv("RECRUITER_HEARTBEAT", "100ms")
        recruiter, recorder = Recruiter(target), Recorder()
        recruiter.__dict__["store"] = recorded(target, recorder)

        @recruiter.task
        def add(a: int, b: int) -> int:
            return a + b

        watching = Background(lambda: recruiter.watch(add, stop=stop))
        eventually(lambda: {c["collection"] for c in recorder.named("getMore")} == {"recruiter.roster", WHOLE_DATABASE})

        # then it only beats its heart, and a new job is done all the same
        eventually(lambda: asks_nothing_for_five_beats(recorder))
        assert add.enqueue(1, 2).result(timeout=60) == 3
        stop.set()
        watching.join()
        recruiter.close()

    def test_whatever_happens_it_leaves_the_roster(self, recruiter: Recruiter, store: Store, add: Any) -> None:
        class Broken:
            def is_set(self) -> bool:
                assert len(store.roster.entries()) == 1
                raise RuntimeError("broken")

        with pytest.raises(RuntimeError, match="broken"):
            recruiter.watch(add, stop=Broken())

        assert nothing_is_left_behind(store)


class TestInterruption:
    """Ctrl-C as it arrives in the main thread, where these tests run."""

    @pytest.fixture
    def press_ctrl_c(self, recruiter: Recruiter) -> Any:
        @recruiter.task(retry=RetryManyTimes(3, 0))
        def press_ctrl_c(swallow: bool = False) -> str:
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                if not swallow:
                    raise
            return "went on"

        return press_ctrl_c

    @pytest.fixture
    def own_handler(self) -> Iterator[Callable[..., None]]:
        def handler(*_: object) -> None:
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGINT, handler)
        yield handler
        signal.signal(signal.SIGINT, before)

    def test_the_job_is_handed_back_and_the_caller_is_interrupted(
        self, recruiter: Recruiter, store: Store, press_ctrl_c: Any
    ) -> None:
        before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        first, second = press_ctrl_c.enqueue(), press_ctrl_c.enqueue()

        with pytest.raises(KeyboardInterrupt):
            recruiter.run_all(press_ctrl_c)

        assert [document(store, handle.id)["attempts"] for handle in (first, second)] == [0, 0]
        assert nothing_is_left_behind(store)
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before

    def test_a_job_that_ends_well_all_the_same_is_done(
        self, recruiter: Recruiter, store: Store, press_ctrl_c: Any
    ) -> None:
        handle = press_ctrl_c.enqueue(swallow=True)

        with pytest.raises(KeyboardInterrupt):
            recruiter.run(press_ctrl_c)

        assert [(job["_id"], job["result"]) for job in archived(store)] == [(handle.id, "went on")]

    def test_with_a_handler_of_the_callers_own_it_is_the_failure_of_the_job_and_passed_on(
        self, recruiter: Recruiter, store: Store, press_ctrl_c: Any, own_handler: Callable[..., None]
    ) -> None:
        handle = press_ctrl_c.enqueue()
        press_ctrl_c.enqueue()

        with pytest.raises(KeyboardInterrupt):
            recruiter.run_all(press_ctrl_c)

        assert signal.getsignal(signal.SIGINT) is own_handler
        assert document(store, handle.id)["last_execution"]["class"] == "KeyboardInterrupt"
        assert store.scheduled.collection.count_documents({"attempts": 1}) == 1
        assert nothing_is_left_behind(store)


@pytest.fixture
def needs_proc(recruiter: Recruiter) -> list[int]:
    """The numbers of the jobs that have run, of a task that needs a processor."""
    ran: list[int] = []

    @recruiter.task(needs={"proc": 1, "mem": "1MiB"})
    def needs_proc(number: int) -> None:
        ran.append(number)

    for number in range(3):
        needs_proc.enqueue(number)
    return ran


def test_watch_takes_them_as_they_come(recruiter: Recruiter, needs_proc: list[int]) -> None:
    stop = threading.Event()
    watching = threading.Thread(target=recruiter.watch, args=("needs_proc",), kwargs={"stop": stop})
    watching.start()
    try:
        eventually(lambda: len(needs_proc) == 3)
    finally:
        stop.set()
        watching.join()


def test_resources_of_the_settings_count_for_a_caller(
    recruiter: Recruiter, needs_proc: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECRUITER_RESOURCES", "proc=0.5,mem=1MiB")

    assert recruiter.run("needs_proc", wait="1s") is None
    assert needs_proc == []


def test_one_who_says_less_of_a_host_takes_nothing_away(store: Store) -> None:
    """Given a worker that knows of 4 processors and a process of its host that knows of none, then there are 4."""
    on_the_roster(store, "a worker", resources="proc=4", host="here")
    on_the_roster(store, "b somebody", resources="", host="here", tasks=[])
    insert(store, a_job(needs=Needs.of(proc=4)))

    assert assign(store, 1, NOW).assigned == 1
