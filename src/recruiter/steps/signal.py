"""Signal: checks a signal before it is sent to a job, and explains why it could not be sent."""

from __future__ import annotations

from typing import Any

from recruiter.domain.arguments.values import to_bson
from recruiter.domain.job import MOST_SIGNAL_BYTES, MOST_SIGNALS, JobId, check_checkpoint
from recruiter.domain.names import id_told
from recruiter.errors import InvalidJob, JobNotFound, JobTooLarge, RecruiterError
from recruiter.store.codec import LARGEST_JOB, encode
from recruiter.store.database import Store
from recruiter.store.job_fields import signals_of

LARGEST_DATA = 1024 * 1024
"""Bytes of the data of a signal."""


def checked_signal(name: object, data: Any) -> tuple[str, Any]:
    """The name, and the stored form of the data. Raises InvalidName, UnsupportedValue, JobTooLarge."""
    text, stored = check_checkpoint("the name of a signal", name), to_bson(data, "data")
    size = len(encode({"data": stored}))
    if size > LARGEST_DATA:
        raise JobTooLarge(
            f"the signal {text!r} carries {size:,} bytes; at most {LARGEST_DATA:,} are allowed. "
            "Keep the data elsewhere and send its key."
        )
    return text, stored


def not_signalled(store: Store, id: JobId, name: str) -> RecruiterError:
    """The reason why the signal was not stored."""
    document = store.scheduled.document(id)
    if document is None:
        why = "it has ended" if store.archived.exists(id) else "there is no such job"
        return JobNotFound(f"job {id_told(id)} cannot be sent the signal {name!r}: {why}")
    if document.get("lane") is None:
        return JobNotFound(
            f"job {id_told(id)} was inserted by another program and is not adopted yet; try again in a second"
        )
    if len(signals_of(document)) >= MOST_SIGNALS:
        return InvalidJob(f"job {id_told(id)} has been sent {MOST_SIGNALS:,} signals already, which is the maximum")
    return JobTooLarge(
        f"job {id_told(id)} cannot be sent the signal {name!r}: all its signals together may have "
        f"{MOST_SIGNAL_BYTES:,} bytes, and the whole job {LARGEST_JOB:,}. Keep the data elsewhere and send its key"
    )
