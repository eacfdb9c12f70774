"""The reasons why a due job does not start that come from workers and hosts. The reasons of limits are in limits.py."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from recruiter.domain.planning.limits import AtLimit, Reason
from recruiter.domain.planning.needs import Needs, said


@dataclass(frozen=True, slots=True)
class Unserved(Reason):
    """No worker takes jobs of this lane, however long they wait."""

    text: str
    todo: str

    def __str__(self) -> str:
        return f"{self.text}: {self.todo}" if self.todo else self.text


@dataclass(frozen=True, slots=True)
class NoWorker(Reason):
    group: str
    task: str

    def __str__(self) -> str:
        return f"no worker serves task {self.task} of group {self.group}"


@dataclass(frozen=True, slots=True)
class SlotsBusy(Reason):
    workers: int
    """The number of workers that serve it."""

    def __str__(self) -> str:
        serving = "the one worker that serves it" if self.workers == 1 else f"the {self.workers} workers that serve it"
        return f"no slot is free where it could run ({serving})"


@dataclass(frozen=True, slots=True)
class HostsBusy(Reason):
    resource: str
    needed: int
    free: int
    host: str
    """The host that lacks the least."""

    def __str__(self) -> str:
        needed, free = said(self.resource, self.needed, self.free)
        return f"needs {needed} of {self.resource}; {self.host} comes closest, with {free} free"


@dataclass(frozen=True, slots=True)
class NeverFits(Reason):
    needs: Needs
    resource: str
    needed: int
    largest: int
    fleet: bool = False
    """It is a limit of the fleet that is too small, not the hosts."""

    def __str__(self) -> str:
        needed, largest = said(self.resource, self.needed, self.largest)
        if self.fleet:
            return f"needs {needed} of {self.resource}, and the whole fleet may use {largest} of it"
        if self.needed <= self.largest:
            return f"needs {self.needs.described()}, and no single host that serves it has all of that"
        return f"needs {needed} of {self.resource}, and no host that serves it has more than {largest}"


@dataclass(frozen=True, slots=True)
class IsolatedBusy(Reason):
    """Each worker that could run an isolated job holds another isolated job."""

    workers: int

    def __str__(self) -> str:
        where = "the one worker that serves it holds" if self.workers == 1 else "all workers that serve it hold"
        return f"its worker died repeatedly, and {where} another such job; two of them never share a worker"


class Level(StrEnum):
    """How serious a finding or a sentence is."""

    OK = "ok"
    NOTE = "note"
    """Good to know: it is intended, it is history, or it heals by itself."""
    PROBLEM = "problem"
    """A person must act now. Only a problem makes the exit code 1."""


def level_of(reason: Reason | None) -> Level:
    """How serious it is that due jobs wait for this reason. The one judgement for doctor, overview and lists."""
    match reason:
        case Unserved() | NoWorker() | NeverFits():
            return Level.PROBLEM
        case AtLimit(held=0):
            return Level.NOTE
        case _:
            return Level.OK
