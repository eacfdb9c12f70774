"""The calling thread as a runner: what reaches it from other threads reaches the job that was meant."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from recruiter.clock import SystemClock
from recruiter.domain.policy_registry import PolicyRegistry, SchedulePolicyRegistry
from recruiter.events import Events
from recruiter.interruption import Interruptible
from recruiter.processes.inline.runner import InlineApplication, InlineRunner
from recruiter.processes.worker.held_job import HeldJob
from recruiter.processes.worker.held_jobs import HeldJobs
from recruiter.registry import Registry
from recruiter.store import outcomes
from recruiter.store.codec import encode, job_document
from recruiter.store.roster_fields import Holding
from tests.samples import NOW, a_job


class Runs:
    """Instead of an executor: each job runs until it is let go."""

    def __init__(self) -> None:
        self.begun: dict[str, Interruptible] = {}
        self.gates = {name: threading.Event() for name in ("first", "second")}
        self.changed = threading.Condition()

    def run(self, raw: bytes, interruptible: Interruptible, **_: Any) -> Any:
        name = "first" if b"first" in raw else "second"
        with self.changed:
            self.begun[name] = interruptible
            self.changed.notify_all()
        assert self.gates[name].wait(10)
        return outcomes.unreadable(name, raw, NOW, "it has ended")

    def await_begun(self, name: str) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: name in self.begun, 10)

    def close(self) -> None: ...


class Flags(dict[Any, Any]):
    """A flag that is read when the next job has begun."""

    runs: Runs

    def __getitem__(self, id: Any) -> Any:
        self.runs.gates["first"].set()
        self.runs.await_begun("second")
        return super().__getitem__(id)


@pytest.fixture
def runs() -> Runs:
    return Runs()


def test_a_cancel_does_not_hit_the_next_job(runs: Runs) -> None:
    """Given a cancel of a job that ends while the cancel is on its way, then the next job goes on."""
    application = InlineApplication(Registry(), PolicyRegistry(), SchedulePolicyRegistry(), cast(Any, lambda _: runs))
    runner = InlineRunner(application, SystemClock(), Events(), frozenset(["add"]))
    held = HeldJobs("w1")
    jobs = [HeldJob.read(name, encode(job_document(a_job(name)))) for name in ("first", "second")]
    held.hear(Holding([job.id for job in jobs], 0, 1))
    held.fetched(held.to_fetch(), jobs)
    runner.open(held)

    def work() -> None:
        for _ in jobs:
            job = runner.take(1.0)
            assert job is not None
            runner.perform(job)

    working = threading.Thread(target=work)
    working.start()
    runs.await_begun("first")
    flags = Flags(first={"by": "ada"})
    flags.runs = runs

    runner.cancel(flags)

    assert runs.begun["second"].error is None
    runs.gates["second"].set()
    working.join(10)
    assert not working.is_alive()
