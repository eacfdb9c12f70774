"""The faults: what is broken, how, and for how long. Every choice comes from one seed; every fault is written down."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pymongo import MongoClient
from pymongo.errors import PyMongoError

from tests.chaos.fleet import Child, Fleet, Member
from tests.chaos.ledger import Ledger
from tests.replica_set import EmbeddedReplicaSet

_DEADLY = (signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, 40)
"""What kills a child: by far most often the kernel, also its own code; and a signal without a name."""
AT_LAST = "child killed at last"
"""The fault after all others, when everything was quiet again."""
_STORM = 30.0
"""Seconds of a storm of MongoDB, and between two of them."""
_TRIES = 5
_STOPPED_WITHIN = 20.0
"""Seconds that a rolling restart waits for one worker; one that is frozen meanwhile stops later."""


@dataclass
class Fault:
    kind: str
    at: float
    pids: list[int] = field(default_factory=list)
    """Which processes were hit; empty where it was MongoDB, which hits everybody."""
    until: float = 0.0
    """When the cause was taken away; 0 as long as it is there."""

    @property
    def hits_everybody(self) -> bool:
        return self.kind.startswith(("primary", "MongoDB"))

    @property
    def is_polite(self) -> bool:
        """Whether the processes were asked to stop, and could do so in their own time."""
        return self.kind.endswith(("restarted", "restart"))


class Faults:
    """Breaks one thing after the other until told to stop, then mends all of it."""

    def __init__(
        self,
        fleet: Fleet,
        replica_set: EmbeddedReplicaSet,
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
        self._ledger = Ledger(folder, "faults")
        self._chance = random.Random(seed)
        self._dead_after = dead_after
        self._frozen: set[int] = set()
        self._stop = threading.Event()
        self._rolling: threading.Thread | None = None

    # -- processes -----------------------------------------------------------------------------------------------

    def kill_child(self) -> None:
        for child in self._child():
            self._kill("child killed", [child.pid], self._chance.choice(_DEADLY), also=[child.guard])

    def kill_guard(self) -> None:
        for child in self._child():
            self._kill("guard killed", [child.guard], also=[child.pid])

    def kill_children_of(self, worker: Member) -> None:
        children = worker.children()
        self._kill(AT_LAST, [child.pid for child in children], also=[child.guard for child in children])

    def kill_worker(self) -> None:
        for worker in self._worker():
            self._kill("worker killed", [worker.pid])

    def kill_leader(self) -> None:
        for leader in self._leader():
            self._kill("leader killed", [leader.pid])

    def kill_producer(self) -> None:
        running = [producer for producer in self._fleet.producers if producer.running]
        if running:
            self._kill("producer killed", [self._chance.choice(running).pid])

    def kill_cleaner(self) -> None:
        self._kill("cleaner killed", [self._fleet.cleaner.pid])

    def freeze_worker(self) -> None:
        """Only the supervisor, or everything below it too; shorter or longer than it takes to be declared dead."""
        for worker in self._worker():
            pids = worker.family() if self._chance.random() < 0.5 else [worker.pid]
            self._freeze("worker frozen", pids, self._dead_after * self._chance.choice((0.5, 1.5, 2.0)))

    def kill_inline(self) -> None:
        self._kill("inline killed", [self._fleet.inline.pid])

    def freeze_inline(self) -> None:
        seconds = self._dead_after * self._chance.choice((0.5, 1.5))
        self._freeze("inline frozen", [self._fleet.inline.pid], seconds)

    def freeze_leader(self) -> None:
        for leader in self._leader():
            self._freeze("leader frozen", [leader.pid], self._dead_after * self._chance.choice((0.5, 1.5)))

    def restart_worker(self) -> None:
        for worker in self._worker():
            self._note("worker restarted", worker.family())
            worker.signal(signal.SIGTERM)

    def restart_all_workers(self) -> None:
        """A deploy: one worker after the other stops as it was asked to, and its successor starts. Other faults go on
        meanwhile."""
        if self._rolling is None or not self._rolling.is_alive():
            self._rolling = threading.Thread(target=self._restart_all_workers, name="rolling restart")
            self._rolling.start()

    def _restart_all_workers(self) -> None:
        fault = self._note("rolling restart", [pid for worker in self._fleet.workers for pid in worker.family()])
        for worker in self._fleet.workers:
            old = worker.process
            worker.signal(signal.SIGTERM)
            deadline = time.monotonic() + _STOPPED_WITHIN
            while old.poll() is None and time.monotonic() < deadline and not self._stop.is_set():
                self._stop.wait(0.05)
            self._fleet.keep()
        self._healed(fault)

    def restart_leader(self) -> None:
        for leader in self._leader():
            self._note("leader restarted", [leader.pid])
            leader.signal(signal.SIGTERM)

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

    def run(self, seconds: float, pause: float, database_pause: float) -> None:
        """Breaks processes and the database, each in its own pace, for so long; then everything is mended."""
        database = threading.Thread(
            target=self._loop, args=(self._database_faults(), seconds, database_pause), kwargs={"storms": True}
        )
        keeper = threading.Thread(target=self._keep, name="keeper")
        database.start()
        keeper.start()
        self._loop(self._process_faults(), seconds, pause)
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

    def _process_faults(self) -> list[tuple[Callable[[], None], int]]:
        return [
            *(
                (self.kill_child, 55),
                (self.kill_guard, 5),
                (self.kill_worker, 6),
                (self.kill_leader, 6),
                (self.freeze_worker, 4),
            ),
            *((self.freeze_leader, 3), (self.restart_worker, 3), (self.restart_leader, 3)),
            *((self.kill_producer, 3), (self.kill_cleaner, 1), (self.restart_all_workers, 1)),
            *((self.kill_inline, 3), (self.freeze_inline, 1)),
        ]

    def _database_faults(self) -> list[tuple[Callable[[], None], int]]:
        return [(self.step_down, 5), (self.kill_primary, 3), (self.freeze_primary, 2), (self.stop_everything, 1)]

    def _loop(
        self, kinds: list[tuple[Callable[[], None], int]], seconds: float, pause: float, *, storms: bool = False
    ) -> None:
        """With `storms` only in every second half minute: in the others runs can be seen that no fault of MongoDB could
        have cost their record."""
        chance = random.Random(self._chance.random())
        began = time.monotonic()
        while time.monotonic() < began + seconds and not self._stop.is_set():
            self._stop.wait(min(chance.expovariate(1 / pause), 4 * pause, began + seconds - time.monotonic()))
            if storms and (time.monotonic() - began) // _STORM % 2 == 1:
                continue
            before = len(self.faults)
            for act in chance.choices([kind for kind, _ in kinds], [weight for _, weight in kinds], k=_TRIES):
                act()
                if len(self.faults) > before:  # who is to be hit may not be there
                    break

    def _kill(self, kind: str, pids: list[int], number: int = signal.SIGKILL, *, also: Sequence[int] = ()) -> None:
        """With `also`: who dies with them."""
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

        def wake() -> None:
            self._thaw(pids)
            self._healed(fault)

        timer = threading.Timer(seconds, wake)
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

    def _worker(self) -> list[Member]:
        """One that is at work, nearly always: otherwise nothing would ever come up on a slow machine, and nothing be
        shown."""
        at_work = [worker for worker in self._fleet.workers if worker.children()]
        return self._one_of(at_work, self._fleet.workers)

    def _leader(self) -> list[Member]:
        """The one that the lease names, likewise."""
        pid = self._leader_pid()
        return self._one_of([member for member in self._fleet.recruiters if member.pid == pid], self._fleet.recruiters)

    def _one_of(self, usual: list[Member], others: list[Member]) -> list[Member]:
        chosen = usual if self._chance.random() < 0.9 else others
        return [self._chance.choice(chosen)] if chosen else []

    def _rest(self, least: float, most: float) -> None:
        time.sleep(self._chance.uniform(least, most))

    def _note(self, kind: str, pids: list[int] | None = None) -> Fault:
        fault = Fault(kind, time.monotonic(), pids or [])
        self.faults.append(fault)
        self._ledger.write("fault", **{key: value for key, value in asdict(fault).items() if key != "at"})
        return fault

    def _healed(self, fault: Fault) -> None:
        fault.until = time.monotonic()
        self._ledger.write("healed", kind=fault.kind, since=fault.at)
