"""A program that is ended at any moment of its start leaves no process behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from recruiter.errors import CommandFailed
from recruiter.programs import Program

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
