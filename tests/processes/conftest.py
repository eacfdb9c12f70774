"""What process tests share: the application of `tests/applications/jobs.py`, on this test's database."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from recruiter.domain.policy_registry import PolicyRegistry, SchedulePolicyRegistry
from recruiter.events import Events
from recruiter.processes.loop import Stop
from recruiter.processes.recruiter import RecruiterProcess
from recruiter.settings import Settings
from recruiter.store.connection import Target
from recruiter.store.database import Store
from tests.applications import jobs

Lead = Callable[..., None]


@pytest.fixture(autouse=True)
def application(target: str, store: Store) -> Iterator[None]:
    del store  # prepared
    jobs.recruiter.point_at(target)
    yield
    jobs.recruiter.close()


@pytest.fixture
def lead(target: str) -> Iterator[Lead]:
    """Leads this test's database, from a thread of the test: for tests about workers, which need not wait until one
    more process is up."""
    stop, threads = Stop(), list[threading.Thread]()
    leading = Store(Target.parse(target))

    def lead(lease_time: float = 5.0, dead_after: float = 15.0) -> None:
        settings = Settings(lease_time=lease_time, considered_dead_after=dead_after)
        policies, schedules = PolicyRegistry(), SchedulePolicyRegistry()
        leading.prepare()
        process = RecruiterProcess(leading, Events(), stop, settings, policies=policies, schedules=schedules)
        threads.append(threading.Thread(target=process.run, name="leader"))
        threads[-1].start()

    yield lead
    stop.ask()
    for thread in threads:
        thread.join(timeout=20)
        assert not thread.is_alive()
    leading.close()
