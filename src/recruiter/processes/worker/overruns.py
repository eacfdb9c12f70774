"""Fates: jobs that have to go and do not leave by themselves, and what becomes of them when their process is ended.

A job is told first, inside its process, that its time is over or that it was cancelled. Only who stays is found here;
and who uses more memory than it may, which cannot be told to anybody in time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from recruiter.domain.job import Execution
from recruiter.domain.policy_registry import PolicyRegistry
from recruiter.errors import JobOutOfMemory, JobTimedOut, RecruiterError
from recruiter.processes.worker.child_handle import ChildHandle
from recruiter.store import moves
from recruiter.store.codec import Document

_TIME_TO_LEAVE = 0.5
"""Seconds that a job has, after its time is over and it has been told so, before its process is ended."""


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

    def move(self, document: Document, policies: PolicyRegistry, end: Ended) -> moves.Move:
        return moves.ended_by_force(document, policies, self.error, worker=end.worker, started_at=end.since, at=end.at)


@dataclass(frozen=True)
class Cancelled:
    flag: Document

    def move(self, document: Document, policies: PolicyRegistry, end: Ended) -> moves.Move:
        del policies  # nobody tries it again
        how = "it was cancelled, did not end when told so, and its process was ended"
        execution = Execution(end.since, end.at, end.worker, message=how)
        return moves.cancelled({**document, "cancel": self.flag}, end.at, execution)


Fate = ByForce | Cancelled


def of_those_who_stay(child: ChildHandle, now: float) -> dict[int, Fate]:
    """By number, jobs of this child whose time is over, or that were cancelled, and that were told so and go on."""
    fates: dict[int, Fate] = {
        number: ByForce(JobTimedOut("its time was over, and it did not end when told so"))
        for moment, number in child.deadlines()
        if moment + _TIME_TO_LEAVE < now
    }
    for number, (flag, since) in child.cancelling.items():
        if since + _TIME_TO_LEAVE < now:
            fates[number] = Cancelled(flag)
    return fates


def of_those_too_large(child: ChildHandle, hard_limit: int | None) -> dict[int, Fate]:
    """By number, all that run in a child which uses more memory than it may, or than the job there asked for."""
    numbers = child.numbers_running()
    limits = [limit for limit in (hard_limit, *map(child.memory_asked, numbers)) if limit is not None]
    if not numbers or not limits:
        return {}
    used = child.memory_of_all()
    if used <= min(limits):
        return {}
    told = f"used {used:,} bytes of memory; {min(limits):,} are allowed"
    return dict.fromkeys(numbers, ByForce(JobOutOfMemory(told)))
