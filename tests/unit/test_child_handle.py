"""A child as its supervisor sees it, with pipes and claims but without a process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from recruiter.processes.child import pipe
from recruiter.processes.child.claims import CELLS
from recruiter.processes.worker.child_handle import ChildHandle
from recruiter.processes.worker.held_job import HeldJob
from recruiter.store.codec import decode
from tests.fake_child import FakeChild, held, held_many
from tests.samples import a_job, done

NOON = pipe.Time(offset=1000.0, at=1.0)


@pytest.fixture
def child() -> Iterator[FakeChild]:
    child = ready(FakeChild())
    yield child
    child.die(0)
    child.handle.close()


def ready(child: FakeChild) -> FakeChild:
    child.handle.tasks = frozenset(["add"])
    return child


def run_one(child: FakeChild, job: HeldJob) -> None:
    """Sends it, starts it, ends it."""
    child.handle.send([job], NOON)
    for number in child.start():
        child.answer(number)
    assert [message.run and message.run.job for message in child.handle.receive(1.0)] == [job]


@pytest.mark.parametrize(("result_bytes", "gathers"), [(10, True), (40_000, False)])
def test_answers_gather_only_as_long_as_they_fit_into_the_pipe(
    child: FakeChild, result_bytes: int, gathers: bool
) -> None:
    jobs = held_many(50)
    child.handle.send(jobs, NOON)
    numbers = child.start()

    for step, number in enumerate(numbers[:20]):
        child.answer(number, done(a_job(), result="x" * result_bytes))
        child.handle.receive(NOON.at + 0.001 * (step + 1))

    # 29 further jobs of about a millisecond wait in the pipe: a child that must not be blocked is asked sooner
    assert (child.handle.answers_may_gather > 0.005) is gathers


class TestClaims:
    def test_a_long_job_keeps_its_cell_however_many_others_run_beside_it(self) -> None:
        child = ready(FakeChild(places=2))
        long = held()
        child.handle.send([long], NOON)
        (number,) = child.start()
        begun_at = child.claims.claimed_at(number)

        for _ in range(CELLS + 10):
            run_one(child, held())

        assert [run.job for run in child.handle.running()] == [long]
        assert child.handle.running()[0].since == begun_at
        child.die(-9)
        assert [run.job for run in child.handle.started().values()] == [long], "it is the one to blame"
        assert child.handle.unstarted() == []
        child.handle.close()

    def test_the_deadline_of_a_long_job_is_its_own(self) -> None:
        child = ready(FakeChild(places=2))
        child.handle.send([held()], NOON)
        (number,) = child.start()
        with child.claims.deadline(number, 60.0):
            (moment,) = [moment for moment, _ in child.handle.deadlines()]
            for _ in range(CELLS + 10):
                run_one(child, held())
            assert child.handle.deadlines() == [(moment, number)]
        child.die(0)
        child.handle.close()

    def test_a_frame_that_was_withdrawn_is_not_taken_for_the_job_that_uses_its_cell_now(self, child: FakeChild) -> None:
        # given a job that was sent and taken back, while its frame is still in the pipe
        stale = held()
        child.handle.send([stale], NOON)
        assert child.handle.withdraw() == [stale]

        # when its cell is used again
        others = held_many(CELLS)
        child.handle.send(others, NOON)
        started = [job for number, job in child.jobs() if child.claims.claim(number)]

        # then only the others are started
        assert stale not in started

    def test_it_is_never_sent_more_than_there_are_cells(self) -> None:
        child = ready(FakeChild(places=CELLS + 50))

        assert child.handle.room(1.0) == CELLS
        child.handle.send(held_many(CELLS), NOON)
        assert child.handle.room(1.0) == 0
        child.die(0)
        child.handle.close()


class TestFullPipes:
    def test_withdrawing_after_a_half_sent_frame_was_dropped_does_no_harm(self, child: FakeChild) -> None:
        """Given a child that is recycled while a large frame is half sent, when the worker stops."""
        large = held(args={"text": "x" * 300_000})
        child.handle.send([large, held()], NOON)
        assert child.handle.blocked_ends
        assert len(child.handle.withdraw()) == 2
        child.handle.recycle(1.0)

        assert child.handle.withdraw() == []
        assert not child.handle.blocked_ends

    def test_what_is_half_sent_is_completed_and_what_follows_can_be_read(self, child: FakeChild) -> None:
        large, small, later = held(args={"text": "x" * 300_000}), held(), held()
        child.handle.send([large, small], NOON)
        assert child.handle.withdraw() == [large, small]

        child.handle.send([later], NOON)
        seen = child.jobs()
        while child.handle.blocked_ends:
            child.handle.flush()
            seen += child.jobs()

        assert [job for number, job in seen if child.claims.claim(number)] == [later]

    def test_frames_are_dropped_only_if_their_jobs_are_taken_back(self, child: FakeChild) -> None:
        """Given a child that froze inside `claim` and keeps the lock, then what reached it stays with it, and what did
        not is taken back: no job is neither here nor there."""
        sent, large, unsent = held(), held(args={"text": "x" * 300_000}), held_many(3)
        child.handle.send([sent, large, *unsent], NOON)
        child.claims._lock.acquire()

        taken = child.handle.withdraw()

        assert taken == unsent
        assert child.handle.load == 2
        child.claims._lock.release()
        seen = child.jobs()
        while child.handle.blocked_ends:
            child.handle.flush()
            seen += child.jobs()
        assert [job for _, job in seen] == [sent, large]

    def test_cancellations_never_wait_for_the_child(self) -> None:
        """Given a child that holds the interpreter and reads nothing, then the supervisor goes on, and nothing is lost
        when it reads again."""
        count = 3000
        child = ready(FakeChild(places=count))
        jobs = held_many(count)
        child.handle.send(jobs, NOON)
        started: set[int] = set()
        while len(started) < count:
            started.update(child.start())
            child.handle.flush()
        flag = {"by": "me", "reason": "r" * 100}
        cancelling = threading.Thread(
            target=lambda: [child.handle.cancel(job.id, flag, 1.0) for job in jobs], daemon=True
        )

        cancelling.start()
        cancelling.join(20)

        assert not cancelling.is_alive(), "it waits for the pipe"
        assert child.handle.control_end in child.handle.blocked_ends
        told = child.told()
        while child.handle.blocked_ends:
            child.handle.flush()
            told += child.told()
        assert {number for _, number, _ in told} == started
        assert all(decode(payload) == flag for _, _, payload in told)
        child.die(0)
        child.handle.close()


class TestSuccession:
    def test_a_successor_gets_the_places_that_are_free(self) -> None:
        # given a child with four places that is recycled while one job runs
        old, new = ready(FakeChild(places=4)), ready(FakeChild(places=4))
        old.handle.send([held()], NOON)
        (number,) = old.start()
        old.handle.recycle(1.0)
        new.handle.replaces = old.handle

        # then there is room for three, and for a fourth when it has ended
        assert new.handle.room(1.0) == 3
        new.handle.send(held_many(3), NOON)
        assert new.handle.room(1.0) == 0
        old.answer(number)
        old.handle.receive(1.0)
        assert (new.handle.room(1.0), new.handle.free_places) == (1, 1)
        for child in (old, new):
            child.die(0)
            child.handle.close()


class TestTime:
    def test_it_comes_with_every_job(self, child: FakeChild) -> None:
        child.handle.send([held()], NOON)

        ((_, _, payload),) = list(pipe.Frames().feed(os.read(child.inbox, pipe.READ_AT_ONCE)))

        assert pipe.time_of(payload) == NOON

    def test_it_comes_to_running_jobs_when_it_has_changed(self, child: FakeChild) -> None:
        child.handle.send([held()], NOON)
        for time in (NOON, pipe.Time(1000.01, 2.0), pipe.Time(1060.0, 3.0), pipe.Time(1060.0, 4.0)):
            child.handle.tell_time(time)

        assert [(kind, pipe.time_of(payload)) for kind, _, payload in child.told()] == [
            (pipe.CLOCK, pipe.Time(1060.0, 3.0))
        ]


@pytest.mark.parametrize(
    ("code", "how"),
    [(-9, "was killed by SIGKILL"), (-40, "was killed by signal 40"), (3, "exited with code 3"), (None, "is gone")],
)
def test_the_end_of_a_child_is_told_in_words(code: int | None, how: str) -> None:
    child = FakeChild()
    child.process.exitcode = code

    assert child.handle.how_it_ended() == f"the process running it {how}"


def test_a_handle_without_a_process_kills_nobody() -> None:
    """Process 0 would be the supervisor's own group."""
    child = FakeChild()

    ChildHandle.kill(child.handle)


def test_a_child_whose_supervisor_is_dead_ends_without_a_word() -> None:
    # given a pipe that nobody reads any more, when a child answers
    answer = (
        "import os; from recruiter.processes.child import pipe\n"
        "read_end, write_end = os.pipe(); os.close(read_end)\n"
        "pipe.write_all(write_end, b'an answer'); print('went on')"
    )
    ended = subprocess.run([sys.executable, "-c", answer], capture_output=True, text=True, timeout=60)

    # then it has ended, and has not told of a fault that there is not
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", "")
