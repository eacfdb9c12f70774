"""Where the child processes of a worker come from, and where they go."""

from __future__ import annotations

import multiprocessing
import os
import sys
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import cast

from recruiter.errors import ApplicationError
from recruiter.log import LogOptions
from recruiter.processes.child.claims import Claims
from recruiter.processes.child.main import child_main, report_application
from recruiter.processes.worker.child_handle import ChildHandle


@dataclass(frozen=True)
class ForkServer:
    """Where children come from: a fork server that has loaded the application."""

    context: ForkServerContext
    bootstrap: str | None
    log: LogOptions = LogOptions()
    """How children write their log."""

    @classmethod
    def open(cls, bootstrap: str | None, log: LogOptions = LogOptions()) -> ForkServer:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["recruiter.processes.child.preload"])
        os.environ["RECRUITER_SUPERVISOR"] = str(os.getpid())  # both are for preload.py
        if bootstrap is not None:
            os.environ["RECRUITER_PRELOAD"] = bootstrap
        return cls(context, bootstrap, log)

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

    def spawn(self, worker: str, address: str, clock_offset: float, concurrency: int, now: float) -> ChildHandle:
        """Starts one child."""
        claims = Claims(self.context)
        inbox, to_child = os.pipe()
        from_child, outbox = os.pipe()
        cancels, control = os.pipe()
        ends = [Connection(inbox, writable=False), Connection(outbox, readable=False)]
        ends.append(Connection(cancels, writable=False))
        given = (*ends, claims, self.bootstrap, address, worker, clock_offset, concurrency, self.log)
        process = self.context.Process(target=child_main, args=given, daemon=False)
        try:
            _start(process)
        except BaseException:
            for end in (to_child, from_child, control):
                os.close(end)
            raise
        finally:
            for connection in ends:
                connection.close()
        return ChildHandle(process, to_child, from_child, control, claims, concurrency, now)


def _start(process: BaseProcess) -> None:
    """Starts it without our __main__: multiprocessing would load the whole command line into every child."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        process.start()
    finally:
        sys.modules["__main__"] = main
