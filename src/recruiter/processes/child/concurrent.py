"""Several jobs at once in one child: `async def` jobs share an event loop, the others run in threads.

Jobs wait here unclaimed until one of the places is free, so the supervisor can still take them back. Answers are
written by whoever finished the job, under a lock, so that a job which blocks the event loop holds up no other's answer.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from recruiter.clock import Clock
from recruiter.processes.child import pipe
from recruiter.processes.child.cancel_listener import CancelListener
from recruiter.processes.child.claims import Claims
from recruiter.processes.complaints import Complaints
from recruiter.processes.progress.sender import ProgressSender
from recruiter.steps.execute import Executor
from recruiter.store.moves import Ended


class ConcurrentChild:
    def __init__(
        self,
        inbox: int,
        out: int,
        claims: Claims,
        executor: Executor,
        control: CancelListener,
        complaints: Complaints,
        clock: Clock,
        places: int,
    ) -> None:
        self._inbox = inbox
        self._out = out
        self._claims = claims
        self._executor = executor
        self._control = control
        self._complaints = complaints
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

    def work(self) -> None:
        """Until the supervisor closes the pipe and the last job has ended."""
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            self._loop.add_reader(self._inbox, self._read)
            while self._open or self._busy:
                try:
                    self._loop.run_forever()
                except (SystemExit, KeyboardInterrupt):
                    continue  # a task that a job started and left alone; it is nobody's but its own
        self._threads.shutdown(wait=False)
        self._executor.close()

    def _read(self) -> None:
        data = os.read(self._inbox, pipe.READ_AT_ONCE)
        if not data:
            self._open = False
            self._loop.remove_reader(self._inbox)
        self._waiting.extend((number, raw) for _, number, raw in self._frames.feed(data))
        self._start()

    def _start(self) -> None:
        while self._waiting and self._busy < self._places:
            number, raw = self._waiting.popleft()
            if self._claims.claim(number):
                self._busy += 1
                self._begin(number, raw)
        if not self._open and not self._busy:
            self._loop.stop()

    def _begin(self, number: int, raw: bytes) -> None:
        if self._executor.is_async(raw):
            task = self._loop.create_task(self._run_async(number, raw), context=self._context.copy())
            self._tasks.add(task)  # or it might be collected while it waits
            task.add_done_callback(self._tasks.discard)
        else:
            self._threads.submit(self._context.copy().run, self._run, number, raw)

    def _run(self, number: int, raw: bytes) -> None:
        reach, hard = self._control.begin(number), partial(self._claims.deadline, number)
        self._answer(number, raw, self._executor.run(raw, reach, hard, partial(self._sender.call, number)))
        self._loop.call_soon_threadsafe(self._ended)

    async def _run_async(self, number: int, raw: bytes) -> None:
        reach, hard = self._control.begin(number), partial(self._claims.deadline, number)
        tells = partial(self._sender.call, number)
        self._answer(number, raw, await self._executor.run_async(raw, reach, hard, tells))
        self._ended()

    def _answer(self, number: int, raw: bytes, ended: Ended) -> None:
        self._control.end(number)
        self._claims.end(number)
        with self._writing:
            answer = pipe.safe_answer(number, raw, ended, self._clock.now())
            pipe.write_all(self._out, self._complaints.take() + answer)

    def _tell(self, number: int, progress: bytes) -> None:
        with self._writing:
            pipe.tell(self._out, number, progress)

    def _ended(self) -> None:
        self._busy -= 1
        self._start()
