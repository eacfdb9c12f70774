"""Checkpoints: what a job has done for good in any of its runs, by name (`current_job.once`, `sleep`, `wait_for`)."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

from recruiter.domain.names import check_text
from recruiter.errors import InvalidName

LONGEST_NAME = 200
MOST_SIGNALS = 1_000
"""Of one job."""


class Checkpoint(NamedTuple):
    """Something that is done, and is not done again when the job runs again."""

    name: str
    at: datetime
    result: Any = None
    """As it is stored."""
    problem: str | None = None
    """Why there is no result: it could not be stored, or no signal came in time."""


class Signal(NamedTuple):
    """Something that a job was told from outside."""

    name: str
    at: datetime
    data: Any = None


class SignalWait(NamedTuple):
    """What a job waits for."""

    signal: str
    since: datetime
    until: datetime | None = None
    checkpoint: str = ""
    """The name of the checkpoint that the wait ends with."""


def check_checkpoint(kind: str, name: object) -> str:
    """The name of a checkpoint or a signal. Raises InvalidName."""
    text = check_text(kind, name)
    if len(text) > LONGEST_NAME:
        raise InvalidName(f"{kind} has {len(text)} characters; at most {LONGEST_NAME} are allowed")
    return text
