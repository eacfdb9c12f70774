"""One child process as its supervisor sees it: what was sent to it, what it runs, what it answered."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import NamedTuple, cast

import psutil

from recruiter.domain.job import JobId
from recruiter.errors import ApplicationError
from recruiter.processes import wire
from recruiter.processes.child import child_main, report_application
from recruiter.processes.ledger import Ledger
from recruiter.store.codec import Document, decode, encode

_HORIZON = 0.03
"""Seconds of work that a child may have in its pipe: enough not to starve, little enough to be taken back."""
_MOST_AT_ONCE = 500
_BUFFERS_A_WRITE = 512
STUCK = 0.1
"""Seconds without an answer after which what a child has not started is taken back."""


class HeldJob(NamedTuple):
    """A job that this worker holds, as bytes."""

    id: JobId
    raw: bytes

    @property
    def at_most_once(self) -> bool:
        if b"at_most_once" not in self.raw:
            return False
        try:
            return bool(decode(self.raw).get("at_most_once"))
        except Exception:
            return False  # it cannot be read; the child will say so

    @property
    def memory(self) -> int | None:
        """How many bytes of memory it asked for, if it did; it may not use more."""
        if b"mem\x00" not in self.raw:
            return None
        try:
            asked = decode(self.raw).get("mem")
            return int(asked) if isinstance(asked, int | float) and asked > 0 else None
        except Exception:
            return None


class Said(NamedTuple):
    """What a job has said of itself, and since when it runs on the clock that never jumps."""

    job: HeldJob
    since: float
    payload: bytes


class Answer(NamedTuple):
    job: HeldJob
    kind: int
    payload: bytes


@dataclass(frozen=True)
class Nursery:
    """Where children come from: a fork server that has loaded the application."""

    context: ForkServerContext
    bootstrap: str | None

    @classmethod
    def open(cls, bootstrap: str | None) -> Nursery:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["recruiter.processes.preload"])
        os.environ["RECRUITER_SUPERVISOR"] = str(os.getpid())  # both are for preload.py
        if bootstrap is not None:
            os.environ["RECRUITER_PRELOAD"] = bootstrap
        return cls(context, bootstrap)

    def ask_address(self) -> str | None:
        """Where the application keeps its jobs, if it says so. Raises ApplicationError when it cannot be loaded."""
        question, answer = self.context.Pipe(duplex=False)
        process = self.context.Process(target=report_application, args=(answer, self.bootstrap))
        _start(process)
        answer.close()
        try:
            address, trace = question.recv()
        except EOFError:
            address, trace = None, "it ended the process that loaded it"
        process.join()
        question.close()
        if trace is not None:
            raise ApplicationError(f"the application cannot be loaded:\n{trace}")
        return cast(str | None, address)

    def bear(self, worker: str, address: str, clock_offset: float, concurrency: int, now: float) -> Child:
        return Child(self, worker, address, clock_offset, concurrency, now)


class Child:
    def __init__(
        self, nursery: Nursery, worker: str, address: str, clock_offset: float, concurrency: int, now: float
    ) -> None:
        context = nursery.context
        self._places = concurrency
        self.ledger = Ledger(context)
        child_in, self._to_child = context.Pipe(duplex=False)
        self._from_child, child_out = context.Pipe(duplex=False)
        control, self._control = context.Pipe(duplex=False)
        self.process: BaseProcess = context.Process(
            target=child_main,
            args=(
                child_in,
                child_out,
                control,
                self.ledger,
                nursery.bootstrap,
                address,
                worker,
                clock_offset,
                concurrency,
            ),
            daemon=False,
        )
        _start(self.process)
        child_in.close()
        child_out.close()
        control.close()
        os.set_blocking(self._to_child.fileno(), False)
        os.set_blocking(self._from_child.fileno(), False)
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
        self._frames = wire.Frames()
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
    def read_end(self) -> int:
        return self._from_child.fileno()

    @property
    def write_end(self) -> int:
        return self._to_child.fileno()

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
        return [(job, self.ledger.claimed_at(number)) for number, job in sent if self.ledger.running(number)]

    def deadlines(self) -> list[tuple[float, int]]:
        """When jobs of its must be over, and their numbers."""
        moments = ((self.ledger.deadline_of(number), number) for number in list(self._sent))
        return [(moment, number) for moment, number in moments if moment is not None]

    def was_sent(self, number: int) -> bool:
        """And has not been answered for."""
        return number in self._sent

    def take(self, number: int) -> tuple[HeldJob, float]:
        """The job of this number, which it will not answer for any more, and since when it ran."""
        return self._sent.pop(number), self.ledger.claimed_at(number)

    def numbers_running(self) -> list[int]:
        return [number for number in list(self._sent) if self.ledger.running(number)]

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
            self._next_number = (number + 1) % wire.NUMBERS
            self.ledger.open(number)
            self._sent[number] = job
            self._outgoing.append(memoryview(wire.frame(wire.JOB, number, job.raw)))
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
            data = os.read(self.read_end, wire.READ_AT_ONCE)
        except BlockingIOError:
            self.drained = True
            return []
        self.silent = self.drained = not data
        answers = []
        for kind, number, payload in self._frames.feed(data):
            if kind == wire.PROGRESS:
                self._note(number, payload)
                continue
            if kind == wire.COMPLAINT:
                self.complaints.append(payload)
                continue
            job = self._sent.pop(number, None) if kind >= wire.ARCHIVE else _NOBODY
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
            self.said.append(Said(self._sent[number], self.ledger.claimed_at(number), payload))

    def cancel(self, id: JobId, flag: Document, now: float) -> bool:
        """Asks it to cancel a job that it runs; false when it runs no such job, or was asked before."""
        for number, job in self._sent.items():
            if job.id == id and number not in self.cancelling and self.ledger.claimed(number):
                self.cancelling[number] = (flag, now)
                with contextlib.suppress(BlockingIOError, BrokenPipeError):
                    os.write(self._control.fileno(), wire.frame(wire.CANCEL, number, encode(flag)))
                return True
        return False

    def withdraw_one(self, id: JobId) -> bool:
        """Takes back this job, if it has not started."""
        for number, job in list(self._sent.items()):
            if job.id == id and self.ledger.withdraw([number]):
                del self._sent[number]
                return True
        return False

    def withdraw(self) -> list[HeldJob]:
        """Takes back what it has not started, in order."""
        jobs = [self._sent.pop(number) for number in self.ledger.withdraw(list(self._sent))]
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
        self._to_child.close()

    # -- the end -------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """Ends the child and everything its jobs started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self.pid, signal.SIGKILL)

    def bury(self) -> tuple[list[HeldJob], list[HeldJob]]:
        """After its death: the jobs it had started, which it is to blame for, and those it had not."""
        blamed = [job for number, job in self._sent.items() if self.ledger.claimed(number)]
        innocent = [job for number, job in self._sent.items() if not self.ledger.claimed(number)]
        self._sent.clear()
        self._from_child.close()
        self._control.close()
        if not self.recycling:
            self._to_child.close()
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


def _start(process: BaseProcess) -> None:
    """Starts it without our __main__: multiprocessing would load the whole command line into every child."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        process.start()
    finally:
        sys.modules["__main__"] = main
