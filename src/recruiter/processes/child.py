"""A child: runs the user's code, one job at a time unless told otherwise, and nothing else.

It decodes the job, runs it, and answers with the document that the supervisor will write. It never talks to MongoDB.
It is started through a fork server that has the application loaded already, leads its own process group, so that what
its jobs start can be ended with it, and dies with its supervisor whatever the job is doing.
"""

from __future__ import annotations

import os
import signal
import traceback
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection

from recruiter import interruption
from recruiter.application import load_application
from recruiter.clock import SystemClock
from recruiter.processes import parent, wire
from recruiter.processes.courier import Courier
from recruiter.processes.juggler import Juggler
from recruiter.processes.ledger import Ledger
from recruiter.processes.parent import die_with_parent
from recruiter.steps.execute import Executor
from recruiter.store.codec import encode


def child_main(
    inbox: Connection,
    outbox: Connection,
    ledger: Ledger,
    bootstrap: str | None,
    address: str,
    worker: str,
    clock_offset: float,
    concurrency: int,
) -> None:
    """Where the fork server begins a child. `address` is where jobs that its jobs enqueue must go."""
    _detach()
    out = outbox.fileno()
    try:
        application = load_application(bootstrap)
        application.point_at(address)
    except BaseException:
        wire.write_all(out, wire.frame(wire.BROKEN, 0, encode({"trace": traceback.format_exc()})))
        return
    clock = SystemClock()
    clock.offset = timedelta(seconds=clock_offset)
    executor = Executor(
        application.registry,
        application.policies,
        clock,
        worker,
        owners=application.owners,
        stop_asked=ledger.stop_asked,
        soft=interruption.alarm if concurrency == 1 else interruption.throw,
    )
    wire.write_all(out, wire.frame(wire.HELLO, 0, encode({"tasks": sorted(application.registry.names())})))
    if concurrency == 1:
        _work(inbox.fileno(), out, ledger, executor, Courier(partial(wire.tell, out)))
    else:
        Juggler(inbox.fileno(), out, ledger, executor, concurrency).work()


def report_application(answer: Connection, bootstrap: str | None) -> None:
    """A child that only tells whether the application can be loaded, and where it keeps its jobs."""
    try:
        answer.send((load_application(bootstrap).address, None))
    except BaseException:
        answer.send((None, traceback.format_exc()))


def _work(inbox: int, out: int, ledger: Ledger, executor: Executor, courier: Courier[int]) -> None:
    frames = wire.Frames()
    while data := os.read(inbox, wire.READ_AT_ONCE):
        for _, number, raw in frames.feed(data):
            if ledger.claim(number):
                # Each answer leaves at once: what is done must not be lost with the next job's crash.
                # The courier writes while a job runs, and only then; so the two are never in the pipe together.
                tells = partial(courier.call, number)
                ended = executor.run(raw, hard=partial(ledger.deadline, number), tells=tells)
                wire.write_all(out, wire.answer(number, ended))
    executor.close()


def _detach() -> None:
    """Own process group; the terminal's and the service manager's signals are for the supervisor alone."""
    os.setpgid(0, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP):
        # A handler that does nothing, not SIG_IGN: that one would be inherited by what jobs start.
        signal.signal(number, lambda *_: None)
    # The parent is the fork server, which dies with the supervisor (preload.py).
    die_with_parent(signal.SIGKILL, parent.server_pid)
