"""Overruns: jobs that must end and do not end by themselves.

A job is first notified inside its process that it timed out or was cancelled. This module finds the jobs that continue
regardless, and jobs that exceed their memory limit, which cannot be notified in time.

If several jobs share a child, a job that blocks the event loop, or holds the interpreter in C code, prevents the
notification of the others. The blocking job is to blame (`_holder`), not the others. If it cannot be found, each of
them counts it like the death of a whole worker, which is bounded, and isolates them. The same holds for the memory of a
child that runs several jobs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from recruiter.errors import JobBlockedOthers, JobOutOfMemory, JobTimedOut, RecruiterError
from recruiter.processes.worker.child_handle import ChildHandle
from recruiter.store.codec import Document

_TIME_TO_LEAVE = 0.5
"""Seconds between the timeout exception inside a job and the end of its process."""
_STUCK_AFTER = 0.35
"""Seconds after which the interpreter of a child counts as held by a job."""
_TOLD = "its time was over, and it did not end when told so"
_NOT_TOLD = "its time was over, and it did not let itself be interrupted"

ThreadState = Callable[[int, int], str]


@dataclass(frozen=True)
class ByForce:
    """It has failed, and its policy decides whether it is tried again."""

    error: RecruiterError


@dataclass(frozen=True)
class Cancelled:
    """It was cancelled and did not end: it is archived as cancelled."""

    flag: Document


@dataclass(frozen=True)
class HeldUp:
    """A job of its process broke a limit, and it is not known which: it counts as if its whole worker had died."""

    why: str = "a job of its process held up the others, and it is not known which"


Reason = ByForce | Cancelled | HeldUp
Overruns = dict[int, Reason]
"""By number, the jobs because of which a child has to be ended. Other jobs that run there are handed back."""


def thread_state(process: int, thread: int) -> str:
    """R for a thread that computes; "" where it is not known."""
    try:
        return Path(f"/proc/{process}/task/{thread}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def past_their_time(child: ChildHandle, now: float, state: ThreadState = thread_state) -> Overruns:
    """Jobs of this child that continue after their timeout, or after they were cancelled."""
    late = [number for moment, number in child.deadlines() if moment + _TIME_TO_LEAVE < now]
    overruns: Overruns = _blame(child, late, now, state) if late else {}
    for number, (flag, since) in child.cancelling.items():
        if since + _TIME_TO_LEAVE < now:
            overruns[number] = Cancelled(flag)
    return overruns


def _blame(child: ChildHandle, late: list[int], now: float, state: ThreadState) -> Overruns:
    """The jobs to end because some are late: a late job if its interruption was raised in it, or if no other job runs
    there; else the job that holds up the others; if it cannot be found, all running jobs."""
    running = child.numbers_running()
    is_alone = len(running) == 1
    overruns: Overruns = {n: ByForce(JobTimedOut(_TOLD)) for n in late if is_alone or child.claims.was_told(n)}
    not_told = [number for number in late if number not in overruns]
    if not not_told:
        return overruns
    holder = _holder(child, running, now, state)
    if holder in not_told:
        overruns[holder] = ByForce(JobTimedOut(_NOT_TOLD))
    elif holder is not None:
        told = "it held up the other jobs of its process until the time of one of them was over, and was ended"
        overruns.setdefault(holder, ByForce(JobBlockedOthers(told)))
    elif not overruns:
        overruns = dict.fromkeys(running, HeldUp())
    return overruns


def _holder(child: ChildHandle, running: list[int], now: float, state: ThreadState) -> int | None:
    """The job that keeps the other jobs of its child from being interrupted, if it can be found."""
    loop = child.claims.loop_holder()
    in_loop = loop.number if loop is not None and loop.number in running else None
    if now - child.claims.ticked_at() < _STUCK_AFTER:
        # Other threads can run: only a job that does not leave the event loop can be in the way.
        return in_loop if loop is not None and now - loop.since > _TIME_TO_LEAVE else None
    # No thread can run: the job is to blame whose thread is the only one that computes.
    threads = {number: child.claims.thread_of(number) for number in running}
    if in_loop is not None:
        threads[in_loop] = child.pid  # the event loop runs in the main thread
    computing = [number for number, thread in threads.items() if thread and state(child.pid, thread) == "R"]
    return computing[0] if len(computing) == 1 else None


def too_large(child: ChildHandle, hard_limit: int | None) -> Overruns:
    """The running jobs of a child that uses more memory than it may, or than its job asked for."""
    numbers = child.numbers_running()
    limits = [limit for limit in (hard_limit, *map(child.memory_asked, numbers)) if limit is not None]
    if not numbers or not limits:
        return {}
    used = child.memory_of_all()
    if used <= min(limits):
        return {}
    told = f"used {used:,} bytes of memory; {min(limits):,} are allowed"
    if len(numbers) == 1:
        return {numbers[0]: ByForce(JobOutOfMemory(told))}
    return dict.fromkeys(numbers, HeldUp(f"its process {told}, and it is not known which of its jobs used them"))
