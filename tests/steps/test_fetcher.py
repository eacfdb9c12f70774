"""A worker that waits hears of a job from the event of its assignment, and fetches it without reading its list."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta

import pytest

from recruiter.domain.job import JobId
from recruiter.domain.planning.limits import Limit
from recruiter.domain.policy_registry import PolicyRegistry
from recruiter.events import Events
from recruiter.processes.worker.core import WorkerCore
from recruiter.processes.worker.held_job import HeldJob
from recruiter.processes.worker.held_jobs import HeldJobs
from recruiter.settings import Settings
from recruiter.store.codec import Document
from recruiter.store.database import Store
from tests.commands import Command, Recorder, recorded
from tests.conftest import eventually
from tests.samples import a_job, insert


class FreeSlots:
    """A runner that could always start a job."""

    tasks: frozenset[str] | None = frozenset(["add"])
    limits: Sequence[Limit] = ()
    has_free_slot = True
    prefetch = 0
    policies = PolicyRegistry()

    def __init__(self) -> None:
        self.woken = threading.Event()

    def wake(self) -> None:
        self.woken.set()

    def running(self) -> list[tuple[HeldJob, datetime]]:
        return []

    stack: Document | None = None

    def cancel(self, flags: Mapping[JobId, Document]) -> None: ...

    def ask_stack(self, asked: Document) -> None: ...

    def open(self, held_jobs: HeldJobs) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def core(target: str, store: Store, recorder: Recorder) -> Iterator[WorkerCore]:
    """A worker whose heartbeat does not read the list during a test."""
    store.prepare()
    watched = recorded(target, recorder)
    settings = Settings(heartbeat=timedelta(minutes=5), considered_dead_after=timedelta(hours=1))
    core = WorkerCore(watched, Events(), FreeSlots(), settings)
    core.start()
    eventually(lambda: waits(recorder.commands))
    yield core
    core.close()
    watched.close()


def waits(commands: list[Command]) -> bool:
    """Whether it listens, and has asked since: what was assigned before the stream was open is in no event."""
    asked = [
        next(iter(command))
        for command in commands
        if "recruiter.roster" in (command.get("find"), command.get("aggregate"))
    ]
    listens = any(command.get("collection") == "recruiter.roster" for command in commands)
    return listens and "aggregate" in asked and asked[-1] == "find"


def fetched(core: WorkerCore) -> list[JobId]:
    return [job.id for job in core.held_jobs.take(10)]


def assign(store: Store, core: WorkerCore, *ids: JobId) -> None:
    assert store.roster.assign({core.held_jobs.worker: list(ids)}, store.leases.term() + 1)


def reads_of_the_list(commands: list[Command]) -> list[Command]:
    return [command for command in commands if command.get("find") == "recruiter.roster"]


def test_a_job_is_fetched_without_reading_the_list(store: Store, core: WorkerCore, recorder: Recorder) -> None:
    first, second = insert(store, a_job(), a_job())

    with recorder.only_these() as commands:
        for id in (first, second):  # the first list was empty, the second is not
            assign(store, core, id)
            eventually(lambda id=id: fetched(core) == [id])  # type: ignore[misc]

    assert reads_of_the_list(commands) == []
