"""Changes that people make to waiting jobs: another time, another priority. Each is one update of the job's document.

Assigning a job does not touch its document, so the update alone cannot prove that no worker holds the job. Three steps
make a change safe:

1. Read the roster and leave out held jobs.
2. Write the change durably, together with an entry in the history of the job.
3. If the new time is later, read the roster again. If no worker holds the job, every later holder reads the new
   document and hands the job back until it is due (`processes/worker/fetcher.py`). If a worker holds the job, it may
   have read the old document: undo the change and refuse the call.

A job that becomes due sooner, or has another priority, needs no third step: a worker that has just received it runs it,
as it would have before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from bson import ObjectId
from pymongo.collection import Collection

from recruiter.domain.duration import LONGEST_SECONDS
from recruiter.domain.job import Happened, JobId
from recruiter.domain.names import ASIDE
from recruiter.store.codec import Document
from recruiter.store.collections.roster import Roster
from recruiter.store.errors import store_call
from recruiter.store.fields import LAST_MOMENT
from recruiter.store.job_fields import MAY_EXPIRE, WAITS_FOR_SIGNAL, appended


@dataclass(frozen=True, slots=True)
class JobChange:
    """A change to waiting jobs, by one call of a person."""

    what: Happened
    to: datetime | int | float
    at: datetime
    by: str | None = None
    reason: str | None = None
    id: ObjectId = field(default_factory=ObjectId)

    @property
    def postpones(self) -> bool:
        return self.what is Happened.RESCHEDULED and isinstance(self.to, datetime) and self.to > self.at

    @property
    def not_applied(self) -> Document:
        return {"history.change": {"$ne": self.id}}

    @property
    def conditions(self) -> list[Document]:
        """The conditions under which a job can be changed and has not been changed by this call before. A job gets a
        new time only if it waits for no signal, and will not have expired by then."""
        conditions: list[Document] = [{"lane": {"$gt": "", "$nin": list(ASIDE)}}, self.not_applied]
        if not isinstance(self.to, datetime):
            return [*conditions, {"priority": {"$ne": self.to}}]
        if self.what is Happened.RUN_NOW:
            conditions.append({"scheduled_at": {"$gt": self.at}})
        expires_later, expiry_moves_too = {"expires_at": {"$gt": self.to}}, {"expires_in": {"$gt": 0}}
        never_expires = [{"expires_at": None}, {"$nor": [MAY_EXPIRE]}]
        waits_for_no_signal: Document = {"$nor": [{"$expr": WAITS_FOR_SIGNAL}]}
        return [*conditions, waits_for_no_signal, {"$or": [expires_later, expiry_moves_too, *never_expires]}]

    @property
    def update(self) -> list[Document]:
        """The update that makes the change, and notes it in the history with the old value, for `undo`."""
        name = "scheduled_at" if isinstance(self.to, datetime) else "priority"
        entry: Document = {"at": self.at, "what": self.what.value, "change": self.id, "from": f"${name}", "to": self.to}
        given = {"by": self.by, "reason": self.reason}
        entry |= {key: {"$literal": value} for key, value in given.items() if value is not None}
        if isinstance(self.to, datetime):
            entry["expires_at"] = "$expires_at"
        fields = _times(self.to, self.at) if isinstance(self.to, datetime) else {"priority": self.to}
        return [{"$set": {**fields, "history": appended(entry)}}]

    @property
    def is_last(self) -> Document:
        """The condition that no other call has changed the time of the job since."""
        return {"history.change": self.id, "scheduled_at": self.to, "$expr": {"$eq": [_last_time("change"), self.id]}}

    @property
    def undo(self) -> list[Document]:
        """The update that restores the old times. A retry may have moved the one and not the other, so neither follows
        from the other."""
        others = {"$filter": {"input": "$history", "cond": {"$ne": ["$$this.change", self.id]}}}
        history = {"$cond": [{"$gt": [{"$size": "$history"}, 1]}, others, "$$REMOVE"]}
        old = {**_times(_last_time("from"), self.at), "expires_at": _last_time("expires_at")}
        return [{"$set": {**old, "history": history}}]


class Changes:
    """Makes changes, in the three steps that are described above."""

    def __init__(self, scheduled: Collection[Document], roster: Roster) -> None:
        self._scheduled = scheduled
        self._roster = roster

    @store_call
    def apply(self, change: JobChange, ids: Sequence[JobId], conditions: Sequence[Document] = ()) -> int:
        """Changes the jobs that no worker holds and that fulfil the conditions; returns how many."""
        held = self._roster.held()
        free = [id for id in ids if id not in held]
        query: Document = {"$and": [{"_id": {"$in": free}}, *change.conditions, *conditions]}
        # The driver repeats the update of one document by itself after a failover.
        update = self._scheduled.update_one if len(free) == 1 else self._scheduled.update_many
        changed: int = update(query, change.update).modified_count
        return self._undo_where_held(change, free) if changed and change.postpones else changed

    def _undo_where_held(self, change: JobChange, ids: Sequence[JobId]) -> int:
        """Undoes the change of jobs that a worker holds by now: it may have fetched the old document. A later change of
        the same job stays. Returns the number of jobs that keep the change."""
        held = self._roster.held()
        if taken := [id for id in ids if id in held]:
            self._scheduled.update_many({"_id": {"$in": taken}, **change.is_last}, change.undo)
        free = [id for id in ids if id not in held]
        return self._scheduled.count_documents({"_id": {"$in": free}, **change.is_last})


def _last_time(name: str) -> Document:
    """This part of the last entry of the history that changed when the job is due. A pause of its flow, or another
    priority, may have come after it."""
    of_time = {"$in": ["$$this.what", [Happened.RESCHEDULED.value, Happened.RUN_NOW.value]]}
    last = {"$last": {"$filter": {"input": "$history", "cond": of_time}}}
    return {"$let": {"vars": {"last": last}, "in": f"$$last.{name}"}}


def _times(to: Any, now: datetime) -> Document:
    """The fields that depend on when a job is due, for a time or an expression of one."""
    seconds = {"$min": ["$expires_in", LONGEST_SECONDS]}
    expires_at = {"$min": [{"$add": [to, {"$multiply": [seconds, 1000]}]}, LAST_MOMENT]}
    return {
        "scheduled_at": to,
        "postponed": {"$gt": [to, now]},
        "expires_at": {"$cond": [{"$isNumber": "$expires_in"}, expires_at, "$expires_at"]},
    }
