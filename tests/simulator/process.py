"""A simulated process: its own clock, which may be wrong, a real store, and threads."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from recruiter.clock import SystemClock
from recruiter.events import Event, Events
from recruiter.store.connection import Target
from recruiter.store.database import Store
from tests.simulator.client import Client
from tests.simulator.hub import Hub, Threads, Turn
from tests.simulator.server import Server
from tests.simulator.weather import CALM, ProcessNetwork, Weather

TARGET = Target.parse("mongodb://simulated/simulated", prefix="")
_BUGS = ("loop.failed", "flow.broken", "scheduler.broken", "job.reduced", "job.set_aside", "listener.failed")
"""Events that no weather explains. In the product they mean a bug, or a document that was written by hand."""


class HostClock(SystemClock):
    """The virtual time, moved by the error of this host's clock."""

    def __init__(self, hub: Hub, epoch: datetime, wrong_by: timedelta) -> None:
        super().__init__()
        self._hub = hub
        self._epoch = epoch
        self._wrong_by = wrong_by

    def host_time(self) -> datetime:
        return self._epoch + timedelta(seconds=self._hub.now) + self._wrong_by

    def monotonic(self) -> float:
        return self._hub.now


class Outside:
    """The parts that all processes of one world share."""

    def __init__(
        self,
        hub: Hub,
        server: Server,
        weather: Callable[[], Weather],
        on_bug: Callable[[str], None],
        tell: Callable[[str], None] | None,
    ) -> None:
        self.hub = hub
        self.server = server
        self.weather = weather
        self.on_bug = on_bug
        self.tell = tell
        """Called with each call and its result; None if they are not printed."""
        self.processes: list[Process] = []
        """All that there ever were."""

    @property
    def calm(self) -> bool:
        """Whether the faults have ended."""
        return self.weather() is CALM


class Process:
    """A process that can be frozen, cut off and killed at any call."""

    def __init__(
        self,
        name: str,
        outside: Outside,
        clock: HostClock,
        *,
        parent: Process | None = None,
        weather: Callable[[], Weather] | None = None,
    ) -> None:
        hub = outside.hub
        self.name = name
        self.outside = outside
        self.hub = hub
        self.parent = parent
        self.clock = clock
        self.threads = Threads(hub)
        self.hits: list[tuple[float, str]] = []
        tell = outside.tell
        told = None if tell is None else lambda what: tell(f"{name} {what}")
        self.network = ProcessNetwork(
            hub, self.threads, weather or outside.weather, lambda what: self.hits.append((hub.now, what)), told
        )
        client: Any = Client(outside.server, self.network, lambda: UUID(bytes=hub.random.randbytes(16), version=4))
        self.store = Store(TARGET, clock=self.clock, application_client=client)
        # Its lock is held during calls, in which the other threads of this process must continue.
        transactions: Any = self.store.transactions
        assert hasattr(transactions, "_turn")
        transactions._turn = Turn(hub)
        self.events = Events()
        self.events.listen(self._hear)
        outside.processes.append(self)

    def child(self, name: str) -> Process:
        """A process of the same host, with its own store."""
        return Process(name, self.outside, self.clock, parent=self)

    def _hear(self, event: Event) -> None:
        if event.name in _BUGS and not self.dead:
            self.outside.on_bug(f"{self.name} emits {event.name}: {event.fields}")

    @property
    def dead(self) -> bool:
        return self.threads.dead or (self.parent is not None and self.parent.dead)

    def was_hit_since(self, moment: float) -> bool:
        hits = self.hits if self.parent is None else [*self.hits, *self.parent.hits]
        return any(at >= moment for at, _ in hits)
