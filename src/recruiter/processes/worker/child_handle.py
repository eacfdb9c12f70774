"""One child process as its supervisor sees it: what was sent to it, what it runs, what it answered."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import NamedTuple, Protocol

import psutil

from recruiter.domain.job import JobId
from recruiter.processes.child import pipe
from recruiter.processes.child.claims import Claims, Numbers
from recruiter.processes.worker.held_jobs import HeldJob
from recruiter.programs import signal_name
from recruiter.store.codec import Document, encode

_HORIZON = 0.03
"""Seconds of work that a child may have in its pipe: enough not to starve, little enough to be taken back."""
_MOST_AT_ONCE = 500
STUCK = 0.1
"""Seconds without an answer after which what a child has not started is taken back."""
_CLAIMED_WITHIN_SECONDS = 0.5
"""A child with a free place that takes longer to start a job is deaf: it stands still, or a job blocks its loop."""
_CLOCKS_AGREE = 0.05
"""Seconds by which a child's clock may differ from its supervisor's while it runs something."""


class Process(Protocol):
    """What the supervisor needs of a child's process."""

    @property
    def pid(self) -> int | None: ...

    @property
    def exitcode(self) -> int | None: ...

    @property
    def sentinel(self) -> int: ...

    def join(self, timeout: float | None = None) -> None: ...


class Run(NamedTuple):
    """A job that a child has started, and since when it runs on the clock that never jumps."""

    job: HeldJob
    since: float


class Said(NamedTuple):
    """What a job has said of itself, and since when it runs on the clock that never jumps."""

    job: HeldJob
    since: float
    payload: bytes


class Answer(NamedTuple):
    job: HeldJob
    kind: int
    payload: bytes


class ChildHandle:
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
        self.successor_of: ChildHandle | None = None
        """The child that this one replaces, as long as that one has jobs to finish."""
        self.pid = process.pid or 0
        """Of the process that runs the jobs; until it has said so, of the guard around it."""
        self.tasks: frozenset[str] | None = None
        self.flushes = False
        """It has instruments, which may have something to send before it ends."""
        self.recycling = False
        self.recycled_at = now
        self.drained = True
        """Nothing more was there when it was last listened to."""
        self.silent = False
        """It closed its pipe: it is about to end, or a job of its closed what was not its own."""
        self.silent_at = now
        self.answered_at = now
        self._deaf_since: float | None = None
        """Since when it has not started what it was sent; it is sent nothing more until it tries to start something."""
        self._tries_when_deaf = 0
        self._sent_at = now
        self.said: list[Said] = []
        """By running jobs, and not yet listened to."""
        self.listener_errors: list[bytes] = []
        """About listeners that failed, and not yet listened to."""
        self.cancelling: dict[int, tuple[Document, float]] = {}
        """Numbers of jobs that it has been asked to cancel, by whom, and when."""
        self._places = places
        self._numbers = Numbers()
        self._frames = pipe.Frames()
        self._jobs, self._words = pipe.Outgoing(to_child), pipe.Outgoing(control)
        self._sent: dict[int, HeldJob] = {}
        self._pace = _HORIZON
        self._lead = 0.0

    # -- facts ---------------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        return self.tasks is not None and not self.recycling

    @property
    def blocked_ends(self) -> list[int]:
        """Of the pipes that did not take all that there is to send."""
        return [end for end, unsent in ((self.write_end, self._jobs), (self.control_end, self._words)) if unsent]

    @property
    def load(self) -> int:
        """How many jobs it has been sent and has not answered for."""
        return len(self._sent)

    @property
    def places(self) -> int:
        """How many jobs may run in it at once: those of the child it replaces run in its places until they end."""
        return self._places - self._taken_by_predecessors()

    @property
    def has_a_free_place(self) -> bool:
        return self.ready and self.load < self.places and not self.is_deaf

    @property
    def has_some_waiting(self) -> bool:
        """It was sent more than it can run at once."""
        return self.load > self._places

    def room(self, now: float) -> int:
        """How many more it can use now, judged by how fast it has been. While its jobs are slow, or some of its places
        are taken, only those that can start at once."""
        if not self.ready or self.is_deaf:
            return 0
        places = self.places
        soon = 0 if self.is_stuck(now) or places < self._places else min(_MOST_AT_ONCE, int(_HORIZON / self._pace))
        return max(0, min(max(places, soon) - self.load, len(self._numbers)))

    def is_stuck(self, now: float) -> bool:
        return self.load > 0 and now - self.answered_at > STUCK

    @property
    def is_deaf(self) -> bool:
        """Whether it left what it was sent, and has not tried to start anything since."""
        return self._deaf_since is not None and self.claims.tries() == self._tries_when_deaf

    def deaf_for(self, now: float) -> float:
        """Seconds; 0 if it is not deaf."""
        return now - self._deaf_since if self._deaf_since is not None and self.is_deaf else 0.0

    def ignores_jobs(self, now: float) -> bool:
        """Whether it has a free place and has left a job that it was sent for too long; from then on it is deaf."""
        if not self._sent or now - max(self._sent_at, self.answered_at) < _CLAIMED_WITHIN_SECONDS:
            return False
        claimed = sum(map(self.claims.claimed, self._sent))
        if claimed == self.load or claimed >= self._places:
            return False
        if not self.is_deaf:
            self._deaf_since, self._tries_when_deaf = now, self.claims.tries()
        return True

    def running(self) -> list[Run]:
        """What it runs."""
        sent = list(self._sent.items())
        return [Run(job, self.claims.claimed_at(number)) for number, job in sent if self.claims.running(number)]

    def deadlines(self) -> list[tuple[float, int]]:
        """When jobs of its must be over, and their numbers."""
        moments = ((self.claims.deadline_of(number), number) for number in list(self._sent))
        return [(moment, number) for moment, number in moments if moment is not None]

    def numbers_running(self) -> list[int]:
        return [number for number in list(self._sent) if self.claims.running(number)]

    def started(self) -> dict[int, Run]:
        """By number, what it has started and not answered for; after its death, those that it is to blame for."""
        claimed = ((number, job) for number, job in self._sent.items() if self.claims.claimed(number))
        return {number: Run(job, self.claims.claimed_at(number)) for number, job in claimed}

    def unstarted(self) -> list[HeldJob]:
        """What it was sent and, after its death, will never start."""
        return [job for number, job in self._sent.items() if not self.claims.claimed(number)]

    def memory_asked(self, number: int) -> int | None:
        """How much memory the job of this number may use, if it says so and has the child to itself."""
        return self._sent[number].memory if self._places == 1 else None

    def memory(self) -> int:
        return _memory(psutil.Process, self.pid)

    def memory_of_all(self) -> int:
        """With everything that its jobs have started."""
        try:
            family = psutil.Process(self.process.pid).children(recursive=True)  # of the guard: the child, and orphans
        except psutil.Error:
            family = []
        return sum(_memory(lambda each=each: each) for each in family)

    def _taken_by_predecessors(self) -> int:
        before = self.successor_of
        if before is None:
            return 0
        return before.load + before._taken_by_predecessors()

    # -- talking -------------------------------------------------------------------------------------------------

    def send(self, jobs: Iterable[HeldJob], time: pipe.Time) -> None:
        """Gives it jobs to run, and says what time it is."""
        if not self._sent:
            self.answered_at = time.at
        self._sent_at = time.at
        self._lead = time.lead
        take, claim, add = self._numbers.take, self.claims.open, self._jobs.add  # looked up once for hundreds of jobs
        for job in jobs:
            number = take()
            claim(number)
            self._sent[number] = job
            add(number, pipe.job_frame(number, time, job.raw))
        self._jobs.flush()

    def tell_time(self, time: pipe.Time) -> None:
        """While it runs something, it must hear when the time has changed."""
        if self._sent and abs(time.lead - self._lead) > _CLOCKS_AGREE:
            self._lead = time.lead
            self._words.add(0, pipe.clock_frame(time))
            self._words.flush()

    def flush(self) -> None:
        """Writes as much as the pipes take; the rest when they take more."""
        self._jobs.flush()
        self._words.flush()

    def receive(self, now: float) -> list[Answer]:
        """What it has answered since the last time. HELLO and BROKEN come as answers too, with no job."""
        try:
            data = os.read(self.read_end, pipe.READ_AT_ONCE)
        except BlockingIOError:
            self.drained = True
            return []
        self.silent = self.drained = not data
        self.silent_at = now
        answers, ended = list[Answer](), list[int]()
        for kind, number, payload in self._frames.feed(data):
            if kind == pipe.PROGRESS:
                self._note(number, payload)
            elif kind == pipe.LISTENER_ERROR:
                self.listener_errors.append(payload)
            elif kind < pipe.ARCHIVE:
                answers.append(Answer(_NOBODY, kind, payload))
            elif number in self._sent:
                ended.append(number)
                answers.append(Answer(self._take(number), kind, payload))
        if ended and self.tasks is not None:
            self._pace = 0.7 * self._pace + 0.3 * self._seconds_a_job(ended, now)
            self.answered_at = now
        return answers

    def _seconds_a_job(self, ended: list[int], now: float) -> float:
        """Of the jobs of these numbers. By the child's own account if it runs them one after the other: it may have
        waited for more between two looks at its answers."""
        if len(ended) == 1 or self._places > 1:
            return max(1e-6, (now - self.answered_at) / len(ended))
        first, last = self.claims.claimed_at(ended[0]), self.claims.claimed_at(ended[-1])
        return max(1e-6, (last - first) / (len(ended) - 1))

    def _note(self, number: int, payload: bytes) -> None:
        """No answer: a job that says how far it is may hold up others all the same."""
        if number in self._sent:
            self.said.append(Said(self._sent[number], self.claims.claimed_at(number), payload))

    def cancel(self, id: JobId, flag: Document, now: float) -> HeldJob | None:
        """Asks it to cancel a job that it runs; None when it runs no such job, or was asked before."""
        for number, job in self._sent.items():
            if job.id == id and number not in self.cancelling and self.claims.claimed(number):
                self.cancelling[number] = (flag, now)
                self._words.add(number, pipe.frame(pipe.CANCEL, number, encode(flag)))
                self._words.flush()
                return job
        return None

    def withdraw(self) -> list[HeldJob]:
        """Takes back all that it has not started, in order."""
        self._pace = _HORIZON
        return self._withdraw(list(self._sent))

    def withdraw_these(self, ids: Collection[JobId]) -> list[HeldJob]:
        """Takes back those of these that it has not started. It cannot claim any more what is on its way to it."""
        return self._withdraw(self._numbers_of(ids))

    def may_start(self, ids: Collection[JobId]) -> bool:
        """Whether it has some of these, and has not started them: it could not be asked for them."""
        return any(not self.claims.claimed(number) for number in self._numbers_of(ids))

    def _numbers_of(self, ids: Collection[JobId]) -> list[int]:
        return [number for number, job in self._sent.items() if job.id in ids]

    def _withdraw(self, numbers: list[int]) -> list[HeldJob]:
        """What is still on our side of the pipe is always taken; what it has been sent, if it lets itself be asked."""
        if not numbers:
            return []
        unsent = self._jobs.take_back(set(numbers))
        withdrawn = unsent.union(self.claims.withdraw([number for number in numbers if number not in unsent]))
        return [self._take(number) for number in numbers if number in withdrawn]

    def recycle(self, now: float) -> None:
        """Lets it finish what it runs, and end."""
        self.recycling = True
        self.recycled_at = now
        self._jobs.clear()
        os.close(self.write_end)

    def _take(self, number: int) -> HeldJob:
        """The job of this number, which is over here; the number is free again."""
        self._numbers.free(number)
        self.cancelling.pop(number, None)
        return self._sent.pop(number)

    # -- the end -------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """Ends the child and its process group; its guard ends whatever else the jobs started, and itself."""
        self._kill_group()
        if self.pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, signal.SIGKILL)

    def kill_guard(self) -> None:
        """For a guard that stands still: the supervisor sees to what the jobs have started."""
        if self.process.pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.process.pid, signal.SIGKILL)

    def _kill_group(self) -> None:
        if self.pid:  # 0 would be our own group
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """After its death, when what it leaves behind has been seen to."""
        self._sent.clear()
        self._jobs.clear()
        self._words.clear()
        os.close(self.read_end)
        os.close(self.control_end)
        if not self.recycling:
            os.close(self.write_end)
        self.process.join(timeout=0.1)  # it has ended, unless the fork server stands still and cannot tell
        self._kill_group()  # if its guard was killed too

    def how_it_ended(self) -> str:
        code = self.process.exitcode
        if code is None:
            return "the process running it is gone"
        if code < 0:
            return f"the process running it was killed by {signal_name(-code)}"
        return f"the process running it exited with code {code}"


_NOBODY = HeldJob("", b"")


def _memory(process: Callable[..., psutil.Process], *args: int) -> int:
    try:
        return int(process(*args).memory_info().rss)
    except psutil.Error:
        return 0


# -- the pipes of all children ---------------------------------------------------------------------------------------


OnChild = Callable[[ChildHandle], None]


class ChildPipes:
    """The pipes between the dispatcher and its children: which have something to read, or take more again.

    The dispatcher waits here for all of them at once: an answer, the death of a child, room in a pipe that was full, or
    a wake-up. One thread owns it; others may call `wake`.
    """

    def __init__(self, on_answer: OnChild, on_death: OnChild) -> None:
        self._on_answer = on_answer
        self._on_death = on_death
        self._selector = selectors.DefaultSelector()
        self._full: dict[int, ChildHandle] = {}
        """Ends of pipes that did not take all there is to send."""
        self._closed = False
        self._wake_read, self._wake_write = os.pipe()
        for end in (self._wake_read, self._wake_write):
            os.set_blocking(end, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._woken)

    def wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # enough wake-ups are waiting already
            if not self._closed:
                os.write(self._wake_write, b"!")

    def wait(self, seconds: float) -> list[Callable[[], None]]:
        """Waits until something happens, at most so long; returns what to call for it."""
        return [key.data for key, _ in self._selector.select(seconds)]

    def close(self) -> None:
        """To be called when no other thread is left that could wake it."""
        self._closed = True
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    # -- one child -----------------------------------------------------------------------------------------------

    def add(self, child: ChildHandle) -> None:
        self._selector.register(child.read_end, selectors.EVENT_READ, partial(self._on_answer, child))
        self._selector.register(child.process.sentinel, selectors.EVENT_READ, partial(self._on_death, child))

    def watch_full(self, child: ChildHandle) -> None:
        """After something was sent to it: waits for its full pipes to take more, and for no others."""
        full = set(child.blocked_ends)
        self._stop_watching([end for end in self._full_ends(child) if end not in full])
        for end in full.difference(self._full):
            self._full[end] = child
            self._selector.register(end, selectors.EVENT_WRITE, partial(self._flush, child))

    def stop_reading(self, child: ChildHandle) -> None:
        """It has closed its pipe, which would be readable for ever."""
        with contextlib.suppress(KeyError):
            self._selector.unregister(child.read_end)

    def stop_writing(self, child: ChildHandle) -> None:
        """Before its pipe for jobs is closed: the number of that end is used again for another file."""
        if child.write_end in self._full:
            self._stop_watching([child.write_end])

    def remove(self, child: ChildHandle) -> None:
        """It is dead, and about to be closed."""
        self.stop_reading(child)
        self._selector.unregister(child.process.sentinel)
        self._stop_watching(self._full_ends(child))

    def _full_ends(self, child: ChildHandle) -> list[int]:
        return [end for end, owner in self._full.items() if owner is child]

    def _stop_watching(self, ends: list[int]) -> None:
        for end in ends:
            del self._full[end]
            self._selector.unregister(end)

    def _flush(self, child: ChildHandle) -> None:
        if child in self._full.values():  # it may have been removed by what happened at the same moment
            child.flush()
            self.watch_full(child)

    def _woken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)
