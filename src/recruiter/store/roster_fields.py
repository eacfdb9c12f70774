"""The values and parsers of roster documents. The protocol is in `store/collections/roster.py`."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Literal, NamedTuple
from uuid import UUID

from bson import ObjectId

from recruiter.domain.job import JobId
from recruiter.domain.observation import UNDECLARED_DEAD_AFTER_SECONDS
from recruiter.domain.planning.needs import Needs
from recruiter.domain.planning.workers import RosterWorker
from recruiter.errors import UnreadableDocument
from recruiter.store import fields as field
from recruiter.store.codec import Document
from recruiter.store.fields import HIGHEST_TERM, is_job_id
from recruiter.store.sessions import SessionId, session_id

_MOST_SLOTS = 100_000
"""More than any host has: a worker that claims more would receive all jobs."""


@dataclass(frozen=True, slots=True)
class Holding:
    """The jobs of a worker after its n-th release and its n-th assignment. Both numbers only grow: an answer with a
    smaller number is older and must be ignored."""

    assigned: list[JobId]
    settled: int
    given: int = 0


class Assignment(NamedTuple):
    """New jobs of a worker, from the change event on its document."""

    worker: str
    given: int
    """The number of its assignments, including this one."""
    jobs: list[JobId]


@dataclass(frozen=True, slots=True)
class ReleaseAnswer:
    """The jobs of a worker before and after a release."""

    held: frozenset[JobId]
    """The jobs before the release: only the outcomes of these jobs may be written."""
    holding: Holding
    """The jobs after the release."""


class Beat(NamedTuple):
    """The answer to a heartbeat."""

    holding: Holding
    seen_at: datetime
    """The server's time."""
    pauses: int
    """The number of pauses and resumptions since the worker joined."""
    stack_asked: Document | None = None
    """The last question of a person for the stack of a job: `id` and `job`."""


@dataclass(frozen=True, slots=True)
class Hold:
    """The worker that holds a job."""

    worker: str
    since: datetime | None
    """The start of the job, by the last heartbeat."""
    given_at: datetime | None = None
    """The time of the worker's last assignment: a job that does not run yet was assigned then, or shortly before."""


WorkerState = Literal["works", "joining", "drained", "leaving", "silent"]


@dataclass(frozen=True, slots=True)
class RosterEntry:
    """A worker, for reports."""

    id: str
    host: str
    pid: int
    registration: RosterWorker
    joined_at: datetime
    seen_at: datetime
    running: tuple[Mapping[str, Any], ...]
    leaving: bool = False
    drained: Mapping[str, Any] | None = None
    """`at`, `by`, `reason`: a person has stopped the assignment of jobs to it."""
    clock_offset: float | None = None
    """Seconds that the server's clock is ahead of its host's."""
    version: str | None = None
    memory_bytes: float | None = None
    """Of the worker and its children, by its last measurement."""
    cpu: float | None = None
    """The number of processors that they use."""

    @property
    def dead_after(self) -> timedelta:
        declared = self.registration.dead_after
        return timedelta(seconds=UNDECLARED_DEAD_AFTER_SECONDS if declared is None else declared)

    def is_silent(self, now: datetime) -> bool:
        return now - self.seen_at > self.dead_after

    def state(self, now: datetime) -> WorkerState:
        if self.is_silent(now):
            return "silent"
        if self.leaving:
            return "leaving"
        if self.drained is not None:
            return "drained"
        return "works" if self.registration.ready else "joining"


@dataclass(frozen=True, slots=True)
class LastEntry:
    """The readable jobs of a worker that was removed from the roster."""

    worker: str
    assigned: tuple[JobId, ...]
    running: Mapping[JobId, datetime | None]
    """With their starts, if they are known."""
    slots: int = 0
    given_at: datetime | None = None

    def hold(self, id: JobId) -> Hold:
        return Hold(self.worker, self.running.get(id), self.given_at)


def holding_from(document: Document) -> Holding:
    return Holding(document["assigned"], document["settled"], document["given"])


def stack_asked_from(document: Document) -> Document | None:
    asked = document.get("stack_asked")
    if not isinstance(asked, dict) or not isinstance(asked.get("id"), str) or not is_job_id(asked.get("job")):
        return None
    return {"id": asked["id"], "job": asked["job"]}


def assignment_of(event: Document) -> Assignment | None:
    """The assignment in a change event on a roster document; None for other events. The event contains the new jobs by
    their place in the list, or the whole list if it was empty before."""
    updated: Document = (event.get("updateDescription") or {}).get("updatedFields") or {}
    worker, given = (event.get("documentKey") or {}).get("_id"), updated.get("given")
    if not isinstance(worker, str) or not isinstance(given, int):
        return None
    new = [value for name, value in updated.items() if name.startswith("assigned.")]
    whole = updated.get("assigned")
    jobs = whole if isinstance(whole, list) else new
    return Assignment(worker, given, jobs) if jobs and all(map(is_job_id, jobs)) else None


def released_from(before: Document, ids: Collection[JobId]) -> ReleaseAnswer:
    gone = set(ids)
    left = [id for id in before["assigned"] if id not in gone]
    return ReleaseAnswer(frozenset(before["assigned"]), Holding(left, before["settled"] + 1, before["given"]))


def registration_from(document: Document) -> RosterWorker:
    """The parser for planning: the worker with the number of its jobs, not the jobs."""
    groups = field.texts(document, "groups", None)
    drained = field.mapping(document, "drained", None)
    field.whole(document, "term", most=HIGHEST_TERM)
    if "given" in document:  # assigning raises it
        field.whole(document, "given")
    return RosterWorker(
        id=field.text(document, "_id"),
        groups=None if groups is None else frozenset(groups),
        tasks=frozenset(field.texts(document, "tasks")),
        slots=field.whole(document, "slots", most=_MOST_SLOTS),
        prefetch=field.whole(document, "prefetch", most=_MOST_SLOTS),
        holds=field.whole(document, "holds"),
        beats=field.whole(document, "beats"),
        ready=field.truth(document, "ready"),
        draining=field.truth(document, "draining") or bool(drained),
        session=session_id("session", document.get("session")),
        child_sessions=tuple(session for _, session in sessions_from(document)),
        host=field.text(document, "host", ""),
        resources=_resources(field.text(document, "resources", "")),
        limited=tuple(dict(field.array({"metered": [], **document}, "metered", _limited_job)).items()),
        seen_at=field.moment(document, "seen_at", None),
        dead_after=field.number(document, "considered_dead_after", None, least=0),
    )


def entry_from(document: Document) -> RosterEntry:
    """The parser for reports."""
    drained, usage = field.mapping(document, "drained", None), field.mapping(document, "usage", None) or {}
    return RosterEntry(
        id=field.text(document, "_id"),
        host=field.text(document, "host"),
        pid=field.whole(document, "pid"),
        registration=registration_from(document),
        joined_at=field.moment(document, "joined_at"),
        seen_at=field.moment(document, "seen_at"),
        running=tuple(field.array(document, "running", _run)),
        leaving=field.truth(document, "draining"),
        drained=None if drained is None else {name: field.text(drained, name, None) for name in ("by", "reason")},
        clock_offset=field.number(document, "clock_offset", None, least=-1e9, most=1e9),
        version=field.text(document, "version", None),
        memory_bytes=field.number(usage, "memory", None, least=0),
        cpu=field.number(usage, "cpu", None, least=0),
    )


def whole_registration_from(document: Document) -> RosterWorker:
    """The parser for planning, of a whole document."""
    return registration_from({**document, "holds": len(field.array(document, "assigned", lambda _, id: id))})


def whole_entry_from(document: Document) -> RosterEntry:
    """The parser for reports, of a whole document."""
    return entry_from({**document, "holds": len(field.array(document, "assigned", field.job_id))})


def sessions_from(document: Document) -> list[tuple[int, SessionId]]:
    """The sessions of its processes; invalid entries are skipped."""
    stored = document.get("sessions")
    found: list[tuple[int, SessionId]] = []
    for entry in stored if isinstance(stored, list) else ():
        with contextlib.suppress(UnreadableDocument):
            entry = field.mapping({"sessions": entry}, "sessions")
            session = session_id("sessions", entry.get("session"))
            if session is not None:
                found.append((field.whole(entry, "pid"), session))
    return found


def last_entry_from(document: Document) -> LastEntry:
    """The parser for the entry of a dead worker, or for its holds: invalid parts are skipped."""
    runs = document.get("running")
    running = {
        run["job"]: run["since"] if isinstance(run.get("since"), datetime) else None
        for run in (runs if isinstance(runs, list) else ())
        if isinstance(run, dict) and is_job_id(run.get("job"))
    }
    slots, given_at = document.get("slots"), document.get("given_at")
    return LastEntry(
        str(document["_id"]),
        tuple(job_ids_in(document.get("assigned"))),
        running,
        slots if isinstance(slots, int) else 0,
        given_at if isinstance(given_at, datetime) else None,
    )


def job_ids_in(value: Any) -> list[JobId]:
    """The ids in the list of an entry; other values were never assigned."""
    if not isinstance(value, list):
        return []
    if {*map(type, value)} <= {ObjectId, UUID, int}:  # the usual case, in every round of the leader
        return value
    return [id for id in value if is_job_id(id)]


def _run(place: str, value: Any) -> Document:
    run = field.mapping({place: value}, place)
    return {
        "job": field.job_id(f"{place}.job", run.get("job")),
        "task": field.text(run, "task", "?"),
        "since": field.as_moment(f"{place}.since", run.get("since")),
    }


def _limited_job(place: str, value: Any) -> tuple[JobId, str]:
    entry = field.mapping({place: value}, place)
    return field.job_id(f"{place}.job", entry.get("job")), field.text(entry, "lane")


@lru_cache(maxsize=1000)
def _resources(text: str) -> Needs:
    return Needs.parse(text)
