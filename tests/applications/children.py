"""The application of the tests about children: jobs that start programs, fork, and meddle with signals."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from pathlib import Path
from types import FrameType

from recruiter import JobTimedOut, Recruiter, current_job
from recruiter.workables.outcomes import LazyBones

recruiter = Recruiter()

LONGEST = 60.0
_DAEMON = "(sleep 600 & echo $! > daemon.part; mv daemon.part daemon) &"
"""A program that has left its parent: the shell that started it is gone."""


def _wait_for(file: Path) -> None:
    deadline = time.monotonic() + LONGEST
    while not file.exists() and time.monotonic() < deadline:
        time.sleep(0.01)


@recruiter.task
def start_programs(folder: str) -> None:
    """One in a session of its own, and one that has become a daemon there."""
    program = subprocess.Popen(["sleep", "600"], start_new_session=True)
    subprocess.run(["setsid", "sh", "-c", _DAEMON], cwd=folder, check=True)
    _wait_for(Path(folder, "daemon"))
    Path(folder, "session.part").write_text(str(program.pid))
    Path(folder, "session.part").rename(Path(folder, "session"))
    time.sleep(LONGEST)


@recruiter.task
def my_pid() -> int:
    return os.getpid()


@recruiter.task
def die_by(number: int, folder: str) -> str:
    """Only the first time."""
    file = Path(folder, "died")
    if file.exists():
        return "again"
    file.touch()
    os.kill(os.getpid(), number)
    time.sleep(LONGEST)
    return "never"


@recruiter.task
def fork_and_return(folder: str) -> str:
    """As somebody writes it who forgets that the copy goes on; both leave a line."""
    copy = os.fork() == 0
    with open(Path(folder, "returned"), "a") as file:
        file.write(f"{os.getpid()}\n")
    return "the copy" if copy else "the original"


@recruiter.task
async def fork_and_return_async(folder: str) -> str:
    copy = os.fork() == 0
    with open(Path(folder, "returned"), "a") as file:
        file.write(f"{os.getpid()}\n")
    await asyncio.sleep(0.05)
    return "the copy" if copy else "the original"


@recruiter.task
def end_my_copy() -> int:
    """Forks many times, asks the copy to end, at once or soon, and returns how they did; 0 if one did not."""
    ends = set[int]()
    for turn in range(100):
        copy = os.fork()
        if not copy:
            time.sleep(5)
            os._exit(0)
        time.sleep(turn * 0.0001)
        os.kill(copy, signal.SIGTERM)
        ends.add(os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1]))
        if 0 in ends:
            return 0
    return min(ends)


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """Catches an alarm."""


@recruiter.task
def take_the_alarm() -> None:
    """Puts its own handler, blocks the signal, sets an alarm, and leaves it all behind."""
    signal.signal(signal.SIGALRM, _nothing)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    signal.setitimer(signal.ITIMER_REAL, 0.3)


@recruiter.task
def sleep_until_told(seconds: float) -> str:
    try:
        time.sleep(seconds)
    except JobTimedOut:
        return "told"
    return "not told"


@recruiter.task
def run_another_inside(folder: str) -> str:
    """Runs a job inside itself, and goes on."""
    LazyBones(20).as_job_of(recruiter).execute()
    Path(folder, "went on").touch()
    return "went on"


@recruiter.task
async def block_the_loop(folder: str) -> None:
    """An `async def` that does not await."""
    with open(Path(folder, "blocks"), "a") as file:
        file.write("started\n")
    _wait_for(Path(folder, "gate"))


@recruiter.task
async def wait_async(folder: str, name: str) -> str:
    with open(Path(folder, name), "a") as file:
        file.write(f"{current_job.attempt}\n")
    while not Path(folder, "gate").exists():
        await asyncio.sleep(0.01)
    return name
