"""The dispatcher gives jobs to free children. One thread owns it; it moves bytes and never waits for MongoDB.

Jobs wait in `HeldJobs`, not in the pipes. A child gets only jobs for the next few milliseconds, and jobs that it has
not started are taken back when it turns out to be slow. So no job waits behind a slow one while another child is free.

The diagram in `held_jobs.py` shows the states of a job in a worker. While a job is TAKEN, the dispatcher moves it:

    taken ──▶ sent        `_feed` opens a cell in the child's claims, and writes the frame
    sent ──▶ put back     `ChildHandle.withdraw`, under the lock of the claims: the child is slow, deaf, recycled or
                          paused
    sent ──▶ started      the child claims the cell, under the same lock
    started ──▶ ended     an answer (`_hear`), the death of the child (`_handle_death`), an overrun (`_end_child`), or
                          the end of this worker (`end_children`). Each reads the started jobs from the claims, decides
                          their outcomes, and only then forgets the child
"""

from __future__ import annotations

import contextlib
import math
import queue
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from recruiter.clock import Clock
from recruiter.domain.job import Execution, JobId
from recruiter.domain.planning.limits import Limit
from recruiter.domain.planning.prefetch import MAX_PREFETCHED_JOBS
from recruiter.domain.policy_registry import PolicyRegistry
from recruiter.errors import ApplicationError
from recruiter.events import Events, RareReports
from recruiter.processes.child import pipe
from recruiter.processes.worker import overruns
from recruiter.processes.worker.child_handle import STUCK_AFTER_SECONDS, ChildHandle, ChildPipes, RunningJob
from recruiter.processes.worker.child_pool import ChildPool, Reporters, Spawn
from recruiter.processes.worker.held_job import HeldJob, crashed, interrupted
from recruiter.processes.worker.held_jobs import HeldJobs, JobOutcome, TellEnd
from recruiter.processes.worker.overruns import Cancelled, HeldUp, Overruns, Reason
from recruiter.settings import Settings
from recruiter.store import outcomes
from recruiter.store.codec import Document, decode
from recruiter.store.collections.limits import limit_of
from recruiter.store.errors import trace_of

_MIN_GATHER_SECONDS, _MAX_GATHER_SECONDS = 0.001, 0.05
"""The answers of children gather for a time within these bounds (`ChildHandle.answers_may_gather`)."""
_IDLE_SECONDS, _RUNNING_SECONDS = 1.0, 0.25
"""Longest wait when nothing runs, and when a job runs that may overrun its time."""
_STALE_SECONDS = 1.0
"""Time that jobs may wait here while no child takes any; then they go back to the roster."""
_END_WITHIN_SECONDS = 5.0
"""Time in which a child must end after it has closed its pipe, or was asked to end and runs no job."""
_MEMORY_CHECKED_EVERY_SECONDS = 1.0
_HELLO_WITHIN_SECONDS = 300.0
"""Time in which a new child must have loaded the application."""
_DEAF_FOR_SECONDS = 3.0
"""After this time, a child is replaced if it runs no job and does not start the jobs that it was sent."""
_FLUSHED_WITHIN_SECONDS = 3.0
"""Time for the instruments of children to send their data when the worker ends."""
_LISTENER_ERRORS_EVERY_SECONDS = 60.0
"""Time between two reports about listeners that failed with the same kind of event."""


class Dispatcher:
    """The main thread of a worker: feeds jobs to the children, reads their answers, ends overrunning jobs."""

    def __init__(
        self,
        spawn: Spawn,
        clock: Clock,
        events: Events,
        policies: PolicyRegistry,
        settings: Settings,
        reporters: Reporters | None = None,
    ) -> None:
        self.limits: Sequence[Limit] = ()
        self.tasks: frozenset[str] | None = None
        self.has_instruments = False
        self.policies = policies
        self._clock = clock
        self._events = events
        self._settings = settings
        self._tells_successes = settings.log_level == "debug"
        self._listener_errors = RareReports(_LISTENER_ERRORS_EVERY_SECONDS)
        self._pipes = ChildPipes(self._hear, self._handle_death)
        self._pool = ChildPool(spawn, settings.processes, clock, events, self._pipes.add, reporters)
        self._held_jobs = HeldJobs("")
        self._flags: queue.SimpleQueue[Mapping[JobId, Document]] = queue.SimpleQueue()
        self._recalls: queue.SimpleQueue[Collection[JobId]] = queue.SimpleQueue()
        self._stack_questions: queue.SimpleQueue[Document] = queue.SimpleQueue()
        self.stack: Document | None = None
        self._accepting = True
        self._had_free_slot = False
        self._fed_at = self._memory_checked_at = self._overruns_checked_at = 0.0
        self._fed_priority = 0
        """The priority of the last job that was given to a child."""

    # -- from other threads --------------------------------------------------------------------------------------

    def wake(self) -> None:
        self._pipes.wake()

    @property
    def has_free_slot(self) -> bool:
        """Whether the children have more free places than there are waiting jobs. Giving a waiting job to a child does
        not change this: the fetcher may ask before or after that."""
        free_places = sum(child.free_places for child in list(self._pool.handles))
        return self._accepting and free_places > self._held_jobs.waiting

    @property
    def prefetch(self) -> int:
        now = self._clock.monotonic()
        return min(MAX_PREFETCHED_JOBS, sum(child.prefetch(now) for child in list(self._pool.handles)))

    def running(self) -> list[tuple[HeldJob, datetime]]:
        return [(job, self._moment(since)) for child in list(self._pool.handles) for job, since in child.running()]

    def cancel(self, flags: Mapping[JobId, Document]) -> None:
        self._flags.put(flags)
        self.wake()

    def ask_stack(self, asked: Document) -> None:
        self._stack_questions.put(asked)
        self.wake()

    def recall(self, ids: Collection[JobId]) -> None:
        """Hands back the jobs that have not started, in the dispatcher's own thread."""
        self._recalls.put(ids)
        self.wake()

    def ask_to_stop(self) -> None:
        """From now on, `current_job.stop_asked` is true in every job of this worker."""
        for child in list(self._pool.handles):
            child.claims.ask_to_stop()

    def kill(self) -> None:
        """Kills all children, after the second signal: no result is saved."""
        for child in list(self._pool.handles):
            child.kill()

    # -- the dispatcher's own thread -----------------------------------------------------------------------------

    def open(self, held_jobs: HeldJobs) -> None:
        """Begins a registration, with new children that know its id."""
        self._held_jobs = held_jobs
        held_jobs.on_recall(self.recall)
        self._accepting = True
        self._pool.replenish(held_jobs.worker)

    def turn(self) -> None:
        """One round: feeds the children, waits for the next event, and acts on it."""
        self._obey_recalls()
        self._obey_flags()
        self._ask_stacks()
        if self._accepting:
            self._let_urgent_jobs_overtake()
            self._feed()
        else:
            self._held_jobs.hand_back_untaken()
        has_free_slot = self.has_free_slot
        if has_free_slot and not self._had_free_slot:
            self._held_jobs.wake_ups.fetcher()  # it asks rarely while no slot is free
        self._had_free_slot = has_free_slot
        is_busy = bool(self._held_jobs.waiting) or any(child.has_some_waiting for child in self._pool.handles)
        patience = STUCK_AFTER_SECONDS if is_busy else _IDLE_SECONDS if self.idle else _RUNNING_SECONDS
        self._let_answers_gather()
        happened = self._pipes.wait(self._pool.handles, patience)
        for act in happened:
            self._guarded(act)
        self._watch()

    def _let_answers_gather(self) -> None:
        """Sleeps while every child has enough jobs, and room for answers. Answers come one by one, each would wake this
        thread, and they are settled in batches anyway. A child with a long job does not count. New jobs end the sleep:
        one of them may be urgent."""
        now = self._clock.monotonic()
        quick_children = [child for child in self._pool.handles if not child.is_stuck(now)]
        seconds = min((child.answers_may_gather for child in quick_children), default=0.0)
        if seconds >= _MIN_GATHER_SECONDS:
            self._pipes.sleep(min(seconds, _MAX_GATHER_SECONDS))

    def _guarded(self, act: Callable[[], None]) -> None:
        """Calls `act`, and reports an error of it: a bug that affects one job must not end the worker."""
        try:
            act()
        except ApplicationError:
            raise
        except Exception as error:
            self._events.emit("loop.failed", loop="dispatch", trace=trace_of(error))

    def pause(self) -> int:
        """Stops taking jobs, and hands back all that have not started; returns how many."""
        self._accepting = False
        for child in self._pool.handles:
            self._held_jobs.put_back(child.withdraw())
        return self._held_jobs.hand_back_untaken()

    def resume(self) -> None:
        self._accepting = True

    @property
    def idle(self) -> bool:
        return not any(child.load for child in self._pool.handles)

    def end_children(self) -> list[RunningJob]:
        """Ends every child immediately; returns the jobs that they were running. Answers that children have already
        sent are used."""
        interrupted: list[RunningJob] = []
        for child in self._pool.handles:
            child.kill()
        for child in list(self._pool.handles):
            self._await_end(child)
            if child.process.exitcode is None:
                self._pool.end_server()
            interrupted.extend(child.started().values())
            self._held_jobs.hand_back(job.id for job in child.unstarted())
            self._forget(child)
        return interrupted

    def close(self) -> None:
        """Call this when no other thread is left that could wake it."""
        self.end_children()
        self._pool.close()
        self._pipes.close()

    def let_flush(self) -> None:
        """Before the worker ends: lets idle children with instruments end by themselves, so that their data is sent."""
        now = self._clock.monotonic()
        leaving = [child for child in self._pool.handles if child.flushes and not child.load and not child.recycling]
        for child in leaving:
            self._recycle(child)
        for child in leaving:
            child.process.join(timeout=max(0.0, now + _FLUSHED_WITHIN_SECONDS - self._clock.monotonic()))

    # -- jobs come and go ----------------------------------------------------------------------------------------

    def _obey_recalls(self) -> None:
        """Hands back recalled jobs that have not started: this worker has lost them, or they are paused."""
        for _ in range(self._recalls.qsize()):
            ids = self._recalls.get()
            self._held_jobs.hand_back_untaken(ids)  # they may have been put back since they were recalled
            for child in self._pool.handles:
                self._held_jobs.hand_back(job.id for job in child.withdraw_these(ids))
            if any(child.may_start(ids) for child in self._pool.handles):
                self._recalls.put(ids)  # a child is claiming a job: try again in the next turn

    def _obey_flags(self) -> None:
        """Hands back cancelled jobs that have not started: the leader archives them. Running jobs are interrupted."""
        while not self._flags.empty():
            flags = self._flags.get()
            self._held_jobs.hand_back_untaken(flags)
            for id, flag in flags.items():
                for child in self._pool.handles:
                    if child.withdraw_these([id]):
                        self._held_jobs.hand_back([id])
                    elif (job := child.cancel(id, flag, self._clock.monotonic())) is not None:
                        self._emit("job.cancelling", job, by=flag.get("by"), reason=flag.get("reason"))

    def _ask_stacks(self) -> None:
        while not self._stack_questions.empty():
            asked = self._stack_questions.get()
            for child in self._pool.handles:
                child.ask_stack(asked)

    def _feed(self) -> None:
        """Gives the waiting jobs to the children with room, the least loaded first, in equal shares: the first child
        must not take jobs that could start in the second."""
        now = self._clock.monotonic()
        free = sorted((c for c in self._pool.handles if c.room(now) > 0), key=lambda child: child.load)
        for served, child in enumerate(free):
            share = math.ceil(self._held_jobs.waiting / (len(free) - served))
            jobs = self._held_jobs.take(min(child.room(now), share))
            if not jobs:
                return
            child.send(jobs, self._time())
            self._fed_at, self._fed_priority = now, jobs[-1].priority

    def _let_urgent_jobs_overtake(self) -> None:
        """A more urgent job does not wait behind the jobs that are already in the pipes."""
        priority = self._held_jobs.next_priority
        if priority is not None and priority > self._fed_priority:
            for child in self._pool.handles:
                self._held_jobs.put_back(child.withdraw_less_urgent(priority))

    # -- messages of children ------------------------------------------------------------------------------------

    def _hear(self, child: ChildHandle) -> None:
        """Reads messages of a child: the outcomes and the progress of its jobs, and facts about itself."""
        if child not in self._pool.handles:
            return  # its death was noticed in the same round
        messages = child.receive(self._clock.monotonic())
        if child.silent:
            child.kill()  # its pipe is closed: it is ending, or a job has closed files that are not its own
            self._pipes.stop_reading(child)
        outcomes: list[JobOutcome] = []
        for kind, run, payload in messages:
            if run is None:
                self._hear_of_itself(child, kind, decode(payload))
            elif kind == pipe.PROGRESS:
                self._held_jobs.add_progress(run.job, self._moment(run.since), payload)
            else:
                outcome = pipe.outcome_of(kind, run.job.id, payload)
                outcomes.append((run.job.id, outcome))
                self._tell_end(run.job, outcome)
        self._held_jobs.ended(outcomes)

    def _hear_of_itself(self, child: ChildHandle, kind: int, message: Document) -> None:
        """Handles a message of a child that concerns no job. Raises ApplicationError if the first child is broken."""
        if kind == pipe.LISTENER_ERROR:
            self._tell_listener_error(message)
        elif kind == pipe.STACK:
            self.stack = {**message, "at": self._clock.now()}
        elif kind == pipe.HELLO:
            self.limits = [limit for subject, each in message["limits"].items() if (limit := limit_of(each, subject))]
            self.tasks = frozenset(message["tasks"])
            child.flushes = self.has_instruments = message["flushes"]
            self._pool.welcome(child, self.tasks, message["pid"], message["server"])
        elif self.tasks is None:
            raise ApplicationError(f"the application cannot be loaded in a worker:\n{message['trace']}")
        else:
            self._events.emit("child.broken", pid=child.pid, trace=message["trace"])

    def _tell_end(self, job: HeldJob, outcome: outcomes.Outcome | None) -> None:
        """Emits the event about an outcome; for a success without notes, only at the log level debug."""
        event = None if outcome is None else outcome.event
        if event is None or (event.name == "job.ended" and not event.notes and not self._tells_successes):
            return
        for note in event.notes:
            self._emit("job.noted", job, note=note)
        self._emit(event.name, job, **event.fields)

    def _tell_listener_error(self, message: Document) -> None:
        """Reports that a listener failed in a child: rarely, with the number of failures since the last report."""
        times = self._listener_errors.due(message["event"], self._clock.monotonic(), message["times"])
        if times:
            error = message["error"] if times == 1 else f"{message['error']} ({times} times)"
            self._events.emit("listener.failed", listener=message["listener"], event=message["event"], error=error)

    def _emit(self, name: str, job: HeldJob, **fields: Any) -> None:
        self._events.emit(name, **job.facts(self._held_jobs.worker), **fields)

    # -- the end of a child --------------------------------------------------------------------------------------

    def _read_rest(self, child: ChildHandle, tell: Callable[[RunningJob, str], TellEnd | None]) -> None:
        """Reads the last messages of a dead child, and notes the jobs that died with it. For each, `tell` returns a
        function that is called when the job is settled."""
        with contextlib.suppress(OSError):
            self._hear(child)
            while not child.drained:
                self._hear(child)
        if started := child.started():
            how = child.how_it_ended()
            self._held_jobs.child_died(child.pid, {run.job.id: tell(run, how) for run in started.values()})

    def _handle_death(self, child: ChildHandle) -> None:
        """Handles the jobs of a dead child: started jobs have crashed, the others are put back."""
        if child not in self._pool.handles:
            return
        self._read_rest(child, lambda run, how: partial(self._tell_death, run.job, how))
        started, how, now = list(child.started().values()), child.how_it_ended(), self._clock.now()
        crashes: list[JobOutcome] = []
        for job, since in started:
            progress = self._held_jobs.progress.fields_of(job.id)
            crash = crashed(job, self.policies, self._held_jobs.worker, now, how, progress, self._moment(since))
            crashes.append((job.id, crash))
        self._held_jobs.ended(crashes)
        self._held_jobs.put_back(child.unstarted())
        self._forget(child)
        if not child.recycling:
            self._events.emit("child.died", pid=child.pid, how=how, jobs=[run.job.id for run in started])

    def _tell_death(self, job: HeldJob, how: str, outcome: outcomes.Outcome | None) -> None:
        """Reports a job whose child died. A job that had ended in its own transaction has not crashed."""
        if isinstance(outcome, outcomes.Settled):
            self._tell_end(job, outcome)
        else:
            self._emit("job.crashed", job, how=how)

    def _await_end(self, child: ChildHandle) -> None:
        """Waits for the end of a child that was killed, and reads its last messages."""
        child.process.join(timeout=_END_WITHIN_SECONDS)
        if child.process.exitcode is None:
            child.kill_guard()
            child.process.join(timeout=1.0)
        self._read_rest(child, lambda _run, _how: None)

    def _forget(self, child: ChildHandle) -> None:
        """Removes a dead child. Call this last, when all its jobs have outcomes or were put back."""
        self._pipes.remove(child)
        self._pool.remove(child)

    # -- regular checks ------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Starts missing children; handles stuck children, stale jobs, overruns, and children that are too large."""
        now = self._clock.monotonic()
        if self._held_jobs.worker:
            self._pool.replenish(self._held_jobs.worker)
        for child in list(self._pool.handles):
            self._take_back_what_it_does_not_start(child, now)
            self._end_if_it_hangs(child, now)
        has_room = any(child.room(now) > 0 for child in self._pool.handles)
        if self._held_jobs.waiting and now - self._fed_at > _STALE_SECONDS and not has_room:
            self._held_jobs.hand_back_untaken()
        if now - self._overruns_checked_at > STUCK_AFTER_SECONDS:
            self._overruns_checked_at = now
            self._end_overruns(now)
        if now - self._memory_checked_at > _MEMORY_CHECKED_EVERY_SECONDS:
            self._memory_checked_at = now
            self._recycle_large_children()

    def _take_back_what_it_does_not_start(self, child: ChildHandle, now: float) -> None:
        is_deaf = child.ignores_jobs(now)
        if is_deaf:
            child.note_deaf(now)
        if is_deaf or (child.has_some_waiting and child.is_stuck(now)):
            self._held_jobs.put_back(child.withdraw())

    def _recycle_large_children(self) -> None:
        """Replaces each child that uses more than the memory limit as soon as its running jobs have ended."""
        limit = self._settings.memory_limit
        if limit is None:
            return
        for child in [child for child in self._pool.handles if child.ready and child.memory() > limit]:
            self._held_jobs.put_back(child.withdraw())
            self._events.emit("child.recycled", pid=child.pid, memory=child.memory())
            self._recycle(child)
            self._pool.replenish(self._held_jobs.worker)

    def _recycle(self, child: ChildHandle) -> None:
        self._pipes.stop_writing(child)
        child.recycle(self._clock.monotonic())

    def _end_if_it_hangs(self, child: ChildHandle, now: float) -> None:
        """Ends a child that has not ended, loaded the application, or started its jobs within the time limit."""
        if child.recycling and not child.load and now - child.recycled_at > _END_WITHIN_SECONDS:
            child.kill()  # a job left a thread behind that does not end
        if child.tasks is None and now - child.answered_at > _HELLO_WITHIN_SECONDS:
            child.kill()  # it has not loaded the application
        if child.silent and now - child.silent_at > _END_WITHIN_SECONDS:
            child.kill_guard()  # the child is dead, and its guard or the fork server does not report it
            self._handle_death(child)
        elif child.deaf_for(now) > _DEAF_FOR_SECONDS and not child.numbers_running():
            self._events.emit("child.died", pid=child.pid, how="it did not start the jobs that it was sent", jobs=[])
            self._end_child(child, {})

    def _end_overruns(self, now: float) -> None:
        time = self._time()
        for child in list(self._pool.handles):
            child.tell_time(time)
            found = overruns.past_their_time(child, now) or overruns.too_large(child, self._settings.memory_hard_limit)
            if found:
                self._end_child(child, found)

    def _end_child(self, child: ChildHandle, found: Overruns) -> None:
        """Ends a child because of the jobs in `found`, which get outcomes. Its other jobs are handed back."""
        child.kill()
        self._await_end(child)
        now, started = self._clock.now(), child.started()
        for number, reason in found.items():
            if number in started:
                job, since = started.pop(number)
                self._held_jobs.ended([(job.id, self._forced_outcome(job, reason, self._moment(since), now))])
        self.interrupt(started.values(), "its process was stopped because of another job")
        self._held_jobs.put_back(child.unstarted())
        self._forget(child)
        self._pool.replenish(self._held_jobs.worker)

    def _forced_outcome(self, job: HeldJob, reason: Reason, since: datetime, now: datetime) -> outcomes.Outcome:
        """The outcome of the job that caused the end of its child."""
        worker = self._held_jobs.worker
        facts: dict[str, Any] = {"worker": worker, "started_at": since, "at": now}
        outcome: outcomes.Outcome
        try:
            document = decode(job.raw) | self._held_jobs.progress.fields_of(job.id)
            if isinstance(reason, HeldUp) and job.at_most_once:
                outcome = outcomes.crashed(document, self.policies, **facts, message=reason.why)
            elif isinstance(reason, HeldUp):
                outcome = outcomes.worker_died(document, **facts, message=reason.why)
                if isinstance(outcome, outcomes.Rescheduled):
                    self._emit("job.interrupted", job, why=reason.why)
            elif isinstance(reason, Cancelled):
                how = "it was cancelled, did not end when told so, and its process was ended"
                execution = Execution(since, now, worker, message=how)
                outcome = outcomes.unreported(outcomes.cancelled({**document, "cancel": reason.flag}, now, execution))
            else:
                self._emit("job.ended_by_force", job, error=str(reason.error))
                outcome = outcomes.ended_by_force(document, self.policies, reason.error, **facts)
            self._tell_end(job, outcome)
            return outcome
        except Exception as error:
            problem = f"its process was ended, and it cannot be read: {error}"
            return outcomes.unreadable(job.id, job.raw, now, problem)

    def interrupt(self, runs: Iterable[RunningJob], why: str) -> None:
        """Hands back started jobs whose processes this worker has ended, and reports why."""
        now = self._clock.now()
        for job, since in runs:
            self._emit("job.interrupted", job, why=why)
            progress = self._held_jobs.progress.fields_of(job.id)
            outcome = interrupted(job, self.policies, self._held_jobs.worker, now, why, progress, self._moment(since))
            self._held_jobs.ended([(job.id, outcome)])

    # -- time ----------------------------------------------------------------------------------------------------

    def _moment(self, monotonic: float) -> datetime:
        return self._clock.now() - timedelta(seconds=self._clock.monotonic() - monotonic)

    def _time(self) -> pipe.Time:
        monotonic = self._clock.monotonic()
        return pipe.Time(self._clock.now().timestamp() - monotonic, monotonic)
