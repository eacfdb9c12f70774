"""A small world: some recruiters, workers and producers, faults for a while, then calm until everything has ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from recruiter.domain.job import Job
from recruiter.domain.planning.limits import Limit
from recruiter.domain.planning.lookahead import Lookahead
from recruiter.domain.policy_registry import SchedulePolicyRegistry
from recruiter.domain.schedule.policies import Every
from recruiter.domain.schedule.scheduler import Late, Scheduler
from tests.simulator.host import make_virtual
from tests.simulator.hub import Hub
from tests.simulator.ledger import RATE, Ledger
from tests.simulator.people import THEMES, Person
from tests.simulator.process import HostClock, Outside, Process
from tests.simulator.recruiter import start_recruiter
from tests.simulator.rules import Violation
from tests.simulator.server import Server
from tests.simulator.weather import CALM, Weather
from tests.simulator.worker import Worker

EPOCH = datetime(2030, 1, 1, 12, tzinfo=UTC)
URN = "simulated:tick"
_LONGEST_CALM = 240.0


@dataclass(frozen=True)
class Result:
    seed: int
    violation: str | None
    jobs: int
    runs: int
    hits: int
    calls: int


class World:
    def __init__(self, seed: int, *, tells: bool = False) -> None:
        self.seed = seed
        self.hub = Hub(seed)
        self.server = Server(self.hub.monotonic, EPOCH)
        self.ledger = Ledger(self.hub, self.server, lambda: 0.0 if self._calm else 0.05)
        self.server.on_write = lambda changed: self._watched(list(changed))
        self.server.between_documents = self._let_others_in
        self._weather = self._choose_weather()
        self._many_lanes = self.hub.random.random() < 0.5
        self._theme = self.hub.random.choice(THEMES)
        self._calm = False
        self._outside = Outside(
            self.hub,
            self.server,
            lambda: CALM if self._calm else self._weather,
            lambda bug: self.ledger.fail(Violation(bug)),
            self.ledger.note if tells else None,
        )
        self._unwanted: set[str] = set()
        self._producing: list[Process] = []

    def _choose_weather(self) -> Weather:
        """Some worlds know only one kind of trouble, some all of them, some none. In some the leaders depose each other
        all the time, in some calls go wrong all the time."""
        chance = self.hub.random
        kind = chance.random()
        self._lease = 0.3 if kind < 0.35 else 2.0
        if kind < 0.35:
            return Weather(trouble=chance.choice((0.0, 0.03)), freeze=0.015, longest_freeze=0.8)
        if kind < 0.5:
            return Weather(trouble=0.12, crash=0.001)
        whole = Weather(
            trouble=chance.choice((0.0, 0.02, 0.06)),
            crash=chance.choice((0.0, 0.002, 0.006)),
            freeze=chance.choice((0.0, 0.002, 0.006)),
            longest_freeze=chance.choice((2.0, 8.0)),
            cut=chance.choice((0.0, 0.0, 0.004)),
        )
        return whole if chance.random() < 0.95 else CALM

    def run(self) -> Result:
        make_virtual(self.hub, self.seed, many_lanes=self._many_lanes)
        try:
            self._play()
        except Violation as violation:
            self.ledger.fail(violation)
        finally:
            for process in self._outside.processes:
                process.threads.on_death.clear()
                process.threads.die()
            self.hub.close()
        processes = self._outside.processes
        return Result(
            self.seed,
            str(self.ledger.failed) if self.ledger.failed else None,
            len(self.ledger.acknowledged) + sum(map(len, self.ledger.rules.steps.values())),
            sum(map(len, self.ledger.runs.values())),
            sum(len(process.hits) for process in processes),
            sum(process.network.calls for process in processes),
        )

    def _let_others_in(self) -> None:
        if not self._calm and self.hub.chance(0.2):
            self.hub.sleep(self.hub.random.random() * 0.05)

    def _play(self) -> None:
        chance = self.hub.random
        self._prepare()
        for n in range(chance.randint(1, 2) if self._lease > 1 else 3):
            self._keep(f"recruiter-{n}", self._start_recruiter)
        for n in range(chance.randint(1, 3) if self._lease > 1 else 3):
            self._keep(f"worker-{n}", self._start_worker)
        for n in range(chance.choice((1, 1, 2))):
            self._produce(f"producer-{n}")
        if chance.random() < 0.4:
            self._repeat("cleaner", 1.0, Person.forget_old_flows, until=lambda: self._calm)
        if chance.random() < 0.3:
            self.ledger.clocks_agree = False
            self._step_clocks()
        self.hub.run(chance.choice((3.0, 6.0)) if self._lease > 1 else 2.5, self._over)
        self._calm = True
        self._pause_scheduler()
        self._slow_down()
        self._repeat("closer", 0.7, Person.let_all_end)
        self.hub.run(self.hub.now + _LONGEST_CALM, self._settled)
        if self.ledger.failed is None:
            self.ledger.check_the_end(URN)

    def _slow_down(self) -> None:
        """From now on one recruiter is enough: the others would only check the lease. A frozen recruiter stays, and
        wakes up when another one leads. If the leaders deposed each other, a recruiter with a long lease takes their
        place."""
        recruiters = [each for each in self._outside.processes if each.name.startswith("recruiter") and not each.dead]
        if self._lease < 1:
            self._lease, stay = 2.0, set[str]()
        else:
            awake = [process.name for process in recruiters if process.threads.frozen_until <= self.hub.now]
            stay = {*awake[:1], *(process.name for process in recruiters if process.name not in awake)}
        for process in recruiters:
            if process.name not in stay:
                process.threads.die()
        kept = stay or {process.name for process in recruiters[:1]} or {"recruiter-0."}
        self._unwanted = {f"recruiter-{n}" for n in range(3)} - {name.partition(".")[0] for name in kept}

    def _start_recruiter(self, process: Process) -> None:
        """Some look ahead with each round, as if there were many lanes, and use the found jobs for long."""
        far = Lookahead(many_lanes=0, max_age=timedelta(seconds=20))
        start_recruiter(process, self._lease, far if self._many_lanes else Lookahead())

    def _start_worker(self, process: Process) -> None:
        Worker(process, self.ledger, self.hub.random.randint(1, 3)).start(restless=self._lease < 1)

    def _over(self) -> bool:
        return self.ledger.failed is not None

    def _settled(self) -> bool:
        if self._over():
            return True
        there = self.server.collections
        return (
            not there.get("scheduled")
            and not there.get("flow_markers")
            and all("ended" in flow for flow in there.get("flows", {}).values())
            and all(process.dead for process in self._producing)
        )

    def _watched(self, changed: list[tuple[str, Any]]) -> None:
        if self.ledger.failed is None:
            try:
                self.ledger.check(changed)
            except Violation as violation:
                self.ledger.fail(violation)

    # -- the parts of the world ----------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        process = self._process("prepare", calm=True)
        store = process.store

        def prepare() -> None:
            store.limits.set(Limit("task:limited", 1), None, EPOCH)
            store.limits.set(Limit("task:paced", rate=RATE), None, EPOCH)
            template = Job(id="", task="plain", args={"n": 0}, created_at=EPOCH, scheduled_at=EPOCH)
            policy = SchedulePolicyRegistry().dump(Every("2 seconds"))
            first = EPOCH + timedelta(seconds=2)
            store.schedulers.put(Scheduler(URN, template, policy, EPOCH, EPOCH, first, late=Late.ALL))

        process.threads.start(prepare)
        self.hub.run(0.5)

    def _process(self, name: str, *, calm: bool = False) -> Process:
        wrong = self.hub.random.choice((0.0, 0.0, 0.0, 2.0, -40.0, 86_400.0))
        clock = HostClock(self.hub, EPOCH, timedelta(seconds=wrong))
        # Every process measures the server's clock when it starts.
        clock.agree(self.server.now(), 0.0)
        return Process(name, self._outside, clock, weather=(lambda: CALM) if calm else None)

    def _keep(self, name: str, start: Any, generation: int = 0) -> None:
        """Starts it, and its successor when it has died."""
        process = self._process(f"{name}.{generation}")
        start(process)

        def succeed() -> None:
            if name not in self._unwanted:
                self._keep(name, start, generation + 1)

        def died() -> None:
            self.ledger.note(f"{process.name} is dead: {process.hits[-1:]}")
            self.hub.start(succeed, after=0.3 if self._calm else self.hub.random.choice((0.3, 1.2, 4.2)))

        process.threads.on_death.append(died)

    def _step_clocks(self) -> None:
        """The primary moves to a host whose clock is wrong. (A process does not notice steps of its host's clock.)"""

        def step() -> None:
            self.hub.sleep(self.hub.random.uniform(1.0, 6.0))
            self.server.skew += timedelta(seconds=self.hub.random.choice((-7.0, 8.0)))

        self.hub.start(step)

    # -- producers and people ------------------------------------------------------------------------------------------

    def _produce(self, name: str) -> None:
        process = self._process(name)
        person = Person(process, self.ledger, self._theme, many_lanes=self._many_lanes)
        self._producing.append(process)
        acts, pauses = ((3, 9), (0.0, 0.3, 1.5)) if self._theme == "jobs" else ((8, 20), (0.0, 0.1, 0.5))

        def produce() -> None:
            for _ in range(self.hub.random.randint(*acts)):
                self.hub.sleep(self.hub.random.choice(pauses))
                if self._calm:
                    break
                person.act()
            self._producing.remove(process)

        process.threads.start(produce)

    def _repeat(
        self, name: str, pause: float, act: Callable[[Person], None], until: Callable[[], bool] = lambda: False
    ) -> None:
        """A process that does the same again and again. If it is killed, it stays away."""
        process = self._process(name)
        person = Person(process, self.ledger, self._theme, many_lanes=self._many_lanes)

        def repeat() -> None:
            while not until():
                self.hub.sleep(pause)
                act(person)

        process.threads.start(repeat)

    def _pause_scheduler(self) -> None:
        """Ends the occurrences, so that the world can come to rest."""
        scheduler = self.server.collections["schedulers"][URN]
        self.server.collections["schedulers"][URN] = {**scheduler, "paused": {"at": EPOCH}}
