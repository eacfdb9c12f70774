"""Several jobs run in one child at the same time: `async def` jobs share an event loop, the others run in threads.

Jobs wait here unclaimed until a place is free, so the supervisor can still take them back. The thread that finished a
job writes its answer, under a lock, and takes the next job: a job that blocks the event loop delays no other thread.

A job can hold up the others: by blocking the event loop, or by holding the interpreter in C code. Then this process
can no longer report it. So the claims hold, in advance: the job whose code the event loop is about to run (`_Steps`),
the thread of each job, and the last time at which a thread that does nothing else could run.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections import deque
from collections.abc import Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from recruiter.clock import FollowingClock
from recruiter.processes.child import pipe
from recruiter.processes.child.claims import Claims
from recruiter.processes.child.pipe import CancelListener, SupervisorLink
from recruiter.processes.progress import ProgressSender
from recruiter.steps.execute import Executor
from recruiter.store.outcomes import Outcome

_TICK_EVERY = 0.1
_number: contextvars.ContextVar[int | None] = contextvars.ContextVar("recruiter_number", default=None)
"""The number of the job that a task of the event loop belongs to."""


class ConcurrentChild:
    """Runs several jobs of one child at the same time: `async def` jobs in its event loop, the others in threads."""

    def __init__(
        self,
        link: SupervisorLink,
        claims: Claims,
        executor: Executor,
        control: CancelListener,
        clock: FollowingClock,
        places: int,
    ) -> None:
        self._link = link
        self._claims = claims
        self._executor = executor
        self._control = control
        self._clock = clock
        self._context = contextvars.copy_context()
        """Every job begins with a copy: no job must see the variables that another one sets."""
        self._places = places
        self._busy = 0
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._taking = threading.Lock()
        """Held while a thread takes a waiting job and its place."""
        self._open = True
        self._sender: ProgressSender[int] = ProgressSender(partial(link.send, pipe.PROGRESS))
        self._tasks: set[asyncio.Task[None]] = set()
        self._threads = ThreadPoolExecutor(places, thread_name_prefix="job")
        self._over = threading.Event()

    def work(self) -> None:
        """Runs jobs until the supervisor has closed the pipe and the last job has ended."""
        threading.Thread(target=self._tick, name="tick", daemon=True).start()
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            self._control.loop = self._loop
            self._loop.set_task_factory(self._make_task)
            self._loop.add_reader(self._link.inbox, self._read)
            while self._open or self._busy:
                try:
                    self._loop.run_forever()
                except (SystemExit, KeyboardInterrupt):
                    continue  # raised in a task that a job started and abandoned
        self._over.set()
        self._threads.shutdown(wait=False)
        self._executor.close()

    def _tick(self) -> None:
        while not self._over.is_set():
            self._claims.tick()
            self._over.wait(_TICK_EVERY)

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, coroutine: Any, context: contextvars.Context | None = None
    ) -> asyncio.Task[Any]:
        number = _number.get() if context is None else context.get(_number)
        steps = coroutine if number is None else _Steps(coroutine, self._claims, number)
        return asyncio.Task(steps, loop=loop, context=context)

    def _read(self) -> None:
        jobs = self._link.receive()
        if jobs is None:
            self._open = False
            self._loop.remove_reader(self._link.inbox)
        self._waiting.extend(jobs or ())
        self._start()

    def _start(self) -> None:
        """Begins waiting jobs while places are free."""
        while (taken := self._take()) is not None:
            self._begin(*taken)
        if not self._open and not self._busy:
            self._loop.stop()

    def _take(self) -> tuple[int, bytes] | None:
        """Claims the next waiting job, which occupies a place from now on. None if no job waits or no place is free."""
        with self._taking:
            while self._waiting and self._busy < self._places:
                number, payload = self._waiting.popleft()
                if self._claims.claim(number):
                    self._busy += 1
                    self._clock.follow(*pipe.time_of(payload))
                    return number, pipe.job_of(payload)
        return None

    def _begin(self, number: int, raw: bytes) -> None:
        """Starts a claimed job: as a task of the event loop if it is async, else in a thread."""
        if self._executor.is_async(raw):
            context = self._context.copy()
            context.run(_number.set, number)
            task = self._loop.create_task(self._run_async(number, raw), context=context)
            self._tasks.add(task)  # or it might be collected while it waits
            task.add_done_callback(self._tasks.discard)
        else:
            self._threads.submit(self._run_in_thread, number, raw)

    def _run_in_thread(self, number: int, raw: bytes) -> None:
        """Runs this job and then the next ones, until no job waits or the next one needs the event loop."""
        while True:
            self._context.copy().run(self._run, number, raw)
            self._leave_place()
            if (taken := self._take()) is None:
                self._loop.call_soon_threadsafe(self._start)  # jobs may have come since, or the last one has ended
                return
            number, raw = taken
            if self._executor.is_async(raw):
                self._loop.call_soon_threadsafe(self._begin, number, raw)
                return

    def _run(self, number: int, raw: bytes) -> None:
        self._claims.runs_in(number, threading.get_native_id())
        interruptible, hard = self._control.begin(number), partial(self._claims.deadline, number)
        self._answer(number, raw, self._executor.run(raw, interruptible, hard, partial(self._sender.call, number)))

    async def _run_async(self, number: int, raw: bytes) -> None:
        interruptible, hard = self._control.begin(number), partial(self._claims.deadline, number)
        on_progress = partial(self._sender.call, number)
        self._answer(number, raw, await self._executor.run_async(raw, interruptible, hard, on_progress))
        self._leave_place()
        self._start()

    def _answer(self, number: int, raw: bytes, ended: Outcome) -> None:
        self._control.end(number)
        self._link.answer(number, raw, ended)

    def _leave_place(self) -> None:
        with self._taking:
            self._busy -= 1


class _Steps(Coroutine[Any, Any, Any]):
    """A coroutine of a job, or of a task that the job has started. Each of its steps is noted in the claims.

    In a process that a job has forked, the event loop, which is shared with the original, must not continue: such a
    copy ends with its step.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, Any], claims: Claims, number: int) -> None:
        self._coroutine = coroutine
        self._claims = claims
        self._number = number
        self._process = os.getpid()

    def send(self, value: Any) -> Any:
        self._claims.enter_loop(self._number)
        try:
            return self._coroutine.send(value)
        finally:
            self._leave()

    def throw(self, *error: Any) -> Any:
        self._claims.enter_loop(self._number)
        try:
            return self._coroutine.throw(*error)
        finally:
            self._leave()

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield from self._coroutine.__await__())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coroutine, name)  # cr_frame and the like, for code that looks into tasks

    def _leave(self) -> None:
        if os.getpid() != self._process:
            os._exit(0)
        self._claims.leave_loop()
