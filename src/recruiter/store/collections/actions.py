"""`actions`: the actions of people on the fleet and its jobs, for people to read. No process depends on it.

    {_id, at, by, verb: "cancel", subject: "job 42", reason, outcome: "is being cancelled", address}

An action is stored before it is done, and its outcome afterwards: an action without an outcome was interrupted. MongoDB
removes entries after 90 days.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from bson import ObjectId
from pymongo import ASCENDING, DESCENDING, IndexModel

from recruiter.domain.unreadable import Parsed
from recruiter.store import fields as field
from recruiter.store.codec import Document
from recruiter.store.errors import store_call
from recruiter.store.reading import ParsedCollection

NAME = "actions"
_KEPT = timedelta(days=90)
INDEXES = [IndexModel([("at", ASCENDING)], name="old", expireAfterSeconds=int(_KEPT.total_seconds()))]
VALIDATOR: Document = field.validator("at by verb subject", at="date", by="string", verb="string", subject="string")


@dataclass(frozen=True, slots=True)
class ActionEntry:
    """An action of a person."""

    at: datetime
    by: str
    verb: str
    """`cancel`, `recover`, `remove`, `pause-group`, …"""
    subject: str
    """A description of the job, filter, group, worker, scheduler or limit."""
    reason: str | None = None
    outcome: str | None = None
    """None while the action is being done, and when it was interrupted."""


class Actions(ParsedCollection):
    """The actions of people, for the audit trail."""

    name = NAME

    @store_call
    def begin(self, entry: ActionEntry, address: str | None = None) -> ObjectId:
        """Stores an action before it is done; returns the id for `conclude`."""
        document = {"at": entry.at, "by": entry.by, "verb": entry.verb, "subject": entry.subject}
        inserted = self.collection.insert_one({**document, "reason": entry.reason, "address": address})
        return ObjectId(str(inserted.inserted_id))

    @store_call
    def conclude(self, id: ObjectId, outcome: str) -> None:
        self.collection.update_one({"_id": id}, {"$set": {"outcome": outcome}})

    @store_call
    def latest(self, limit: int) -> Parsed[ActionEntry]:
        return self._parsed(_entry, sort=[("at", DESCENDING)], limit=limit)


def _entry(document: Document) -> ActionEntry:
    return ActionEntry(
        at=field.moment(document, "at"),
        by=field.text(document, "by"),
        verb=field.text(document, "verb"),
        subject=field.text(document, "subject"),
        reason=field.text(document, "reason", None),
        outcome=field.text(document, "outcome", None),
    )
