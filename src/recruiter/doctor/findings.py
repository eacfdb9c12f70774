"""Findings of the doctor, and the thresholds from which something is a finding."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum

from recruiter.domain.observation import SILENT
from recruiter.domain.planning.reasons import Level as Level


class Code(StrEnum):
    """The code of a finding, for scripts and alerts. The words never change; docs/how-to/doctor.md lists them."""

    OK = "ok"
    CHECK_FAILED = "check-failed"
    # the server
    NO_PRIMARY = "no-primary"
    MEMBER = "member"
    ARBITER = "arbiter"
    ONE_MEMBER = "one-member"
    NO_MAJORITY = "no-majority"
    JOURNAL = "journal"
    IN_MEMORY = "in-memory"
    SHORT_OPLOG = "short-oplog"
    DISK = "disk"
    # the schema
    NOT_PREPARED = "not-prepared"
    SCHEMA = "schema"
    EXTRA_INDEX = "extra-index"
    # the fleet
    NO_LEADER = "no-leader"
    TAKEOVERS = "takeovers"
    NO_WORKER = "no-worker"
    SILENT_WORKER = "silent-worker"
    DRAINED_WORKER = "drained-worker"
    LEAVING_WORKER = "leaving-worker"
    NO_CLEANER = "no-cleaner"
    CLOCK = "clock"
    # jobs
    LATE = "late"
    SATURATED = "saturated"
    LONG_JOB = "long-job"
    NOT_SERVED = "not-served"
    NOT_OPENED = "not-opened"
    NEVER_FITS = "never-fits"
    ZERO_LIMIT = "zero-limit"
    PAUSED = "paused"
    STARTS_BLOCKED = "starts-blocked"
    POISON_JOB = "poison-job"
    SET_ASIDE = "set-aside"
    INBOX = "inbox"
    # schedulers
    BROKEN_SCHEDULER = "broken-scheduler"
    PAUSED_SCHEDULER = "paused-scheduler"
    LATE_SCHEDULER = "late-scheduler"
    OVERDUE_SUCCESS = "overdue-success"
    # documents
    DAMAGED_DOCUMENT = "damaged-document"


@dataclass(frozen=True, slots=True)
class Finding:
    """A result of a check, with the remedy."""

    level: Level
    about: str = field(default="", kw_only=True)
    """One word: `server`, `fleet`, `jobs`, …"""
    code: Code
    text: str
    todo: str = ""
    """The remedy; may be empty."""

    def __str__(self) -> str:
        return f"{self.text}. {self.todo}" if self.todo else self.text


def ok(text: str) -> Finding:
    return Finding(Level.OK, Code.OK, text)


def note(code: Code, text: str, todo: str) -> Finding:
    return Finding(Level.NOTE, code, text, todo)


def problem(code: Code, text: str, todo: str) -> Finding:
    return Finding(Level.PROBLEM, code, text, todo)


@dataclass(frozen=True)
class Thresholds:
    """The values from which the checks report."""

    silent: timedelta = SILENT
    """A process without a heartbeat for this time counts as dead."""
    behind: timedelta = timedelta(minutes=1)
    """Longest lag of a secondary."""
    short_oplog: timedelta = timedelta(hours=24)
    shortest_oplog: timedelta = timedelta(hours=1)
    disk_filling: float = 0.8
    disk_full: float = 0.9
    majority: float = 3.0
    """Seconds for a majority to confirm something."""
    late_job: timedelta = timedelta(minutes=5)
    """Longest time that a due job may wait for a slot."""
    long_job: timedelta = timedelta(hours=1)
    """Longest time that a job without a timeout may run before it is named."""
    counting: float = 5.0
    """Seconds for counting all jobs that wait."""
    lanes_told: int = 20
    unreadable_told: int = 20
    """Number of documents to name in each collection; the others are counted."""
    unreadable_counted: int = 10_000
    """Number of documents to count in each collection."""
