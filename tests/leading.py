"""A leader in a thread of the test, for tests that need no process of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from recruiter.domain.policy_registry import PolicyRegistry, SchedulePolicyRegistry
from recruiter.events import Events, Listener
from recruiter.processes.loop import Stop
from recruiter.processes.recruiter import RecruiterProcess
from recruiter.settings import Settings
from recruiter.store.database import Store


def a_leader(store: Store, stop: Stop, settings: Settings, *heard: Listener, listen: bool = True) -> RecruiterProcess:
    """A leader that knows no policy of an application; `heard` are told its events."""
    events = Events()
    for listener in heard:
        events.listen(listener)
    policies, schedules = PolicyRegistry(), SchedulePolicyRegistry()
    return RecruiterProcess(store, events, stop, settings, policies=policies, schedules=schedules, listen=listen)


@contextmanager
def leading(store: Store, settings: Settings, *heard: Listener) -> Iterator[None]:
    """Leads while the block runs."""
    stop = Stop()
    thread = threading.Thread(target=a_leader(store, stop, settings, *heard).run, name="leader")
    thread.start()
    try:
        yield
    finally:
        stop.ask()
        thread.join(timeout=20)
        assert not thread.is_alive()
