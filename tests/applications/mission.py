"""The application of the mission's tests: one task for each kind of job that the mission names."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path
from typing import Any

from recruiter import Event, ExponentialBackoff, Recruiter, RetryManyTimes, Workable, current_job
from recruiter.workables.factory import FactoryMethodCommand
from recruiter.workables.outcomes import AlwaysFail, AlwaysSucceed, ExitAbruptly, FailsInConstructor, LazyBones
from recruiter.workables.shell import ShellCommand

__all__ = ["AlwaysFail", "AlwaysSucceed", "ExitAbruptly", "FactoryMethodCommand", "FailsInConstructor", "LazyBones"]

recruiter = Recruiter()
if not __name__.startswith("tests."):  # a worker has loaded it, not a test
    ShellCommand.enable("echo", "sh")


def note(folder: str, name: str, line: object) -> None:
    with (Path(folder) / name).open("a") as file:
        file.write(f"{line}\n")


def lines(folder: Path, name: str) -> list[str]:
    path = folder / name
    return path.read_text().splitlines() if path.exists() else []


@recruiter.task
def add(a: int, b: int) -> int:
    return a + b


@recruiter.task
async def add_async(a: int, b: int) -> int:
    return a + b


@recruiter.task
def record(folder: str, name: str, line: str) -> None:
    note(folder, name, line)


@recruiter.task
def hold(folder: str, name: str) -> int:
    """Notes its start and runs until the file `NAME.over` exists."""
    note(folder, name, os.getpid())
    while not (Path(folder) / f"{name}.over").exists():
        time.sleep(0.02)
    return os.getpid()


@recruiter.task(
    group="defaults", priority=7, tags=["a", "b"], retry=RetryManyTimes(2, 60), timeout="5m", needs={"proc": 0.5}
)
def with_defaults() -> None: ...


@recruiter.task
def fail(kind: str = "ValueError") -> None:
    raise {"ValueError": ValueError, "ConnectionError": ConnectionError}[kind]("as asked")


@recruiter.task
def fail_until(folder: str, name: str, times: int) -> int:
    """Fails the given number of times."""
    note(folder, name, time.time())
    if current_job.attempt <= times:
        raise ConnectionError(f"attempt {current_job.attempt}")
    return current_job.attempt


@recruiter.task(retry=ExponentialBackoff(3, "0.2s"))
def know_yourself() -> dict[str, Any]:
    if current_job.attempt == 1:
        raise ConnectionError("first")
    more = add.enqueue(1, 1)
    before = current_job.previous_failure
    return {
        "id": str(current_job.id),
        "attempt": current_job.attempt,
        "last": current_job.is_last_attempt,
        "before": before.message if before else None,
        "more": str(more.id),
    }


@recruiter.task
def staged(folder: str) -> str:
    current_job.stage("load", progress=0.1)
    current_job.log("loading")
    current_job.stage("load", progress=0.3)
    current_job.stage("store", progress=0.8)
    current_job.log("storing")
    while not (Path(folder) / "staged.over").exists():
        time.sleep(0.02)
    return "stored"


@recruiter.task
def program(*argv: str) -> str:
    return str(current_job.run_process(list(argv))["stdout"])


@recruiter.task
def program_that_stays(folder: str) -> None:
    current_job.run_process(["sh", "-c", f"echo $$ > {folder}/program.pid; sleep 600"])


@recruiter.task
def die(how: str) -> None:
    if how == "segfault":
        ctypes.string_at(0)
    elif how == "exit":
        raise SystemExit(3)
    os._exit(9)


@recruiter.task
def endless(folder: str, name: str, stubborn: bool = False) -> None:
    note(folder, name, os.getpid())
    while True:
        try:
            time.sleep(0.05)
        except BaseException as error:
            note(folder, name, type(error).__name__)
            if not stubborn:
                raise


@recruiter.task(at_most_once=True)
def at_most_once(folder: str, name: str) -> None:
    note(folder, name, os.getpid())
    while not (Path(folder) / f"{name}.over").exists():
        time.sleep(0.02)


class Letter(Workable, name="mission.Letter", tags=["letter", "post"]):
    def __init__(self, folder: str, text: str) -> None:
        self.folder = folder
        self.text = text

    def execute(self) -> str:
        return f"sent {self.text}"

    def whisper(self) -> str:
        return self.text.lower()

    def explode(self) -> None:
        raise ValueError(self.text)

    def after_success(self, result: str) -> None:
        note(self.folder, self.text, f"success {result}")

    def after_failure(self, error: BaseException) -> None:
        note(self.folder, self.text, f"failure {error}")

    def after_last_failure(self, error: BaseException) -> None:
        note(self.folder, self.text, f"last failure {error}")

    def finalize(self, error: BaseException | None) -> None:
        note(self.folder, self.text, f"finalize {error}")
        raise RuntimeError("a finalizer's own fault")

    def on_event(self, event: Event) -> None:
        note(self.folder, f"{self.text}.events", event.name)


@recruiter.task
def durable(folder: str, name: str) -> str:
    first = current_job.once("first", _count, folder, name)
    current_job.sleep("0.3s")
    approved = current_job.wait_for("approved", timeout="60s")
    return f"{first} {approved}"


def _count(folder: str, name: str) -> int:
    note(folder, name, "once")
    return len(lines(Path(folder), name))


@recruiter.task
def transfer(amount: int) -> None:
    with current_job.transaction() as session:
        accounts = session.client.get_default_database()["accounts"]
        accounts.update_one({"_id": "ada"}, {"$inc": {"balance": amount}}, upsert=True, session=session)


def recruiter_became_master(leading: Recruiter) -> None:
    assert leading is recruiter
    if "MISSION_HOOKS" in os.environ:
        note(os.environ["MISSION_HOOKS"], "hooks", "became")
        raise RuntimeError("a hook's own fault")


def recruiter_stept_back(leading: Recruiter) -> None:
    assert leading is recruiter
    if "MISSION_HOOKS" in os.environ:
        note(os.environ["MISSION_HOOKS"], "hooks", "stept back")
