"""Several jobs at once in one child: `async def` jobs share an event loop, the others run in threads.

Jobs wait here unclaimed until one of the places is free, so the supervisor can still take them back. The thread
that finished a job writes its answer, under a lock, so that a job which blocks the event loop holds up no other's.

A job can hold up the others: by blocking the event loop, or by holding the interpreter in C code. Then nobody here can
say so any more. So it is written into the claims before: whose code the event loop is about to run (`_Steps`), in which
thread a job runs, and when a thread that does nothing else could last run.
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
from recruiter.processes.child.pipe import CancelListener, ListenerErrors
from recruiter.processes.progress import ProgressSender
from recruiter.steps.execute import Executor
from recruiter.store.outcomes import Outcome

_TICK_EVERY = 0.1
_number: contextvars.ContextVar[int | None] = contextvars.ContextVar("recruiter_number", default=None)
"""Of the job that a task of the event loop belongs to."""


class ConcurrentChild:
    def __init__(
        self,
        inbox: int,
        out: int,
        claims: Claims,
        executor: Executor,
        control: CancelListener,
        listener_errors: ListenerErrors,
        clock: FollowingClock,
        places: int,
    ) -> None:
        self._inbox = inbox
        self._out = out
        self._claims = claims
        self._executor = executor
        self._control = control
        self._listener_errors = listener_errors
        self._clock = clock
        self._context = contextvars.copy_context()
        """What every job begins with: what one sets there must not be seen by the next."""
        self._places = places
        self._busy = 0
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._frames = pipe.Frames()
        self._open = True
        self._writing = threading.Lock()
        self._sender: ProgressSender[int] = ProgressSender(self._tell)
        self._tasks: set[asyncio.Task[None]] = set()
        self._threads = ThreadPoolExecutor(places, thread_name_prefix="job")
        self._over = threading.Event()

    def work(self) -> None:
        """Until the supervisor closes the pipe and the last job has ended."""
        threading.Thread(target=self._tick, name="tick", daemon=True).start()
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            self._loop.set_task_factory(self._make_task)
            self._loop.add_reader(self._inbox, self._read)
            while self._open or self._busy:
                try:
                    self._loop.run_forever()
                except (SystemExit, KeyboardInterrupt):
                    continue  # a task that a job started and left alone; it is nobody's but its own
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
        data = os.read(self._inbox, pipe.READ_AT_ONCE)
        if not data:
            self._open = False
            self._loop.remove_reader(self._inbox)
        self._waiting.extend((number, payload) for _, number, payload in self._frames.feed(data))
        self._start()

    def _start(self) -> None:
        while self._waiting and self._busy < self._places:
            number, payload = self._waiting.popleft()
            if self._claims.claim(number):
                self._busy += 1
                self._clock.follow(*pipe.time_of(payload))
                self._begin(number, pipe.job_of(payload))
        if not self._open and not self._busy:
            self._loop.stop()

    def _begin(self, number: int, raw: bytes) -> None:
        context = self._context.copy()
        if self._executor.is_async(raw):
            context.run(_number.set, number)
            task = self._loop.create_task(self._run_async(number, raw), context=context)
            self._tasks.add(task)  # or it might be collected while it waits
            task.add_done_callback(self._tasks.discard)
        else:
            self._threads.submit(context.run, self._run, number, raw)

    def _run(self, number: int, raw: bytes) -> None:
        self._claims.runs_in(number, threading.get_native_id())
        interruptible, hard = self._control.begin(number), partial(self._claims.deadline, number)
        self._answer(number, raw, self._executor.run(raw, interruptible, hard, partial(self._sender.call, number)))
        self._loop.call_soon_threadsafe(self._ended)

    async def _run_async(self, number: int, raw: bytes) -> None:
        interruptible, hard = self._control.begin(number), partial(self._claims.deadline, number)
        on_progress = partial(self._sender.call, number)
        self._answer(number, raw, await self._executor.run_async(raw, interruptible, hard, on_progress))
        self._ended()

    def _answer(self, number: int, raw: bytes, ended: Outcome) -> None:
        self._control.end(number)
        with self._writing:
            answer = pipe.safe_answer(number, raw, ended, self._clock)
            pipe.write_all(self._out, self._listener_errors.take() + answer)

    def _tell(self, number: int, progress: bytes) -> None:
        with self._writing:
            pipe.tell(self._out, number, progress)

    def _ended(self) -> None:
        self._busy -= 1
        self._start()


class _Steps(Coroutine[Any, Any, Any]):
    """A coroutine of a job, or of a task it has started, which says before each of its steps whose it is.

    In a process that a job has forked the event loop, which is shared with the original, must not go on: such a copy
    ends with its step.
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
