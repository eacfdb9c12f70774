"""A small world: some recruiters, workers and producers, faults for a while, then calm until everything has ended."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from recruiter.domain.job import Job, JobId
from recruiter.domain.planning.limits import Limit
from recruiter.domain.planning.lookahead import Lookahead
from recruiter.domain.policy_registry import SchedulePolicyRegistry
from recruiter.domain.schedule.policies import Every
from recruiter.domain.schedule.scheduler import Late, Scheduler
from recruiter.errors import JobNotFound, RecruiterError, StoreError
from recruiter.steps.cancel import cancel
from recruiter.steps.recover import job_anew
from recruiter.store import sessions
from recruiter.store.codec import encode_job
from recruiter.store.collections import due_jobs
from recruiter.store.in_session import in_own_transaction
from tests.simulator.hub import Hub
from tests.simulator.ledger import RATE, Ledger, Violation
from tests.simulator.process import Process
from tests.simulator.recruiter import Recruiter
from tests.simulator.server import Server
from tests.simulator.weather import CALM, Weather
from tests.simulator.worker import Worker

EPOCH = datetime(2030, 1, 1, 12, tzinfo=UTC)
URN = "simulated:tick"
_MAX_LANES_PER_QUERY = due_jobs.MAX_LANES_PER_QUERY
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
        self._tells = tells
        self.hub = Hub(seed)
        self.server = Server(self.hub.monotonic, EPOCH)
        self.ledger = Ledger(self.hub, self.server, lambda: 0.0 if self._calm else 0.05)
        self.server.on_write = lambda changed: self._watched(list(changed))
        self._weather = self._choose_weather()
        self._many_lanes = self.hub.random.random() < 0.5
        self._calm = False
        self._unwanted: set[str] = set()
        self._processes: list[Process] = []
        self._producing: list[Process] = []
        self._numbers = iter(range(1, 10_000))
        self._failed: Violation | None = None

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
        virtual: Any = SimpleNamespace(monotonic=self.hub.monotonic, sleep=self.hub.sleep)
        setattr(sessions, "time", virtual)  # noqa: B010
        # Every query is one of many, and every count goes to a page.
        setattr(due_jobs, "MAX_LANES_PER_QUERY", 1 if self._many_lanes else _MAX_LANES_PER_QUERY)  # noqa: B010
        try:
            self._play()
        except Violation as violation:
            self._failed = self._failed or violation
        finally:
            for process in self._processes:
                process.threads.on_death = lambda: None
                process.threads.die()
            self.hub.close()
        return Result(
            self.seed,
            str(self._failed) if self._failed else None,
            len(self.ledger.acknowledged),
            sum(map(len, self.ledger.runs.values())),
            sum(len(process.hits) for process in self._processes),
            sum(process.network.calls for process in self._processes),
        )

    def _play(self) -> None:
        chance = self.hub.random
        self._prepare()
        for n in range(chance.randint(1, 2) if self._lease > 1 else 3):
            self._keep(f"recruiter-{n}", self._start_recruiter)
        for n in range(chance.randint(1, 3) if self._lease > 1 else 3):
            self._keep(f"worker-{n}", self._start_worker)
        for n in range(chance.choice((1, 1, 2))):
            self._produce(f"producer-{n}")
        if chance.random() < 0.3:
            self.ledger.clocks_agree = False
            self._step_clocks()
        self.hub.run(chance.choice((3.0, 6.0)) if self._lease > 1 else 2.5, self._over)
        self._calm = True
        self._pause_scheduler()
        self._slow_down()
        self.hub.run(self.hub.now + _LONGEST_CALM, self._settled)
        if self._failed is None:
            self.ledger.check_the_end(URN)

    def _slow_down(self) -> None:
        """One recruiter is enough from now on: the others would look at the lease all the time, and have met what they
        could meet there. One that is frozen stays, and wakes up when another leads. Where the leaders deposed
        each other, one that does not takes their place."""
        recruiters = [each for each in self._processes if each.name.startswith("recruiter") and not each.dead]
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
        """Some look ahead with each round, as if there were many lanes, and use for long what they have found."""
        far = Lookahead(many_lanes=0, max_age=timedelta(seconds=20))
        Recruiter(process, self._lease, far if self._many_lanes else Lookahead()).start()

    def _start_worker(self, process: Process) -> None:
        Worker(process, self.ledger, self.hub.random.randint(1, 3), restless=self._lease < 1).start()

    def _over(self) -> bool:
        return self._failed is not None

    def _settled(self) -> bool:
        if self._over():
            return True
        return not self.server.collections.get("scheduled") and all(process.dead for process in self._producing)

    def _watched(self, changed: list[tuple[str, Any]]) -> None:
        if self._failed is None:
            try:
                self.ledger.check(changed)
            except Violation as violation:
                self._failed = violation  # it must not be swallowed by code that it is raised through

    # -- what is there -------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        store = self._process("prepare", calm=True).store

        def prepare() -> None:
            store.limits.set(Limit("task:limited", 1), None, EPOCH)
            store.limits.set(Limit("task:paced", rate=RATE), None, EPOCH)
            template = Job(id="", task="plain", args={"n": 0}, created_at=EPOCH, scheduled_at=EPOCH)
            policy = SchedulePolicyRegistry().dump(Every("2 seconds"))
            first = EPOCH + timedelta(seconds=2)
            store.schedulers.put(Scheduler(URN, template, policy, EPOCH, EPOCH, first, late=Late.ALL))

        self._processes[-1].threads.start(prepare)
        self.hub.run(0.5)

    def _process(self, name: str, *, calm: bool = False) -> Process:
        wrong = self.hub.random.choice((0.0, 0.0, 0.0, 2.0, -40.0, 86_400.0))
        process = Process(
            name,
            self.hub,
            self.server,
            EPOCH,
            lambda: CALM if calm or self._calm else self._weather,
            timedelta(seconds=wrong),
            self.ledger.note if self._tells else None,
        )
        # Every process measures the server's clock when it starts.
        process.clock.agree(self.server.now(), 0.0)
        self._processes.append(process)
        return process

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

        process.threads.on_death = died

    def _step_clocks(self) -> None:
        """The primary moves to a host whose clock is wrong. (A process does not notice steps of its own host's.)"""

        def step() -> None:
            self.hub.sleep(self.hub.random.uniform(1.0, 6.0))
            self.server.skew += timedelta(seconds=self.hub.random.choice((-7.0, 8.0)))

        self.hub.start(step)

    # -- producers and people ------------------------------------------------------------------------------------------

    def _produce(self, name: str) -> None:
        process = self._process(name)
        self._producing.append(process)

        def produce() -> None:
            for _ in range(self.hub.random.randint(3, 9)):
                self.hub.sleep(self.hub.random.choice((0.0, 0.3, 1.5)))
                if self._calm:
                    break
                self._act(process)
            self._producing.remove(process)

        process.threads.start(produce)

    def _act(self, process: Process) -> None:
        act = self.hub.random.choices((self._enqueue, self._insert_foreign, self._cancel, self._recover), (8, 1, 2, 1))
        with suppress(RecruiterError):
            act[0](process)

    def _enqueue(self, process: Process) -> None:
        now = process.clock.now()
        jobs = []
        tasks: tuple[str, ...] = self.hub.random.choice(
            (("plain", "plain", "flaky", "once", "limited"),) * 7 + (("paced",),)
        )
        crowd = self._many_lanes and self.hub.random.random() < 0.5  # more than there is room for, and nothing to plan
        if crowd:
            tasks = ("plain", "flaky", "once")
        for _ in range(self.hub.random.choice((4, 9)) if crowd else self.hub.random.choice((1, 1, 3))):
            n = next(self._numbers)
            task = self.hub.random.choice(tasks)
            due = now + timedelta(seconds=self.hub.random.choice((0, 0, 0, 2)))
            once, group = task == "once", f"g{n % 3}" if crowd else "generic"
            of_job: Any = {"created_at": now, "scheduled_at": due, "at_most_once": once, "group": group}
            jobs.append(Job(id=n, task=task, args={"n": n}, **of_job))
        self._sent(
            process, [job.id for job in jobs], lambda: process.store.scheduled.insert(list(map(encode_job, jobs)))
        )

    def _sent(self, process: Process, ids: list[JobId], send: Any) -> None:
        try:
            errors = send()
        except StoreError:
            self.ledger.maybe.update(ids)
            raise
        assert errors == {}, errors
        for id in ids:
            self.ledger.acknowledged[id] = process.hub.now

    def _insert_foreign(self, process: Process) -> None:
        n = next(self._numbers)
        document: Any = {"_id": n, "task": "plain", "args": {"n": n}}
        self._sent(process, [n], lambda: process.store.scheduled.insert([document]))

    def _cancel(self, process: Process) -> None:
        if self.ledger.acknowledged:
            with suppress(JobNotFound):
                cancel(process.store, process.clock, self.hub.random.choice(list(self.ledger.acknowledged)))

    def _recover(self, process: Process) -> None:
        ended = [id for id in self.ledger.acknowledged if id in self.server.collections.get("archived", {})]
        if ended:
            id = self.hub.random.choice((ended[0], self.hub.random.choice(ended)))  # two people want the same one
            job = replace(job_anew(process.store, id, process.clock.now(), None, again=True), id=next(self._numbers))
            if in_own_transaction(process.store, lambda here: here.recover({id: encode_job(job)}, cancelled=True)):
                self.ledger.acknowledged[job.id] = self.hub.now

    def _pause_scheduler(self) -> None:
        """No more occurrences: everything that is there must come to its end."""
        scheduler = self.server.collections["schedulers"][URN]
        self.server.collections["schedulers"][URN] = {**scheduler, "paused": {"at": EPOCH}}
