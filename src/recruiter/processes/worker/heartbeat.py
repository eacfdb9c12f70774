"""The heartbeat: joins the roster, shows life, and notices when the registration is lost. No job can hold it up."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from typing import Any

import psutil
from bson import ObjectId

from recruiter.domain.planning.rules import FLEET
from recruiter.events import Events
from recruiter.processes.loop import Loop, Stop
from recruiter.processes.worker.held_jobs import HeldJobs
from recruiter.processes.worker.registration import JobRunner, Registration, measured_resources
from recruiter.store.collections.limits import RULES_LEARNT_WITHIN_SECONDS
from recruiter.store.database import Store, own_version
from recruiter.store.roster_fields import Holding

_UNTIL_READY_SECONDS = 0.02
"""Time between two checks whether the tasks are known."""


_USAGE_EVERY_SECONDS = 10.0
_STACK_SHOWN_SECONDS = 120.0


class Usage:
    """The memory and the processors that this process and its descendants use. It is measured at most every few
    seconds: it reads about every process of the host."""

    def __init__(self) -> None:
        self._measured_at = float("-inf")
        self._spent: dict[int, float] = {}
        self.facts: dict[str, float] = {}

    def measure(self, now: float) -> dict[str, float]:
        """`memory` in bytes, `cpu` in processors."""
        passed = now - self._measured_at
        if passed < _USAGE_EVERY_SECONDS:
            return self.facts
        memory, spent = 0, dict[int, float]()
        with contextlib.suppress(psutil.Error):
            me = psutil.Process()
            for process in (me, *me.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    times = process.cpu_times()
                    spent[process.pid] = times.user + times.system
                    memory += process.memory_info().rss
        used = sum(seconds - self._spent.get(pid, 0.0) for pid, seconds in spent.items()) if self._spent else 0.0
        self._measured_at, self._spent = now, spent
        self.facts = {"memory": memory, "cpu": round(max(0.0, used) / passed, 2)}
        return self.facts


class Heartbeat:
    """The thread that shows that this worker is alive, and learns what the roster knows about it."""

    def __init__(
        self,
        store: Store,
        events: Events,
        stop: Stop,
        registration: Registration,
        runner: JobRunner,
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
        self._obeys_pauses = obeys_pauses
        self._declared = False
        self._usage = Usage()
        self._stack_asked = ""
        """The last question for a stack that was passed on."""
        self._stack_written = "", 0.0
        """The last one whose answer was written, and when."""
        self._join_at = 0.0
        self._obeyed: tuple[HeldJobs, int] | None = None
        """The change of pauses that was last passed on, and the held jobs that received it."""
        # A late heartbeat costs the registration: it must not wait longer than that when MongoDB comes back.
        self._loop = Loop("heartbeat", self._beat, stop, events, self._settings.dead_after / 6)
        store.wakers.add(self._loop.wake)

    def start(self) -> threading.Thread:
        return self._loop.start()

    def wake(self) -> None:
        self._loop.wake()

    def join(self) -> float:
        """Enters the roster, ready for jobs, or tries to; returns the seconds to the next heartbeat or attempt."""
        registration, held_jobs = self._registration, self._registration.held_jobs
        if self._runner.tasks is None or registration.draining:
            return _UNTIL_READY_SECONDS
        self._declare(self._runner.tasks)
        if (too_early := self._join_at - self._clock.monotonic()) > 0:
            return too_early
        self._store.roster.join(held_jobs.worker, self._facts(self._runner.tasks))
        # The term is read after `join`: a leader that took over before is in it; a later one finds us on the roster.
        if self._store.roster.become_ready(held_jobs.worker, self._store.leases.term()):
            registration.beaten_at = self._clock.monotonic()
            registration.joined = held_jobs is registration.held_jobs
            held_jobs.wake_ups.fetcher()
            self._events.emit("worker.joined", worker=held_jobs.worker, slots=self._settings.slots)
        else:
            registration.lose(held_jobs)
        return self._every

    def _declare(self, tasks: frozenset[str]) -> None:
        """Declares the limits of the application: once in the life of a process, so that a worker that rejoins does not
        undo the declaration of a newer version. New limits must reach the leader before the first job comes here."""
        if not self._declared:
            if self._store.limits.declare(tasks, self._runner.limits, self._clock.now()):
                self._join_at = self._clock.monotonic() + RULES_LEARNT_WITHIN_SECONDS
            self._declared = True

    def _facts(self, tasks: frozenset[str]) -> dict[str, Any]:
        moment = self._clock.now()
        return {
            "host": self._settings.host or socket.gethostname(),
            "pid": os.getpid(),
            "version": own_version(),
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
        """Sends a heartbeat with facts about this worker, and passes on the answer: the jobs that it holds, pauses,
        cancellations, a question for a stack. Returns the seconds to the next one."""
        registration = self._registration
        held_jobs = registration.held_jobs
        if not registration.joined:
            return self.join()
        asked_at = self._clock.monotonic()
        runs = self._runner.running()
        running = [{"job": job.id, "task": job.task or "?", "since": since} for job, since in runs]
        facts = {
            "running": running,
            "draining": registration.draining,
            "prefetch": self._runner.prefetch,
            "clock_offset": self._clock.offset.total_seconds(),
            "usage": self._usage.measure(asked_at),
        }
        facts |= self._stack_facts(asked_at)
        answer = self._store.roster.beat(held_jobs.worker, facts, within=self._settings.dead_after / 3)
        if answer is None:
            registration.lose(held_jobs)
            return self._every
        registration.beaten_at = asked_at
        if answer.stack_asked is not None and answer.stack_asked["id"] != self._stack_asked:
            self._stack_asked = answer.stack_asked["id"]
            self._runner.ask_stack(answer.stack_asked)
        holding = answer.holding
        self._clock.agree(answer.seen_at, self._clock.monotonic() - asked_at)
        held_jobs.hear(holding)
        if self._obeys_pauses:
            self._obey_pauses(held_jobs, answer.pauses)
        if holding.assigned:
            held_jobs.hand_back_all_but(self._settings.slots + self._runner.prefetch)
            self._pass_on_flags(holding)
            held_jobs.limited = self._store.limits.limited()
        held_jobs.note_running(runs, self._clock.now(), self._every)
        return self._every

    def _obey_pauses(self, held_jobs: HeldJobs, pauses: int) -> None:
        """Hands back paused jobs, also prefetched ones, when the counter of pauses has changed."""
        if self._obeyed == (held_jobs, pauses):
            return
        paused = self._store.limits.paused()
        flows = held_jobs.flows_to_ask_about()
        paused_flows = self._store.flows.paused_among(flows) if flows else frozenset[ObjectId]()
        self._obeyed = held_jobs, pauses
        # The documents of later steps show whether their flow is paused.
        held_jobs.allow(
            lambda job: (
                (not paused or (FLEET not in paused and f"group:{job.group}" not in paused))
                and (not paused_flows or job.flow not in paused_flows)
            )
        )

    def _stack_facts(self, now: float) -> dict[str, Any]:
        """The answer to a question for a stack. It is removed after a while: this document is written often, and so it
        must be small."""
        stack, (written, since) = self._runner.stack, self._stack_written
        if stack is None:
            return {}
        if stack["id"] != written:
            self._stack_written = stack["id"], now
            return {"stack": stack}
        if now - since < _STACK_SHOWN_SECONDS:
            return {}
        self._runner.stack = None
        return {"stack": None}

    def _pass_on_flags(self, holding: Holding) -> None:
        flags = self._store.scheduled.flags(_MOST_FLAGS)
        if len(flags) == _MOST_FLAGS:  # there are more flags: ours may be further back
            flags = self._store.scheduled.flags_among(holding.assigned)
        mine = {id: flag for id, flag in flags.items() if id in holding.assigned}
        if mine:
            self._runner.cancel(mine)


_MOST_FLAGS = 1000
