"""The faults. One seed makes every choice: the fault, its victim and its duration. Every fault is in the ledger."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pymongo import MongoClient, timeout
from pymongo.errors import PyMongoError

from tests.chaos.fleet import Child, Fleet, Member
from tests.chaos.hosts import Hosts
from tests.chaos.ledger import Ledger
from tests.replica_set import EmbeddedReplicaSet

_DEADLY = (signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, 40)
"""Signals that kill a child: usually the kernel's, sometimes those of its own code, and a signal without a name."""
AT_LAST = "child killed at last"
"""The fault after all others, when everything was quiet again."""
_STORM = 30.0
"""Seconds of a storm of MongoDB, and between two of them."""
_TRIES = 5
_STOPPED_WITHIN = 20.0
"""Seconds that a rolling restart waits for one process; a frozen process stops later."""
_PAIRED = 0.1
"""The share of faults that come together with a fault of another process."""
_STEPS = (-30, -3, 3, 30)
_STEPS_OF_HOST = (-86_400, *_STEPS, 86_400)
"""Seconds by which clocks are moved."""
_BALLAST_BYTES, _BALLAST_WITHIN = 1 << 20, 10.0
"""The size of the documents that are written to a full disk until the node refuses them, and the seconds for that."""

Weighted = Sequence[tuple[Callable[[], None], int]]
"""Faults, and how often each comes."""
_ROLES = {
    "worker": (6, 4, 3),
    "leader": (6, 3, 3),
    "cleaner": (1, 1, 1),
    "producer": (3, 1, 1),
    "inline": (3, 1, 1),
    "user": (1, 1, 1),
}
"""For each role, the frequencies of a kill, a freeze and a request to stop."""


@dataclass
class Fault:
    kind: str
    at: float
    pids: list[int] = field(default_factory=list)
    """The processes that were hit; empty for a fault of MongoDB, which concerns all processes."""
    until: float = 0.0
    """When the cause was removed; 0 until then."""
    is_paired: bool = False
    """Whether another process was hit together with this one."""
    held: set[str] = field(default_factory=set)
    """The jobs that the roster gave to the processes that were hit, until their workers were retired."""

    @property
    def hits_everybody(self) -> bool:
        return self.kind.startswith(("primary", "MongoDB"))

    @property
    def is_polite(self) -> bool:
        """Whether the processes could continue: they were asked to stop and had time for it, or only their clock was
        set."""
        return self.kind.endswith(("restarted", "restart", "clock set"))

    @property
    def end(self) -> float:
        return self.until or self.at


class _Now(threading.local):
    """The fault that this thread causes."""

    is_paired = False
    count = 0


class Faults:
    """Breaks one thing after the other until the run is over, then repairs everything."""

    def __init__(
        self,
        fleet: Fleet,
        replica_set: EmbeddedReplicaSet,
        hosts: Hosts,
        folder: Path,
        *,
        seed: int,
        dead_after: float,
        leader_pid: Callable[[], int | None],
    ) -> None:
        self._leader_pid = leader_pid
        self.faults: list[Fault] = []
        self._fleet = fleet
        self._set = replica_set
        self._hosts = hosts
        self._ledger = Ledger(folder, "faults")
        self._chance = random.Random(seed)
        self._dead_after = dead_after
        self._frozen: set[int] = set()
        self._stop = threading.Event()
        self._rolling: threading.Thread | None = None
        self._now = _Now()

    # -- processes -----------------------------------------------------------------------------------------------

    def kill_child(self) -> None:
        for child in self._child():
            self._kill("child killed", [child.pid], self._chance.choice(_DEADLY), also=[child.guard])

    def freeze_child(self) -> None:
        for child in self._child():
            self._freeze("child frozen", [child.pid], self._dead_after * self._chance.choice((0.1, 0.5, 1.5)))

    def kill_guard(self) -> None:
        for child in self._child():
            self._kill("guard killed", [child.guard], also=[child.pid])

    def kill_children_of(self, worker: Member) -> None:
        children = worker.children()
        self._kill(AT_LAST, [child.pid for child in children], also=[child.guard for child in children])

    def kill(self, role: str) -> None:
        for member in self._member(role):
            self._kill(f"{role} killed", [member.pid])

    def freeze(self, role: str) -> None:
        """Freezes a process for less or more than the dead-after time. A worker may freeze with or without its
        children."""
        for member in self._member(role):
            pids = member.family() if role == "worker" and self._chance.random() < 0.5 else [member.pid]
            self._freeze(f"{role} frozen", pids, self._dead_after * self._chance.choice((0.5, 1.5, 2.0)))

    def restart(self, role: str) -> None:
        for member in self._member(role):
            self._note(f"{role} restarted", member.family())
            member.signal(signal.SIGTERM)

    def restart_all(self) -> None:
        """A deploy: one process after the other is asked to stop, and its successor starts. Other faults continue
        meanwhile."""
        if self._rolling is None or not self._rolling.is_alive():
            self._rolling = threading.Thread(target=self._restart_all, name="rolling restart")
            self._rolling.start()

    def _restart_all(self) -> None:
        members = [member for member in self._fleet.members if member.running]
        fault = self._note("rolling restart", [pid for member in members for pid in member.family()])
        for member in members:
            old = member.process
            member.signal(signal.SIGTERM)
            deadline = time.monotonic() + _STOPPED_WITHIN
            while old.poll() is None and time.monotonic() < deadline and not self._stop.is_set():
                self._stop.wait(0.05)
            self._fleet.keep()
        self._healed(fault)

    def set_host_clock(self) -> None:
        """Sets the clock of the host of the fleet for some seconds. The nodes of MongoDB have their own clocks."""
        clock = self._hosts.clock_of_fleet
        if clock is not None:
            fault = self._note("host clock set")
            clock.step(self._chance.choice(_STEPS_OF_HOST))
            self._heal_after(self._chance.uniform(1.0, 5.0), fault, lambda: clock.step(0))

    # -- MongoDB -------------------------------------------------------------------------------------------------

    def kill_primary(self) -> None:
        node = self._set.primary()
        fault = self._note("primary killed")
        self._set.kill(node)
        self._rest(2.0, 5.0)
        self._set.restart(node)
        self._healed(fault)

    def freeze_primary(self) -> None:
        node = self._set.primary()
        pid = node.pid
        if pid is None:
            return
        fault = self._note("primary frozen")
        os.kill(pid, signal.SIGSTOP)
        self._frozen.add(pid)
        self._rest(4.0, 8.0)
        self._thaw([pid])
        self._healed(fault)

    def step_down(self) -> None:
        node = self._set.primary()
        fault = self._note("primary stepped down")
        client: MongoClient[Any] = MongoClient(node.address, directConnection=True)
        with suppress(PyMongoError), client:
            client.admin.command("replSetStepDown", 3, secondaryCatchUpPeriodSecs=1, force=True)
        self._set.primary()
        self._healed(fault)

    def fill_disk(self) -> None:
        """Fills the disk of the primary until it refuses to write or ends; then frees the disk and starts it again."""
        node = self._set.primary()
        place = self._set.nodes.index(node)
        disk = self._hosts.disks[place]
        fault = self._note("primary disk full")
        if disk.fill():
            _write_until_refused(node.address)
            self._rest(1.0, 4.0)
        disk.free()
        self._set.kill(node)
        self._set.restart(node)
        client: MongoClient[Any] = MongoClient(self._set.uri)
        with suppress(PyMongoError), client, timeout(_BALLAST_WITHIN):
            client.drop_database("ballast")
        self._healed(fault)

    def set_clock(self) -> None:
        """Sets the clock of the primary for some seconds."""
        clock = self._hosts.clocks[self._set.nodes.index(self._set.primary())]
        fault = self._note("primary clock set")
        clock.step(self._chance.choice(_STEPS))
        self._rest(2.0, 6.0)
        clock.step(0)
        self._set.primary()
        self._healed(fault)

    def stop_everything(self) -> None:
        fault = self._note("MongoDB stopped")
        for node in self._set.nodes:
            node.kill()
        self._rest(1.0, 4.0)
        for node in self._set.nodes:
            node.start()
        self._set.primary()
        self._healed(fault)

    # -- a run ---------------------------------------------------------------------------------------------------

    def run(self, is_over: Callable[[], bool], pause: float, database_pause: float) -> None:
        """Breaks processes and the database, each in its own pace, until all work was sent; then mends everything."""
        database = threading.Thread(
            target=self._loop, args=(self._database_faults(), is_over, database_pause), kwargs={"storms": True}
        )
        keeper = threading.Thread(target=self._keep, name="keeper")
        database.start()
        keeper.start()
        self._loop(self._process_faults(), is_over, pause)
        database.join()
        self._stop.set()
        keeper.join()
        if self._rolling is not None:
            self._rolling.join()
        self._thaw(list(self._frozen))

    def _keep(self) -> None:
        """Whatever has died comes back soon: a fleet that is away proves nothing."""
        while not self._stop.wait(0.2):
            self._fleet.keep()

    def _process_faults(self) -> Weighted:
        of_roles: list[tuple[Callable[[], None], int]] = [
            (partial(act, role), weight)
            for role, weights in _ROLES.items()
            for act, weight in zip((self.kill, self.freeze, self.restart), weights, strict=True)
        ]
        own_clock: Weighted = [(self.set_host_clock, 1)] if self._hosts.clock_of_fleet is not None else []
        return [
            *((self.kill_child, 55), (self.freeze_child, 3), (self.kill_guard, 5), (self.restart_all, 1)),
            *(*of_roles, *own_clock),
        ]

    def _database_faults(self) -> Weighted:
        return [
            *((self.step_down, 10), (self.kill_primary, 6), (self.freeze_primary, 4), (self.stop_everything, 2)),
            *([(self.fill_disk, 2)] if self._hosts.disks else []),
            *([(self.set_clock, 2)] if self._hosts.clocks else []),
        ]

    def _loop(self, kinds: Weighted, is_over: Callable[[], bool], pause: float, *, storms: bool = False) -> None:
        """With `storms` only in every second half minute: in the others runs can be seen that no fault of MongoDB could
        have cost their record."""
        chance = random.Random(self._chance.random())
        began = time.monotonic()
        while not is_over():
            self._stop.wait(min(chance.expovariate(1 / pause), 4 * pause))
            if storms and (time.monotonic() - began) // _STORM % 2 == 1:
                continue
            if chance.random() < _PAIRED:
                self._one_of(self._process_faults(), chance)
                self._one_of(kinds, chance, is_paired=True)
            else:
                self._one_of(kinds, chance)

    def _one_of(self, kinds: Weighted, chance: random.Random, *, is_paired: bool = False) -> None:
        """Causes one of these faults; another one if its victim does not run."""
        self._now.is_paired, self._now.count = is_paired, 0
        for act in chance.choices([kind for kind, _ in kinds], [weight for _, weight in kinds], k=_TRIES):
            act()
            if self._now.count:
                break

    def _kill(self, kind: str, pids: list[int], number: int = signal.SIGKILL, *, also: Sequence[int] = ()) -> None:
        """`also` are processes that die with them."""
        if pids:
            self._note(kind, [*pids, *also])
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _freeze(self, kind: str, pids: list[int], seconds: float) -> None:
        fault = self._note(kind, pids)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                self._frozen.add(pid)

        self._heal_after(seconds, fault, lambda: self._thaw(pids))

    def _heal_after(self, seconds: float, fault: Fault, heal: Callable[[], None]) -> None:
        def healed() -> None:
            heal()
            self._healed(fault)

        timer = threading.Timer(seconds, healed)
        timer.daemon = True
        timer.start()

    def _thaw(self, pids: Iterable[int]) -> None:
        for pid in pids:
            self._frozen.discard(pid)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def _child(self) -> list[Child]:
        children = self._chance.choice(self._fleet.workers).children()
        return [self._chance.choice(children)] if children else []

    def _member(self, role: str) -> list[Member]:
        """A running process of this role. Nine times of ten it is a worker with children, or the leader of the lease:
        on a slow machine, a fleet that is hit during every start would never run a job."""
        members = [member for member in self._fleet.members if member.role == role and member.running]
        usual = members
        if role == "worker":
            usual = [worker for worker in members if worker.children()]
        elif role == "leader":
            pid = self._leader_pid()
            usual = [member for member in members if member.pid == pid]
        chosen = usual if self._chance.random() < 0.9 else members
        return [self._chance.choice(chosen)] if chosen else []

    def _rest(self, least: float, most: float) -> None:
        time.sleep(self._chance.uniform(least, most))

    def _note(self, kind: str, pids: list[int] | None = None) -> Fault:
        fault = Fault(kind, time.monotonic(), pids or [], is_paired=self._now.is_paired)
        self._now.count += 1
        self.faults.append(fault)
        self._ledger.write("fault", kind=kind, pids=fault.pids)
        return fault

    def _healed(self, fault: Fault) -> None:
        fault.until = time.monotonic()
        self._ledger.write("healed", kind=fault.kind, since=fault.at)


def _write_until_refused(address: str) -> None:
    """The journal has reserved its space, so small writes do not notice that the disk is full."""
    client: MongoClient[Any] = MongoClient(address, directConnection=True)
    with suppress(PyMongoError), client, timeout(_BALLAST_WITHIN):
        while True:
            client.ballast.ballast.insert_one({"data": os.urandom(_BALLAST_BYTES)})
