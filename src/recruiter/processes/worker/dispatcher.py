"""The dispatcher gives jobs to free children. One thread owns it; it moves bytes and never waits for MongoDB.

Jobs wait here, not in the pipes: a child gets only what it can do in the next moment, and what it has not started is
taken back when it turns out to be slow. So nothing waits behind a slow job while another child is free.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import selectors
import time
import traceback
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial

from recruiter.clock import SystemClock
from recruiter.domain.job import JobId
from recruiter.domain.policy_registry import PolicyRegistry
from recruiter.errors import ApplicationError
from recruiter.events import Events
from recruiter.processes.child import pipe
from recruiter.processes.held import HeldJob
from recruiter.processes.holdings import Holdings, Outcome, crashed
from recruiter.processes.telling import Telling
from recruiter.processes.worker import overruns
from recruiter.processes.worker.child_handle import STUCK, Answer, ChildHandle
from recruiter.processes.worker.child_pool import ForkServer
from recruiter.processes.worker.overruns import ByForce, Fate
from recruiter.store import moves
from recruiter.store.codec import Document, decode

_GATHER = 0.004
"""Seconds in which answers gather while children have more to do."""
_IDLE, _RUNNING = 1.0, 0.25
"""Seconds between two looks at the children when nothing runs, and when something does that may overrun its time."""
_STALE = 1.0
"""Seconds that jobs may wait here while no child takes any; then they go back to the roster."""
_BREATH = 0.5
"""Rest before a replacement for a child that died before it was ready."""
_FAREWELL = 5.0
"""Seconds that a child may take to end once it has been told to and runs nothing."""


class Dispatcher:
    def __init__(
        self,
        fork_server: ForkServer,
        clock: SystemClock,
        events: Events,
        policies: PolicyRegistry,
        *,
        address: str,
        children: int,
        concurrency: int,
        memory_limit: int | None,
        hard_limit: int | None,
        told: Callable[[], None],
        starving: Callable[[], None],
        heard: Callable[[], None],
        tell_all: bool,
    ) -> None:
        self._fork_server = fork_server
        self._clock = clock
        self._events = events
        self._policies = policies
        self._address = address
        self._wanted = children
        self._concurrency = concurrency
        self._memory_limit = memory_limit
        self._hard_limit = hard_limit
        self._telling = Telling(events, clock, tell_all)
        self._told = told
        """Called when there are outcomes to settle."""
        self._starving = starving
        """Called when a child becomes free and nothing is here for it."""
        self._heard = heard
        """Called when jobs have said something of themselves."""
        self._was_hungry = False
        self._closed = False
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._woken)
        self._children: list[ChildHandle] = []
        self._blocked: set[ChildHandle] = set()
        self._buffer: deque[HeldJob] = deque()
        self._holdings = Holdings("")
        self._flags: queue.SimpleQueue[Mapping[JobId, Document]] = queue.SimpleQueue()
        self._recalls: queue.SimpleQueue[Collection[JobId]] = queue.SimpleQueue()
        self._accepting = True
        self._fed_at = 0.0
        self._watched_at = 0.0
        self._timed_at = 0.0
        self._spawn_at = 0.0
        self.tasks: frozenset[str] | None = None

    # -- from other threads --------------------------------------------------------------------------------------

    def wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # enough wake-ups are waiting already
            if not self._closed:
                os.write(self._wake_write, b"!")

    @property
    def hungry(self) -> bool:
        """A child is free and nothing is here for it."""
        return self._accepting and not self._buffer and any(c.has_a_free_place for c in list(self._children))

    def running(self) -> list[tuple[HeldJob, datetime]]:
        """What the children run, and since when."""
        return [(job, self._moment(since)) for child in list(self._children) for job, since in child.running()]

    def cancel(self, flags: Mapping[JobId, Document]) -> None:
        """These have been cancelled, whoever holds them; acts on those that are here, in the dispatcher's own time."""
        self._flags.put(flags)
        self.wake()

    def recall(self, ids: Collection[JobId]) -> None:
        """These must not start any more: those that have not are given back, in the dispatcher's own time."""
        self._recalls.put(ids)
        self.wake()

    def ask_to_stop(self) -> None:
        """Lets the jobs know, if they ask, that the worker is about to stop."""
        for child in list(self._children):
            child.claims.ask_to_stop()

    # -- the dispatcher's own thread -----------------------------------------------------------------------------

    def open(self, holdings: Holdings) -> None:
        """Begins a registration, with new children that know its id."""
        self._holdings = holdings
        holdings.when_recalled(self.recall)
        self._accepting = True
        self._buffer.clear()
        self._replenish()

    def turn(self) -> None:
        """Once around: take what arrived, feed the children, wait a little for whatever happens."""
        self._accept()
        self._obey_recalls()
        self._obey_flags()
        self._feed()
        hungry = self.hungry
        if hungry and not self._was_hungry:
            self._starving()
        self._was_hungry = hungry
        busy = self._buffer or any(child.has_some_waiting for child in self._children)
        events = self._selector.select(STUCK if busy else _IDLE if self.idle else _RUNNING)
        for key, _ in events:
            self._act(key.data)
        self._watch()
        if busy and events:
            # Answers come one by one, and each would wake this thread; they are settled in batches anyway.
            time.sleep(_GATHER)

    def _act(self, call: Callable[[], None]) -> None:
        """A mistake of ours about one job must not end the worker and all the others with it."""
        try:
            call()
        except ApplicationError:
            raise
        except Exception:
            self._events.emit("loop.failed", loop="dispatch", trace=traceback.format_exc())

    def pause(self) -> list[HeldJob]:
        """Takes no more jobs, and gives back all that has not started."""
        self._accepting = False
        self._accept()
        for child in self._children:
            self._buffer.extend(child.withdraw())
        held, self._buffer = list(self._buffer), deque()
        return held

    def resume(self) -> None:
        self._accepting = True

    @property
    def idle(self) -> bool:
        return not any(child.load for child in self._children)

    def end_children(self) -> list[HeldJob]:
        """Ends every child at once; returns what they were running. What they had answered is kept."""
        interrupted: list[HeldJob] = []
        for child in self._children:
            child.kill()
        for child in self._children:
            child.process.join(timeout=5.0)
            self._drain(child)
            blamed, innocent = self._remove(child)
            interrupted.extend(blamed)
            self._give_back(innocent)
        self._children = []
        return interrupted

    def kill(self) -> None:
        """For the second signal: nothing is saved."""
        for child in list(self._children):
            child.kill()

    def close(self) -> None:
        """To be called when no other thread is left that could wake it."""
        self.end_children()
        self._closed = True
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    # -- inside --------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        first, last = self._holdings.accept()
        self._buffer.extendleft(reversed(first))
        self._buffer.extend(last)
        if not self._accepting and self._buffer:
            self._give_back(self._buffer)
            self._buffer.clear()

    def _obey_recalls(self) -> None:
        while not self._recalls.empty():
            ids = self._recalls.get()
            back = [job for job in self._buffer if job.id in ids]
            self._buffer = deque(job for job in self._buffer if job.id not in ids)
            for child in self._children:
                back.extend(child.withdraw_these(ids))
            self._give_back(back)

    def _obey_flags(self) -> None:
        """Cancelled jobs that have not started are let go: the leader archives them. Those that run are told."""
        while not self._flags.empty():
            flags = self._flags.get()
            waiting = [job for job in self._buffer if job.id in flags]
            for job in waiting:
                self._buffer.remove(job)
            self._give_back(waiting)
            for id, flag in flags.items():
                for child in self._children:
                    if child.withdraw_one(id):
                        self._end([(id, None)])
                    elif child.cancel(id, flag, self._clock.monotonic()):
                        self._events.emit("job.cancelling", job=id, by=flag.get("by"), reason=flag.get("reason"))

    def _feed(self) -> None:
        now = self._clock.monotonic()
        hungry = sorted((c for c in self._children if c.appetite(now) > 0), key=lambda child: child.load)
        for position, child in enumerate(hungry):
            if not self._buffer:
                return
            share = min(child.appetite(now), math.ceil(len(self._buffer) / (len(hungry) - position)))
            child.send([self._buffer.popleft() for _ in range(share)], now)
            self._fed_at = now
            self._wait_for_pipe(child)

    def _wait_for_pipe(self, child: ChildHandle) -> None:
        """Listens for the pipe to take more as long as there is more, and not longer."""
        if child.has_unsent and child not in self._blocked:
            self._blocked.add(child)
            self._selector.register(child.write_end, selectors.EVENT_WRITE, partial(self._flush, child))
        elif not child.has_unsent and child in self._blocked:
            self._blocked.remove(child)
            self._selector.unregister(child.write_end)

    def _flush(self, child: ChildHandle) -> None:
        child.flush()
        self._wait_for_pipe(child)

    def _hear(self, child: ChildHandle) -> None:
        if child not in self._children:
            return  # its death was noticed in the same moment
        answers = child.receive(self._clock.monotonic())
        if child.silent:
            child.kill()  # its pipe is closed: it is ending, or a job has closed what was not its own
            self._stop_listening(child)
        self._note(child)
        outcomes: list[Outcome] = []
        for answer in answers:
            if answer.kind < pipe.ARCHIVE:
                self._greet(child, answer)
            else:
                move = pipe.move_of(answer.kind, answer.payload)
                outcomes.append((answer.job.id, move))
                self._telling.ended(answer.job.id, move)
        if outcomes:
            self._end(outcomes)

    def _note(self, child: ChildHandle) -> None:
        """What its jobs have said of themselves, and what failed beside them."""
        if child.complaints:
            complaints, child.complaints = child.complaints, []
            self._telling.complained(complaints)
        if child.said:
            said, child.said = child.said, []
            for job, since, payload in said:
                self._holdings.tracks.heard(job, self._moment(since), payload)
            self._heard()

    def _greet(self, child: ChildHandle, answer: Answer) -> None:
        message = decode(answer.payload)
        if answer.kind == pipe.BROKEN:
            if self.tasks is None:
                raise ApplicationError(f"the application cannot be loaded in a worker:\n{message['trace']}")
            self._events.emit("child.broken", pid=child.pid, trace=message["trace"])
            return
        child.tasks = self.tasks = frozenset(message["tasks"])
        self._events.emit("child.started", pid=child.pid)

    def _drain(self, child: ChildHandle) -> None:
        """Everything it still had to say."""
        with contextlib.suppress(OSError):
            self._hear(child)
            while not child.drained:
                self._hear(child)

    def _died(self, child: ChildHandle) -> None:
        if child not in self._children:
            return
        self._drain(child)
        was_ready = child.tasks is not None
        blamed, innocent = self._remove(child)
        self._children.remove(child)
        self._buffer.extendleft(reversed(innocent))
        now = self._clock.now()
        for job in blamed:
            self._events.emit("job.crashed", job=job.id, how=child.how_it_ended())
        if not child.recycling:
            self._events.emit("child.died", pid=child.pid, how=child.how_it_ended(), jobs=[job.id for job in blamed])
        self._end((job.id, self.crash(job, now, child.how_it_ended())) for job in blamed)
        if not was_ready:
            self._spawn_at = self._clock.monotonic() + _BREATH

    def crash(self, job: HeldJob, at: datetime, how: str) -> moves.Move:
        """What the death of its process means for a job, whatever is in it."""
        return crashed(job, self._policies, self._holdings.worker, at, how, self._holdings.tracks.said(job.id))

    def _stop_listening(self, child: ChildHandle) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(child.read_end)

    def _remove(self, child: ChildHandle) -> tuple[list[HeldJob], list[HeldJob]]:
        self._stop_listening(child)
        self._selector.unregister(child.process.sentinel)
        child.forget_unsent()
        self._wait_for_pipe(child)
        return child.bury()

    def _replenish(self) -> None:
        now = self._clock.monotonic()
        while len(self._children) < self._wanted and now >= self._spawn_at:
            try:
                offset = self._clock.offset.total_seconds()
                child = self._fork_server.spawn(self._holdings.worker, self._address, offset, self._concurrency, now)
            except (OSError, EOFError) as error:  # no memory, too many processes: later perhaps
                self._events.emit("child.broken", pid=0, trace=f"cannot start a child: {error}")
                self._spawn_at = now + _BREATH
                return
            self._children.append(child)
            self._selector.register(child.read_end, selectors.EVENT_READ, partial(self._hear, child))
            self._selector.register(child.process.sentinel, selectors.EVENT_READ, partial(self._died, child))

    def _watch(self) -> None:
        """What is worth a look now and then: children that are stuck, stale jobs, memory."""
        now = self._clock.monotonic()
        if self._holdings.worker:
            self._replenish()
        for child in self._children:
            if child.has_some_waiting and child.is_stuck(now):
                self._buffer.extendleft(reversed(child.withdraw()))
                self._wait_for_pipe(child)
            if child.recycling and not child.load and now - child.recycled_at > _FAREWELL:
                child.kill()  # a job left a thread behind that does not end
        if self._buffer and now - self._fed_at > _STALE and not any(c.appetite(now) > 0 for c in self._children):
            self._give_back(self._buffer)
            self._buffer.clear()
        if now - self._timed_at > STUCK:
            self._timed_at = now
            self._end_who_must_go(now)
        if self._memory_limit is not None and now - self._watched_at > 1.0:
            self._watched_at = now
            self._recycle_large()

    def _end_who_must_go(self, now: float) -> None:
        for child in list(self._children):
            must_go = overruns.of_those_who_stay(child, now) or overruns.of_those_too_large(child, self._hard_limit)
            if must_go:
                self._end_child_of(child, must_go)

    def _end_child_of(self, child: ChildHandle, must_go: Mapping[int, Fate]) -> None:
        """Ends a child because of some of its jobs. What else ran in there is handed back."""
        child.kill()
        child.process.join(timeout=5.0)
        self._drain(child)
        ended = [(*child.take(number), fate) for number, fate in must_go.items() if child.was_sent(number)]
        others, innocent = self._remove(child)
        self._children.remove(child)
        self._buffer.extendleft(reversed(innocent))
        now = self._clock.now()
        for job, since, fate in ended:
            end = overruns.Ended(self._moment(since), now, self._holdings.worker)
            self._end([(job.id, self._move_of(job, fate, end))])
        self.interrupt(others, "its process was ended because of another job")
        self._replenish()

    def _move_of(self, job: HeldJob, fate: Fate, end: overruns.Ended) -> moves.Move:
        try:
            document = decode(job.raw) | self._holdings.tracks.said(job.id)
            if isinstance(fate, ByForce):
                self._events.emit("job.ended_by_force", job=job.id, error=str(fate.error))
            move = fate.move(document, self._policies, end)
        except Exception as error:
            return moves.unreadable(job.id, job.raw, end.at, f"its process was ended, and it cannot be read: {error}")
        self._telling.ended(job.id, move)
        return move

    def interrupt(self, jobs: Iterable[HeldJob], why: str) -> None:
        """Jobs that were ended by us, not by themselves: they are handed back and no attempt is counted.

        At-most-once ones have started and cannot be started again: they are lost.
        """
        now = self._clock.now()
        for job in jobs:
            self._events.emit("job.interrupted", job=job.id, why=why)
            self._end([(job.id, self.crash(job, now, why) if job.at_most_once else None)])

    def _moment(self, monotonic: float) -> datetime:
        return self._clock.now() - timedelta(seconds=self._clock.monotonic() - monotonic)

    def _recycle_large(self) -> None:
        for child in self._children:
            if child.ready and child.memory() > (self._memory_limit or 0):
                self._buffer.extendleft(reversed(child.withdraw()))
                child.forget_unsent()
                self._wait_for_pipe(child)
                self._events.emit("child.recycled", pid=child.pid, memory=child.memory())
                child.recycle(self._clock.monotonic())

    def _give_back(self, jobs: Iterable[HeldJob]) -> None:
        self._end((job.id, None) for job in list(jobs))

    def _end(self, outcomes: Iterable[Outcome]) -> None:
        self._holdings.ended(outcomes)
        self._told()

    def _woken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)
