"""The one place that knows how jobs are written: records to documents and back, and raw BSON. The fields are in
job_fields.py.

Documents travel through a worker as bytes; only children decode them. What a foreign program inserted is checked here
(`adopted_fields`), field by field, and becomes a full document or a reason why not.
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
from recruiter.domain.job import EXECUTIONS_KEPT, NO_SIGNAL, ArchivedJob, Checkpoint, Execution, Job, JobId, expiry
from recruiter.domain.lane import ISOLATED_AFTER_WORKER_DEATHS, Lane
from recruiter.domain.names import BLOCKED_LANE, CANCELLED_LANE, DEFAULT_GROUP
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
    written_fields,
)

Document = dict[str, Any]

OPTIONS: CodecOptions[Document] = CodecOptions(
    tz_aware=True,  # no tzinfo beside it: it would convert every date once more, for the same UTC
    uuid_representation=UuidRepresentation.STANDARD,
    datetime_conversion=DatetimeConversion.DATETIME_AUTO,  # a date beyond year 9999 must not make a document unreadable
)
LENIENT: CodecOptions[Document] = OPTIONS.with_options(unicode_decode_error_handler="replace")
"""For reading what must be read whatever is in it."""
LARGEST_JOB = 15 * 1024 * 1024
"""MongoDB takes 16 MiB; the rest is left for what will happen to the job."""

RAW: CodecOptions[RawBSONDocument] = CodecOptions(
    RawBSONDocument,
    tz_aware=True,
    uuid_representation=UuidRepresentation.STANDARD,
    datetime_conversion=DatetimeConversion.DATETIME_AUTO,
)
"""For documents that are parsed one by one (reading.py): a cursor that decodes stops at the first that it cannot."""
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
    """The `_id`, which MongoDB always keeps first, without decoding the rest: nothing in there can spoil it."""
    kind = raw[4]
    if kind == 0x07:
        return ObjectId(raw[9:21])
    if kind in (0x02, 0x05):  # text and binary say how long they are
        size = _LENGTH.unpack_from(raw, 9)[0] + (4 if kind == 0x02 else 5)
    else:
        size = {0x10: 4, 0x12: 8, 0x01: 8}.get(kind) or len(raw)
    element = raw[4 : 9 + size]
    identity: JobId = decode(_LENGTH.pack(len(element) + 5) + element + b"\x00")["_id"]
    return identity


def this_document(raw: bytes, name: str = "_id") -> RawBSONDocument:
    """The query that finds exactly this document by its `_id`, whatever that is; or those in which another field is
    the same."""
    _, element = next(_elements(raw))
    value = element[:1] + b"$eq\x00" + element[5:]
    inner = _LENGTH.pack(len(value) + 5) + value + b"\x00"
    outer = b"\x03" + name.encode() + b"\x00" + inner
    return RawBSONDocument(_LENGTH.pack(len(outer) + 5) + outer + b"\x00", RAW)


def key_of(raw: bytes) -> bytes:
    """The `_id` as bytes, whatever it is."""
    return next(_elements(raw))[1]


def decode_leniently(raw: bytes) -> tuple[Document, dict[str, str]]:
    """What can be read of a document, and what is wrong with the fields that cannot: these are given as mere bytes."""
    try:
        return bson.decode(raw, LENIENT), {}
    except _UNDECODABLE:
        pass
    document: Document = {}
    wrong: dict[str, str] = {}
    for name, element in _elements(raw):
        try:
            document |= bson.decode(_LENGTH.pack(len(element) + 5) + element + b"\x00", LENIENT)
        except _UNDECODABLE as error:
            document[name] = Binary(element[len(name.encode("utf-8", "surrogateescape")) + 2 :][:1000])
            wrong[name] = str(error)
    return document, wrong


_UNDECODABLE = (BSONError, RecursionError, ValueError, OverflowError, TypeError)
_SIZES = {0x01: 8, 0x06: 0, 0x07: 12, 0x08: 1, 0x09: 8, 0x0A: 0, 0x10: 4, 0x11: 8, 0x12: 8, 0x13: 16, 0x7F: 0, 0xFF: 0}
_MORE_THAN_IT_SAYS = {0x02: 4, 0x0D: 4, 0x0E: 4, 0x05: 5, 0x0C: 16, 0x03: 0, 0x04: 0, 0x0F: 0}


def _elements(raw: bytes) -> Iterator[tuple[str, bytes]]:
    """The fields of a document, each with its name, still as bytes."""
    at, end = 4, len(raw) - 1
    while at < end:
        after, name_ends = _after(raw, at), raw.index(b"\x00", at + 1)
        yield raw[at + 1 : name_ends].decode("utf-8", "surrogateescape"), raw[at:after]
        at = after


def _after(raw: bytes, at: int) -> int:
    """Where the field ends that begins there."""
    kind, value = raw[at], raw.index(b"\x00", at + 1) + 1
    if kind in _SIZES:
        return value + _SIZES[kind]
    if kind == 0x0B:  # a pattern and its options
        return raw.index(b"\x00", raw.index(b"\x00", value) + 1) + 1
    return int(value + _LENGTH.unpack_from(raw, value)[0] + _MORE_THAN_IT_SAYS[kind])


def job_document(job: Job) -> Document:
    """A waiting job as it is stored. What is empty or default is left out, except what the index needs."""
    document: Document = {"_id": job.id}
    if job.flow is not None:
        document["flow"] = None  # the second field: it is looked for in each step that ends
    document |= {
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
        document.update(needs_document(job.needs))
    return document


_FLOW = b"\x03flow\x00"
_BLOCKED = encode({"lane": BLOCKED_LANE})[4:-1]


def flow_of(ended: bytes | Mapping[str, Any]) -> FlowStep | None:
    """The place in its flow of a job that ends, from the document that is stored of it; None of a job that is no step.
    It is asked for every job that ends: most are no steps, and are not decoded."""
    try:
        return flow_from({"flow": _flow_field(ended)})
    except (UnreadableDocument, *_UNDECODABLE):
        return None  # somebody wrote it by hand


def step_of(ended: bytes | Mapping[str, Any]) -> tuple[ObjectId, JobId] | None:
    """Only its flow and its step. None also of a step that waited for the end of its flow: nothing waits for it."""
    try:
        flow = _flow_field(ended)
    except _UNDECODABLE:
        return None
    if not isinstance(flow, dict) or not isinstance(flow.get("id"), ObjectId) or not is_job_id(flow.get("step")):
        return None
    if flow.get("on") is not None:
        return None
    return flow["id"], flow["step"]


def flow_id_of(step: bytes) -> bytes | None:
    """The id of its flow, as bytes: it is asked for each of thousands that are fetched together."""
    if step[21:27] == _FLOW and step[31:35] == b"\x07id\x00" and step[4] == 0x07:
        return step[35:47]
    place = step_of(step)
    return None if place is None else place[0].binary


def is_blocked(raw: bytes) -> bool:
    """Whether a job is in the lane of steps that wait for others. It is asked for every job that is fetched."""
    return _BLOCKED in raw and _place_of(raw, _BLOCKED) > 0


def _place_of(raw: bytes, element: bytes) -> int:
    """Where a field begins with these bytes; 0 if there is none."""
    at = 4
    while (found := raw.find(element, at)) > 0:
        while at < found:
            at = _after(raw, at)
        if at == found:
            return found
    return 0  # what looked like it was a field of a field


def _flow_field(document: bytes | Mapping[str, Any]) -> Any:
    if not isinstance(document, bytes):
        return document.get("flow")
    found = document.find(_FLOW)
    if found < 0:
        return None
    at = 4
    while at < found:
        at = _after(document, at)
    if at != found:  # that was a field of a field
        return next((decode(_alone(element))["flow"] for name, element in _elements(document) if name == "flow"), None)
    return decode(_alone(document[at : _after(document, at)]))["flow"]


def _alone(element: bytes) -> bytes:
    return _LENGTH.pack(len(element) + 5) + element + b"\x00"


def anew(ended: ArchivedJob, now: datetime, at: datetime) -> Job:
    """The job that repeats one that has ended, under a new id. Of a step that did not succeed it is the same step, and
    the leader decides when it may start; a step that succeeded is not repeated in its flow, but for itself."""
    kept = {field.name: getattr(ended, field.name) for field in fields(Job) if field.name not in _HISTORY}
    if ended.done:
        kept["flow"] = None
    own: Document = {"id": new_id(), "created_at": now, "scheduled_at": at, "expires_at": ended.expiry(at)}
    own["checkpoints"] = _checkpoints(ended)
    own["signals"] = () if ended.done else ended.signals  # all: a wait takes the signal of its number
    return Job(**{**kept, **own, "recovered_from": ended.id, "origin": ended.key, "blocked": kept["flow"] is not None})


def _checkpoints(ended: ArchivedJob) -> tuple[Checkpoint, ...]:
    """A job that did not succeed goes on where it was. If the last thing that it did was to wait for a signal that did
    not come, it waits again."""
    kept = [] if ended.done else list(ended.checkpoints)
    while kept and kept[-1].problem == NO_SIGNAL:
        kept.pop()
    return tuple(kept)


_HISTORY = attributes(Use.HISTORY)


def needs_document(needs: Needs) -> Document:
    """The seeds' fields for what the seeds know, and one for the rest."""
    amounts = needs.amounts()
    document: Document = {name: amounts.pop(name) for name in ("proc", "mem") if name in amounts}
    return {**document, "resources": amounts} if amounts else document


def lane_of(document: Mapping[str, Any], **changes: Any) -> str:
    """The lane where a job belongs, by its other fields; whatever makes no sense in them asks for nothing."""
    job = {**document, **changes}
    try:
        needs = needs_of(job)
    except InvalidJob:
        needs = Needs()
    isolated = worker_deaths_of(job) >= ISOLATED_AFTER_WORKER_DEATHS
    return str(Lane(job["group"], job["task"], needs, job.get("key"), isolated))


def worker_deaths_of(document: Mapping[str, Any]) -> int:
    """How often the whole worker of a job has died; 0 where the document has no such number."""
    deaths = document.get("worker_deaths")
    return deaths if isinstance(deaths, int) else 0


def encode_job(job: Job) -> RawBSONDocument:
    """The stored form, encoded once; refuses what is larger than a document may be."""
    return RawBSONDocument(checked_size(job), RAW)


def checked_size(job: Job) -> bytes:
    raw = _encoded(job_document(job), job.task)
    _check_size(len(raw), job.task)
    return raw


class JobEncoder:
    """Encodes jobs that are like this one but for their ids and arguments: what they share is encoded once."""

    def __init__(self, job: Job) -> None:
        document = job_document(job)
        names = list(document)
        args, moments = names.index("args"), names.index("created_at")

        def elements(some: list[str]) -> bytes:
            return encode({name: document[name] for name in some})[4:-1]

        self._task = job.task
        self._before = elements(names[1:args]) + b"\x03args\x00"
        self._options = elements(names[args + 1 : moments])
        self._moments = elements(["created_at", "scheduled_at"])
        self._after = elements(names[moments + 2 :]) + b"\x00"
        shared = (_OBJECT_ID, self._before, self._options, self._moments, self._after)
        self._size = _LENGTH.size + 12 + sum(map(len, shared))

    def encode(self, id: ObjectId, args: Mapping[str, Any], at: datetime | None = None) -> RawBSONDocument:
        """Made and due at this moment, if one is given. Raises UnsupportedValue, JobTooLarge."""
        arguments = _encoded(args, self._task)
        size = self._size + len(arguments)
        _check_size(size, self._task)
        moments = self._moments if at is None else _moments(at)
        head = (_LENGTH.pack(size), _OBJECT_ID, id.binary, self._before)
        return RawBSONDocument(b"".join((*head, arguments, self._options, moments, self._after)), RAW)


_OBJECT_ID = b"\x07_id\x00"
_DATE = struct.Struct("<q")


def _moments(at: datetime) -> bytes:
    date = _DATE.pack(int(at.timestamp() * 1000))
    return b"\x09created_at\x00" + date + b"\x09scheduled_at\x00" + date


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
    # What was set aside, or kept of an outcome that could not be stored, may have less.
    fields: Document = read_fields(document) if is_job else {"executions": executions_of(document)}
    moment, done = field.moment(document, "archived_at"), field.truth(document, "done")
    nothing: Document = {"id": field.job_id("_id", document["_id"]), "task": "", "args": {}}
    nothing |= {"created_at": moment, "scheduled_at": moment}
    if done:
        fields["progress"] = 1.0  # also of those that never said anything
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
    started_at, ended_at, worker, crashed, exception, message, trace, notes = execution
    document: Document = {"started_at": started_at, "ended_at": ended_at, "worker": worker}
    if crashed:
        document["crashed"] = True
    if exception is not None:
        document.update({"class": exception, "message": message, "trace": trace})
    elif message is not None:
        document["message"] = message
    if notes:
        document["notes"] = list(notes)
    return document


def remember(document: Document, execution: Execution) -> Document:
    """The fields that an attempt leaves on its job. `executions` appears with the second attempt and holds them all."""
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
    """The job as it goes into the archive. What is for planning only, and who held it, stays behind.

    It ends with what is counted of it, always in this order: statistics.py reads that without decoding the rest.
    """
    archived = {**document, **fields}
    for name in _STAYS_BEHIND.intersection(archived):
        del archived[name]
    flow = archived.get("flow")
    if isinstance(flow, dict) and not _ONLY_BLOCKED.isdisjoint(flow):  # the results are with the steps they are of
        archived["flow"] = {name: value for name, value in flow.items() if name not in _ONLY_BLOCKED}
    task, group = archived.pop("task", None), archived.pop("group", None)
    archived["archived_at"] = at
    archived |= _times(fields.get("last_execution"), document.get("scheduled_at"))
    if task is not None:
        archived["task"] = task
    if group is not None:
        archived["group"] = group
    archived["done"], archived["why"] = why == "done", why
    return archived


def _times(execution: Document | None, scheduled_at: Any) -> Document:
    """How long after its time the last attempt began, and how long it took, in seconds."""
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
    """A document that another program inserted, read as strictly as the child will. Raises InvalidJob."""
    if len(raw) > LARGEST_JOB:
        raise InvalidJob(f"has {len(raw):,} bytes; at most {LARGEST_JOB:,} can be run")
    try:
        return decode(raw)
    except _UNDECODABLE as error:
        raise InvalidJob(f"cannot be read: {error}") from None


def as_value(raw: bytes) -> tuple[Any, ...]:
    """Forms in which a foreign document can be kept inside another one, the most readable first."""
    try:
        bson.decode(raw, LENIENT)
    except _UNDECODABLE:
        return plain_value(raw), None  # or it could not be decoded later
    if len(raw) > LARGEST_JOB:
        return plain_value(raw), None
    return RawBSONDocument(raw, RAW), plain_value(raw), None


def plain_value(raw: bytes) -> Binary:
    """A document as mere bytes, cut to what certainly fits."""
    return Binary(raw[: LARGEST_JOB // 2])


def adopted_fields(document: Document, now: datetime) -> Document:
    """The fields that make a plain `{task, args}` document from any program a full job.

    Raises InvalidJob, or UnreadableDocument, with the reason when it cannot be one. Nothing it holds is believed: every
    field is checked.
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
