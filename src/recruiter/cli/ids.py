"""Ids of jobs as people type them. An id is an ObjectId, a text, a number or a UUID, and a text can look like any of
these; so whichever there is, is meant."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from uuid import UUID

from bson import ObjectId

from recruiter.app import Recruiter
from recruiter.domain.job import Job, JobId
from recruiter.errors import JobNotFound

_LARGEST = 2**63


def found(recruiter: Recruiter, text: str) -> Job:
    """The job with this id. Raises JobNotFound."""
    for id in _meanings(text):
        try:
            return recruiter.find(id)
        except JobNotFound:
            continue
    raise JobNotFound(f"there is no job {text!r}, waiting, running or ended; look for it with: recruiter job list")


def _meanings(text: str) -> Iterator[JobId]:
    if ObjectId.is_valid(text):
        yield ObjectId(text)
    if text.lstrip("-").isdecimal() and abs(int(text)) < _LARGEST:
        yield int(text)
    with suppress(ValueError):
        yield UUID(text)
    yield text
