"""The one place that knows how jobs are written: records to documents and back, and raw BSON. The fields are in
job_fields.py.

Documents travel through a worker as bytes; only children decode them. Every field of a foreign document is checked here
(`adopted_fields`): it becomes a full document, or an error with the reason.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import fields
from datetime import datetime
from typing import Any

import bson
from bson import CodecOptions, ObjectId
from bson.binary import Binary, UuidRepresentation
from bson.codec_options import DatetimeConversion
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument

from recruiter.domain.duration import not_before
from recruiter.domain.flow import FlowStep
from recruiter.domain.job import (
    EXECUTIONS_KEPT,
    FAILURE,
    NO_SIGNAL,
    ArchivedJob,
    Checkpoint,
    Execution,
    Job,
    JobId,
    expiry,
)
from recruiter.domain.lane import ISOLATED_AFTER_WORKER_DEATHS, Lane
from recruiter.domain.names import CANCELLED_LANE, DEFAULT_GROUP
from recruiter.domain.planning.needs import Needs
from recruiter.domain.progress import Progress
from recruiter.errors import InvalidJob, JobTooLarge, UnreadableDocument, UnsupportedValue
from recruiter.store import fields as field
from recruiter.store.fields import is_job_id
from recruiter.store.job_fields import (
    FROM_PROTOCOL,
    ONLY_WAITING,
    REQUIRED,
    Use,
    attributes,
    check_foreign,
    entries_of,
    executions_of,
    flow_from,
    needs_of,
    read_fields,
    waits_after,
    written_fields,
)

Document = dict[str, Any]

OPTIONS: CodecOptions[Document] = CodecOptions(
    tz_aware=True,  # without tzinfo, which would convert every date again to the same UTC
    uuid_representation=UuidRepresentation.STANDARD,
    datetime_conversion=DatetimeConversion.DATETIME_AUTO,  # a date beyond year 9999 must not make a document unreadable
)
LENIENT: CodecOptions[Document] = OPTIONS.with_options(unicode_decode_error_handler="replace")
"""For documents that people must see, whatever they contain."""
LARGEST_JOB = 15 * 1024 * 1024
"""MongoDB takes 16 MiB; the rest is for the outcome of the job."""

RAW: CodecOptions[RawBSONDocument] = CodecOptions(
    RawBSONDocument,
    tz_aware=True,
    uuid_representation=UuidRepresentation.STANDARD,
    datetime_conversion=DatetimeConversion.DATETIME_AUTO,
)
"""For documents that are parsed one by one (reading.py): a cursor that decodes stops at the first invalid document."""
_LENGTH = struct.Struct("<i")
_STAYS_BEHIND = frozenset(ONLY_WAITING)


def encode(document: Mapping[str, Any]) -> bytes:
    return bson.encode(document, codec_options=OPTIONS)


def decode(raw: bytes) -> Document:
    return bson.decode(raw, OPTIONS)


def split_batch(batch: bytes) -> Iterator[bytes]:
    """The documents in a raw batch, still as bytes."""
    position, end = 0, len(batch)
    while position < end:
        size = _LENGTH.unpack_from(batch, position)[0]
        yield batch[position : position + size]
        position += size


def id_of(raw: bytes) -> JobId:
    """The `_id`, which MongoDB always stores first. The rest, which may be invalid, is not decoded."""
    kind = raw[4]
    if kind == 0x07:
        return ObjectId(raw[9:21])
    if kind in (0x02, 0x05):  # text and binary begin with their length
        size = _LENGTH.unpack_from(raw, 9)[0] + (4 if kind == 0x02 else 5)
    else:
        size = {0x10: 4, 0x12: 8, 0x01: 8}.get(kind) or len(raw)
    element = raw[4 : 9 + size]
    identity: JobId = decode(_LENGTH.pack(len(element) + 5) + element + b"\x00")["_id"]
    return identity


def this_document(raw: bytes, name: str = "_id") -> RawBSONDocument:
    """The query for exactly this document by its `_id`, of any type; or for documents whose field `name` has this
    value."""
    _, element = next(_elements(raw))
    value = element[:1] + b"$eq\x00" + element[5:]
    inner = _LENGTH.pack(len(value) + 5) + value + b"\x00"
    outer = b"\x03" + name.encode() + b"\x00" + inner
    return RawBSONDocument(_LENGTH.pack(len(outer) + 5) + outer + b"\x00", RAW)


def decode_leniently(raw: bytes) -> Document:
    """The readable fields of a document, and the first bytes of the others."""
    try:
        return bson.decode(raw, LENIENT)
    except _UNDECODABLE:
        pass
    document: Document = {}
    for name, element in _elements(raw):  # an element: its type in one byte, its name, a zero byte, its value
        try:
            alone = _LENGTH.pack(4 + len(element) + 1) + element + b"\x00"
            document |= bson.decode(alone, LENIENT)
        except _UNDECODABLE:
            value_at = 1 + len(name.encode("utf-8", "surrogateescape")) + 1
            document[name] = Binary(element[value_at:][:1000])
    return document


_UNDECODABLE = (BSONError, RecursionError, ValueError, OverflowError, TypeError)
_SIZES = {0x01: 8, 0x06: 0, 0x07: 12, 0x08: 1, 0x09: 8, 0x0A: 0, 0x10: 4, 0x11: 8, 0x12: 8, 0x13: 16, 0x7F: 0, 0xFF: 0}
_MORE_THAN_IT_SAYS = {0x02: 4, 0x0D: 4, 0x0E: 4, 0x05: 5, 0x0C: 16, 0x03: 0, 0x04: 0, 0x0F: 0}


def _elements(raw: bytes) -> Iterator[tuple[str, bytes]]:
    """The fields of a document, each with its name, still as bytes."""
    at, end = 4, len(raw) - 1
    while at < end:
        after, name_ends = _end_of_element(raw, at), raw.index(b"\x00", at + 1)
        yield raw[at + 1 : name_ends].decode("utf-8", "surrogateescape"), raw[at:after]
        at = after


def _end_of_element(raw: bytes, at: int) -> int:
    """The position after the field that begins at `at`. The size follows from the type, or the value begins with it."""
    kind, value = raw[at], raw.index(b"\x00", at + 1) + 1
    if kind in _SIZES:
        return value + _SIZES[kind]
    if kind == 0x0B:  # a pattern and its options
        return raw.index(b"\x00", raw.index(b"\x00", value) + 1) + 1
    return int(value + _LENGTH.unpack_from(raw, value)[0] + _MORE_THAN_IT_SAYS[kind])


def job_document(job: Job) -> Document:
    """The document of a waiting job. Default values are left out, except for fields of the index."""
    document: Document = {
        "_id": job.id,
        "task": job.task,
        "args": job.args,
        "group": job.group,
        "lane": job.lane,
        "priority": job.priority,
        "created_at": job.created_at,
        "scheduled_at": job.scheduled_at,
        "attempts": job.attempts,
    }
    if job.scheduled_at > job.created_at:
        document["postponed"] = True
        document["scheduled_at"] = not_before(job.scheduled_at)
    document.update(written_fields(job))
    if job.needs:
        amounts = job.needs.amounts()
        document.update({name: amounts.pop(name) for name in ("proc", "mem") if name in amounts})  # fields of the seeds
        if amounts:
            document["resources"] = amounts
    return document


def flow_of(document: Mapping[str, Any]) -> FlowStep | None:
    """The place of a job in its flow; None of a job that is no step."""
    try:
        return flow_from({"flow": document.get("flow")})
    except (UnreadableDocument, *_UNDECODABLE):
        return None  # it was written by hand


def step_of(ended: Mapping[str, Any]) -> tuple[ObjectId, JobId] | None:
    """The flow and the step that ended with a job. None also of a step that waited for the end of its flow: nothing
    waits for it."""
    flow = ended.get("flow")
    if not isinstance(flow, Mapping) or not isinstance(flow.get("id"), ObjectId) or not is_job_id(flow.get("step")):
        return None
    return (flow["id"], flow["step"]) if flow.get("on") is None else None


def anew(ended: ArchivedJob, now: datetime, at: datetime) -> Job:
    """The job that repeats an ended job, with a new id. A step that did not succeed is repeated as the same step, and
    the leader decides when it may start. A step that succeeded is repeated outside of its flow."""
    kept = {field.name: getattr(ended, field.name) for field in fields(Job) if field.name not in _HISTORY}
    if ended.done:
        kept["flow"] = None
    own: Document = {"id": new_id(), "created_at": now, "scheduled_at": at, "expires_at": ended.expiry(at)}
    own["checkpoints"] = _checkpoints(ended)
    own["signals"] = () if ended.done else ended.signals  # all: a wait takes the signal of its number
    return Job(**{**kept, **own, "recovered_from": ended.id, "origin": ended.key, "blocked": kept["flow"] is not None})


def _checkpoints(ended: ArchivedJob) -> tuple[Checkpoint, ...]:
    """A job that did not succeed continues after its last checkpoint. If that is a wait whose signal did not come, it
    waits again. A step with its own retry policy has all its retries again."""
    kept = [] if ended.done else [each for each in ended.checkpoints if not each.name.startswith(FAILURE)]
    while kept and kept[-1].problem == NO_SIGNAL:
        kept.pop()
    return tuple(kept)


_HISTORY = attributes(Use.HISTORY)


def lane_of(document: Mapping[str, Any], **changes: Any) -> str:
    """The lane of a job, by its other fields; invalid needs count as none."""
    job = {**document, **changes}
    try:
        needs = needs_of(job)
    except InvalidJob:
        needs = Needs()
    isolated = worker_deaths_of(job) >= ISOLATED_AFTER_WORKER_DEATHS
    return str(Lane(job["group"], job["task"], needs, job.get("key"), isolated))


def worker_deaths_of(document: Mapping[str, Any]) -> int:
    deaths = document.get("worker_deaths")
    return deaths if isinstance(deaths, int) else 0


def encode_job(job: Job) -> RawBSONDocument:
    """The encoded document. Raises UnsupportedValue, JobTooLarge."""
    raw = _encoded(job_document(job), job.task)
    _check_size(len(raw), job.task)
    return RawBSONDocument(raw, RAW)


class JobEncoder:
    """Encodes jobs that differ only by their ids and arguments: the other fields are encoded once."""

    def __init__(self, job: Job) -> None:
        document = job_document(job)
        names = list(document)
        args = names.index("args")

        def elements(names: list[str]) -> bytes:
            return encode({name: document[name] for name in names})[4:-1]

        self._task = job.task
        self._before = elements(names[1:args]) + b"\x03args\x00"
        self._after = elements(names[args + 1 :]) + b"\x00"
        self._size = _LENGTH.size + len(_OBJECT_ID) + 12 + len(self._before) + len(self._after)

    def encode(self, id: ObjectId, args: Mapping[str, Any]) -> RawBSONDocument:
        """Raises UnsupportedValue, JobTooLarge."""
        arguments = _encoded(args, self._task)
        size = self._size + len(arguments)
        _check_size(size, self._task)
        head = (_LENGTH.pack(size), _OBJECT_ID, id.binary, self._before)
        return RawBSONDocument(b"".join((*head, arguments, self._after)), RAW)


_OBJECT_ID = b"\x07_id\x00"


def _encoded(document: Mapping[str, Any], task: str) -> bytes:
    try:
        return encode(document)
    except (BSONError, OverflowError, UnicodeError, RecursionError, TypeError, ValueError) as error:
        raise UnsupportedValue(f"job of task {task!r} cannot be stored: {error}") from error


def _check_size(size: int, task: str) -> None:
    if size > LARGEST_JOB:
        raise JobTooLarge(
            f"job of task {task!r} has {size:,} bytes; at most {LARGEST_JOB:,} can be stored. "
            "Keep the data elsewhere and pass its key."
        )


def job_from(document: Mapping[str, Any]) -> Job:
    """The parser of `scheduled`, for documents with a lane. Raises UnreadableDocument."""
    return Job(**read_fields(document))


def archived_from(document: Mapping[str, Any]) -> ArchivedJob:
    """The parser of `archived`. Raises UnreadableDocument."""
    is_job = "original" not in document and document.keys() >= REQUIRED
    # The record of a foreign document, or of an outcome that could not be stored, has fewer fields.
    fields: Document = read_fields(document) if is_job else {"executions": executions_of(document)}
    moment, done = field.moment(document, "archived_at"), field.truth(document, "done")
    nothing: Document = {"id": field.job_id("_id", document["_id"]), "task": "", "args": {}}
    nothing |= {"created_at": moment, "scheduled_at": moment}
    if done:
        fields["progress"] = 1.0  # even if the job reported none
    return ArchivedJob(
        **{**nothing, **fields},
        done=done,
        why=field.text(document, "why"),
        archived_at=moment,
        result=document.get("result"),
        reason=field.text_or_none(document.get("reason")),
        latency=field.number(document, "latency", None),
        execution_time=field.number(document, "execution_time", None),
        recovered_as=recovered if is_job_id(recovered := document.get("recovered_as")) else None,
    )


def progress_fields(progress: Progress) -> Document:
    fields: Document = {
        "status": [entry._asdict() for entry in progress.status],
        "progress": progress.reached,
        "stage": progress.stage,
    }
    if progress.log:
        fields["log"] = [line._asdict() for line in progress.log]
    for name in ("status_cut", "log_cut"):
        if count := getattr(progress, name):
            fields[name] = count
    return fields


def execution_document(execution: Execution) -> Document:
    started_at, ended_at, worker, crashed, exception, message, trace, notes, span = execution
    document: Document = {"started_at": started_at, "ended_at": ended_at, "worker": worker}
    if crashed:
        document["crashed"] = True
    if exception is not None:
        document.update({"class": exception, "message": message, "trace": trace})
    elif message is not None:
        document["message"] = message
    if notes:
        document["notes"] = list(notes)
    if span is not None:
        document["span"] = span
    return document


def attempt_fields(document: Document, execution: Execution) -> Document:
    """The fields that an attempt writes at its end. `executions` appears with the second attempt and holds all."""
    latest = execution_document(execution)
    fields: Document = {"last_execution": latest, "attempts": (document.get("attempts") or 0) + 1}
    if execution.crashed:
        fields["crashes"] = (document.get("crashes") or 0) + 1
    earlier = entries_of(document)
    if earlier:
        fields["executions"] = [*earlier, latest][-EXECUTIONS_KEPT:]
    return fields


_ONLY_BLOCKED = frozenset(("results", "held", "released"))


def archived_document(document: Document, why: str, at: datetime, fields: Document) -> Document:
    """The document for the archive, without the fields of waiting jobs."""
    archived = {**document, **fields}
    for name in _STAYS_BEHIND.intersection(archived):
        del archived[name]
    flow = archived.get("flow")
    if isinstance(flow, dict) and not _ONLY_BLOCKED.isdisjoint(flow):  # the results are with the steps they are of
        archived["flow"] = {name: value for name, value in flow.items() if name not in _ONLY_BLOCKED}
    due = waits_after(document) if isinstance(document.get("scheduled_at"), datetime) else None
    archived |= _durations(fields.get("last_execution"), due)
    archived |= {"archived_at": at, "done": why == "done", "why": why}
    return archived


def _durations(execution: Document | None, scheduled_at: Any) -> Document:
    """The latency and the duration of the last attempt, in seconds."""
    if execution is None:
        return {}
    started_at, ended_at = execution["started_at"], execution["ended_at"]
    if started_at is None or ended_at is None or not isinstance(scheduled_at, datetime):
        return {}
    return {
        "latency": (started_at - scheduled_at).total_seconds(),
        "execution_time": (ended_at - started_at).total_seconds(),
    }


def new_id() -> ObjectId:
    return ObjectId()


def decode_foreign(raw: bytes) -> Document:
    """Decodes a foreign document as strictly as a child. Raises InvalidJob."""
    if len(raw) > LARGEST_JOB:
        raise InvalidJob(f"has {len(raw):,} bytes; at most {LARGEST_JOB:,} can be run")
    try:
        return decode(raw)
    except _UNDECODABLE as error:
        raise InvalidJob(f"cannot be read: {error}") from None


def as_value(raw: bytes) -> tuple[Any, ...]:
    """The forms in which a document that cannot be a job is kept in its archive record: as a document, as its bytes, or
    not at all. The caller stores the first form that MongoDB accepts."""
    try:
        bson.decode(raw, LENIENT)
    except _UNDECODABLE:
        return plain_value(raw), None
    if len(raw) > LARGEST_JOB:
        return plain_value(raw), None
    return RawBSONDocument(raw, RAW), plain_value(raw), None


def plain_value(raw: bytes) -> Binary:
    """The bytes of a document, cut to a size that certainly fits."""
    return Binary(raw[: LARGEST_JOB // 2])


def adopted_fields(document: Document, now: datetime) -> Document:
    """The fields that make a plain `{task, args}` document from any program a full job.

    Raises InvalidJob or UnreadableDocument with the reason if it cannot be a job.
    """
    check_foreign(document)
    group = document.get("group", DEFAULT_GROUP)
    cancelled = isinstance(document.get("cancel"), dict) and isinstance(document["cancel"].get("at"), datetime)
    fields: Document = {
        "args": document.get("args", {}),
        "group": group,
        "lane": CANCELLED_LANE if cancelled else lane_of({**document, "group": group, "worker_deaths": 0}),
        "priority": document.get("priority") or 0,
        "created_at": document.get("created_at") or now,
        "scheduled_at": document.get("scheduled_at") or now,
        "attempts": document.get("attempts") or 0,
    }
    if field.moment(fields, "scheduled_at") > now:
        fields["postponed"] = True
    if document.get("expires_in") is not None and document.get("expires_at") is None:
        fields["expires_at"] = expiry(fields["scheduled_at"], document["expires_in"])
    job_from({name: value for name, value in {**document, **fields}.items() if name not in FROM_PROTOCOL})
    return fields
