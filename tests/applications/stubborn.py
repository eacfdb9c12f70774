"""Jobs that are hard to stop."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from pathlib import Path

from recruiter import JobCancelled, Recruiter, current_job

recruiter = Recruiter()

GRANDCHILD = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(1000)', {!r}])"


@recruiter.task
def sleep_deep(folder: str, mark: str) -> None:
    """Runs a program that runs a program that sleeps."""
    Path(folder, "started").touch()
    subprocess.run([sys.executable, "-c", GRANDCHILD.format(mark), mark], check=True)


@sleep_deep.finalize
def clean_up(error: BaseException | None) -> None:
    args = current_job.args
    assert isinstance(args, dict)
    Path(args["folder"], "cleaned").write_text(type(error).__name__)


@recruiter.task
def sleep(folder: str, seconds: float = 1000.0) -> None:
    Path(folder, "started").touch()
    time.sleep(seconds)


@recruiter.task
async def sleep_async(folder: str) -> None:
    Path(folder, "started").touch()
    try:
        await asyncio.sleep(1000)
    except asyncio.CancelledError:
        Path(folder, "told").touch()
        raise


@recruiter.task
def swallow(folder: str) -> None:
    """Does not leave when it is told."""
    Path(folder, "started").touch()
    while True:
        try:
            time.sleep(1000)
        except JobCancelled:
            Path(folder, "told").touch()


@recruiter.task
def hold_for_ever(folder: str) -> None:
    """One call into C that does not come back."""
    Path(folder, "started").touch()
    re.match(r"(a+)+$", "a" * 60 + "b")


@recruiter.task
def quick() -> str:
    return "quick"
