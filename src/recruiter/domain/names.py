"""Names of tasks, groups and lanes, and the ids of jobs.

A *lane* (lane.py) is the set of jobs that are alike to the planner. It is written on each job, so that one index
serves "the next due jobs of these lanes, by priority then time" without sorting, and a lane that no worker can serve
now (task at its limit, group paused, unknown task) is left out of the query.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TypeGuard
from uuid import UUID

from bson import ObjectId
from bson.code import Code

from recruiter.domain.text import is_unicode, said_by, shown
from recruiter.errors import InvalidJob, InvalidName

JobId = ObjectId | str | int | UUID
"""The id of a job: made by Recruiter (ObjectId) or given by the producer."""

LONGEST_ID = 1_000
"""Characters of a job id that is a string: the ids of thousands of jobs are in one roster document."""
DEFAULT_GROUP = "generic"
DEFAULT_METHOD = "execute"
CANCELLED_LANE = "/cancelled"
"""The lane of a cancelled job: no group has an empty name, so no worker is ever given such a job."""
BLOCKED_LANE = "/blocked"
"""The lane of a step that waits for others of its flow, or whose flow is paused."""
MARKED_LANE = "/marked"
"""No job is in it: the leader finds it among the lanes if there are unprocessed markers of flows."""
ASIDE = (CANCELLED_LANE, BLOCKED_LANE)
"""The lanes of jobs that no worker is given."""
DEFAULT_PREFIX = "recruiter."
"""In front of the name of each collection."""
_NAME = re.compile(r"[^\s/\x00-\x1f$][^\s/\x00-\x1f]{0,199}")
_PREFIX_PART = r"(?!system\b)[A-Za-z_][A-Za-z0-9_]*"
_PREFIX = re.compile(rf"({_PREFIX_PART}(\.{_PREFIX_PART})*\.?)?", re.ASCII)
_MAX_PREFIX_CHARACTERS = 64
"""MongoDB allows 255 for a database, a dot and a collection together."""


def is_job_id(value: object) -> TypeGuard[JobId]:
    """`Code` is a `str` for Python, and cannot be hashed."""
    if isinstance(value, str):
        return len(value) <= LONGEST_ID and not isinstance(value, Code)
    if isinstance(value, int):
        return not isinstance(value, bool) and -(2**63) <= value < 2**63
    return isinstance(value, ObjectId | UUID)


def id_told(id: object) -> str:
    """An id in a message, in the form of the command line; a string is quoted to show its end."""
    return repr(id) if isinstance(id, str) else str(id)


def plain(text: str) -> str:
    """The same string without its subclass, whose `__repr__` may raise."""
    return text if type(text) is str else str.__str__(text)


def check_name(kind: str, value: object) -> str:
    """Returns the name if it is valid; raises InvalidName."""
    if not isinstance(value, str):
        raise InvalidName(f"{kind} must be one text, not {type(value).__name__}: {said_by(value, repr)[:200]}")
    if not _NAME.fullmatch(value) or not is_unicode(value):
        raise InvalidName(
            f"{kind} {value[:80]!r} is not a name: 1 to 200 characters, no white space, no '/', not starting with '$'"
        )
    return plain(value)


def check_prefix(value: object) -> str:
    """Returns the prefix of collections if it is valid; an empty one is. Raises InvalidName."""
    if not isinstance(value, str):
        raise InvalidName(f"the prefix of collections must be a string, not {type(value).__name__}")
    if len(value) > _MAX_PREFIX_CHARACTERS or not _PREFIX.fullmatch(value):
        raise InvalidName(
            f"{value[:80]!r} cannot be the prefix of collections: at most {_MAX_PREFIX_CHARACTERS} letters, digits, "
            "'_' and '.', each part starting with a letter or '_', and no part called 'system'; for example "
            "'recruiter.'"
        )
    return value


def check_text(kind: str, value: object) -> str:
    """The string itself, which must not be empty. Raises InvalidName."""
    if not isinstance(value, str) or not value or not is_unicode(value):
        raise InvalidName(f"{kind} must be a string, not {said_by(value, repr)[:200]}")
    return plain(value)


def check_remark(by: object, reason: object) -> None:
    """Checks the author of a change and the reason; both may be None. Raises InvalidName."""
    for kind, value in (("by", by), ("reason", reason)):
        if value is not None and (not isinstance(value, str) or not is_unicode(value)):
            raise InvalidName(f"{kind} must be a string, not {said_by(value, repr)[:200]}")


def check_tags(tags: Iterable[object]) -> tuple[str, ...]:
    """Returns the tags, each once, in order. Raises InvalidName."""
    if isinstance(tags, str):
        raise InvalidName(f"tags are a list of strings, as in [{shown(tags)}], not one string")
    if not isinstance(tags, Iterable):
        raise InvalidName(f"tags are a list of strings, not {said_by(tags, repr)[:200]}")
    checked: dict[str, None] = {}
    for tag in tags:
        if not isinstance(tag, str) or not tag or not is_unicode(tag):
            hint = "; write them one by one, as in tagged_as('a', 'b')" if isinstance(tag, list | tuple | set) else ""
            raise InvalidName(f"a tag must be a string, not {said_by(tag, repr)[:200]}{hint}")
        checked[tag] = None
    return tuple(checked)


def one_by_one(tags: Iterable[object]) -> Iterator[object]:
    """Tags that were given one by one, or several in a list."""
    for tag in tags:
        if isinstance(tag, list | tuple | set | frozenset):
            yield from tag
        else:
            yield tag


def check_aliases(aliases: Iterable[object]) -> tuple[str, ...]:
    if not isinstance(aliases, Iterable):
        raise InvalidName(f"aliases are a list of names, not {said_by(aliases, repr)[:200]}")
    if isinstance(aliases, str):
        raise InvalidName(f"aliases are a list of names, as in [{shown(aliases)}], not one text")
    return tuple(check_name("alias", alias) for alias in aliases)


def check_priority(priority: object) -> int | float:
    number = isinstance(priority, int | float) and not isinstance(priority, bool) and priority == priority
    if not number or (isinstance(priority, int) and not -(2**63) <= priority < 2**63):
        raise InvalidJob(f"a priority is a number of at most 64 bits, not {said_by(priority, repr)[:200]}")
    assert isinstance(priority, int | float)
    return priority


def group_and_task(lane: str) -> tuple[str, str]:
    group, _, after_group = lane.partition("/")
    return group, after_group.partition("/")[0]
