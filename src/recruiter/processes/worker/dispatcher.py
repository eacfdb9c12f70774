"""The dispatcher gives jobs to free children. One thread owns it; it moves bytes and never waits for MongoDB.

Jobs wait here, not in the pipes: a child gets only what it can do in the next moment, and what it has not started is
taken back when it turns out to be slow. So nothing waits behind a slow job while another child is free.

The diagram in `held_jobs.py` shows the states of a job in a worker. Between QUEUED and ENDED the dispatcher moves it:

    queued ──▶ sent       `_feed` opens a cell in the child's claims, and writes the frame
    sent ──▶ queued       `ChildHandle.withdraw`, under the lock of the claims: the child is slow, deaf, recycled or
                          paused
    sent ──▶ started      the child claims the cell, under the same lock
    started ──▶ ended     an answer (`_hear`), the death of the child (`_died`), an overrun (`_end_child_of`), or
                          the end of this worker (`end_children`). Each reads from the claims what the child has
                          started, decides the outcome, and only then forgets the child
"""

from __future__ import annotations

import contextlib
import math
import queue
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial

from recruiter.clock import Clock
from recruiter.domain.job import JobId
from recruiter.domain.planning.limits import Limit
from recruiter.domain.policy_registry import PolicyRegistry
from recruiter.errors import ApplicationError
from recruiter.events import Events
from recruiter.processes.child import pipe
from recruiter.processes.worker import overruns
from recruiter.processes.worker.child_handle import STUCK, Answer, ChildHandle, ChildPipes, Run
from recruiter.processes.worker.child_pool import ChildPool, Spawn
from recruiter.processes.worker.held_jobs import HeldJob, HeldJobs, JobOutcome, crashed, interrupted
from recruiter.processes.worker.job_events import JobEvents
from recruiter.processes.worker.overruns import ByForce, HeldUp, Overruns, Reason
from recruiter.settings import Settings
from recruiter.store import outcomes
from recruiter.store.codec import Document, decode
from recruiter.store.collections.limits import limit_of
from recruiter.store.errors import trace_of

_GATHER = 0.004
"""Seconds in which answers gather while children have more to do."""
_IDLE, _RUNNING = 1.0, 0.25
"""Seconds between two looks at the children when nothing runs, and when something does that may overrun its time."""
_STALE = 1.0
"""Seconds that jobs may wait here while no child takes any; then they go back to the roster."""
_FAREWELL = 5.0
"""Seconds that a child may take to end once it has been told to and runs nothing, or has closed its pipe."""
_HELLO_WITHIN_SECONDS = 300.0
"""Time in which a new child must have loaded the application."""
_DEAF_FOR_SECONDS = 3.0
"""After this time a child that runs nothing, and does not start what it was sent, is replaced."""
_FLUSHED_WITHIN = 3.0
"""The same when the worker ends: for what instruments still have to send."""


class Dispatcher:
    def __init__(
        self, spawn: Spawn, clock: Clock, events: Events, policies: PolicyRegistry, settings: Settings
    ) -> None:
        self.limits: Sequence[Limit] = ()
        self.tasks: frozenset[str] | None = None
        self._clock = clock
        self._events = events
        self._policies = policies
        self._settings = settings
        self._job_events = JobEvents(events, clock, settings.log_level == "debug")
        self._pipes = ChildPipes(self._hear, self._died)
        self._pool = ChildPool(spawn, settings.processes, clock, events, self._pipes.add)
        self._held_jobs = HeldJobs("")
        self._queued: deque[HeldJob] = deque()
        self._flags: queue.SimpleQueue[Mapping[JobId, Document]] = queue.SimpleQueue()
        self._recalls: queue.SimpleQueue[Collection[JobId]] = queue.SimpleQueue()
        self._accepting = True
        self._had_free_slot = False
        self._fed_at = self._watched_at = self._timed_at = 0.0

    # -- from other threads --------------------------------------------------------------------------------------

    def wake(self) -> None:
        self._pipes.wake()

    @property
    def has_free_slot(self) -> bool:
        """A child is free and nothing is here for it."""
        return self._accepting and not self._queued and any(c.has_a_free_place for c in list(self._pool.handles))

    def running(self) -> list[tuple[HeldJob, datetime]]:
        """What the children run, and since when."""
        return [(job, self._moment(since)) for child in list(self._pool.handles) for job, since in child.running()]

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
        for child in list(self._pool.handles):
            child.claims.ask_to_stop()

    def kill(self) -> None:
        """For the second signal: nothing is saved."""
        for child in list(self._pool.handles):
            child.kill()

    # -- the dispatcher's own thread -----------------------------------------------------------------------------

    def open(self, held_jobs: HeldJobs) -> None:
        """Begins a registration, with new children that know its id."""
        self._held_jobs = held_jobs
        held_jobs.on_recall(self.recall)
        self._accepting = True
        self._queued.clear()
        self._pool.replenish(held_jobs.worker)

    def turn(self) -> None:
        """Once around: take what arrived, feed the children, wait a little for whatever happens."""
        self._accept()
        self._obey_recalls()
        self._obey_flags()
        self._feed()
        free = self.has_free_slot
        if free and not self._had_free_slot:
            self._held_jobs.wake_ups.fetcher()
        self._had_free_slot = free
        busy = self._queued or any(child.has_some_waiting for child in self._pool.handles)
        happened = self._pipes.wait(STUCK if busy else _IDLE if self.idle else _RUNNING)
        for call in happened:
            self._act(call)
        self._watch()
        if busy and happened:
            # Answers come one by one, and each would wake this thread; they are settled in batches anyway.
            time.sleep(_GATHER)

    def _act(self, call: Callable[[], None]) -> None:
        """A mistake of ours about one job must not end the worker and all the others with it."""
        try:
            call()
        except ApplicationError:
            raise
        except Exception as error:
            self._events.emit("loop.failed", loop="dispatch", trace=trace_of(error))

    def pause(self) -> list[HeldJob]:
        """Takes no more jobs, and gives back all that has not started."""
        self._accepting = False
        self._accept()
        for child in self._pool.handles:
            self._withdraw(child)
        held, self._queued = list(self._queued), deque()
        return held

    def resume(self) -> None:
        self._accepting = True

    @property
    def idle(self) -> bool:
        return not any(child.load for child in self._pool.handles)

    def end_children(self) -> list[Run]:
        """Ends every child at once; returns what they were running. What they had answered is kept."""
        interrupted: list[Run] = []
        for child in self._pool.handles:
            child.kill()
        for child in list(self._pool.handles):
            self._let_end(child)
            if child.process.exitcode is None:
                self._pool.end_server()
            interrupted.extend(child.started().values())
            self._give_back(child.unstarted())
            self._forget(child)
        return interrupted

    def close(self) -> None:
        """To be called when no other thread is left that could wake it."""
        self.end_children()
        self._pool.close()
        self._pipes.close()

    def let_flush(self) -> None:
        """Children whose instruments may have something to send end by themselves, if they do so soon."""
        now = self._clock.monotonic()
        leaving = [child for child in self._pool.handles if child.flushes and not child.load and not child.recycling]
        for child in leaving:
            self._pipes.stop_writing(child)
            child.recycle(now)
        for child in leaving:
            child.process.join(timeout=max(0.0, now + _FLUSHED_WITHIN - self._clock.monotonic()))

    # -- jobs come and go ----------------------------------------------------------------------------------------

    def _accept(self) -> None:
        first, last = self._held_jobs.accept()
        self._queued.extendleft(reversed(first))
        self._queued.extend(last)
        if not self._accepting:
            self._give_back(self._queued)
            self._queued.clear()

    def _obey_recalls(self) -> None:
        for _ in range(self._recalls.qsize()):
            ids = self._recalls.get()
            back = [job for job in self._queued if job.id in ids]
            self._queued = deque(job for job in self._queued if job.id not in ids)
            for child in self._pool.handles:
                back.extend(child.withdraw_these(ids))
                self._pipes.watch_full(child)
            self._give_back(back)
            if any(child.may_start(ids) for child in self._pool.handles):
                self._recalls.put(ids)  # a child is just claiming something: again in the next turn

    def _obey_flags(self) -> None:
        """Cancelled jobs that have not started are let go: the leader archives them. Those that run are told."""
        while not self._flags.empty():
            flags = self._flags.get()
            waiting = [job for job in self._queued if job.id in flags]
            for job in waiting:
                self._queued.remove(job)
            self._give_back(waiting)
            for id, flag in flags.items():
                for child in self._pool.handles:
                    if child.withdraw_these([id]):
                        self._end([(id, None)])
                    elif (told := child.cancel(id, flag, self._clock.monotonic())) is not None:
                        about = told.facts(self._held_jobs.worker)
                        self._events.emit("job.cancelling", **about, by=flag.get("by"), reason=flag.get("reason"))
                        self._pipes.watch_full(child)

    def _feed(self) -> None:
        now = self._clock.monotonic()
        free = sorted((c for c in self._pool.handles if c.room(now) > 0), key=lambda child: child.load)
        for position, child in enumerate(free):
            if not self._queued:
                return
            share = min(child.room(now), math.ceil(len(self._queued) / (len(free) - position)))
            child.send([self._queued.popleft() for _ in range(share)], self._time())
            self._fed_at = now
            self._pipes.watch_full(child)

    def _withdraw(self, child: ChildHandle) -> None:
        self._queued.extendleft(reversed(child.withdraw()))
        self._pipes.watch_full(child)

    def _give_back(self, jobs: Iterable[HeldJob]) -> None:
        self._end([(job.id, None) for job in jobs])

    def _end(self, outcomes: list[JobOutcome]) -> None:
        self._held_jobs.ended(outcomes)

    # -- what children say ---------------------------------------------------------------------------------------

    def _hear(self, child: ChildHandle) -> None:
        if child not in self._pool.handles:
            return  # its death was noticed in the same moment
        answers = child.receive(self._clock.monotonic())
        if child.silent:
            child.kill()  # its pipe is closed: it is ending, or a job has closed what was not its own
            self._pipes.stop_reading(child)
        self._note(child)
        outcomes: list[JobOutcome] = []
        for answer in answers:
            if answer.kind < pipe.ARCHIVE:
                self._introduced(child, answer)
            else:
                outcome = pipe.outcome_of(answer.kind, answer.payload)
                outcomes.append((answer.job.id, outcome))
                self._job_events.ended(answer.job, outcome, self._held_jobs.worker)
        self._end(outcomes)

    def _note(self, child: ChildHandle) -> None:
        """What its jobs have said of themselves, and what failed beside them."""
        if child.listener_errors:
            listener_errors, child.listener_errors = child.listener_errors, []
            self._job_events.listener_failed(listener_errors)
        if child.said:
            said, child.said = child.said, []
            for job, since, payload in said:
                self._held_jobs.add_progress(job, self._moment(since), payload)

    def _introduced(self, child: ChildHandle, answer: Answer) -> None:
        message = decode(answer.payload)
        if answer.kind == pipe.BROKEN:
            if self.tasks is None:
                raise ApplicationError(f"the application cannot be loaded in a worker:\n{message['trace']}")
            self._events.emit("child.broken", pid=child.pid, trace=message["trace"])
            return
        self.limits = [limit for subject, each in message["limits"].items() if (limit := limit_of(each, subject))]
        self.tasks = frozenset(message["tasks"])
        child.flushes = message["flushes"]
        self._pool.welcome(child, self.tasks, message["pid"], message["server"])

    def _drain(self, child: ChildHandle, *, told: bool) -> None:
        """Of a child that is dead: everything it still had to say. Unless it is `told` already what became of its jobs,
        that is told when they are settled."""
        with contextlib.suppress(OSError):
            self._hear(child)
            while not child.drained:
                self._hear(child)
        started = child.started()
        if started:
            how = child.how_it_ended()
            ends = {run.job.id: None if told else partial(self._tell_death, run.job, how) for run in started.values()}
            self._held_jobs.child_died(child.pid, ends)

    # -- the end of a child --------------------------------------------------------------------------------------

    def _died(self, child: ChildHandle) -> None:
        if child not in self._pool.handles:
            return
        self._drain(child, told=False)
        started, how, now = list(child.started().values()), child.how_it_ended(), self._clock.now()
        self._end([(run.job.id, self.crash(run.job, now, how, self._moment(run.since))) for run in started])
        self._queued.extendleft(reversed(child.unstarted()))
        self._forget(child)
        if not child.recycling:
            self._events.emit("child.died", pid=child.pid, how=how, jobs=[run.job.id for run in started])

    def _tell_death(self, job: HeldJob, how: str, outcome: outcomes.Outcome | None) -> None:
        """Of a job whose child died; when it had ended in its own transaction, it has not crashed."""
        if isinstance(outcome, outcomes.Settled):
            self._job_events.ended(job, outcome, self._held_jobs.worker)
        else:
            self._events.emit("job.crashed", **job.facts(self._held_jobs.worker), how=how)

    def crash(
        self, job: HeldJob, at: datetime, how: str, started_at: datetime | None = None
    ) -> outcomes.Outcome | None:
        """What the death of its process means for a job, whatever is in it."""
        said = self._held_jobs.progress.fields_of(job.id)
        return crashed(job, self._policies, self._held_jobs.worker, at, how, said, started_at)

    def _let_end(self, child: ChildHandle) -> None:
        """Of a child that was killed: waits for its end, and takes what it has answered."""
        child.process.join(timeout=_FAREWELL)
        if child.process.exitcode is None:
            child.kill_guard()
            child.process.join(timeout=1.0)
        self._drain(child, told=True)

    def _forget(self, child: ChildHandle) -> None:
        """Last: whatever it had started or not has been seen to."""
        self._pipes.remove(child)
        self._pool.remove(child)

    # -- now and then --------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """What is worth a look now and then: children that are stuck, stale jobs, memory."""
        now = self._clock.monotonic()
        if self._held_jobs.worker:
            self._pool.replenish(self._held_jobs.worker)
        for child in list(self._pool.handles):
            if child.ignores_jobs(now) or (child.has_some_waiting and child.is_stuck(now)):
                self._withdraw(child)
            if child.recycling and not child.load and now - child.recycled_at > _FAREWELL:
                child.kill()  # a job left a thread behind that does not end
            if child.tasks is None and now - child.answered_at > _HELLO_WITHIN_SECONDS:
                child.kill()
            self._replace_if_it_stands_still(child, now)
        if self._queued and now - self._fed_at > _STALE and not any(c.room(now) > 0 for c in self._pool.handles):
            self._give_back(self._queued)
            self._queued.clear()
        if now - self._timed_at > STUCK:
            self._timed_at = now
            self._look_for_overruns(now)
        if self._settings.memory_limit is not None and now - self._watched_at > 1.0:
            self._watched_at = now
            self._recycle_large(self._settings.memory_limit)

    def _replace_if_it_stands_still(self, child: ChildHandle, now: float) -> None:
        if child.silent and now - child.silent_at > _FAREWELL:
            child.kill_guard()  # the child is dead, and its guard or the fork server does not tell
            self._died(child)
        elif child.deaf_for(now) > _DEAF_FOR_SECONDS and not child.numbers_running():
            self._events.emit("child.died", pid=child.pid, how="it did not start what it was sent", jobs=[])
            self._end_child_of(child, {})

    def _look_for_overruns(self, now: float) -> None:
        time = self._time()
        for child in list(self._pool.handles):
            child.tell_time(time)
            self._pipes.watch_full(child)
            found = overruns.past_their_time(child, now) or overruns.too_large(child, self._settings.memory_hard_limit)
            if found:
                self._end_child_of(child, found)

    def _end_child_of(self, child: ChildHandle, found: Overruns) -> None:
        """Ends a child because of some of its jobs. What else ran in there is handed back."""
        child.kill()
        self._let_end(child)
        now, started = self._clock.now(), child.started()
        for number, reason in found.items():
            if number in started:
                run = started.pop(number)
                end = overruns.Ended(self._moment(run.since), now, self._held_jobs.worker)
                self._end([(run.job.id, self._outcome(run.job, reason, end))])
        self.interrupt(started.values(), "its process was ended because of another job")
        self._queued.extendleft(reversed(child.unstarted()))
        self._forget(child)
        self._pool.replenish(self._held_jobs.worker)

    def _outcome(self, job: HeldJob, reason: Reason, end: overruns.Ended) -> outcomes.Outcome | None:
        try:
            document = decode(job.raw) | self._held_jobs.progress.fields_of(job.id)
            if isinstance(reason, ByForce):
                self._events.emit("job.ended_by_force", **job.facts(self._held_jobs.worker), error=str(reason.error))
            outcome = reason.outcome(document, self._policies, end)
            if isinstance(reason, HeldUp) and isinstance(outcome, outcomes.Rescheduled):
                self._events.emit("job.interrupted", **job.facts(self._held_jobs.worker), why=reason.why)
            else:
                self._job_events.ended(job, outcome, self._held_jobs.worker)
            return outcome
        except Exception as error:
            problem = f"its process was ended, and it cannot be read: {error}"
            return outcomes.unreadable(job.id, job.raw, end.at, problem)

    def interrupt(self, runs: Iterable[Run], why: str) -> None:
        """Jobs that were ended by us, not by themselves: they are handed back and no attempt is counted.

        At-most-once ones have started and cannot be started again: they are lost.
        """
        now = self._clock.now()
        for job, since in runs:
            self._events.emit("job.interrupted", **job.facts(self._held_jobs.worker), why=why)
            started_at, progress = self._moment(since), self._held_jobs.progress.fields_of(job.id)
            lost = self.crash(job, now, why, started_at) if job.at_most_once else None
            worker = self._held_jobs.worker
            self._end([(job.id, lost or interrupted(job, progress, started_at, now, worker, why))])

    def _recycle_large(self, limit: int) -> None:
        for child in [child for child in self._pool.handles if child.ready and child.memory() > limit]:
            self._withdraw(child)
            self._events.emit("child.recycled", pid=child.pid, memory=child.memory())
            self._pipes.stop_writing(child)
            child.recycle(self._clock.monotonic())
            self._pool.replenish(self._held_jobs.worker)

    # -- time ----------------------------------------------------------------------------------------------------

    def _moment(self, monotonic: float) -> datetime:
        return self._clock.now() - timedelta(seconds=self._clock.monotonic() - monotonic)

    def _time(self) -> pipe.Time:
        monotonic = self._clock.monotonic()
        return pipe.Time(self._clock.now().timestamp() - monotonic, monotonic)
