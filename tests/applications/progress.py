"""The application that process tests of progress run: jobs that talk a lot, a little, or not at all."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from recruiter import Recruiter, RetryManyTimes, current_job, track

recruiter = Recruiter()


def wait_for(gate: str) -> None:
    while not Path(gate).exists():
        time.sleep(0.005)


@recruiter.task
def chatter(calls_a_second: int, seconds: float, gate: str) -> int:
    """Tells its progress so many times a second, then waits in silence."""
    calls = int(calls_a_second * seconds)
    started = time.monotonic()
    for call in range(calls):
        while time.monotonic() - started < call / calls_a_second:
            pass
        current_job.stage("talking", progress=(call + 1) / calls / 2)
    current_job.stage("silence", progress=0.75)
    current_job.log("the last word")
    wait_for(gate)
    return calls


@recruiter.task
async def chatter_later(gate: str) -> None:
    """The same, as a coroutine, which then blocks the loop."""
    for call in range(1000):
        current_job.stage("talking", progress=call / 1000)
    current_job.stage("silence", progress=0.75)
    current_job.log("the last word")
    wait_for(gate)


@recruiter.task
def silent(gate: str) -> str:
    wait_for(gate)
    return "released"


@recruiter.task(retry=RetryManyTimes(5, 0))
def dies_first(folder: str, how: str) -> str:
    """Its first run ends badly, when the gate opens; the second succeeds. The death of a worker counts no attempt."""
    run = 1 + len(list(Path(folder).glob("run-*")))
    Path(folder, f"run-{run}").touch()
    current_job.stage(f"run {run}", progress=0.5)
    current_job.log(f"in run {run}")
    if run > 1:
        return "done"
    wait_for(f"{folder}/gate")
    if how == "raises":
        raise ConnectionError("not yet")
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)
    return "never"


@recruiter.task
def tracked(items: int) -> int:
    return sum(track(range(items), stage="adding"))


@recruiter.task
def stays(folder: str) -> None:
    """Does not leave when it is told to."""
    current_job.stage("staying", progress=0.5)
    current_job.log("begun")
    Path(folder, "child").write_text(str(os.getpid()))
    while True:
        try:
            time.sleep(600)
        except BaseException:
            current_job.log("no")
