"""The heartbeat: joins the roster, shows life, and notices when the registration is lost. No job can hold it up."""

from __future__ import annotations

import os
import socket
import threading
from typing import Any

from recruiter.domain.planning.prefetch import Throughput
from recruiter.events import Events
from recruiter.processes.loop import Loop, Stop
from recruiter.processes.worker.held_jobs import HeldJob, HeldJobs
from recruiter.processes.worker.registration import JobRunner, Registration, measured_resources
from recruiter.store.codec import decode
from recruiter.store.collections.limits import FLEET, LEARNT_WITHIN
from recruiter.store.database import Store
from recruiter.store.roster_fields import Holding

_UNTIL_READY = 0.02
"""Seconds between two looks whether the tasks are known."""


class Heartbeat:
    def __init__(
        self,
        store: Store,
        events: Events,
        stop: Stop,
        registration: Registration,
        runner: JobRunner,
        throughput: Throughput,
        *,
        obeys_pauses: bool = True,
    ) -> None:
        self._store = store
        self._clock = store.clock
        self._events = events
        self._registration = registration
        self._settings = registration.settings
        self._every = registration.settings.heartbeat.total_seconds()
        self._runner = runner
        self._throughput = throughput
        self._obeys_pauses = obeys_pauses
        self._declared = False
        self._join_at = 0.0
        self._obeyed: tuple[HeldJobs, int] | None = None
        """Which change of the pauses has been passed on, and to whom."""
        # A late heartbeat costs the registration: it must not wait longer than that when MongoDB comes back.
        self._loop = Loop("heartbeat", self._beat, stop, events, self._settings.dead_after / 6)
        store.wakers.add(self._loop.wake)

    def start(self) -> threading.Thread:
        return self._loop.start()

    def wake(self) -> None:
        self._loop.wake()

    def join(self) -> float:
        """Enters the roster, ready for jobs."""
        registration, held_jobs = self._registration, self._registration.held_jobs
        if self._runner.tasks is None or registration.draining:
            return _UNTIL_READY
        self._declare(self._runner.tasks)
        if (too_early := self._join_at - self._clock.monotonic()) > 0:
            return too_early
        self._store.roster.join(held_jobs.worker, self._facts(self._runner.tasks))
        # Only now: a leader that took over before this line has been read about; a later one finds us on the roster.
        if self._store.roster.become_ready(held_jobs.worker, self._store.leases.term()):
            registration.beaten_at = self._clock.monotonic()
            registration.joined = held_jobs is registration.held_jobs
            held_jobs.wake_ups.fetcher()
            self._events.emit("worker.joined", worker=held_jobs.worker, slots=self._settings.slots)
        else:
            registration.lose(held_jobs)
        return self._every

    def _declare(self, tasks: frozenset[str]) -> None:
        """The limits of the application: once in the life of a process, so that one that comes back does not undo what
        a newer version has declared. If they are news, no job may come here before the leader has heard of them."""
        if not self._declared:
            if self._store.limits.declare(tasks, self._runner.limits, self._clock.now()):
                self._join_at = self._clock.monotonic() + LEARNT_WITHIN
            self._declared = True

    def _facts(self, tasks: frozenset[str]) -> dict[str, Any]:
        moment = self._clock.now()
        return {
            "host": self._settings.host or socket.gethostname(),
            "pid": os.getpid(),
            "groups": list(self._settings.work_on) if self._settings.work_on is not None else None,
            "tasks": sorted(tasks),
            "slots": self._settings.slots,
            "prefetch": 0,
            "session": self._store.transactions.session_id,
            "resources": self._settings.resources or measured_resources(),
            "joined_at": moment,
            "seen_at": moment,
            "considered_dead_after": self._settings.dead_after,
        }

    def _beat(self) -> float:
        registration = self._registration
        held_jobs = registration.held_jobs
        if not registration.joined:
            return self.join()
        asked_at = self._clock.monotonic()
        runs = self._runner.running()
        running = [{"job": job.id, "task": _task(job), "since": since} for job, since in runs]
        facts = {
            "running": running,
            "draining": registration.draining,
            "prefetch": self._throughput.prefetch,
            "clock_offset": self._clock.offset.total_seconds(),
        }
        answer = self._store.roster.beat(held_jobs.worker, facts, within=self._settings.dead_after / 3)
        if answer is None:
            registration.lose(held_jobs)
            return self._every
        registration.beaten_at = asked_at
        holding = answer.holding
        self._clock.agree(answer.seen_at, self._clock.monotonic() - asked_at)
        held_jobs.hear(holding)
        if self._obeys_pauses:
            self._obey_pauses(held_jobs, answer.pauses)
        if holding.count:
            self._throughput.count(0, self._clock.monotonic())  # as long as nothing ends, nobody else says so
            held_jobs.hand_back_all_but(self._settings.slots + self._throughput.prefetch)
        held_jobs.saw(runs, self._clock.now(), self._every)
        if holding.assigned:
            self._pass_on_flags(holding)
        return self._every

    def _obey_pauses(self, held_jobs: HeldJobs, pauses: int) -> None:
        """What is paused must not start here, also if it was prefetched before: it goes back to the roster."""
        if self._obeyed == (held_jobs, pauses):
            return
        paused = self._store.limits.paused()
        flows = held_jobs.flows()
        paused_flows = self._store.flows.paused_among(flows) if flows else frozenset[bytes]()
        self._obeyed = held_jobs, pauses
        # Steps that come later say themselves whether their flow is paused.
        held_jobs.allow(
            lambda job: (
                (not paused or (FLEET not in paused and f"group:{job.group}" not in paused))
                and (not paused_flows or job.flow not in paused_flows)
            )
        )

    def _pass_on_flags(self, holding: Holding) -> None:
        flags = self._store.scheduled.flags(_MOST_FLAGS)
        if len(flags) == _MOST_FLAGS:  # somebody has cancelled very many: ours may be further back
            flags = self._store.scheduled.flags_among(holding.assigned)
        mine = {id: flag for id, flag in flags.items() if id in holding.assigned}
        if mine:
            self._runner.cancel(mine)


_MOST_FLAGS = 1000


def _task(job: HeldJob) -> str:
    try:
        return str(decode(job.raw)["task"])
    except Exception:
        return "?"
