"""The worker process: a supervisor that runs no user code, and the children that do.

    roster ──holding──▶ fetch ──jobs──▶ floor ──pipes──▶ children ──answers──▶ floor ──outcomes──▶ settle ──▶ MongoDB
       ▲                                                                                             │
       └────── heartbeat (a thread that no job can hold up) ◀──────── what is still held ────────────┘

Four threads: the main one owns the floor; `heartbeat`, `fetch` and `settle` wait for MongoDB so that the floor never
does. They meet in `Holdings`, which belongs to one registration. When the registration is lost, whatever ran under it
is ended and a new one begins under a new id.
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from recruiter.domain.job import JobId
from recruiter.domain.policy_registry import PolicyRegistry
from recruiter.domain.throughput import Throughput
from recruiter.errors import StoreError, StoreUnreachable, Superseded
from recruiter.events import Events
from recruiter.processes.children import HeldJob, Nursery
from recruiter.processes.floor import Floor
from recruiter.processes.holdings import Holdings, Outcome
from recruiter.processes.loop import Loop, Stop
from recruiter.steps.settle import settle
from recruiter.store import moves
from recruiter.store.codec import decode
from recruiter.store.database import Store
from recruiter.store.doorbell import FLOW, LULL, Doorbell
from recruiter.store.roster import ASSIGNED_TO_ME, Holding

_BETWEEN_LOOKS = 0.005
_LAST_WORDS = 10.0
"""Seconds to get the last results written when stopping, also when MongoDB does not answer."""


@dataclass(frozen=True)
class WorkerOptions:
    groups: tuple[str, ...] | None = None
    processes: int = 1
    concurrency: int = 1
    heartbeat: float = 1.0
    dead_after: float = 15.0
    grace: float = 30.0
    memory_limit: int | None = None
    tell_all: bool = False
    """Whether to emit an event for every job that succeeds, too."""

    @property
    def slots(self) -> int:
        return self.processes * self.concurrency


class WorkerProcess:
    def __init__(self, store: Store, events: Events, stop: Stop, options: WorkerOptions, nursery: Nursery) -> None:
        self._store = store
        self._clock = store.clock
        self._events = events
        self._stop = stop
        self._options = options
        self._threads_stop = Stop()
        self._fetch_stop = Stop()
        # A late heartbeat costs the registration: it must not wait longer than that when MongoDB comes back.
        self._heartbeat = Loop("heartbeat", self._beat, self._threads_stop, events, options.dead_after / 6)
        self._fetch = Loop("fetch", self._fetch_step, self._fetch_stop, events)
        self._settle = Loop("settle", self._settle_step, self._threads_stop, events)
        self._floor = Floor(
            nursery,
            store.clock,
            events,
            PolicyRegistry(),
            address=store.target.uri,
            children=options.processes,
            concurrency=options.concurrency,
            memory_limit=options.memory_limit,
            told=self._settle.ring,
            starving=self._fetch.ring,
            tell_all=options.tell_all,
        )
        self._holdings = Holdings(_new_id())
        self._joined = False
        self._lost = False
        self._cut_off = False
        self._draining = False
        self._beaten_at = self._clock.monotonic()
        self._bell: Doorbell | None = None
        self._flowing_until = 0.0
        self._throughput = Throughput()

    def run(self) -> None:
        """Works until asked to stop, then finishes what runs, hands the rest back and leaves the roster."""
        # The floor computes, the others wait for MongoDB; with the usual 5 ms each answer would wait for the floor.
        sys.setswitchinterval(0.0005)
        self._stop.when_asked(self._floor.wake)
        self._stop.when_at_once(self._floor.kill)
        self._floor.open(self._holdings)
        fetching = self._fetch.start()
        threads = [loop.start() for loop in (self._heartbeat, self._settle)]
        try:
            while not self._stop.asked:
                self._floor.turn()
                self._mind_registration()
            # Nothing new from here on: what would arrive after the last look would be neither run nor handed back.
            self._fetch_stop.ask()
            fetching.join(timeout=_LAST_WORDS)
            self._drain()
        finally:
            self._fetch_stop.ask()
            self._threads_stop.ask()
            if self._bell is not None:
                self._bell.close()
            for thread in threads:
                thread.join(timeout=_LAST_WORDS)
            self._leave()
            self._floor.close()

    # -- the floor's thread --------------------------------------------------------------------------------------

    def _mind_registration(self) -> None:
        if self._lost:
            self._begin_again()
        silent = self._clock.monotonic() - self._beaten_at
        if not self._cut_off and self._joined and silent > self._options.dead_after - self._options.heartbeat:
            # By now others may have been given these jobs: end them rather than run them twice.
            self._cut_off = True
            self._interrupt(self._floor.pause(), self._floor.end_children(), "MongoDB cannot be reached")
        elif self._cut_off and silent < self._options.heartbeat:
            self._cut_off = False
            self._floor.resume()

    def _begin_again(self) -> None:
        """The registration is gone: whatever ran under it is not ours any more."""
        old = self._holdings
        waiting = self._floor.pause()
        running = self._floor.end_children()
        self._events.emit("worker.lost", worker=old.worker, running=len(running), waiting=len(waiting))
        for id in old.results:
            self._events.emit("job.superseded", job=id, worker=old.worker)
        self._holdings = Holdings(_new_id())  # first: no thread may join again under the old id
        self._joined = self._lost = self._cut_off = False
        self._floor.open(self._holdings)
        self._beaten_at = self._clock.monotonic()
        self._heartbeat.ring()

    def _drain(self) -> None:
        self._draining = True
        self._floor.ask_to_stop()
        self._heartbeat.ring()
        deadline = self._clock.monotonic() + self._options.grace
        self._give_back(self._floor.pause())
        while not self._floor.idle and self._clock.monotonic() < deadline and not self._lost:
            self._give_back_unfetched()
            self._floor.turn()
        self._interrupt([], self._floor.end_children(), "the worker was asked to stop")
        deadline = self._clock.monotonic() + _LAST_WORDS
        while not self._holdings.all_settled and self._clock.monotonic() < deadline and not self._lost:
            self._settle.ring()
            time.sleep(0.01)

    def _interrupt(self, waiting: list[HeldJob], running: list[HeldJob], why: str) -> None:
        self._give_back(waiting)
        self._floor.interrupt(running, why)
        self._settle.ring()

    def _give_back_unfetched(self) -> None:
        """What the leader gave us before it saw that we are leaving."""
        ids = self._holdings.not_begun()
        if ids:
            self._holdings.ended([(id, None) for id in ids])
            self._settle.ring()

    def _give_back(self, jobs: list[HeldJob]) -> None:
        self._holdings.ended([(job.id, None) for job in jobs])
        self._settle.ring()

    def _leave(self) -> None:
        try:
            self._store.roster.leave(self._holdings.worker)
            self._events.emit("worker.left", worker=self._holdings.worker)
        except StoreError as error:
            self._events.emit("store.unreachable", loop="worker", error=f"could not leave the roster: {error}")

    # -- the heartbeat thread ------------------------------------------------------------------------------------

    def _beat(self) -> float:
        holdings = self._holdings
        if not self._joined:
            return self._join(holdings)
        asked_at = self._clock.monotonic()
        running = [{"job": job.id, "task": _task(job), "since": since} for job, since in self._floor.running()]
        facts = {"running": running, "draining": self._draining, "prefetch": self._throughput.prefetch}
        answer = self._store.roster.beat(holdings.worker, facts, within=self._options.dead_after / 3)
        if answer is None:
            self._lose(holdings)
            return self._options.heartbeat
        self._beaten_at = asked_at
        holding, server_time = answer
        self._set_clock(server_time - self._clock.now(), self._clock.monotonic() - asked_at)
        if holdings.hear(holding):
            self._fetch.ring()
        return self._options.heartbeat

    def _join(self, holdings: Holdings) -> float:
        if self._floor.tasks is None or self._draining:
            return 0.02
        moment = self._clock.now()
        facts: dict[str, Any] = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "groups": list(self._options.groups) if self._options.groups is not None else None,
            "tasks": sorted(self._floor.tasks),
            "slots": self._options.slots,
            "prefetch": 0,
            "joined_at": moment,
            "seen_at": moment,
        }
        self._store.roster.join(holdings.worker, facts)
        # Only now: a leader that took over before this line has been read about; a later one finds us on the roster.
        if self._store.roster.become_ready(holdings.worker, self._store.leases.term()):
            self._beaten_at = self._clock.monotonic()
            self._joined = holdings is self._holdings
            self._fetch.ring()
            self._events.emit("worker.joined", worker=holdings.worker, slots=self._options.slots)
        else:
            self._lose(holdings)
        return self._options.heartbeat

    def _lose(self, holdings: Holdings) -> None:
        if holdings is self._holdings:
            self._lost = True
            self._floor.wake()

    def _set_clock(self, difference: timedelta, took: float) -> None:
        difference += timedelta(seconds=took / 2)
        if abs(difference) > timedelta(milliseconds=50):
            self._clock.offset += difference

    # -- the fetch thread ----------------------------------------------------------------------------------------

    def _fetch_step(self) -> float:
        holdings = self._holdings
        if not self._joined:
            return 0.05
        if self._mark_at_most_once(holdings):
            return 0.0
        ids = holdings.to_fetch()
        if ids:
            if len(ids) >= FLOW:
                self._flowing_until = self._clock.monotonic() + LULL
            self._fetch_jobs(holdings, ids)
            return 0.0
        return self._look_for_jobs(holdings)

    def _fetch_jobs(self, holdings: Holdings, ids: list[JobId]) -> None:
        try:
            jobs = [HeldJob(id, raw) for id, raw in self._store.scheduled.fetch(ids)]
        except BaseException:
            holdings.not_fetched(ids)
            raise
        gone = set(ids).difference(job.id for job in jobs)
        once = [job for job in jobs if job.at_most_once]
        holdings.wait_for_mark(once)
        holdings.arrivals.extend(job for job in jobs if job not in once)
        self._floor.wake()
        if gone:
            holdings.ended([(id, None) for id in gone])
            self._settle.ring()

    def _mark_at_most_once(self, holdings: Holdings) -> bool:
        """At-most-once jobs are marked as started, durably, before they can start, and no more of them than fit."""
        jobs = holdings.to_mark(self._options.slots)
        if not jobs:
            return False
        try:
            now = self._clock.now()
            allowed = self._store.scheduled.mark_started([job.id for job in jobs], holdings.worker, now)
        except BaseException:
            holdings.not_marked(jobs)
            raise
        holdings.marked.extend(job for job in jobs if job.id in allowed)
        self._floor.wake()
        refused = [job for job in jobs if job.id not in allowed]
        if refused:
            holdings.ended((job.id, self._floor.crash(job, now, "started before, never ended")) for job in refused)
            self._settle.ring()
        return True

    def _look_for_jobs(self, holdings: Holdings) -> float:
        """Nothing is known to fetch: if a child is free, ask the roster, and then listen for the doorbell."""
        if not self._floor.hungry:
            return 1.0
        holding = self._store.roster.holding(holdings.worker)
        if holding is not None and holdings.hear(holding):
            return 0.0
        if self._clock.monotonic() < self._flowing_until:
            return _BETWEEN_LOOKS
        bell = self._listen(holdings.worker)
        bell.arm()
        return 3600.0 if bell.listening else 0.1

    def _listen(self, worker: str) -> Doorbell:
        match = {"documentKey._id": worker, ASSIGNED_TO_ME: {"$exists": True}}
        if self._bell is None or self._bell.match != match:
            if self._bell is not None:
                self._bell.close()
            self._bell = Doorbell(self._store.roster.collection, match, self._fetch.ring, self._deaf)
        return self._bell

    def _deaf(self, error: str) -> None:
        self._events.emit("doorbell.failed", error=error)

    # -- the settle thread ---------------------------------------------------------------------------------------

    def _settle_step(self) -> float:
        holdings = self._holdings
        outcomes = holdings.to_settle()
        if not outcomes:
            return 3600.0
        try:
            self._unmark_released(holdings, outcomes)
            holding = self._settle_all(holdings.worker, outcomes)
        except Superseded:
            holdings.not_settled(outcomes)
            self._lose(holdings)
            return 0.5
        except BaseException:
            holdings.not_settled(outcomes)
            raise
        self._throughput.count(sum(1 for _, move in outcomes if move is not None), self._clock.monotonic())
        holdings.settled(outcomes, holding)
        self._fetch.ring()
        return 0.0

    def _settle_all(self, worker: str, outcomes: list[Outcome]) -> Holding:
        """Settles a batch; if MongoDB refuses something in it, finds out what, and keeps a reduced record of it."""
        try:
            return settle(self._store, worker, outcomes, {"prefetch": self._throughput.prefetch})
        except (Superseded, StoreUnreachable):
            raise
        except (StoreError, ValueError, OverflowError) as error:
            if len(outcomes) > 1:
                half = len(outcomes) // 2
                self._settle_all(worker, outcomes[:half])
                return self._settle_all(worker, outcomes[half:])
            ((id, move),) = outcomes
            self._events.emit("job.reduced", job=id, error=str(error))
            reduced = moves.reduced(id, move, self._clock.now(), str(error))
            return settle(self._store, worker, [(id, reduced)], {})

    def _unmark_released(self, holdings: Holdings, outcomes: list[Outcome]) -> None:
        released = [id for id, move in outcomes if move is None]
        if released:
            self._store.scheduled.unmark_started(released, holdings.worker)


def _task(job: HeldJob) -> str:
    try:
        return str(decode(job.raw)["task"])
    except Exception:
        return "?"


def _new_id() -> str:
    """New for every registration: a worker that was retired and comes back is another worker."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
