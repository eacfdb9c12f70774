"""A child: runs the user's code, one job at a time unless told otherwise, and nothing else.

It decodes the job, runs it, and answers with the document that the supervisor will write. It never talks to MongoDB.
It is started through a fork server that has the application loaded already, leads its own process group, so that what
its jobs start can be ended with it, and dies with its supervisor whatever the job is doing.
"""

from __future__ import annotations

import contextvars
import os
import signal
import traceback
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection

from recruiter import interruption
from recruiter.application import load_application
from recruiter.clock import Clock, SystemClock
from recruiter.processes import group, parent, wire
from recruiter.processes.complaints import Complaints
from recruiter.processes.control import Control
from recruiter.processes.courier import Courier
from recruiter.processes.juggler import Juggler
from recruiter.processes.ledger import Ledger
from recruiter.processes.parent import die_with_parent
from recruiter.steps.execute import Executor
from recruiter.store.codec import encode


def child_main(
    inbox: Connection,
    outbox: Connection,
    control_pipe: Connection,
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
    )
    complaints = Complaints(clock)
    for owner in application.owners:
        owner.events.confide_in(complaints.hear)
    control = Control(control_pipe.fileno(), by_signal=concurrency == 1)
    wire.write_all(out, wire.frame(wire.HELLO, 0, encode({"tasks": sorted(application.registry.names())})))
    if concurrency == 1:
        interruption.obey_signals()
        _work(inbox.fileno(), out, ledger, executor, control, complaints, clock)
    else:
        Juggler(inbox.fileno(), out, ledger, executor, control, complaints, clock, concurrency).work()


def report_application(answer: Connection, bootstrap: str | None) -> None:
    """A child that only tells whether the application can be loaded, and where it keeps its jobs."""
    try:
        answer.send((load_application(bootstrap).address, None))
    except BaseException:
        answer.send((None, traceback.format_exc()))


def _work(
    inbox: int,
    out: int,
    ledger: Ledger,
    executor: Executor,
    control: Control,
    complaints: Complaints,
    clock: Clock,
) -> None:
    frames, context = wire.Frames(), contextvars.copy_context()
    courier: Courier[int] = Courier(partial(wire.tell, out))
    while data := os.read(inbox, wire.READ_AT_ONCE):
        for _, number, raw in frames.feed(data):
            if ledger.claim(number):
                # Each answer leaves at once: what is done must not be lost with the next job's crash.
                reach, hard = control.begin(number), partial(ledger.deadline, number)
                # The courier writes while a job runs, and only then; so the two are never in the pipe together.
                tells = partial(courier.call, number)
                # In a context of its own: what a job sets there must not be seen by the next.
                ended = context.copy().run(executor.run, raw, reach, hard, tells)
                control.end(number)
                ledger.end(number)
                if reach.error is not None:
                    group.end_others()
                wire.write_all(out, complaints.take() + wire.safe_answer(number, raw, ended, clock.now()))
    executor.close()


def _detach() -> None:
    """Own process group; the terminal's and the service manager's signals are for the supervisor alone."""
    group.lead()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP):
        # A handler that does nothing, not SIG_IGN: that one would be inherited by what jobs start.
        signal.signal(number, lambda *_: None)
    # The parent is the fork server, which dies with the supervisor (preload.py).
    die_with_parent(signal.SIGKILL, parent.server_pid)
