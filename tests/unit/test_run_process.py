"""run_process: a program inside a job, heard line by line, and gone when the job is."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from recruiter import current_job
from recruiter.domain.progress import LINES_KEPT
from recruiter.errors import CommandFailed
from recruiter.programs import MAX_LINE_CHARACTERS, MAX_OUTPUT_BYTES, CommandResult, Program
from recruiter.store.codec import Document
from tests.bench import Bench
from tests.conftest import eventually
from tests.programs import family_ends, family_in, is_gone

TIMED_OUT = "recruiter.errors.JobTimedOut"
FAMILY = "sh -c 'echo $$ > grandchild; sleep 600; true' & echo $$ > child; wait"


def sh(script: str, **options: Any) -> CommandResult:
    return current_job.run_process(["sh", "-c", script], **options)


def lines(job: Document) -> list[str]:
    return [line["text"] for line in job.get("log", ())]


def failure(job: Document) -> tuple[str, str]:
    assert not job["done"], job
    return job["last_execution"]["class"], job["last_execution"]["message"]


class TestRunning:
    def test_no_argument_is_interpreted(self, bench: Bench) -> None:
        arguments = ["$HOME", "*", "a; b | c", "", "ä"]

        job = bench.archived(lambda: current_job.run_process(["printf", "<%s>", *arguments])["stdout"])

        assert job["result"] == "".join(f"<{argument}>" for argument in arguments)

    def test_a_folder_variables_and_input(self, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("INHERITED", "yes")

        def run(input: str | bytes) -> str:
            return sh("pwd; echo $INHERITED $ADDED; cat", cwd=tmp_path, env={"ADDED": "too"}, input=input)["stdout"]

        assert bench.archived(run, "ö!")["result"] == f"{tmp_path}\nyes too\nö!"
        assert bench.archived(run, b"\xff!")["result"] == f"{tmp_path}\nyes too\n\ufffd!"

    def test_lines_are_handed_on_as_they_come(self, bench: Bench, tmp_path: Path) -> None:
        """Given a program that goes on only when its first line was heard, then it does go on."""
        gate = tmp_path / "gate"

        job = bench.archived(
            lambda: sh(f"echo begun; while [ ! -e {gate} ]; do sleep 0.01; done; echo ended", on_line=gate.write_text),
            timeout=10,
        )

        assert lines(job) == ["begun", "ended"]

    def test_how_much_is_kept(self, bench: Bench) -> None:
        def run(keep: int) -> CommandResult:
            return sh("seq 1 20; echo err >&2", keep=keep)

        little = {"code": 0, "stdout": "… 45 bytes cut …\n19\n20\n", "stderr": "err\n"}
        assert bench.archived(run, 6)["result"] == little
        assert bench.archived(run, 0)["result"] == {"code": 0, "stdout": "", "stderr": ""}
        assert len(bench.archived(run, MAX_OUTPUT_BYTES)["result"]["stdout"].split()) == 20

    def test_memory_is_bounded_however_much_it_prints(self, bench: Bench) -> None:
        """Given 20 MB without a line's end and 50,000 lines, then little of it is ever held, and the end is kept."""
        counted = 0

        def count(line: str) -> None:
            nonlocal counted
            assert len(line) <= 3 * MAX_LINE_CHARACTERS
            counted += 1

        tracemalloc.start()
        try:
            job = bench.archived(
                lambda: sh("head -c 20000000 /dev/zero | tr '\\0' x; echo; seq 1 50000", on_line=count)["code"]
            )
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

        assert job["done"]
        assert counted > 50_000
        assert lines(job)[-1] == "50000"
        assert len(job["log"]) == LINES_KEPT
        assert len(job["log"]) + job["log_cut"] == counted
        assert peak < 8_000_000


class TestFailing:
    def test_its_error_has_all_that_is_known(self, bench: Bench) -> None:
        caught: list[CommandFailed] = []

        def run() -> None:
            try:
                sh("echo out; echo err >&2; exit 3")
            except CommandFailed as error:
                caught.append(error)

        assert bench.archived(run)["done"]
        assert [(error.code, error.stdout, error.stderr) for error in caught] == [(3, "out\n", "err\n")]

    @pytest.mark.parametrize(
        ("argv", "told"),
        [
            (["no-such-program-anywhere"], "on the PATH"),
            (["/no/such/program"], "No such file"),
            ("rm -rf /", "needs a list"),
            ([], "needs a list"),
        ],
    )
    def test_what_cannot_be_started(self, bench: Bench, argv: Any, told: str) -> None:
        assert told in failure(bench.archived(lambda: current_job.run_process(argv)))[1]


class TestEnding:
    """The program and what it has started end with the job, in whatever way that ends."""

    @pytest.mark.parametrize("manners", ["", "trap '' TERM;"], ids=["polite", "ignores SIGTERM"])
    def test_a_program_ends_at_its_timeout(self, bench: Bench, tmp_path: Path, manners: str) -> None:
        started = time.monotonic()

        job = bench.archived(lambda: sh(manners + FAMILY, cwd=tmp_path), timeout=0.7)

        assert failure(job)[0] == TIMED_OUT
        assert time.monotonic() - started < 60, "the program would take ten minutes"
        family_ends(tmp_path)

    def test_when_the_handler_raises(self, bench: Bench, tmp_path: Path) -> None:
        def stop(_: str) -> None:
            family_in(tmp_path)
            raise ValueError("seen enough")

        job = bench.archived(lambda: sh(f"echo line; {FAMILY}", cwd=tmp_path, on_line=stop))

        assert failure(job) == ("ValueError", "seen enough")
        assert lines(job) == ["line"]
        family_ends(tmp_path)

    def test_when_the_job_ends_and_leaves_it_in_a_thread(self, bench: Bench, tmp_path: Path) -> None:
        outcome: list[BaseException] = []

        def in_thread() -> None:
            try:
                sh(FAMILY, cwd=tmp_path)
            except CommandFailed as error:
                outcome.append(error)

        def leave() -> None:
            threading.Thread(target=contextvars.copy_context().run, args=(in_thread,), daemon=True).start()
            family_in(tmp_path)

        assert bench.archived(leave)["done"]

        family_ends(tmp_path)
        eventually(lambda: [str(error) for error in outcome] == ["sh was ended with its job"])

    def test_none_begins_after_the_job_has_ended(self, bench: Bench, tmp_path: Path) -> None:
        contexts: list[contextvars.Context] = []
        bench.archived(lambda: contexts.append(contextvars.copy_context()))

        with pytest.raises(Exception, match="has ended"):
            contexts[0].run(sh, f"touch {tmp_path}/trace")

        assert list(tmp_path.iterdir()) == []

    def test_its_children_get_no_pipes_of_ours(self, bench: Bench) -> None:
        script = "import os; print(sorted(int(fd) for fd in os.listdir('/proc/self/fd'))[:4])"

        job = bench.archived(lambda: current_job.run_process([sys.executable, "-c", script])["stdout"])

        assert job["result"] == "[0, 1, 2, 3]\n"


class TestAsync:
    def test_the_same_without_blocking_the_loop(self, bench: Bench) -> None:
        async def run() -> list[Any]:
            ticks = 0

            async def tick() -> None:
                nonlocal ticks
                while True:
                    await asyncio.sleep(0.01)
                    ticks += 1

            ticking = asyncio.create_task(tick())
            script = ["sh", "-c", "echo one; sleep 0.3; echo two"]
            both = await asyncio.gather(current_job.arun_process(script), current_job.arun_process(script))
            ticking.cancel()
            return [both[0]["stdout"], both[1]["code"], ticks > 5]

        job = bench.archived(run)

        assert job["result"] == ["one\ntwo\n", 0, True]
        assert sorted(lines(job)) == ["one", "one", "two", "two"]

    def test_cancelling_it_ends_the_program_and_the_job_goes_on(self, bench: Bench, tmp_path: Path) -> None:
        async def run() -> bool:
            running = asyncio.create_task(current_job.arun_process(["sh", "-c", FAMILY], cwd=tmp_path))
            await asyncio.to_thread(family_in, tmp_path)
            running.cancel()
            try:
                await running
            except asyncio.CancelledError:
                return all(map(is_gone, family_in(tmp_path)))
            return False

        assert bench.archived(run)["result"] is True

    def test_one_that_is_left_to_itself_ends_with_the_job(self, bench: Bench, tmp_path: Path) -> None:
        tasks: list[Any] = []

        async def run() -> None:
            tasks.append(asyncio.create_task(current_job.arun_process(["sh", "-c", FAMILY], cwd=tmp_path)))
            await asyncio.to_thread(family_in, tmp_path)

        assert bench.archived(run)["done"]

        family_ends(tmp_path)


ROUNDS = 60


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Processes that a failing test leaves there are ended."""
    yield tmp_path
    for pid in processes_in(tmp_path):
        with suppress(psutil.Error):
            psutil.Process(pid).kill()


def processes_in(folder: Path) -> list[int]:
    """Those that a program started there, however they are called."""
    return [process.pid for process in psutil.process_iter(["cwd"]) if process.info["cwd"] == str(folder)]


@pytest.mark.parametrize("script", ["sleep 600; true", "sleep 600 & sleep 600 & wait"])
def test_ended_while_it_starts_its_own_programs_it_leaves_none(script: str, folder: Path) -> None:
    def run(program: Program, failures: list[CommandFailed]) -> None:
        try:
            program.run(["sh", "-c", script], cwd=folder, env={})
        except CommandFailed as failed:
            failures.append(failed)

    failures: list[CommandFailed] = []
    for number in range(ROUNDS):
        program = Program()
        thread = threading.Thread(target=run, args=(program, failures))
        thread.start()
        threading.Event().wait(number * 0.0001)  # the moment differs each time: before, while and after the shell forks
        program.end()
        thread.join()

    assert len(failures) == ROUNDS
    assert processes_in(folder) == []


def test_an_interrupted_line_ends_the_program(folder: Path) -> None:
    def interrupt(_line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Program().run(["sh", "-c", "sleep 600 & echo begun; wait"], cwd=folder, env={}, on_line=interrupt)

    assert processes_in(folder) == []
