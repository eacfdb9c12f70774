"""Children of real workers: what their jobs start ends with them, and what one job does is not felt by the next."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest

from recruiter import JobHandle
from recruiter.processes.child import pipe
from recruiter.processes.worker.child_handle import ChildHandle
from recruiter.processes.worker.child_pool import ForkServer
from recruiter.store.codec import Document, decode
from recruiter.store.connection import Target
from recruiter.store.database import Store
from tests.applications import children as jobs
from tests.bench import ended
from tests.conftest import Process, Starter, eventually
from tests.fake_child import held
from tests.processes.conftest import Lead
from tests.programs import is_gone

RUNS = jobs

APPLICATION = jobs.__file__
WITHIN = 60.0

WorkerOf = Callable[..., Process]


@pytest.fixture
def worker(start: Starter, lead: Lead, store: Store) -> WorkerOf:

    def worker(*options: str) -> Process:
        lead()
        process = start("start", "worker", "--bootstrap", APPLICATION, *options)
        process.says("joined the roster")
        eventually(process.children)
        return process

    return worker


def programs(folder: Path) -> list[int]:
    """Of a job that has started them: in a session of its own, and as a daemon."""
    files = [folder / "session", folder / "daemon"]
    eventually(lambda: all(file.exists() for file in files))
    pids = [int(file.read_text()) for file in files]
    assert not any(map(is_gone, pids))
    return pids


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


class TestPrograms:
    """In sessions of their own, where a signal to the process group does not reach them."""

    @pytest.fixture
    def running(self, worker: WorkerOf, tmp_path: Path) -> tuple[Process, JobHandle[None], list[int]]:
        process = worker()
        handle = jobs.start_programs.enqueue(str(tmp_path))
        return process, handle, programs(tmp_path)

    Running = tuple[Process, JobHandle[None], list[int]]

    def test_end_when_their_job_overruns_its_time(self, worker: WorkerOf, tmp_path: Path) -> None:
        worker()
        handle = jobs.start_programs.job(str(tmp_path)).timeout("2s").in_background().execute()
        pids = programs(tmp_path)

        assert not handle.wait(WITHIN).done
        eventually(lambda: all(map(is_gone, pids)))

    def test_end_when_their_child_is_killed(self, running: Running) -> None:
        process, _, pids = running
        (child,) = process.children()

        os.kill(child, signal.SIGKILL)

        eventually(lambda: all(map(is_gone, pids)))

    def test_end_when_the_guard_of_their_child_is_killed(self, running: Running) -> None:
        process, _, pids = running
        (child,) = process.children()

        os.kill(psutil.Process(child).ppid(), signal.SIGKILL)

        eventually(lambda: all(map(is_gone, [child, *pids])))

    def test_end_when_their_worker_is_killed(self, running: Running) -> None:
        process, _, pids = running
        family = [member.pid for member in process.descendants()]

        process.signal(signal.SIGKILL)

        eventually(lambda: all(map(is_gone, [*family, *pids])))


class TestDeath:
    @pytest.mark.parametrize("number", [signal.SIGSEGV, 40])
    def test_a_job_whose_child_is_killed_by_any_signal_runs_again(
        self, worker: WorkerOf, tmp_path: Path, number: int
    ) -> None:
        """Not all signals have a name."""
        worker()

        ended = jobs.die_by.enqueue(int(number), str(tmp_path)).wait(WITHIN)

        assert (ended.result, ended.attempts, ended.crashes) == ("again", 2, 1)
        crash = ended.executions[0]
        assert ("SIGSEGV" if number == signal.SIGSEGV else "signal 40") in str(crash.message)
        assert crash.started_at is not None
        assert crash.ended_at is not None
        assert timedelta() <= crash.ended_at - crash.started_at < timedelta(seconds=WITHIN)


class TestForks:
    @pytest.mark.parametrize("concurrency", ["1", "2"])
    @pytest.mark.parametrize("task", [jobs.fork_and_return, jobs.fork_and_return_async], ids=lambda task: task.name)
    def test_a_copy_that_returns_ends_there(
        self, worker: WorkerOf, tmp_path: Path, concurrency: str, task: type
    ) -> None:
        process = worker("--concurrency", concurrency)
        (child,) = process.children()

        handle: JobHandle[str] = task.enqueue(str(tmp_path))  # type: ignore[attr-defined]

        assert handle.result(WITHIN) == "the original"
        eventually(lambda: len(lines(tmp_path / "returned")) == 2)
        (copy,) = {int(line) for line in lines(tmp_path / "returned")} - {child}
        eventually(lambda: is_gone(copy))
        assert {jobs.my_pid.enqueue().result(WITHIN) for _ in range(5)} == {child}
        assert process.children() == [child]

    def test_a_copy_obeys_signals(self, worker: WorkerOf) -> None:
        worker()

        assert jobs.end_my_copy.enqueue().result(WITHIN) == -signal.SIGTERM


class TestTimeouts:
    def test_an_alarm_that_an_earlier_job_took_is_ours_again(self, worker: WorkerOf) -> None:
        process = worker()
        (child,) = process.children()
        jobs.take_the_alarm.enqueue().result(WITHIN)

        told = jobs.sleep_until_told.job(20.0).timeout("300ms").in_background().execute().result(WITHIN)

        assert told == "told"
        assert process.children() == [child]

    def test_a_job_run_inside_a_job_does_not_swallow_its_timeout(self, worker: WorkerOf, tmp_path: Path) -> None:
        worker()

        handle = jobs.run_another_inside.job(str(tmp_path)).timeout("500ms").in_background().execute()
        ended = handle.wait(WITHIN)

        assert ended.last_execution is not None
        assert ended.last_execution.exception == "recruiter.errors.JobTimedOut"
        assert "did not" not in str(ended.last_execution.message), "it was not ended by force"
        assert not (tmp_path / "went on").exists()


class TestBlame:
    def test_who_blocks_the_loop_is_to_blame_and_the_starved_run_again(self, worker: WorkerOf, tmp_path: Path) -> None:
        # given jobs with a time limit, and one without that blocks the event loop they share
        worker("--concurrency", "4")
        names = ["a", "b"]
        starved = [jobs.wait_async.job(str(tmp_path), name).timeout("2s").in_background().execute() for name in names]
        eventually(lambda: all(lines(tmp_path / name) for name in names))
        blocker = jobs.block_the_loop.enqueue(str(tmp_path))

        # when their time is over, and they cannot be told so
        ended = blocker.wait(WITHIN)

        # then the blocker has failed, once
        assert ended.last_execution is not None
        assert ended.last_execution.exception == "recruiter.errors.JobBlockedOthers"
        assert (ended.attempts, lines(tmp_path / "blocks")) == (1, ["started"])

        # and the others run again, and no attempt is counted
        eventually(lambda: [lines(tmp_path / name) for name in names] == [["1", "1"]] * 2)
        (tmp_path / "gate").touch()
        assert [handle.result(WITHIN) for handle in starved] == names


def _spawned(server: ForkServer, target: str) -> list[ChildHandle]:
    """Empty while the fork server loads the application."""
    with suppress(TimeoutError):
        return [server.spawn("w1", Target.parse(target), 1, time.monotonic())]
    return []


class TestClock:
    """Children follow the clock of their supervisor, which follows the server's."""

    @pytest.fixture
    def child(self, target: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[ChildHandle]:
        for variable in ("RECRUITER_SUPERVISOR", "RECRUITER_PRELOAD"):
            monkeypatch.setenv(variable, "")  # and put back afterwards
        server = ForkServer.open(APPLICATION)
        (child,) = eventually(lambda: _spawned(server, target), within=WITHIN)
        (hello,) = eventually(lambda: child.receive(time.monotonic()))
        child.tasks, child.pid = frozenset(["my_pid"]), decode(hello.payload)["pid"]
        yield child
        child.kill()
        child.process.join(10)
        child.close()

    @staticmethod
    def ahead(days: float) -> pipe.Time:
        now = time.monotonic()
        return pipe.Time(time.time() + days * 86_400 - now, now)

    @staticmethod
    def days(moment: datetime) -> int:
        return round((moment - datetime.now(UTC)) / timedelta(days=1))

    def answer(self, child: ChildHandle) -> Document:
        (answer,) = eventually(lambda: child.receive(time.monotonic()))
        return ended(pipe.outcome_of(answer.kind, "", answer.payload))

    def test_the_time_travels_with_each_job(self, child: ChildHandle) -> None:
        for days in (1, -1, 0):
            child.send([held(task="my_pid", args={})], self.ahead(days))
            execution = self.answer(child)["last_execution"]
            assert (self.days(execution["started_at"]), self.days(execution["ended_at"])) == (days, days)


def test_a_loader_that_was_killed_is_not_the_applications_fault(start: Starter, tmp_path: Path) -> None:
    """Given an application during whose loading the process is killed, as for want of memory."""
    bootstrap = tmp_path / "killed.py"
    bootstrap.write_text(
        "import os, pathlib\n"
        "seen = pathlib.Path(__file__).with_name('seen')\n"
        "if seen.exists():\n"
        "    os.kill(os.getpid(), 9)\n"
        "seen.touch()\n"
        "raise RuntimeError('the fork server goes on without it')\n"
    )

    worker = start("start", "worker", "--bootstrap", str(bootstrap))

    assert worker.wait() != 0
    assert "the process that loads the application was killed by SIGKILL" in worker.log
    assert "cannot be loaded" not in worker.log


def test_a_fork_server_that_was_killed_is_not_the_applications_fault(start: Starter, tmp_path: Path) -> None:
    """Given a fork server that is killed while the worker starts, by itself here."""
    bootstrap = tmp_path / "killed.py"
    bootstrap.write_text("import os\nos.kill(os.getpid(), 9)\n")

    worker = start("start", "worker", "--bootstrap", str(bootstrap))

    assert worker.wait() != 0
    assert "the fork server, the process that starts the children of this worker, was killed" in worker.log
    assert "start the worker again" in worker.log
    assert "malformed" not in worker.log
