"""One child process as its supervisor sees it: what was sent to it, what it runs, what it answered."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import deque
from collections.abc import Callable, Collection, Iterable
from itertools import islice
from typing import NamedTuple, Protocol

import psutil

from recruiter.domain.job import JobId
from recruiter.processes.child import pipe
from recruiter.processes.child.claims import Claims
from recruiter.processes.held import HeldJob
from recruiter.store.codec import Document, encode

_HORIZON = 0.03
"""Seconds of work that a child may have in its pipe: enough not to starve, little enough to be taken back."""
_MOST_AT_ONCE = 500
_BUFFERS_A_WRITE = 512
STUCK = 0.1
"""Seconds without an answer after which what a child has not started is taken back."""


class Process(Protocol):
    """What the supervisor needs of a child's process."""

    @property
    def pid(self) -> int | None: ...

    @property
    def exitcode(self) -> int | None: ...

    @property
    def sentinel(self) -> int: ...

    def join(self, timeout: float | None = None) -> None: ...


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
        """The three pipe ends are the supervisor's own, and are closed with `close`."""
        self.process = process
        self.write_end, self.read_end, self._control = to_child, from_child, control
        self.claims = claims
        self._places = places
        for end in (to_child, from_child, control):
            os.set_blocking(end, False)
        self.tasks: frozenset[str] | None = None
        self.recycling = False
        self.recycled_at = now
        self.drained = True
        """Nothing more was there when it was last listened to."""
        self.silent = False
        """It closed its pipe: it is about to end, or a job of its closed what was not its own."""
        self.answered_at = now
        self.said: list[Said] = []
        """By running jobs, and not yet listened to."""
        self.complaints: list[bytes] = []
        """About listeners that failed, and not yet listened to."""
        self._frames = pipe.Frames()
        self._outgoing: deque[memoryview] = deque()
        self._head_is_cut = False
        self._sent: dict[int, HeldJob] = {}
        self.cancelling: dict[int, tuple[Document, float]] = {}
        """Numbers of jobs that it has been asked to cancel, by whom, and when."""
        self._next_number = 0
        self._pace = _HORIZON

    # -- facts ---------------------------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        return self.process.pid or 0

    @property
    def ready(self) -> bool:
        return self.tasks is not None and not self.recycling

    @property
    def has_unsent(self) -> bool:
        return bool(self._outgoing)

    @property
    def load(self) -> int:
        """How many jobs it has been sent and has not answered for."""
        return len(self._sent)

    @property
    def has_a_free_place(self) -> bool:
        return self.ready and self.load < self._places

    @property
    def has_some_waiting(self) -> bool:
        """It was sent more than it can run at once."""
        return self.load > self._places

    def appetite(self, now: float) -> int:
        """How many more it can use now, judged by how fast it has been. While its jobs are slow, only those that can
        start at once."""
        if not self.ready:
            return 0
        soon = 0 if self.is_stuck(now) else min(_MOST_AT_ONCE, int(_HORIZON / self._pace))
        return max(self._places, soon) - self.load

    def is_stuck(self, now: float) -> bool:
        return self.load > 0 and now - self.answered_at > STUCK

    def running(self) -> list[tuple[HeldJob, float]]:
        """What it runs, and since when on the clock that never jumps."""
        sent = list(self._sent.items())
        return [(job, self.claims.claimed_at(number)) for number, job in sent if self.claims.running(number)]

    def deadlines(self) -> list[tuple[float, int]]:
        """When jobs of its must be over, and their numbers."""
        moments = ((self.claims.deadline_of(number), number) for number in list(self._sent))
        return [(moment, number) for moment, number in moments if moment is not None]

    def was_sent(self, number: int) -> bool:
        """And has not been answered for."""
        return number in self._sent

    def take(self, number: int) -> tuple[HeldJob, float]:
        """The job of this number, which it will not answer for any more, and since when it ran."""
        return self._sent.pop(number), self.claims.claimed_at(number)

    def numbers_running(self) -> list[int]:
        return [number for number in list(self._sent) if self.claims.running(number)]

    def memory_asked(self, number: int) -> int | None:
        """How much memory the job of this number may use, if it says so and has the child to itself."""
        return self._sent[number].memory if self._places == 1 else None

    def memory(self) -> int:
        return _memory(psutil.Process, self.pid)

    def memory_of_all(self) -> int:
        """With everything that its jobs have started."""
        try:
            family = psutil.Process(self.pid).children(recursive=True)
        except psutil.Error:
            family = []
        return self.memory() + sum(_memory(lambda each=each: each) for each in family)

    # -- talking -------------------------------------------------------------------------------------------------

    def send(self, jobs: Iterable[HeldJob], now: float) -> None:
        if not self._sent:
            self.answered_at = now
        for job in jobs:
            number = self._next_number
            self._next_number = (number + 1) % pipe.NUMBERS
            self.claims.open(number)
            self._sent[number] = job
            self._outgoing.append(memoryview(pipe.frame(pipe.JOB, number, job.raw)))
        self.flush()

    def flush(self) -> None:
        """Writes as much as the pipe takes; the rest when it takes more."""
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            while self._outgoing:
                written = os.writev(self.write_end, list(islice(self._outgoing, _BUFFERS_A_WRITE)))
                while written:
                    head = self._outgoing.popleft()
                    self._head_is_cut = written < len(head)
                    if self._head_is_cut:
                        self._outgoing.appendleft(head[written:])
                    written -= min(written, len(head))

    def forget_unsent(self) -> None:
        """Of a child that gets no more: what is half sent is never complete, and so never started."""
        self._outgoing.clear()

    def receive(self, now: float) -> list[Answer]:
        """What it has answered since the last time. HELLO and BROKEN come as answers too, with no job."""
        try:
            data = os.read(self.read_end, pipe.READ_AT_ONCE)
        except BlockingIOError:
            self.drained = True
            return []
        self.silent = self.drained = not data
        answers = []
        for kind, number, payload in self._frames.feed(data):
            if kind == pipe.PROGRESS:
                self._note(number, payload)
                continue
            if kind == pipe.COMPLAINT:
                self.complaints.append(payload)
                continue
            job = self._sent.pop(number, None) if kind >= pipe.ARCHIVE else _NOBODY
            self.cancelling.pop(number, None)
            if job is not None:
                answers.append(Answer(job, kind, payload))
        if answers and self.tasks is not None:
            self._pace = 0.7 * self._pace + 0.3 * max(1e-6, (now - self.answered_at) / len(answers))
            self.answered_at = now
        return answers

    def _note(self, number: int, payload: bytes) -> None:
        """No answer: a job that says how far it is may hold up others all the same."""
        if number in self._sent:
            self.said.append(Said(self._sent[number], self.claims.claimed_at(number), payload))

    def cancel(self, id: JobId, flag: Document, now: float) -> bool:
        """Asks it to cancel a job that it runs; false when it runs no such job, or was asked before."""
        for number, job in self._sent.items():
            if job.id == id and number not in self.cancelling and self.claims.claimed(number):
                self.cancelling[number] = (flag, now)
                with contextlib.suppress(BlockingIOError, BrokenPipeError):
                    os.write(self._control, pipe.frame(pipe.CANCEL, number, encode(flag)))
                return True
        return False

    def withdraw_one(self, id: JobId) -> bool:
        """Takes back this job, if it has not started."""
        for number, job in list(self._sent.items()):
            if job.id == id and self.claims.withdraw([number]):
                del self._sent[number]
                return True
        return False

    def withdraw_these(self, ids: Collection[JobId]) -> list[HeldJob]:
        """Takes back those of these that have not started. What is on its way to the child it cannot claim any more."""
        numbers = [number for number, job in self._sent.items() if job.id in ids]
        return [self._sent.pop(number) for number in self.claims.withdraw(numbers)] if numbers else []

    def withdraw(self) -> list[HeldJob]:
        """Takes back what it has not started, in order."""
        jobs = [self._sent.pop(number) for number in self.claims.withdraw(list(self._sent))]
        head = self._outgoing.popleft() if self._head_is_cut else None
        self._outgoing.clear()  # all of it is withdrawn; but a frame that is half sent must be completed
        if head is not None:
            self._outgoing.append(head)
        self._pace = _HORIZON
        return jobs

    def recycle(self, now: float) -> None:
        """Lets it finish what it runs, and end."""
        self.recycling = True
        self.recycled_at = now
        os.close(self.write_end)

    # -- the end -------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """Ends the child and everything its jobs started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self.pid, signal.SIGKILL)

    def bury(self) -> tuple[list[HeldJob], list[HeldJob]]:
        """After its death: the jobs it had started, which it is to blame for, and those it had not."""
        blamed = [job for number, job in self._sent.items() if self.claims.claimed(number)]
        innocent = [job for number, job in self._sent.items() if not self.claims.claimed(number)]
        self._sent.clear()
        os.close(self.read_end)
        os.close(self._control)
        if not self.recycling:
            os.close(self.write_end)
        self.process.join(timeout=5.0)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)  # what its jobs started and left behind
        return blamed, innocent

    def how_it_ended(self) -> str:
        code = self.process.exitcode
        if code is None:
            return "the process running it is gone"
        if code < 0:
            return f"the process running it was killed by {signal.Signals(-code).name}"
        return f"the process running it exited with code {code}"


_NOBODY = HeldJob("", b"")


def _memory(process: Callable[..., psutil.Process], *args: int) -> int:
    try:
        return int(process(*args).memory_info().rss)
    except psutil.Error:
        return 0
