"""The progress that a running job reports: its stages, how far it is, and the lines of its log.

    status   [{state, stage, progress, error, date}, …]    a report in the same stage replaces the last entry,
                                                           a new stage appends
    log      [{at, text}, …]

There is no entry for the creation. Each attempt continues the lists of the last attempt. The entry that ends an attempt
has the next state of the job, and the error: `waiting` if it will be tried again, `failed` if not. Both lists are
bounded: the oldest entries are removed and counted. Progress is between 0 and 1 and never decreases within a stage.
"""

from __future__ import annotations

from collections import deque
from datetime import datetime
from typing import NamedTuple

from recruiter.domain.state import State
from recruiter.domain.text import clean, head

STATUS_KEPT = 100
LINES_KEPT = 500
LOG_BYTES = 64 * 1024
MAX_NAME_CHARACTERS = 200


class StatusEntry(NamedTuple):
    """The state of a job at one time."""

    state: str
    """A value of `State`."""
    stage: str | None
    progress: float
    error: str | None
    """The error, in the entry that ends a failed attempt."""
    date: datetime


class LogLine(NamedTuple):
    """A line that a job has written to its log."""

    at: datetime
    text: str


class Progress(NamedTuple):
    """Everything that a job has reported so far."""

    status: tuple[StatusEntry, ...] = ()
    log: tuple[LogLine, ...] = ()
    status_cut: int = 0
    """Number of removed entries."""
    log_cut: int = 0
    """Number of removed lines."""

    @property
    def stage(self) -> str | None:
        return self.status[-1].stage if self.status else None

    @property
    def reached(self) -> float:
        return self.status[-1].progress if self.status else 0.0

    def concluded(self, state: State, at: datetime, error: str | None = None) -> Progress:
        """A copy with the status entry that ends an attempt."""
        has_reported = bool(self.status) and self.status[-1].state == State.RUNNING  # in this attempt
        stage, reached = (self.stage, self.reached) if has_reported else (None, 0.0)
        text = None if error is None else clean(head(error, 500))
        last = StatusEntry(state, stage, 1.0 if state is State.SUCCEEDED else reached, text, at)
        kept = (*self.status, last)[-STATUS_KEPT:]
        return self._replace(status=kept, status_cut=self.status_cut + len(self.status) + 1 - len(kept))


class Recorder:
    """Appends the reports of one attempt to the reports of earlier attempts. For one thread at a time."""

    def __init__(self, before: Progress) -> None:
        self._status = deque(before.status)
        self._log = deque(before.log)
        self._status_cut = before.status_cut
        self._log_cut = before.log_cut
        self._log_size = sum(map(_size, before.log))
        self._begun = False

    def stage(self, stage: str, progress: float | None, at: datetime) -> None:
        """Enters a stage, or reports its progress; a new stage begins at 0."""
        self._report(clean(head(stage, MAX_NAME_CHARACTERS)), progress, at)

    def progress(self, value: float, at: datetime) -> None:
        self._report(self._status[-1].stage if self._begun else None, value, at)

    def log(self, text: str, at: datetime) -> None:
        """Appends the lines of this text. The oldest lines are removed when the log gets too long."""
        parts = text.split("\n")
        self._log_cut += max(0, len(parts) - LINES_KEPT)
        for part in parts[-LINES_KEPT:]:
            line = LogLine(at, clean(head(part, 2_000)))
            self._log.append(line)
            self._log_size += _size(line)
        while len(self._log) > LINES_KEPT or self._log_size > LOG_BYTES:
            self._log_size -= _size(self._log.popleft())
            self._log_cut += 1

    def all(self) -> Progress:
        return Progress(tuple(self._status), tuple(self._log), self._status_cut, self._log_cut)

    def _report(self, stage: str | None, progress: float | None, at: datetime) -> None:
        """Updates the last entry if the attempt is in this stage already, else appends one. Progress never falls."""
        value = between_0_and_1(progress or 0.0)
        if self._begun and self._status[-1].stage == stage:
            self._status[-1] = StatusEntry(State.RUNNING, stage, max(value, self._status[-1].progress), None, at)
            return
        self._status.append(StatusEntry(State.RUNNING, stage, value, None, at))
        self._begun = True
        while len(self._status) > STATUS_KEPT:
            self._status.popleft()
            self._status_cut += 1


def between_0_and_1(value: float) -> float:
    """Corrects rounding errors; NaN is 0."""
    return min(1.0, max(0.0, float(value)))


def _size(line: LogLine) -> int:
    return len(line.text.encode())
