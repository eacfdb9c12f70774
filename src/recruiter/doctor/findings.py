"""Findings of the doctor, and the thresholds from which something is a finding."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum


class Level(StrEnum):
    OK = "ok"
    NOTE = "note"
    """Good to know, and perhaps meant to be so."""
    PROBLEM = "problem"
    """Something is wrong, or will be."""


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    about: str
    """One word: `server`, `workers`, `jobs`, …"""
    text: str
    todo: str = ""
    """What to do; empty when there is nothing."""

    def __str__(self) -> str:
        return f"{self.text}. {self.todo}" if self.todo else self.text


def ok(about: str, text: str) -> Finding:
    return Finding(Level.OK, about, text)


def note(about: str, text: str, todo: str) -> Finding:
    return Finding(Level.NOTE, about, text, todo)


def problem(about: str, text: str, todo: str) -> Finding:
    return Finding(Level.PROBLEM, about, text, todo)


@dataclass(frozen=True)
class Thresholds:
    """From what on `doctor` calls something a problem."""

    silent: timedelta = timedelta(seconds=15)
    """Without a heartbeat for so long, a process is taken for dead."""
    standing_by: timedelta = timedelta(seconds=8)
    """A recruiter shows life every 5 seconds; one that has not for so long is not counted on."""
    clock: timedelta = timedelta(seconds=2)
    """A host's clock may be so far off the server's."""
    takeovers: int = 5
    """So many terms of leadership in `takeovers_within` are too many."""
    takeovers_within: timedelta = timedelta(minutes=10)
    behind: timedelta = timedelta(minutes=1)
    """A secondary may lag so far behind."""
    short_oplog: timedelta = timedelta(hours=24)
    shortest_oplog: timedelta = timedelta(hours=1)
    disk_filling: float = 0.8
    disk_full: float = 0.9
    majority: float = 3.0
    """Seconds for a majority to confirm something."""
    counting: float = 5.0
    """Seconds for counting all jobs that wait."""
    lanes_told: int = 20
    set_aside: timedelta = timedelta(days=1)
    """What was set aside before that, somebody has had the time to look at."""
    set_aside_told: int = 10
    unreadable_told: int = 20
    """Of each collection; the others are counted."""
    unreadable_counted: int = 10_000
    """Likewise; whatever is beyond that is not looked for."""
    unreadable_since: timedelta = timedelta(days=7)
    """What ended before that is not looked at again."""
    late: timedelta = timedelta(minutes=1)
    """An occurrence may be made so late."""
