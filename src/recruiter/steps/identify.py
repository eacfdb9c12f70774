"""Identify: which job a person means by what is written.

An id on a screen is text, whatever it is in MongoDB: an ObjectId, a number, a UUID, or text that looks like one of
them. So all of them are looked for, instead of guessed.
"""

from __future__ import annotations

import contextlib
from uuid import UUID

from bson import ObjectId

from recruiter.domain.job import JobId
from recruiter.domain.text import shown
from recruiter.errors import JobNotFound
from recruiter.store.database import Store

_LARGEST_NUMBER = 2**63


def ids_written(text: str) -> list[JobId]:
    """Every id that is written like this."""
    ids: list[JobId] = [text]
    if ObjectId.is_valid(text):
        ids.append(ObjectId(text))
    if len(text) <= 20 and text.isascii() and text.removeprefix("-").isdigit() and abs(int(text)) < _LARGEST_NUMBER:
        ids.append(int(text))
    if len(text) in (32, 36):
        with contextlib.suppress(ValueError):
            ids.append(UUID(text))
    return ids


def identify(store: Store, text: str) -> JobId:
    """The id of the job that is written like this. Raises JobNotFound when there is none, or more than one."""
    ids = ids_written(text)
    exist = store.scheduled.which_exist(ids) | store.archived.which_exist(ids)
    there = [id for id in ids if id in exist]
    if len(there) > 1:
        raise JobNotFound(
            f"{shown(text)} may be any of {' and '.join(map(repr, there))}; use Python to tell them apart"
        )
    if not there:
        raise JobNotFound(f"there is no job {shown(text)}")
    return there[0]
