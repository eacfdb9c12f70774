"""A child without a process: the other ends of its pipes, its side of the claims, and a death when a test wants one."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Iterator
from typing import Any

from recruiter.domain.job import JobId
from recruiter.processes.child import pipe
from recruiter.processes.child.claims import Claims
from recruiter.processes.worker.child_handle import ChildHandle
from recruiter.processes.worker.held_job import HeldJob
from recruiter.store.codec import decode, encode, job_document
from recruiter.store.outcomes import Outcome
from tests.samples import a_job, done

_NO_SUCH_PROCESS = 0


class FakeProcess:
    """Ends when a test says so."""

    def __init__(self) -> None:
        self.pid: int | None = _NO_SUCH_PROCESS
        self.exitcode: int | None = None
        self.sentinel, self._alive = os.pipe()

    def die(self, code: int) -> None:
        if self.exitcode is None:
            self.exitcode = code
            os.close(self._alive)

    def join(self, timeout: float | None = None) -> None: ...


class FakeChild:
    def __init__(self, places: int = 1, now: float = 0.0) -> None:
        self.process = FakeProcess()
        self.claims = Claims(multiprocessing.get_context("forkserver"))
        self.inbox, to_child = os.pipe()
        from_child, self.outbox = os.pipe()
        self.words, control = os.pipe()
        for end in (self.inbox, self.words):
            os.set_blocking(end, False)
        self.handle = ChildHandle(self.process, to_child, from_child, control, self.claims, places, now)
        self.kills = 0
        setattr(self.handle, "kill", self.kill)  # noqa: B010 – there is no process that could be killed
        self._inbox, self._words = pipe.Frames(), pipe.Frames()

    def kill(self) -> None:
        self.kills += 1
        self.die(-9)

    def die(self, code: int) -> None:
        """Its ends of the pipes are closed, and its supervisor can notice."""
        if self.process.exitcode is None:
            for end in (self.inbox, self.outbox, self.words):
                os.close(end)
            self.process.die(code)

    def hello(self, *tasks: str) -> None:
        who = {"tasks": list(tasks), "limits": {}, "pid": 0, "server": 0, "flushes": False}
        os.write(self.outbox, pipe.frame(pipe.HELLO, 0, encode(who)))

    def jobs(self) -> list[tuple[int, HeldJob]]:
        """Reads what has been sent; nothing of it is claimed."""
        payloads = [(number, pipe.job_of(payload)) for _, number, payload in self._read(self.inbox, self._inbox)]
        return [(number, HeldJob.read(decode(raw)["_id"], raw)) for number, raw in payloads]

    def told(self) -> list[tuple[int, int, bytes]]:
        """Reads what came through the control pipe."""
        return list(self._read(self.words, self._words))

    def start(self) -> list[int]:
        """Claims all that has been sent; the numbers that it got."""
        return [number for number, _ in self.jobs() if self.claims.claim(number)]

    def answer(self, number: int, outcome: Outcome | None = None) -> None:
        self.claims.end(number)
        os.write(self.outbox, pipe.answer(number, outcome or done(a_job())))

    def _read(self, end: int, frames: pipe.Frames) -> Iterator[tuple[int, int, bytes]]:
        with contextlib.suppress(BlockingIOError):
            while data := os.read(end, pipe.READ_AT_ONCE):
                yield from frames.feed(data)


def held(id: JobId | None = None, **changes: Any) -> HeldJob:
    job = a_job(id, **changes)
    return HeldJob.read(job.id, encode(job_document(job)))


def held_many(count: int, **changes: Any) -> list[HeldJob]:
    return [held(**changes) for _ in range(count)]
