"""A job's life in parts, drawn to scale: postponed, waiting, each attempt, and the waits between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from recruiter.domain.duration import UNTIL_SIGNAL
from recruiter.domain.job import ArchivedJob, Execution, Job
from recruiter.domain.state import State


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a job's life."""

    kind: str
    """`postponed`, `waiting`, `running`, `succeeded`, `failed`, `cancelled` or `lost`."""
    since: datetime
    until: datetime
    label: str
    attempt: int | None = None


def parts(job: Job, now: datetime) -> list[Part]:
    """From its creation to its end, or to now. Parts that take no time are left out, attempts never are."""
    return [part for part in _parts(job, now) if part.attempt is not None or part.until > part.since]


def _parts(job: Job, now: datetime) -> Iterator[Part]:
    reached = job.created_at
    first = max(0, job.attempts - len(job.executions)) + 1
    if isinstance(job.scheduled_at, datetime) and not job.executions and job.scheduled_at > reached:
        until = min(job.scheduled_at, _end(job, now))
        yield Part("postponed", reached, until, "postponed")
        reached = until
    for number, attempt in enumerate(job.executions, first):
        if attempt.started_at is None or attempt.ended_at is None:
            continue
        begun = max(reached, attempt.started_at)
        yield Part("waiting", reached, begun, "waits" if number == first else "waits to be tried again")
        kind = _kind(job, attempt, last=number == first + len(job.executions) - 1)
        reached = max(begun, attempt.ended_at)
        yield Part(kind, begun, reached, f"attempt {number} {_outcome(kind, attempt)}", number)
    yield from _rest(job, reached, now)


def _rest(job: Job, reached: datetime, now: datetime) -> Iterator[Part]:
    if isinstance(job, ArchivedJob):
        if not job.executions or job.state is State.CANCELLED:
            yield Part("waiting", reached, max(reached, job.archived_at), f"waits, then {job.state.value}")
        return
    if job.locked_by is not None and job.locked_at is not None:
        begun = max(reached, job.locked_at)
        yield Part("waiting", reached, begun, "waits")
        yield Part("running", begun, max(begun, now), f"attempt {job.attempts + 1} runs", job.attempts + 1)
        return
    if job.executions and isinstance(job.scheduled_at, datetime) and now < job.scheduled_at != UNTIL_SIGNAL:
        yield Part("waiting", reached, max(reached, now), "waits to be tried again")
        yield Part("postponed", max(reached, now), job.scheduled_at, "until it is tried again")
        return
    yield Part("waiting", reached, max(reached, now), "waits")


def _end(job: Job, now: datetime) -> datetime:
    if isinstance(job, ArchivedJob):
        return job.archived_at
    return now if job.scheduled_at == UNTIL_SIGNAL else max(now, job.scheduled_at)


def _kind(job: Job, attempt: Execution, *, last: bool) -> str:
    if attempt.crashed or attempt.exception:
        return "failed"
    if last and isinstance(job, ArchivedJob):
        return job.state.value
    return "failed" if attempt.message else "succeeded"


def _outcome(kind: str, attempt: Execution) -> str:
    if attempt.crashed:
        return "ended when its process died"
    return f"failed with {attempt.exception}" if attempt.exception else kind


@dataclass(frozen=True, slots=True)
class Bar:
    """A part on a ruler that is `width` long."""

    part: Part
    x: float
    width: float


def drawn(parts: Sequence[Part], width: float = 1000.0, least: float = 4.0) -> list[Bar]:
    """To scale, after each part has got the least width that can be seen."""
    if not parts:
        return []
    lengths = [(part.until - part.since).total_seconds() for part in parts]
    total = sum(lengths) or 1.0
    least = min(least, width / len(parts))
    room = width - least * len(parts)
    bars, x = [], 0.0
    for part, length in zip(parts, lengths, strict=True):
        size = least + length / total * room
        bars.append(Bar(part, round(x, 2), round(size, 2)))
        x += size
    return bars
