"""A child: runs the user's code, one job at a time by default, and nothing else.

It decodes the job, runs it, and answers with the document that the supervisor will write. It never talks to MongoDB.
It is started through a fork server that has the application loaded already, and leads its own process group. It has a
guard that ends what its jobs start and leave behind (process_group.py), and dies with its supervisor whatever a job
does.
"""

from __future__ import annotations

import contextvars
import gc
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from types import FrameType

from recruiter import attempt, interruption
from recruiter.application import Application, account, load_application
from recruiter.clock import FollowingClock
from recruiter.errors import ApplicationError, InvalidTarget, RecruiterError
from recruiter.log import LogOptions, configure_child
from recruiter.processes.child import pipe, process_group
from recruiter.processes.child.claims import Claims
from recruiter.processes.child.concurrent import ConcurrentChild
from recruiter.processes.child.pipe import CancelListener, SupervisorLink
from recruiter.processes.progress import ProgressSender
from recruiter.steps.execute import Executor
from recruiter.store.codec import Document, encode
from recruiter.store.collections.limits import limit_fields
from recruiter.store.connection import Target

_FOR_THE_SUPERVISOR = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP)
_before_fork = threading.local()
_BETWEEN_FLUSHES_SECONDS = 0.2


def child_main(
    inbox: Connection,
    outbox: Connection,
    control_pipe: Connection,
    claims: Claims,
    bootstrap: str | None,
    target: Target,
    worker: str,
    concurrency: int,
    log: LogOptions,
) -> None:
    """The entry point of a child in the fork server. Jobs that its jobs enqueue go to `target`."""
    _become_own_process()
    out = outbox.fileno()
    try:
        application = load_application(bootstrap)
        application.point_at(target)
        configure_child(log, attempt.log_context)
    except BaseException:
        pipe.write_all(out, pipe.frame(pipe.BROKEN, 0, encode({"trace": traceback.format_exc()})))
        return
    clock = FollowingClock()
    executor = Executor(
        application.registry,
        application.policies,
        clock,
        worker,
        owners=application.owners,
        stop_asked=claims.stop_asked,
    )
    gc.freeze()  # loaded modules stay: the collector need not visit them again
    link = SupervisorLink(inbox.fileno(), out, clock)
    for owner in application.owners:
        owner.events.on_listener_failure(link.note_listener_error)
    control = CancelListener(control_pipe.fileno(), claims, clock, by_signal=concurrency == 1, send=link.send)
    if any(owner.instruments for owner in application.owners):
        link.on_answer = _start_flushing(executor)
    link.send(pipe.HELLO, 0, encode(_introduction(application)))
    if concurrency == 1:
        _work(link, claims, executor, control, clock)
    else:
        ConcurrentChild(link, claims, executor, control, clock, concurrency).work()
    executor.flush()


def _start_flushing(executor: Executor) -> Callable[[], None]:
    """Starts a thread that sends the data of the instruments soon after each answer, so that the data is not lost when
    a later job ends this process. Returns the function to call after each answer."""
    has_data = threading.Event()

    def flush() -> None:
        while True:
            has_data.wait()
            has_data.clear()
            executor.flush()
            time.sleep(_BETWEEN_FLUSHES_SECONDS)

    threading.Thread(target=flush, name="flush", daemon=True).start()
    return has_data.set


def _introduction(application: Application) -> Document:
    """Facts about the application for the supervisor, which does not load it."""
    registry = application.registry
    flushes = any(owner.instruments for owner in application.owners)
    limits = {limit.subject: limit_fields(limit) for limit in registry.limits()}
    tasks = sorted(registry.names())
    pids = {"pid": os.getpid(), "server": process_group.server_pid}
    return {"tasks": tasks, "limits": limits, "flushes": flushes, **pids}


def report_application(answer: Connection, bootstrap: str | None) -> None:
    """The entry point of a process that loads the application and reports its target, or why it cannot be loaded."""
    target_or_error: Target | RecruiterError | None
    try:
        target_or_error = load_application(bootstrap).target
    except InvalidTarget as error:
        target_or_error = error
    except BaseException as error:
        target_or_error = ApplicationError(account(error))
    with suppress(OSError):  # the process that asked has ended
        answer.send(target_or_error)


def report_ends(bootstrap: str | None, target: Target, log: LogOptions, jobs: Sequence[bytes]) -> None:
    """The entry point of a process that reports the ends of jobs to the instruments: their own processes died."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    process_group.die_with_parent(signal.SIGKILL, process_group.server_pid)
    application = load_application(bootstrap)
    application.point_at(target)
    configure_child(log, attempt.log_context)
    executor = Executor(application.registry, application.policies, FollowingClock(), "", owners=application.owners)
    for raw in jobs:
        executor.report_end(raw)
    executor.flush()


def _work(
    link: SupervisorLink, claims: Claims, executor: Executor, control: CancelListener, clock: FollowingClock
) -> None:
    """Runs jobs in the main thread, one after another, until the supervisor closes the pipe."""
    context, sender = contextvars.copy_context(), ProgressSender[int](partial(link.send, pipe.PROGRESS))
    while (jobs := link.receive()) is not None:
        for number, payload in jobs:
            if claims.claim(number):
                raw = pipe.job_of(payload)
                clock.follow(*pipe.time_of(payload))
                interruption.obey_signals()  # each time: an earlier job may have installed its own handler
                # Each answer leaves immediately: a finished job must not be lost when the next one crashes.
                interruptible, hard = control.begin(number), partial(claims.deadline, number)
                on_progress = partial(sender.call, number)
                # In its own context: the next job must not see the variables that this one sets.
                ended = context.copy().run(executor.run, raw, interruptible, hard, on_progress)
                control.end(number)
                if interruptible.error is not None:
                    process_group.end_others()
                link.answer(number, raw, ended)
    executor.close()


def _become_own_process() -> None:
    """The first act of a child. It forks: this returns in the process that runs the jobs, in its own process group. The
    process that was started stays as its guard (process_group.py).

    From here on, signals of the terminal and of the service manager do nothing: the supervisor decides when jobs end.
    A process that a job forks gets the default handling back (`_in_a_copy`).
    """
    process_group.part_from_guard()
    for number in _FOR_THE_SUPERVISOR:
        # A handler that does nothing, not SIG_IGN: that one would be inherited by programs that jobs start.
        signal.signal(number, _ignore)
    # Blocked around the fork: a signal that comes before the copy has its own handlers would have no effect.
    os.register_at_fork(before=_block, after_in_parent=_unblock, after_in_child=_in_a_copy)


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Does nothing."""


def _block() -> None:
    _before_fork.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _FOR_THE_SUPERVISOR)


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _before_fork.mask)


def _in_a_copy() -> None:
    """Restores the default signal handling in a process that a job has forked, as multiprocessing does."""
    for number in _FOR_THE_SUPERVISOR:
        if signal.getsignal(number) is _ignore:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    _unblock()
