"""Adopt: documents that other programs inserted become jobs, or are set aside with the reason.

One that another program has locked is left to it, until the lock is old (store/foreign.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from recruiter.domain.job import JobId
from recruiter.domain.text import cut
from recruiter.domain.why import Why
from recruiter.errors import DocumentRefused, InvalidJob
from recruiter.store.codec import Document, adopted_fields, as_value, decode_foreign, is_job_id, new_id
from recruiter.store.database import Store
from recruiter.store.settlement import Movement

INBOX_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class Adoption:
    adopted: int
    set_aside: tuple[tuple[Any, str], ...]
    """Ids and reasons."""
    taken_over: tuple[tuple[JobId, str], ...] = ()
    """Ids, and who had locked them."""


def adopt(store: Store, term: int, holder: str, now: datetime) -> Adoption:
    """Looks once through the inbox. Only the leader may: nobody can hold a document that has not been adopted."""
    fields: dict[JobId, tuple[Document, Document]] = {}
    rejects: list[tuple[Any, str, bytes]] = []
    for raw in store.scheduled.inbox(INBOX_AT_ONCE, now):
        id, document, problem = decode_foreign(raw)
        try:
            if document is None:
                raise InvalidJob(problem)
            adopted = adopted_fields(document, now)
            if store.archived.get(id) is not None:
                raise InvalidJob("a job with this _id has ended already; use another _id")
            fields[id] = (adopted, document)
        except InvalidJob as error:
            rejects.append((id, cut(str(error)), raw))
    if fields:
        store.scheduled.adopt(fields)
    for id, reason, raw in rejects:
        _set_aside(store, term, holder, now, id, reason, raw)
    locks = {id: document.get("locked_by") for id, (_, document) in fields.items()}
    taken_over = tuple((id, holder) for id, holder in locks.items() if isinstance(holder, str) and holder)
    return Adoption(len(fields), tuple((id, reason) for id, reason, _ in rejects), taken_over)


def _set_aside(store: Store, term: int, holder: str, now: datetime, id: Any, reason: str, raw: bytes) -> None:
    """One at a time: what is wrong with one document must not keep the others here."""
    record = {"done": False, "why": Why.MALFORMED, "reason": reason, "archived_at": now}
    name = id if is_job_id(id) and store.archived.get(id) is None else new_id()
    for original in as_value(raw):
        document = {"_id": name, **record, "original": original}
        try:
            store.settlement.archive_unheld(Movement(archive={name: document}, forget=[id]), term, holder)
            return
        except DocumentRefused as error:
            last = error  # too deep or too large to be kept inside another document: the next form is plainer
    raise last
