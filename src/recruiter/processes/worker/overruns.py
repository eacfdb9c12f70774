"""Overruns: jobs that must end and do not end by themselves, and their outcome when their process is ended.

A job is told first, inside its process, that its time is over or that it was cancelled. Only those that stay are found
here; and those that use more memory than they may, which cannot be told to anybody in time.

Where several jobs share a child, one that blocks the event loop, or holds the interpreter in C code, keeps the others
from being told. They are not to blame: the one that holds them up is (`_holder`). If nobody can say which one that is,
each of them counts it like the death of a whole worker, which is bounded, and keeps them apart. So it is with the
memory of a child that runs several jobs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from recruiter.domain.job import Execution
from recruiter.domain.policy_registry import PolicyRegistry
from recruiter.errors import JobBlockedOthers, JobOutOfMemory, JobTimedOut, RecruiterError
from recruiter.processes.worker.child_handle import ChildHandle
from recruiter.store import outcomes
from recruiter.store.codec import Document

_TIME_TO_LEAVE = 0.5
"""Seconds that a job has, after its time is over and it has been told so, before its process is ended."""
_STUCK_AFTER = 0.35
"""Seconds after which the interpreter of a child counts as held by one of its jobs."""
_TOLD = "its time was over, and it did not end when told so"
_NOT_TOLD = "its time was over, and it did not let itself be interrupted"

ThreadState = Callable[[int, int], str]


@dataclass(frozen=True)
class Ended:
    """When an attempt was ended, where, and since when it ran."""

    since: datetime
    at: datetime
    worker: str


@dataclass(frozen=True)
class ByForce:
    """It has failed, and its policy decides whether it is tried again."""

    error: RecruiterError

    def outcome(self, document: Document, policies: PolicyRegistry, end: Ended) -> outcomes.Outcome | None:
        return outcomes.ended_by_force(
            document, policies, self.error, worker=end.worker, started_at=end.since, at=end.at
        )


@dataclass(frozen=True)
class Cancelled:
    flag: Document

    def outcome(self, document: Document, policies: PolicyRegistry, end: Ended) -> outcomes.Outcome | None:
        del policies  # nobody tries it again
        how = "it was cancelled, did not end when told so, and its process was ended"
        execution = Execution(end.since, end.at, end.worker, message=how)
        return outcomes.cancelled({**document, "cancel": self.flag}, end.at, execution)


@dataclass(frozen=True)
class HeldUp:
    """A job of its process broke a limit, and nobody knows which: it counts as if its whole worker had died."""

    why: str = "a job of its process held up the others, and it is not known which"

    def outcome(self, document: Document, policies: PolicyRegistry, end: Ended) -> outcomes.Outcome | None:
        facts: dict[str, Any] = {"worker": end.worker, "started_at": end.since, "at": end.at, "message": self.why}
        if document.get("at_most_once"):
            return outcomes.crashed(document, policies, **facts)
        return outcomes.worker_died(document, **facts)


Reason = ByForce | Cancelled | HeldUp


Overruns = dict[int, Reason]
"""By number, the jobs because of which a child has to be ended. Others that run there are handed back."""


def thread_state(process: int, thread: int) -> str:
    """R for one that computes; "" where nobody knows."""
    try:
        return Path(f"/proc/{process}/task/{thread}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def past_their_time(child: ChildHandle, now: float, state: ThreadState = thread_state) -> Overruns:
    """Jobs of this child whose time is over, or that were cancelled, and that go on."""
    late = [number for moment, number in child.deadlines() if moment + _TIME_TO_LEAVE < now]
    overruns: Overruns = _blame(child, late, now, state) if late else {}
    for number, (flag, since) in child.cancelling.items():
        if since + _TIME_TO_LEAVE < now:
            overruns[number] = Cancelled(flag)
    return overruns


def _blame(child: ChildHandle, late: list[int], now: float, state: ThreadState) -> Overruns:
    running = child.numbers_running()
    alone = len(running) == 1
    overruns: Overruns = {n: ByForce(JobTimedOut(_TOLD)) for n in late if alone or child.claims.was_told(n)}
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
    """The job that lets no other job of its child be told anything, if one can be found."""
    loop = child.claims.loop_holder()
    in_loop = loop.number if loop is not None and loop.number in running else None
    if now - child.claims.ticked_at() < _STUCK_AFTER:  # the interpreter is free: then it is the loop that is not
        return in_loop if loop is not None and now - loop.since > _TIME_TO_LEAVE else None
    threads = {number: child.claims.thread_of(number) for number in running}
    if in_loop is not None:
        threads[in_loop] = child.pid
    computing = [number for number, thread in threads.items() if thread and state(child.pid, thread) == "R"]
    return computing[0] if len(computing) == 1 else None


def too_large(child: ChildHandle, hard_limit: int | None) -> Overruns:
    """All that run in a child which uses more memory than it may, or than the job there asked for."""
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
