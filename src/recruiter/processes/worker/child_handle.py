"""One child process as its supervisor sees it: the jobs that it was sent, the jobs that it runs, and its answers."""

from __future__ import annotations

import contextlib
import math
import os
import select
import selectors
import signal
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import NamedTuple, Protocol

import psutil

from recruiter.domain.job import JobId
from recruiter.domain.planning.prefetch import JobPace
from recruiter.processes.child import pipe
from recruiter.processes.child.claims import Claims, Numbers
from recruiter.processes.worker.held_job import HeldJob
from recruiter.programs import signal_name
from recruiter.store.codec import Document, encode

_PIPE_SECONDS = 0.1
"""Work that a child may have in its pipe: enough not to starve, little enough to be taken back."""
_MAX_JOBS_IN_PIPE = 500
STUCK_AFTER_SECONDS = 0.1
"""Time without an answer after which the jobs that a child has not started are taken back."""
_PREFETCHES_FOR_SECONDS = 1.0
"""Time without an answer after which no further jobs are prefetched for a child."""
_GATHERED_BYTES = 32 * 1024
"""Half of the capacity of a pipe."""
_CLAIMED_WITHIN_SECONDS = 0.5
"""A child with a free place that takes longer to start a job is deaf: it stands still, or a job blocks its loop."""
_CLOCK_TOLERANCE_SECONDS = 0.05
"""Difference between the clocks of a child and its supervisor that is tolerated while the child runs a job."""


class Process(Protocol):
    """The part of a child's process that the supervisor uses."""

    @property
    def pid(self) -> int | None: ...

    @property
    def exitcode(self) -> int | None: ...

    @property
    def sentinel(self) -> int: ...

    def join(self, timeout: float | None = None) -> None: ...


class RunningJob(NamedTuple):
    """A job that a child has started, and its start on the monotonic clock."""

    job: HeldJob
    since: float


class Message(NamedTuple):
    """A frame of a child."""

    kind: int
    run: RunningJob | None
    """The job that it is about."""
    payload: bytes


class ChildHandle:
    """A child process, as its supervisor knows it: its pipes, the jobs that it was sent, and its pace."""

    def __init__(
        self,
        process: Process,
        to_child: int,
        from_child: int,
        control: int,
        claims: Claims,
        places: int,
        now: float,
    ) -> None:
        """The three ends of pipes are the supervisor's own; `close` closes them."""
        self.process = process
        self.write_end, self.read_end, self.control_end = to_child, from_child, control
        for end in (to_child, from_child, control):
            os.set_blocking(end, False)
        self.claims = claims
        self.replaces: ChildHandle | None = None
        """The child whose place it takes, as long as that one has jobs to finish."""
        self.pid = process.pid or 0
        """The process that runs the jobs; until its first message, the guard around it."""
        self.tasks: frozenset[str] | None = None
        self.flushes = False
        """It has instruments, which may have data to send before it ends."""
        self.recycling = False
        self.recycled_at = now
        self.drained = True
        """Its pipe was empty when it was last read."""
        self.silent = False
        """It closed its pipe: it is about to end, or a job has closed files that are not its own."""
        self.silent_at = now
        self.answered_at = now
        self._deaf_since: float | None = None
        """The time since which it has started none of its jobs."""
        self._tries_when_deaf = 0
        self._sent_at = now
        self.cancelling: dict[int, tuple[Document, float]] = {}
        """By number, the jobs that it was asked to cancel: the flag, and when."""
        self._places = places
        self._numbers = Numbers()
        self._frames = pipe.Frames()
        self._jobs, self._words = pipe.Outgoing(to_child), pipe.Outgoing(control)
        self._sent: dict[int, HeldJob] = {}
        self._pace = JobPace()
        self._bytes_an_answer = 1.0
        self._clock_offset = 0.0

    # -- facts ---------------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        return self.tasks is not None and not self.recycling

    @property
    def blocked_ends(self) -> list[int]:
        """The ends of pipes that did not take all frames."""
        return [end for end, unsent in ((self.write_end, self._jobs), (self.control_end, self._words)) if unsent]

    @property
    def load(self) -> int:
        """The number of jobs that it was sent and has not answered for."""
        return len(self._sent)

    @property
    def places(self) -> int:
        """The number of jobs that may run in it at the same time: jobs that still run in the children that it replaces
        keep their places."""
        places, before = self._places, self.replaces
        while before is not None:
            places, before = places - before.load, before.replaces
        return places

    @property
    def free_places(self) -> int:
        return max(0, self.places - self.load) if self.ready and not self.is_deaf else 0

    @property
    def has_some_waiting(self) -> bool:
        """It was sent more jobs than it can run at the same time."""
        return self.load > self._places

    @property
    def answers_may_gather(self) -> float:
        """Seconds for which its answers may stay in the pipe. Meanwhile it must not run out of jobs, and must not fill
        the pipe, or its next answer would block it."""
        next_jobs = self.load - self._places
        if next_jobs <= 0:
            return 0.0
        return min(next_jobs / 2, _GATHERED_BYTES / self._bytes_an_answer) * self._pace.seconds_a_job

    def room(self, now: float) -> int:
        """The number of further jobs to send it now: one for each free place, and while its jobs are quick, some to
        start next. Jobs of the children that it replaces take some of its places: then it gets no next jobs."""
        if not self.ready or self.is_deaf:
            return 0
        places, next_jobs = self.places, 0
        has_all_places = places == self._places
        if has_all_places and not self.is_stuck(now):
            next_jobs = max(0, min(_MAX_JOBS_IN_PIPE, int(_PIPE_SECONDS / self._pace.seconds_a_job)) - 1)
        return max(0, min(places + next_jobs - self.load, len(self._numbers)))

    def prefetch(self, now: float) -> int:
        """The number of jobs that its worker may hold for it; none while it runs a long job."""
        is_slow = self.load > 0 and now - self.answered_at > _PREFETCHES_FOR_SECONDS
        return self._pace.prefetch if self.ready and not is_slow else 0

    def is_stuck(self, now: float) -> bool:
        return self.load > 0 and now - self.answered_at > STUCK_AFTER_SECONDS

    @property
    def is_deaf(self) -> bool:
        """Whether it left a job that it was sent, and has not tried to start one since."""
        return self._deaf_since is not None and self.claims.tries() == self._tries_when_deaf

    def deaf_for(self, now: float) -> float:
        """Seconds; 0 if it is not deaf."""
        return now - self._deaf_since if self._deaf_since is not None and self.is_deaf else 0.0

    def ignores_jobs(self, now: float) -> bool:
        """Whether it has a free place and has left a job that it was sent for too long."""
        if not self._sent or now - max(self._sent_at, self.answered_at) < _CLAIMED_WITHIN_SECONDS:
            return False
        claimed = sum(map(self.claims.claimed, self._sent))
        return claimed < min(self.load, self._places)

    def note_deaf(self, now: float) -> None:
        """It gets no further jobs until it tries to start one."""
        if not self.is_deaf:
            self._deaf_since, self._tries_when_deaf = now, self.claims.tries()

    def running(self) -> list[RunningJob]:
        return [self._run(number) for number in self.numbers_running()]

    def numbers_running(self) -> list[int]:
        return [number for number in list(self._sent) if self.claims.running(number)]

    def deadlines(self) -> list[tuple[float, int]]:
        """When its jobs must be over, and their numbers."""
        moments = ((self.claims.deadline_of(number), number) for number in list(self._sent))
        return [(moment, number) for moment, number in moments if moment is not None]

    def started(self) -> dict[int, RunningJob]:
        """By number, the jobs that it has started and not answered for; after its death, they are to blame."""
        return {number: self._run(number) for number in self._sent if self.claims.claimed(number)}

    def unstarted(self) -> list[HeldJob]:
        """The jobs that it was sent and, after its death, will never start."""
        return [job for number, job in self._sent.items() if not self.claims.claimed(number)]

    def memory_asked(self, number: int) -> int | None:
        """The memory that the job of this number asked for, if it has the child to itself."""
        return self._sent[number].memory if self._places == 1 else None

    def memory(self) -> int:
        with contextlib.suppress(psutil.Error):
            return int(psutil.Process(self.pid).memory_info().rss)
        return 0

    def memory_of_all(self) -> int:
        """The bytes of memory that the child and all processes of its jobs use, for the hard limit."""
        total = 0
        with contextlib.suppress(psutil.Error):
            # The descendants of the guard: the child, the processes of its jobs, and orphans of these.
            for process in psutil.Process(self.process.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    total += int(process.memory_info().rss)
        return total

    def _run(self, number: int) -> RunningJob:
        return RunningJob(self._sent[number], self.claims.claimed_at(number))

    # -- messages ------------------------------------------------------------------------------------------------

    def send(self, jobs: Iterable[HeldJob], time: pipe.Time) -> None:
        """Gives it jobs to run, and the time."""
        if not self._sent:
            self.answered_at = time.at
        self._sent_at = time.at
        self._clock_offset = time.offset
        for job in jobs:
            number = self._numbers.take()
            self.claims.open(number)
            self._sent[number] = job
            self._jobs.add(number, pipe.job_frame(number, time, job.raw))
        self._jobs.flush()

    def tell_time(self, time: pipe.Time) -> None:
        """A child that runs a job must follow when the time has changed."""
        if self._sent and abs(time.offset - self._clock_offset) > _CLOCK_TOLERANCE_SECONDS:
            self._clock_offset = time.offset
            self._words.add(0, pipe.clock_frame(time))
            self._words.flush()

    def flush(self) -> None:
        """Writes as much as the pipes take; the rest when they take more."""
        self._jobs.flush()
        self._words.flush()

    def receive(self, now: float) -> list[Message]:
        """Reads one portion from its pipe; returns the messages that are complete. A job that has ended is no longer
        with the child. Then `drained` tells whether the pipe was empty; `silent`, whether the child has closed it."""
        try:
            data = os.read(self.read_end, pipe.READ_AT_ONCE)
        except BlockingIOError:
            self.drained = True
            return []
        self.drained = not data
        if not data:
            self.silent, self.silent_at = True, now
            return []
        messages, ended = list[Message](), 0
        for kind, number, payload in self._frames.feed(data):
            if kind in pipe.ABOUT_NO_JOB:
                messages.append(Message(kind, None, payload))
            elif number in self._sent:
                messages.append(Message(kind, self._run(number), payload))
                if kind != pipe.PROGRESS:
                    ended += 1
                    self._forget(number)
            # Otherwise it is about a job that has ended: a thread that the job left behind may still report progress.
        if ended:
            self._pace.count(ended, now - self.answered_at)
            self.answered_at = now
        self._bytes_an_answer += 0.3 * (len(data) / max(1, ended) - self._bytes_an_answer)
        return messages

    def cancel(self, id: JobId, flag: Document, now: float) -> HeldJob | None:
        """Asks it to cancel a job that it runs; None when it runs no such job, or was asked before."""
        for number, job in self._sent.items():
            if job.id == id and number not in self.cancelling and self.claims.claimed(number):
                self.cancelling[number] = (flag, now)
                self._words.add(number, pipe.frame(pipe.CANCEL, number, encode(flag)))
                self._words.flush()
                return job
        return None

    def ask_stack(self, asked: Document) -> None:
        """Asks for the calls that it is in, if it runs this job."""
        if any(job.id == asked["job"] and self.claims.running(number) for number, job in self._sent.items()):
            self._words.add(0, pipe.frame(pipe.STACK, 0, encode(asked)))
            self._words.flush()

    def withdraw(self) -> list[HeldJob]:
        """Takes back all jobs that it has not started, in order: it is slower than it was."""
        self._pace.forget()
        return self._withdraw(list(self._sent))

    def withdraw_these(self, ids: Collection[JobId]) -> list[HeldJob]:
        return self._withdraw(self._numbers_of(ids))

    def may_start(self, ids: Collection[JobId]) -> bool:
        """Whether it has some of these, and has not started them: they could not be withdrawn."""
        return any(not self.claims.claimed(number) for number in self._numbers_of(ids))

    def withdraw_less_urgent(self, priority: int) -> list[HeldJob]:
        return self._withdraw([number for number, job in self._sent.items() if job.priority < priority])

    def _numbers_of(self, ids: Collection[JobId]) -> list[int]:
        return [number for number, job in self._sent.items() if job.id in ids]

    def _withdraw(self, numbers: list[int]) -> list[HeldJob]:
        """Takes back jobs that have not started; returns them. A frame on our side of the pipe is dropped. The job of a
        frame in the pipe is withdrawn: the child cannot claim it then. That fails while the child is inside `claim`."""
        if not numbers:
            return []
        unsent = self._jobs.take_back(set(numbers))
        withdrawn = unsent.union(self.claims.withdraw([number for number in numbers if number not in unsent]))
        return [self._forget(number) for number in numbers if number in withdrawn]

    def recycle(self, now: float) -> None:
        """Lets it finish its running jobs, and end."""
        self.recycling = True
        self.recycled_at = now
        self._jobs.clear()
        os.close(self.write_end)  # the end of its input asks it to end

    def _forget(self, number: int) -> HeldJob:
        """The job of this number, which has ended here; the number is free again."""
        self._numbers.free(number)
        self.cancelling.pop(number, None)
        return self._sent.pop(number)

    # -- the end -------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """Ends the child and its process group. Its guard ends the other processes of its jobs, and itself."""
        self._kill_group()
        _send_kill(os.kill, self.pid)

    def kill_guard(self) -> None:
        """Ends a guard that stands still: then the supervisor ends the processes that the jobs have started."""
        _send_kill(os.kill, self.process.pid)

    def _kill_group(self) -> None:
        _send_kill(os.killpg, self.pid)

    def close(self) -> None:
        """Closes its pipes after its death, when its jobs have their outcomes, and ends its process group."""
        self._sent.clear()
        self._jobs.clear()
        self._words.clear()
        os.close(self.read_end)
        os.close(self.control_end)
        if not self.recycling:
            os.close(self.write_end)
        self.process.join(timeout=0.1)  # it has ended, unless the fork server is frozen and cannot report it
        self._kill_group()  # if its guard was killed too

    def how_it_ended(self) -> str:
        code = self.process.exitcode
        if code is None:
            return "the process running it is gone"
        if code < 0:
            return f"the process running it was killed by {signal_name(-code)}"
        return f"the process running it exited with code {code}"


def _send_kill(kill: Callable[[int, int], None], pid: int | None) -> None:
    if pid:  # 0 would be our own group
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


# -- the pipes of all children ---------------------------------------------------------------------------------------


OnChild = Callable[[ChildHandle], None]


class ChildPipes:
    """The pipes between the dispatcher and its children.

    The dispatcher waits here for any of these: a message, the death of a child, room in a pipe that was full, or
    a wake-up. One thread owns it; others may call `wake`.
    """

    def __init__(self, on_message: OnChild, on_death: OnChild) -> None:
        self._on_message = on_message
        self._on_death = on_death
        self._selector = selectors.DefaultSelector()
        self._full: dict[int, ChildHandle] = {}
        """Ends of pipes that did not take all frames."""
        self._closed = False
        self._wake_read, self._wake_write = os.pipe()
        for end in (self._wake_read, self._wake_write):
            os.set_blocking(end, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._woken)
        self._woken_up = select.poll()
        self._woken_up.register(self._wake_read, select.POLLIN)

    def wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # enough wake-ups are waiting already
            if not self._closed:
                os.write(self._wake_write, b"!")

    def wait(self, children: Iterable[ChildHandle], seconds: float) -> list[Callable[[], None]]:
        """Waits until something happens, at most so long; returns the functions that handle it."""
        full = {end: child for child in children for end in child.blocked_ends}
        self._stop_watching([end for end in self._full if end not in full])
        for end in full.keys() - self._full.keys():
            self._full[end] = full[end]
            self._selector.register(end, selectors.EVENT_WRITE, full[end].flush)
        return [key.data for key, _ in self._selector.select(seconds)]

    def sleep(self, seconds: float) -> None:
        """Sleeps until this time is over or another thread wakes it, whatever children send."""
        self._woken_up.poll(math.ceil(seconds * 1000))

    def close(self) -> None:
        """Call this when no other thread is left that could wake it."""
        self._closed = True
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    # -- one child -----------------------------------------------------------------------------------------------

    def add(self, child: ChildHandle) -> None:
        self._selector.register(child.read_end, selectors.EVENT_READ, partial(self._on_message, child))
        self._selector.register(child.process.sentinel, selectors.EVENT_READ, partial(self._on_death, child))

    def stop_reading(self, child: ChildHandle) -> None:
        """It has closed its pipe, which would be readable for ever."""
        with contextlib.suppress(KeyError):
            self._selector.unregister(child.read_end)

    def stop_writing(self, child: ChildHandle) -> None:
        """Before its pipes are closed: the number of an end is used again for another file."""
        self._stop_watching([end for end, owner in self._full.items() if owner is child])

    def remove(self, child: ChildHandle) -> None:
        """It is dead, and about to be closed."""
        self.stop_reading(child)
        self.stop_writing(child)
        self._selector.unregister(child.process.sentinel)

    def _stop_watching(self, ends: list[int]) -> None:
        for end in ends:
            del self._full[end]
            self._selector.unregister(end)

    def _woken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)
