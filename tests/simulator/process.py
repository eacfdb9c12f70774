"""What every simulated process has: a clock of its own, which may be wrong, a real store, and threads."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from recruiter.clock import SystemClock
from recruiter.store.connection import Target
from recruiter.store.database import Store
from tests.simulator.client import Client
from tests.simulator.documents import Document
from tests.simulator.hub import Hub, Threads, Turn
from tests.simulator.server import Server
from tests.simulator.weather import CALM, ProcessNetwork, Weather

TARGET = Target.parse("mongodb://simulated/simulated", prefix="")


class HostClock(SystemClock):
    """The virtual time, moved by what is wrong with the clock of this host."""

    def __init__(self, hub: Hub, epoch: datetime, wrong_by: timedelta) -> None:
        super().__init__()
        self._hub = hub
        self._epoch = epoch
        self.wrong_by = wrong_by

    def host_time(self) -> datetime:
        return self._epoch + timedelta(seconds=self._hub.now) + self.wrong_by

    def monotonic(self) -> float:
        return self._hub.now


class Process:
    """A process that can be frozen, cut off and killed at any call."""

    def __init__(
        self,
        name: str,
        hub: Hub,
        server: Server,
        epoch: datetime,
        weather: Callable[[], Weather],
        wrong_by: timedelta = timedelta(),
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self.name = name
        self.hub = hub
        self.threads = Threads(hub)
        self.hits: list[tuple[float, str]] = []
        self.clock = HostClock(hub, epoch, wrong_by)
        self._weather = weather
        self._server = server
        told = None if tell is None else lambda what: tell(f"{name} {what}")
        self.network = ProcessNetwork(hub, self.threads, weather, lambda what: self.hits.append((hub.now, what)), told)
        client: Any = Client(server, self.network, lambda: UUID(int=hub.random.getrandbits(128), version=4))
        self.store = Store(TARGET, clock=self.clock, application_client=client)
        # Its lock is held during calls, which take no real time here: the other threads of this process must go on.
        transactions: Any = self.store.transactions
        assert hasattr(transactions, "_turn")
        transactions._turn = Turn(hub)

    @property
    def calm(self) -> bool:
        """Whether nothing goes wrong any more: then nobody needs to look as often as while something may be met."""
        return self._weather() is CALM

    def stored(self, collection: str, key: Any) -> Document:
        """What is there now; it is never changed in place."""
        return self._server.collections.get(collection, {}).get(key, {})

    @property
    def dead(self) -> bool:
        return self.threads.dead

    def was_hit_since(self, moment: float) -> bool:
        return any(at >= moment for at, _ in self.hits)
