"""Settling without MongoDB, and which thread each transition of a job wakes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from bson import ObjectId

from recruiter.clock import SystemClock
from recruiter.domain.job import JobId
from recruiter.errors import DocumentLocked, StoreUnreachable, Superseded
from recruiter.events import Event, Events
from recruiter.processes.loop import Stop
from recruiter.processes.worker import settler
from recruiter.processes.worker.core import WorkerCore
from recruiter.processes.worker.held_job import HeldJob
from recruiter.processes.worker.held_jobs import HeldJobs, WakeUps
from recruiter.processes.worker.registration import Registration
from recruiter.processes.worker.settler import Settler
from recruiter.settings import Settings
from recruiter.store.codec import encode, job_document
from recruiter.store.connection import Target, Wakers
from recruiter.store.database import Store
from recruiter.store.roster_fields import Holding
from tests.conftest import eventually
from tests.samples import a_job, done


class FakeTransactions:
    """Writes to a list, and does what a test asks for before."""

    def __init__(self) -> None:
        self.before: Callable[[Any], None] = lambda _batch: None
        self.written: dict[JobId, Any] = {}
        self.batches: list[set[JobId]] = []
        self.held: list[JobId] = []
        """What the worker held before; it holds what is not settled of it."""

    def settle(self, worker: str, batch: Any, _facts: object) -> Holding:
        assert worker
        self.before(batch)
        written = {**batch.archive, **{each.id: each for each in batch.reschedule}, **dict.fromkeys(batch.release)}
        return self._written(written)

    def hand_back(self, _worker: str, ids: Iterable[JobId]) -> Holding:
        return self._written(dict.fromkeys(ids))

    def _written(self, batch: dict[JobId, Any]) -> Holding:
        self.written.update(batch)
        self.batches.append(set(batch))
        return Holding([id for id in self.held if id not in self.written], len(self.batches), 1)


class Fixture:
    def __init__(self) -> None:
        self.transactions = FakeTransactions()
        self.stored: dict[JobId, bytes] = {}
        scheduled = SimpleNamespace(fetch=lambda ids: [(id, self.stored[id]) for id in ids if id in self.stored])
        store = SimpleNamespace(
            clock=SystemClock(), wakers=Wakers(), transactions=self.transactions, scheduled=scheduled
        )
        self.events: list[Event] = []
        events = Events()
        events.listen(self.events.append)
        wake_ups = WakeUps(settler=lambda: self.settler.hear())
        self.registration = Registration(store.clock, Settings(processes=2, settle_within=timedelta(hours=1)), wake_ups)
        self.settled = 0
        self.stop = Stop()
        self.settler = Settler(
            cast(Any, store),
            events,
            self.stop,
            self.registration,
            cast(Any, SimpleNamespace(prefetch=0)),
            on_settled=self.on_settled,
        )

    def on_settled(self) -> None:
        self.settled += 1

    def outcomes_gather_for(self, seconds: float) -> None:
        self.settler._settle_within = seconds

    @property
    def held_jobs(self) -> HeldJobs:
        return self.registration.held_jobs

    def ends(self, id: JobId) -> None:
        self.held_jobs.ended([(id, done(a_job(str(id))))])

    def passes(self, seconds: float) -> None:
        """The settler has so much time to do what it should not."""
        until = time.monotonic() + seconds
        eventually(lambda: time.monotonic() > until)

    def runs(self, job: HeldJob) -> None:
        """One more job is assigned, and runs."""
        self.transactions.held = [*self.transactions.held, job.id]
        self.held_jobs.hear(Holding(self.transactions.held, 100, 100))
        self.held_jobs.fetched(self.held_jobs.to_fetch(), [job])
        self.held_jobs.take(1)

    def holds(self, *ids: JobId) -> None:
        self.stored = {id: encode(job_document(a_job(id))) for id in ids}
        self.transactions.held = list(ids)
        self.held_jobs.hear(Holding(list(ids), 0, 1))
        self.held_jobs.fetched(self.held_jobs.to_fetch(), [HeldJob.read(*each) for each in self.stored.items()])
        self.held_jobs.take(len(ids))


@pytest.fixture
def worker() -> Fixture:
    return Fixture()


class TestTheSettler:
    def test_a_worker_that_ends_never_takes_a_locked_outcome_for_settled(
        self, worker: Fixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        worker.holds("locked", "free")
        worker.held_jobs.ended([(id, done(a_job(id))) for id in ("locked", "free")])

        def lock(batch: Any) -> None:
            if "locked" in batch.archive:
                raise DocumentLocked("another open transaction has written it")

        worker.transactions.before = lock
        note_settled, all_settled = worker.held_jobs.settled, list[bool]()

        def settled(*answer: Any) -> None:
            note_settled(*answer)
            all_settled.append(worker.held_jobs.all_settled)  # as another thread sees it now

        monkeypatch.setattr(worker.held_jobs, "settled", settled)
        worker.settler.settle()

        assert (set(worker.transactions.written), all_settled) == ({"free"}, [False])

    def test_when_it_is_superseded_the_registration_is_lost_and_the_results_are_known(self, worker: Fixture) -> None:
        worker.holds("a")
        worker.held_jobs.ended([("a", done(a_job("a")))])

        def supersede(_batch: Any) -> None:
            raise Superseded("retired")

        worker.transactions.before = supersede

        with pytest.raises(Superseded):
            worker.settler.settle()

        assert worker.registration.lost
        assert (worker.held_jobs.unwritten_results, worker.transactions.written, worker.settled) == (["a"], {}, 0)

    def test_what_a_former_registration_settles_does_not_lose_the_present_one(self, worker: Fixture) -> None:
        worker.holds("a")
        worker.held_jobs.ended([("a", done(a_job("a")))])

        def supersede(_batch: Any) -> None:
            worker.registration.begin()
            raise Superseded("retired")

        worker.transactions.before = supersede

        with pytest.raises(Superseded):
            worker.settler.settle()

        assert not worker.registration.lost

    def test_when_mongodb_does_not_answer_the_outcomes_are_settled_again(self, worker: Fixture) -> None:
        worker.holds("a", "b")
        worker.held_jobs.ended([("a", done(a_job("a"))), ("b", None)])

        def unreachable(_batch: Any) -> None:
            raise StoreUnreachable("gone")

        worker.transactions.before = unreachable
        with pytest.raises(StoreUnreachable):
            worker.settler.settle()
        assert not worker.registration.lost
        worker.transactions.before = lambda _batch: None

        worker.settler.settle()

        assert list(worker.transactions.written) == ["a", "b"]


@pytest.fixture
def busy(worker: Fixture) -> Iterator[Fixture]:
    """A worker with two slots, at work, with jobs `j0` to `j9`; the first has just been settled."""
    worker.holds(*(f"j{number}" for number in range(10)))
    thread = worker.settler.start()
    worker.ends("j0")
    eventually(lambda: worker.transactions.batches == [{"j0"}])
    yield worker
    worker.stop.ask()
    thread.join()


class TestGathering:
    def test_while_every_slot_has_its_next_job_outcomes_are_written_together(self, busy: Fixture) -> None:
        busy.outcomes_gather_for(1.0)

        busy.ends("j1")
        busy.passes(0.1)
        busy.ends("j2")

        eventually(lambda: len(busy.transactions.batches) == 2)
        assert busy.transactions.batches == [{"j0"}, {"j1", "j2"}]

    def test_a_slot_that_has_no_next_job_is_not_kept_waiting(self, busy: Fixture) -> None:
        busy.outcomes_gather_for(3600.0)

        for number in range(1, 7):
            busy.ends(f"j{number}")  # after the last of them, three jobs are left for two slots

        eventually(lambda: len(busy.transactions.written) == 7)

    @pytest.mark.parametrize(
        "fields",
        [{"flow": ObjectId()}, {"has_limit_key": True}, {"at_most_once": True}, {"task": "limited"}, {"group": "mail"}],
        ids=lambda fields: next(iter(fields)),
    )
    def test_an_outcome_that_other_jobs_wait_for_is_written_soon(self, busy: Fixture, fields: dict[str, Any]) -> None:
        busy.outcomes_gather_for(3600.0)
        busy.held_jobs.limited = {"task:limited", "group:mail"}
        busy.runs(HeldJob("awaited", b"", **fields))

        busy.ends("awaited")

        eventually(lambda: "awaited" in busy.transactions.written)

    def test_one_that_comes_after_a_look_that_found_nothing_is_not_forgotten(
        self, busy: Fixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        busy.outcomes_gather_for(1.0)
        monkeypatch.setattr(settler, "LARGE_BATCH_JOBS", 0)  # nothing gathers, so that the next look finds nothing
        busy.settler.wake()
        busy.passes(0.1)
        monkeypatch.setattr(settler, "LARGE_BATCH_JOBS", 100)

        busy.ends("j1")

        eventually(lambda: busy.transactions.batches == [{"j0"}, {"j1"}])


def a_held_job(id: JobId, **changes: Any) -> HeldJob:
    return HeldJob.read(id, encode(job_document(a_job(id, **changes))))


class Threads:
    def __init__(self) -> None:
        self.woken: list[str] = []
        names = ("fetcher", "runner", "settler", "progress_writer")
        wake_ups = WakeUps(**{name: self._wake(name) for name in names})
        self.held_jobs = HeldJobs("w1", wake_ups)

    def _wake(self, name: str) -> Callable[[], None]:
        return lambda: self.woken.append(name)

    def woken_by(self, transition: Callable[[], object]) -> list[str]:
        self.woken.clear()
        transition()
        return list(self.woken)


@pytest.fixture
def threads() -> Threads:
    return Threads()


def test_an_assignment_wakes_the_fetcher_and_an_answer_without_news_nobody(threads: Threads) -> None:
    held = threads.held_jobs

    assert threads.woken_by(lambda: held.hear(Holding(["a"], 0, 1))) == ["fetcher"]
    held.fetched(held.to_fetch(), [a_held_job("a")])
    assert threads.woken_by(lambda: held.hear(Holding(["a"], 0, 1))) == []


def test_a_fetched_job_wakes_the_runner_and_one_that_is_gone_the_settler_too(threads: Threads) -> None:
    held = threads.held_jobs
    held.hear(Holding(["a"], 0, 1))
    assert threads.woken_by(lambda: held.fetched(held.to_fetch(), [a_held_job("a")])) == ["runner"]

    held.hear(Holding(["a", "gone"], 0, 2))
    assert threads.woken_by(lambda: held.fetched(held.to_fetch(), [])) == ["runner", "settler"]


def test_an_outcome_wakes_the_settler_and_no_outcome_nobody(threads: Threads) -> None:
    held = threads.held_jobs
    held.hear(Holding(["a"], 0, 1))

    assert threads.woken_by(lambda: held.ended([])) == []
    assert threads.woken_by(lambda: held.hand_back(["a"])) == ["settler"]


class FakeRunner:
    tasks: frozenset[str] | None = None
    limits = ()
    has_free_slot = False
    prefetch = 0

    def __init__(self) -> None:
        self.opened: list[HeldJobs] = []
        self.woken = threading.Event()

    def wake(self) -> None:
        self.woken.set()

    def open(self, held_jobs: HeldJobs) -> None:
        self.opened.append(held_jobs)


@pytest.fixture
def runner() -> FakeRunner:
    return FakeRunner()


@pytest.fixture
def told() -> list[Event]:
    return []


@pytest.fixture
def core(runner: FakeRunner, told: list[Event]) -> WorkerCore:
    """It is not started, so it never asks for a server."""
    events = Events()
    events.listen(told.append)
    store = Store(Target.parse("mongodb://localhost:1/none"))
    return WorkerCore(store, events, cast(Any, runner), Settings())


def test_the_core_wakes_the_thread_of_each_part(core: WorkerCore, runner: FakeRunner) -> None:
    wake_ups = core.held_jobs.wake_ups
    loops = {name: getattr(core, f"_{name}")._loop for name in ("fetcher", "settler", "progress_writer")}

    for name, loop in loops.items():
        assert not loop._woken.is_set()
        getattr(wake_ups, name)()
        assert loop._woken.is_set(), name
    wake_ups.runner()
    assert runner.woken.is_set()


def test_a_lost_registration_wakes_the_runner_and_a_former_one_does_not(core: WorkerCore, runner: FakeRunner) -> None:
    former = core.held_jobs
    core.registration.begin()

    core.registration.lose(former)
    assert (core.registration.lost, runner.woken.is_set()) == (False, False)
    core.registration.lose(core.held_jobs)
    assert (core.registration.lost, runner.woken.is_set()) == (True, True)


def test_it_begins_again_under_a_new_id_and_its_wake_ups_stay(
    core: WorkerCore, runner: FakeRunner, told: list[Event]
) -> None:
    former = core.held_jobs
    former.hear(Holding(["a", "b"], 0, 1))
    former.ended([("a", done(a_job())), ("b", None)])
    core.registration.lose(former)

    assert core.drop_results() == ["a"]
    core.begin_again(running=1, waiting=2)

    assert core.held_jobs.worker != former.worker
    assert runner.opened == [core.held_jobs]
    assert core.held_jobs.wake_ups is former.wake_ups
    assert not core.registration.lost
    assert core._heartbeat._loop._woken.is_set()
    assert [(event.name, event.fields["worker"]) for event in told] == [
        ("job.superseded", former.worker),
        ("worker.lost", former.worker),
    ]


def test_a_settled_batch_wakes_the_fetcher(core: WorkerCore) -> None:
    core._settled()

    assert core._fetcher._loop._woken.is_set()
