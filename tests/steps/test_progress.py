"""Progress: what a job says while it runs is there at its end, however it ends, and no stale worker can change it."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from recruiter import Job, Recruiter, RetryManyTimes, current_job, track
from recruiter.attempt import AttemptProgress
from recruiter.clock import StoppedClock
from recruiter.domain.policy_registry import PolicyRegistry
from recruiter.domain.progress import STATUS_KEPT, LogLine, Progress, StatusEntry
from recruiter.domain.state import State
from recruiter.errors import NoCurrentJob, StoreUnreachable
from recruiter.events import Event, Events
from recruiter.processes.loop import Stop
from recruiter.processes.worker.core import ProgressWriter
from recruiter.processes.worker.held_job import HeldJob
from recruiter.processes.worker.registration import Registration
from recruiter.settings import Settings
from recruiter.steps.cancel import archive_cancelled
from recruiter.steps.rescue import Rescue
from recruiter.store.codec import Document, encode, job_document, progress_fields
from recruiter.store.collections.scheduled import ProgressMark
from recruiter.store.database import Store
from recruiter.store.job_fields import LOCK
from recruiter.store.outcomes import Rescheduled
from recruiter.store.roster_fields import Holding
from recruiter.views.find import find
from tests.bench import Bench
from tests.conftest import eventually
from tests.samples import NOW, a_job, document, insert, on_the_roster

LATER = NOW + timedelta(minutes=1)


def entry(state: str, stage: str | None, progress: float, error: str | None = None) -> Document:
    return {"state": state, "stage": stage, "progress": progress, "error": error, "date": NOW}


def stages(job: Any) -> list[tuple[str, str | None, float]]:
    return [(each.state, each.stage, each.progress) for each in job.status]


class TestSaying:
    def test_one_that_is_tried_again_waits_with_its_error_and_all_it_said(self, bench: Bench) -> None:
        def fail() -> None:
            current_job.stage("a", progress=0.2)
            current_job.log("trying")
            raise ValueError("no good")

        move = bench.run(fail, retry_policy=bench.policy(RetryManyTimes(3, "1 minute")))

        assert isinstance(move, Rescheduled)
        assert move.fields["status"] == [entry("running", "a", 0.2), entry("waiting", "a", 0.2, "ValueError: no good")]
        assert move.fields["log"] == [{"at": NOW, "text": "trying"}]
        assert set(LOCK) <= set(move.updates[0].update["$unset"])

    def test_earlier_attempts_are_kept_bounded(self, bench: Bench) -> None:
        """Given a job that fails in the same stage again and again, then the newest attempts are remembered."""

        def fail() -> None:
            current_job.stage("a", progress=0.5)
            raise ValueError(current_job.attempt)

        bench.recruiter.task(name="fails")(fail)
        stored = job_document(a_job(task="fails", args={}, retry_policy=bench.policy(RetryManyTimes(1000, 0))))
        for _ in range(STATUS_KEPT):
            move = bench.executor.run(encode(stored))
            assert isinstance(move, Rescheduled)
            stored |= move.fields

        assert len(stored["status"]) == STATUS_KEPT
        assert stored["status_cut"] == STATUS_KEPT
        assert stored["status"][-1]["error"] == f"ValueError: {STATUS_KEPT}"

    def test_a_word_after_the_end_of_the_job_is_dropped(self, bench: Bench) -> None:
        """Given a thread that a job leaves behind, then what it says afterwards is nobody's."""
        go, said = threading.Event(), threading.Event()

        def speak() -> None:
            go.wait(10)
            current_job.log("too late")
            said.set()

        def leave_behind() -> None:
            current_job.log("in time")
            threading.Thread(target=contextvars.copy_context().run, args=(speak,), daemon=True).start()

        job = bench.archived(leave_behind)
        go.set()
        assert said.wait(10)

        assert [line["text"] for line in job["log"]] == ["in time"]

    def test_words_of_a_forked_process_are_dropped(self, bench: Bench) -> None:
        def fork() -> int:
            current_job.log("here")
            pid = os.fork()
            if pid == 0:
                current_job.log("there")
                current_job.progress(0.9)
                os._exit(0)
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

        job = bench.archived(fork)

        assert job["result"] == 0
        assert [line["text"] for line in job["log"]] == ["here"]

    def test_outside_of_a_job(self) -> None:
        calls: list[Callable[[], Any]] = [
            lambda: current_job.stage("a"),
            lambda: current_job.progress(0.5),
            lambda: current_job.log("text"),
            lambda: current_job.run_process(["true"]),
        ]
        for call in calls:
            with pytest.raises(NoCurrentJob):
                call()
        with pytest.raises(NoCurrentJob):
            asyncio.run(current_job.arun_process(["true"]))


class TestTrack:
    def test_it_gives_the_same_items_and_tells_how_many_are_done(self, bench: Bench) -> None:
        seen: list[tuple[int, float]] = []

        def work() -> None:
            for item in track([10, 20, 30, 40], stage="counting"):
                attempt = current_job._attempt
                seen.append((item, attempt.progress().so_far().reached))

        job = bench.archived(work)

        assert seen == [(10, 0.0), (20, 0.25), (30, 0.5), (40, 0.75)]
        assert job["status"] == [entry("running", "counting", 1.0), entry("succeeded", "counting", 1.0)]

    @pytest.mark.parametrize(
        ("items", "total", "progress"),
        [
            (lambda: iter("abcd"), None, [0.0, 0.0, 0.0, 0.0]),
            (lambda: iter("abcd"), 4, [0.0, 0.25, 0.5, 0.75]),
            (lambda: iter("abcd"), 2, [0.0, 0.5, 1.0, 1.0]),
            (lambda: "abcd", 8, [0.0, 0.125, 0.25, 0.375]),
            (list, None, []),
            (dict, 0, []),
        ],
    )
    def test_a_total_for_those_who_do_not_know_theirs(
        self, bench: Bench, items: Callable[[], Any], total: int | None, progress: list[float]
    ) -> None:
        seen: list[float] = []

        def work() -> None:
            for _ in track(items(), total):
                seen.append(current_job._attempt.progress().so_far().reached)
            seen.append(current_job._attempt.progress().so_far().reached)

        bench.archived(work)

        assert seen == [*progress, 1.0]

    def test_outside_of_a_job_it_just_gives_the_items(self) -> None:
        assert list(track(iter("abc"), stage="a")) == ["a", "b", "c"]


class TestTelling:
    """Who is called to carry away what was said, and how often."""

    def test_once_until_somebody_came(self) -> None:
        calls: list[AttemptProgress] = []

        def on_progress(progress: AttemptProgress) -> None:
            progress.called = True
            calls.append(progress)

        progress = AttemptProgress(Progress(), lambda: NOW, on_progress)
        carried: list[Progress] = []
        for number in range(1000):
            progress.progress(number / 1000)
        assert len(calls) == 1

        progress.carry(carried.append)
        progress.log("one")
        progress.log("two")
        assert len(calls) == 2

        last = progress.close()
        progress.carry(carried.append)
        progress.log("three")
        assert len(calls) == 2
        assert [len(progress.log) for progress in carried] == [0]
        assert [line.text for line in last.log] == ["one", "two"]


def mark(job: Any, worker: str = "w1", attempts: int = 0, was: str | None = None, **fields: Any) -> ProgressMark:
    return ProgressMark(job.id, attempts, was, worker, NOW, fields)


class TestSigns:
    """What a worker writes on a job that it runs."""

    def test_a_stale_worker_changes_nothing_of_a_later_attempt(self, store: Store) -> None:
        job = a_job(attempts=1)
        insert(store, job)
        store.scheduled.mark_progress([mark(job, "new", attempts=1, progress=0.2)])
        unsigned = a_job(attempts=1)
        insert(store, unsigned)
        before = document(store, job.id), document(store, unsigned.id)

        for each in (job, unsigned):
            store.scheduled.mark_progress([mark(each, "old", attempts=0, progress=0.9)])
            store.scheduled.clear_progress([mark(each, "old", attempts=0, progress=0.9)])

        assert (document(store, job.id), document(store, unsigned.id)) == before

    def test_handed_back_it_is_nobodys_and_keeps_what_it_said(self, store: Store) -> None:
        job = a_job()
        insert(store, job)
        store.scheduled.mark_progress([mark(job, progress=0.5)])

        store.scheduled.clear_progress([mark(job, progress=0.7)])

        assert document(store, job.id) == job_document(job) | {"progress": 0.7, "begun_at": NOW}

    def test_a_marked_job_of_a_dead_worker_counts_as_started(self, store: Store) -> None:
        """Given a worker that died before a heartbeat could say what it ran, then what it had marked has crashed."""
        marked, held = a_job(), a_job()
        insert(store, marked, held)
        on_the_roster(store, "w1", slots=1)
        store.roster.assign({"w1": [marked.id, held.id]}, 1)
        said = Progress((StatusEntry("running", "a", 0.5, None, NOW),), (LogLine(NOW, "text"),))
        store.scheduled.mark_progress([mark(marked, **progress_fields(said))])

        clock = StoppedClock(NOW)
        rescue = Rescue(store, clock, 15.0, PolicyRegistry())
        retired = rescue.retire_silent(store.roster.read())
        while not retired:
            clock.move(timedelta(seconds=3))
            retired = rescue.retire_silent(store.roster.read())

        assert retired[0].ran == (marked.id,)
        again = store.scheduled.get(marked.id)
        assert again is not None
        assert stages(again) == [("running", "a", 0.5), ("waiting", "a", 0.5)]
        assert again.status[-1].error == "worker w1 fell silent and was retired"
        assert [line.text for line in again.log] == ["text"]
        assert again.locked_by is None
        assert set(LOCK).isdisjoint(document(store, marked.id))
        assert set(LOCK).isdisjoint(document(store, held.id))
        assert document(store, held.id)["attempts"] == 0

    def test_one_that_is_cancelled_says_so_last(self, store: Store) -> None:
        job = a_job()
        insert(store, job)
        assert store.leases.acquire(None, "me", {}) is not None
        said = Progress((StatusEntry("running", "a", 0.5, None, NOW),))
        store.scheduled.mark_progress([mark(job, **progress_fields(said))])
        store.scheduled.flag_cancelled(job.id, NOW, "ada", "no need")

        archive_cancelled(store, StoppedClock(LATER), 1, "me")

        gone = store.archived.get(job.id)
        assert gone is not None
        assert gone.status[-1] == StatusEntry("cancelled", "a", 0.5, None, LATER)
        assert gone.locked_by is None


class TestTracking:
    """The loop that writes the marks."""

    @pytest.fixture
    def tracking(self, store: Store) -> ProgressWriter:
        registration = Registration(store.clock, Settings())
        return ProgressWriter(store, Events(), Stop(), registration)

    def said(self, tracking: ProgressWriter, job: Job, progress: float) -> Document:
        """This job runs here and has said so."""
        said = Progress((StatusEntry("running", None, progress, None, NOW),))
        held = HeldJob.read(job.id, encode(job_document(job)))
        tracking._registration.held_jobs.progress.add(held, NOW, encode(progress_fields(said)))
        return progress_fields(said)

    def test_it_writes_the_newest_word_once(self, store: Store, tracking: ProgressWriter) -> None:
        job = a_job()
        insert(store, job)
        for progress in (0.1, 0.2, 0.3):
            self.said(tracking, job, progress)

        assert tracking._step() > 1
        assert document(store, job.id)["progress"] == 0.3
        written = document(store, job.id)["reported_at"]
        eventually(lambda: tracking._step() > 1)
        assert document(store, job.id)["reported_at"] == written

    def test_one_that_has_lost_its_place_writes_nothing(self, store: Store, tracking: ProgressWriter) -> None:
        job = a_job()
        insert(store, job)
        self.said(tracking, job, 0.5)
        tracking._registration.lose(tracking._registration.held_jobs)

        tracking._step()

        assert document(store, job.id) == job_document(job)

    def test_a_worker_that_was_silent_too_long_writes_no_progress(self, store: Store) -> None:
        clock = StoppedClock(NOW)
        registration = Registration(clock, Settings(considered_dead_after=15.0))
        registration.joined = True
        tracking = ProgressWriter(store, Events(), Stop(), registration)
        job = a_job()
        insert(store, job)
        self.said(tracking, job, 0.5)
        clock.move(timedelta(seconds=15))

        tracking._step()

        assert document(store, job.id) == job_document(job)

    def test_progress_is_written_later_if_mongodb_was_away(
        self, store: Store, tracking: ProgressWriter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job = a_job()
        insert(store, job)
        self.said(tracking, job, 0.5)
        monkeypatch.setattr(store.scheduled, "mark_progress", _unreachable)
        with pytest.raises(StoreUnreachable):
            tracking._step()
        monkeypatch.undo()

        eventually(lambda: tracking._step() > 1)

        assert document(store, job.id)["progress"] == 0.5

    def test_progress_that_mongodb_refuses_is_dropped_and_logged(self, store: Store) -> None:
        """Given a job so large that nothing can be added to it, then the others are still written."""
        told: list[Event] = []
        events = Events()
        events.listen(told.append)
        tracking = ProgressWriter(store, events, Stop(), Registration(store.clock, Settings()))
        large, other = a_job(), a_job()
        insert(store, large, other)
        room = 16 * 1024 * 1024 - len(encode(job_document(large))) - 100
        store.scheduled.collection.update_one({"_id": large.id}, {"$set": {"more": "x" * room}})
        self.said(tracking, large, 0.5)
        self.said(tracking, other, 0.5)

        assert tracking._step() > 1

        assert [event.name for event in told] == ["progress.refused"]
        assert document(store, other.id)["progress"] == 0.5
        assert "progress" not in document(store, large.id)

    def test_no_sign_comes_after_a_job_is_settled(self, store: Store, tracking: ProgressWriter) -> None:
        """Given a mark on its way, when the job is about to be settled, then settling waits for it."""
        job = a_job()
        insert(store, job)
        self.said(tracking, job, 0.5)
        progress = tracking._registration.held_jobs.progress
        assert [each.id for each in progress.take("w1")] == [job.id]
        stopped = threading.Event()

        def stop() -> None:
            progress.stop([job.id])
            stopped.set()

        thread = threading.Thread(target=stop)
        thread.start()
        assert not stopped.wait(0.1)
        progress.written(True)
        thread.join(10)

        assert stopped.is_set()
        self.said(tracking, job, 0.9)
        assert progress.take("w1") == []

    def test_a_late_heartbeat_marks_no_job_that_was_settled(self, tracking: ProgressWriter) -> None:
        """Given a heartbeat that looked before and speaks after, then the job is not marked, also where it waits."""
        held_jobs = tracking._registration.held_jobs
        job = a_job()
        seen = [(HeldJob.read(job.id, encode(job_document(job))), NOW)]
        held_jobs.hear(Holding([job.id], 0))
        held_jobs.progress.stop([job.id])
        held_jobs.note_running(seen, LATER, 1.0)
        assert held_jobs.progress.take("w1") == []

        held_jobs.settled([(job.id, None)], Holding([], 1))
        held_jobs.note_running(seen, LATER, 1.0)
        assert held_jobs.progress.fields_of(job.id) == {}

        # and if it comes again it is
        held_jobs.hear(Holding([job.id], 1))
        held_jobs.note_running(seen, LATER, 1.0)
        assert [mark.id for mark in held_jobs.progress.take("w1")] == [job.id]


def _unreachable(*_: object) -> None:
    raise StoreUnreachable("no server answers")


class TestViews:
    """A job shows who holds it, and that is what the roster says."""

    def test_a_mark_of_a_worker_that_is_gone_is_no_lock(self, store: Store) -> None:
        job = a_job()
        insert(store, job)
        store.scheduled.mark_progress([mark(job, "gone")])
        assert find(store, job.id) == replace(job, begun_at=NOW)

        on_the_roster(store, "w1")
        store.roster.assign({"w1": [job.id]}, 1)
        held = find(store, job.id)

        assert held is not None
        (entry,) = store.roster.collection.find({})
        assert (held.locked_by, held.locked_at) == ("w1", entry["given_at"])


class TestInTheCallingProcess:
    @pytest.mark.parametrize("way", ["run", "run_all", "watch", "flush"])
    def test_it_can_be_seen_while_the_job_runs(self, recruiter: Recruiter, store: Store, way: str) -> None:
        """Given a job that says something and then nothing more, then it is written while it goes on in silence."""
        seen, stop = threading.Event(), threading.Event()

        @recruiter.task
        def work() -> None:
            current_job.stage("silence", progress=0.1)
            for number in range(100):
                current_job.progress(0.1 + number / 1000)
            current_job.log("hush")
            assert seen.wait(60)
            stop.set()

        handle = work.enqueue()
        calls: dict[str, Callable[[], Any]] = {
            "run": lambda: recruiter.run(work),
            "run_all": lambda: recruiter.run_all(work),
            "watch": lambda: recruiter.watch(work, stop=stop),
            "flush": recruiter.flush_jobs_synchronously,
        }
        thread = threading.Thread(target=calls[way])
        thread.start()
        try:
            # then what it said last is there, and who runs it
            eventually(lambda: (job := find(store, handle.id)) and job.log and job.progress == 0.199)
            job = find(store, handle.id)
            assert job is not None
            (worker,) = [entry.id for entry in store.roster.entries()]
            assert (job.locked_by, job.state, job.stage) == (worker, State.RUNNING, "silence")
            assert document(store, handle.id)["locked_by"] == worker
        finally:
            seen.set()
            thread.join(20)

        # and the archived job has the whole of it, and no lock
        end = handle.wait(timeout=60)
        assert stages(end) == [("running", "silence", 0.199), ("succeeded", "silence", 1.0)]
        assert (end.locked_by, end.locked_at, end.state) == (None, None, State.SUCCEEDED)
        assert set(LOCK).isdisjoint(store.archived.collection.find_one({"_id": handle.id}) or {})
