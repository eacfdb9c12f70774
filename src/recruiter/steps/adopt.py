"""Adopt: documents that other programs inserted become jobs, or are set aside with the reason.

Each document is handled separately and set aside on any error: no document delays the others. A document that another
program has locked is skipped until the lock is old (store/collections/inbox.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

from recruiter.domain.job import JobId
from recruiter.domain.state import Why
from recruiter.domain.text import cut
from recruiter.domain.unreadable import Unreadable
from recruiter.errors import DocumentLocked, InvalidJob
from recruiter.store import reading
from recruiter.store.batches import write_first_accepted
from recruiter.store.codec import (
    Document,
    adopted_fields,
    as_value,
    decode_foreign,
    decode_leniently,
    new_id,
    this_document,
)
from recruiter.store.collections.inbox import unlocked
from recruiter.store.collections.scheduled import NAME
from recruiter.store.database import Store
from recruiter.store.fields import is_job_id
from recruiter.store.outcomes import place_in_flow

MAX_ADOPTED_PER_PASS = 100


@dataclass(frozen=True, slots=True)
class Adoption:
    """The effects of one pass over the inbox."""

    adopted: int
    set_aside: tuple[tuple[Any, str], ...]
    """Ids and reasons."""
    taken_over: tuple[tuple[JobId, str], ...] = ()
    """Ids, and who had locked them."""


def adopt(store: Store, term: int, holder: str, now: datetime) -> Adoption:
    """Turns documents in the inbox into jobs, or sets them aside; one pass. Only the leader may: no worker can hold a
    document before it is adopted."""
    good: list[tuple[Document, Document]] = []
    raws: list[bytes] = []
    rejects: list[Unreadable] = []
    inbox = store.scheduled.inbox(MAX_ADOPTED_PER_PASS, now)
    if not inbox:
        return Adoption(0, ())
    ended = store.archived.which_exist([id for id in map(_id, inbox) if is_job_id(id)])
    for raw in inbox:
        try:
            document = decode_foreign(raw)
            fields = adopted_fields(document, now)
            if document["_id"] in ended:
                raise InvalidJob("a job with this _id has ended already; use another _id")
        except Exception as error:  # any error is an error of this document only
            rejects.append(reading.unreadable(NAME, raw, error))
        else:
            good.append((document, fields))
            raws.append(raw)
    refused = store.scheduled.adopt(good) if good else {}
    rejects += [reading.unreadable(NAME, raws[place], reason) for place, reason in refused.items() if reason]
    aside = set_aside(store, term, holder, now, rejects, unlocked(now))
    adopted = [document for place, (document, _) in enumerate(good) if place not in refused]
    locks = ((document["_id"], document.get("locked_by")) for document in adopted)
    taken_over = tuple((id, locker) for id, locker in locks if isinstance(locker, str) and locker)
    return Adoption(len(adopted), aside, taken_over)


def set_aside(
    store: Store,
    term: int,
    holder: str,
    now: datetime,
    rejects: Iterable[Unreadable],
    still: Mapping[str, Any] | None = None,
) -> tuple[tuple[Any, str], ...]:
    """Moves invalid documents that no worker holds into the archive, as long as they match the query `still`. Returns
    the ids and reasons of the moved documents."""
    done: list[tuple[Any, str]] = []
    for reject in rejects:
        with suppress(DocumentLocked):  # the next pass tries it again
            if _archive_as_malformed(store, term, holder, now, reject, still or {}):
                done.append((_id(reject.raw), reject.reason))
    return tuple(done)


def set_jobs_aside(
    store: Store, term: int, holder: str, now: datetime, malformed: Iterable[Unreadable]
) -> tuple[tuple[Any, str], ...]:
    """Like `set_aside`, for jobs with a lane: they were written by hand, and cannot be assigned."""
    whole = (store.scheduled.whole(document) for document in islice(malformed, MAX_ADOPTED_PER_PASS))
    return set_aside(store, term, holder, now, (document for document in whole if document is not None))


def _archive_as_malformed(
    store: Store, term: int, holder: str, now: datetime, reject: Unreadable, still: Mapping[str, Any]
) -> bool:
    """Replaces an invalid document by a record in the archive, under its own id if that is a free job id. False if the
    document no longer exists, or no longer matches `still`."""
    record = {"done": False, "why": Why.MALFORMED, "reason": cut(reject.reason), "archived_at": now}
    id = _id(reject.raw)
    record_id = id if is_job_id(id) and not store.archived.exists(id) else new_id()
    document = {"$and": [this_document(reject.raw), still]} if still else this_document(reject.raw)
    place = place_in_flow(reject.raw) if not still else {}  # a foreign document cannot be a step

    def move(original: Any) -> bool:
        kept = {"_id": record_id, **record, **place, "original": original}
        return store.transactions.set_aside(kept, document, term, holder)

    # it may be too deep or too large to be a part of another document: each form is smaller than the one before
    return write_first_accepted(as_value(reject.raw), move)


def _id(raw: bytes) -> Any:
    return decode_leniently(raw).get("_id")
