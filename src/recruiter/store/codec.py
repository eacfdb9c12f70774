"""The one place that knows how jobs are written: records to documents and back, and raw BSON.

Documents travel through a worker as bytes; only children decode them. What a foreign program inserted is checked here
(`adopted_fields`), field by field, and becomes a full document or a reason why not.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import bson
from bson import CodecOptions, ObjectId
from bson.binary import Binary, UuidRepresentation
from bson.codec_options import DatetimeConversion
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument

from recruiter.domain.job import EXECUTIONS_KEPT, ArchivedJob, Cancellation, Execution, Job, JobId, expiry
from recruiter.domain.lane import Lane
from recruiter.domain.moment import not_before
from recruiter.domain.names import CANCELLED_LANE, DEFAULT_GROUP, DEFAULT_METHOD, check_name
from recruiter.domain.planning.needs import Needs
from recruiter.domain.progress import LINES_KEPT, STATUS_KEPT, LogLine, Progress, StatusEntry, between_0_and_1
from recruiter.domain.retry.decision import MOST_CRASHES, check_max_crashes
from recruiter.errors import InvalidJob, InvalidName, JobTooLarge, UnreadableDocument, UnsupportedValue
from recruiter.store import fields as field
from recruiter.store.fields import is_job_id, is_text

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

MOST_ATTEMPTS = 1_000_000

RAW: CodecOptions[RawBSONDocument] = CodecOptions(
    RawBSONDocument,
    tz_aware=True,
    uuid_representation=UuidRepresentation.STANDARD,
    datetime_conversion=DatetimeConversion.DATETIME_AUTO,
)
"""For documents that are parsed one by one (reading.py): a cursor that decodes stops at the first that it cannot."""
_LENGTH = struct.Struct("<i")


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
        kind, name_ends = raw[at], raw.index(b"\x00", at + 1)
        value = name_ends + 1
        if kind in _SIZES:
            after = value + _SIZES[kind]
        elif kind == 0x0B:  # a pattern and its options
            after = raw.index(b"\x00", raw.index(b"\x00", value) + 1) + 1
        else:
            after = value + _LENGTH.unpack_from(raw, value)[0] + _MORE_THAN_IT_SAYS[kind]
        yield raw[at + 1 : name_ends].decode("utf-8", "surrogateescape"), raw[at:after]
        at = after


def job_document(job: Job) -> Document:
    """A waiting job as it is stored. What is empty or default is left out, except what the index needs."""
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
    if job.method != DEFAULT_METHOD:
        document["method"] = job.method
    if job.tags:
        document["tags"] = list(job.tags)
    if job.at_most_once:
        document["at_most_once"] = True
    if job.owner is not None:
        document["username"] = job.owner
    for name in _OPTIONAL:
        value = getattr(job, name)
        if value is not None:
            document[name] = value
    if job.needs:
        document.update(needs_document(job.needs))
    if job.suspect:
        document["suspect"] = True
    return document


_OPTIONAL = (
    *("urn", "retry_policy", "timeout", "max_crashes", "expires_in", "expires_at"),
    *("keep_failed", "key", "recovered_from"),
)


def needs_document(needs: Needs) -> Document:
    """The seeds' fields for what the seeds know, and one for the rest."""
    amounts = needs.amounts()
    document: Document = {name: amounts.pop(name) for name in ("proc", "mem") if name in amounts}
    return {**document, "resources": amounts} if amounts else document


def needs_of(document: Mapping[str, Any]) -> Needs:
    """The resources that a job needs. Raises InvalidJob for impossible amounts."""
    resources = document.get("resources")
    return Needs.of(resources, proc=document.get("proc"), mem=document.get("mem"))


def lane_of(document: Mapping[str, Any], **changes: Any) -> str:
    """The lane where a job belongs, by its other fields; whatever makes no sense in them asks for nothing."""
    job = {**document, **changes}
    try:
        needs = needs_of(job)
    except InvalidJob:
        needs = Needs()
    return str(Lane(job["group"], job["task"], needs, job.get("key"), bool(job.get("suspect"))))


def encode_job(job: Job) -> RawBSONDocument:
    """The stored form, encoded once; refuses what is larger than a document may be."""
    return RawBSONDocument(checked_size(job), RAW)


def checked_size(job: Job) -> bytes:
    try:
        raw = encode(job_document(job))
    except (BSONError, OverflowError, UnicodeError, RecursionError, TypeError, ValueError) as error:
        raise UnsupportedValue(f"job of task {job.task!r} cannot be stored: {error}") from error
    if len(raw) > LARGEST_JOB:
        raise JobTooLarge(
            f"job of task {job.task!r} has {len(raw):,} bytes; at most {LARGEST_JOB:,} can be stored. "
            "Keep the data elsewhere and pass its key."
        )
    return raw


def job_from(document: Mapping[str, Any]) -> Job:
    """The parser of `scheduled`, for documents with a lane. Raises UnreadableDocument."""
    return Job(**_fields(document))


def archived_from(document: Mapping[str, Any]) -> ArchivedJob:
    """The parser of `archived`. Raises UnreadableDocument."""
    is_job = "original" not in document and document.keys() >= _EVERY_JOB
    fields: Document = _fields(document) if is_job else {"executions": _executions(document)}
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
        reason=_text(document.get("reason")),
        latency=field.number(document, "latency", None),
        execution_time=field.number(document, "execution_time", None),
        recovered_as=_job_id(document.get("recovered_as")),
    )


_EVERY_JOB = {"task", "group", "priority", "created_at", "scheduled_at"}
"""What every job has; what was set aside, or kept of an outcome that could not be, may have less."""


def _fields(document: Mapping[str, Any]) -> Document:
    progress = progress_from(document)
    return {
        "id": field.job_id("_id", document["_id"]),
        "task": field.text(document, "task"),
        "args": _arguments(document),
        "created_at": field.moment(document, "created_at"),
        "scheduled_at": field.moment(document, "scheduled_at"),
        "method": field.text(document, "method", None) or DEFAULT_METHOD,
        "group": field.text(document, "group"),
        "priority": priority_of(document),
        "tags": tuple(field.texts(document, "tags", None) or ()),
        "urn": field.text(document, "urn", None),
        "owner": field.text(document, "username", None),
        "at_most_once": bool(field.truth(document, "at_most_once", None)),
        "timeout": field.number(document, "timeout", None),
        "max_crashes": field.whole(document, "max_crashes", None, least=1, most=MOST_CRASHES),
        "expires_in": field.number(document, "expires_in", None),
        "expires_at": field.moment(document, "expires_at", None),
        "keep_failed": field.number(document, "keep_failed", None),
        "attempts": field.whole(document, "attempts", 0, most=MOST_ATTEMPTS),
        "crashes": field.whole(document, "crashes", 0, most=MOST_ATTEMPTS),
        "snoozes": field.whole(document, "snoozes", 0),
        "needs": needs_of(document),
        "key": field.text(document, "key", None),
        "suspect": bool(field.truth(document, "suspect", None)),
        "retry_policy": field.mapping(document, "retry_policy", None),
        "recovered_from": _job_id(document.get("recovered_from")),
        "executions": _executions(document),
        **progress._asdict(),
        "progress": _number(document.get("progress"), progress.reached),
        "stage": _text(document.get("stage")) or progress.stage,
        "locked_by": _text(document.get("locked_by")),
        "locked_at": _moment(document.get("locked_at")),
        "cancel": cancellation_from(document.get("cancel")),
    }


def _arguments(document: Mapping[str, Any]) -> Any:
    args = document.get("args", {})
    return args if isinstance(args, list) else field.mapping({"args": args}, "args")


def priority_of(document: Mapping[str, Any]) -> int | float:
    """Any number; what is none cannot be put in order."""
    priority = document.get("priority")
    if isinstance(priority, float) and priority == priority:
        return priority
    whole: int = field.whole(document, "priority", least=-(2**63), most=2**63)
    return whole


def cancellation_from(flag: Any) -> Cancellation | None:
    """Who asked to cancel the job: from the flag as it is stored, or as it was written by hand."""
    if not isinstance(flag, dict):
        return None
    return Cancellation(_moment(flag.get("at")), _text(flag.get("by")), _text(flag.get("reason")))


SAID = ("status", "log", "status_cut", "log_cut", "progress", "stage")
"""The fields that hold the progress a job has reported."""
LOCK = ("locked_by", "locked_at", "started_at", "reported_at")
"""The fields in which its worker says that it runs. For people to see: the roster is the lock table."""


def progress_from(document: Mapping[str, Any]) -> Progress:
    """The progress that the job has reported; values written by hand that make no sense are skipped."""
    if "status" not in document and "log" not in document:
        return _SILENT
    status = tuple(
        StatusEntry(
            entry["state"],
            _text(entry.get("stage")),
            _number(entry.get("progress"), 0.0),
            _text(entry.get("error")),
            entry["date"],
        )
        for entry in _documents(document.get("status"))[-STATUS_KEPT:]
        if is_text(entry.get("state")) and _moment(entry.get("date")) is not None
    )
    log = tuple(
        LogLine(line["at"], line["text"])
        for line in _documents(document.get("log"))[-LINES_KEPT:]
        if is_text(line.get("text")) and _moment(line.get("at")) is not None
    )
    return Progress(status, log, _count(document.get("status_cut")), _count(document.get("log_cut")))


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


_SILENT = Progress()


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _documents(value: Any) -> list[Document]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _text(value: Any) -> str | None:
    return value if is_text(value) else None


def _job_id(value: Any) -> JobId | None:
    return value if is_job_id(value) else None


def _moment(value: Any) -> datetime | None:
    """For people only, so what is no date is left out."""
    try:
        return None if value is None else field.as_moment("", value)
    except UnreadableDocument:
        return None


def _number(value: Any, otherwise: float) -> float:
    return between_0_and_1(value) if isinstance(value, int | float) else otherwise


def _count(value: Any) -> int:
    return max(0, value) if isinstance(value, int) else 0


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
    earlier = _entries(document)
    if earlier:
        fields["executions"] = [*earlier, latest][-EXECUTIONS_KEPT:]
    return fields


def archived_document(document: Document, why: str, at: datetime, fields: Document) -> Document:
    """The job as it goes into the archive. What is for planning only, and who held it, stays behind.

    It ends with what is counted of it, always in this order: statistics.py reads that without decoding the rest.
    """
    archived = {**document, **fields}
    archived.pop("lane", None)
    archived.pop("postponed", None)
    archived.pop("started_by", None)
    archived.pop("suspect", None)
    if "started_at" in archived or "locked_by" in archived:  # most never had any of it
        for name in LOCK:
            archived.pop(name, None)
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


def _entries(document: Mapping[str, Any]) -> list[Document]:
    """The attempts as documents; values written by hand that are none are skipped."""
    several = document.get("executions")
    entries = several if isinstance(several, list) and several else [document.get("last_execution")]
    return [entry for entry in entries if isinstance(entry, dict)]


def _executions(document: Mapping[str, Any]) -> tuple[Execution, ...]:
    return tuple(
        Execution(
            started_at=_moment(entry.get("started_at")),
            ended_at=_moment(entry.get("ended_at")),
            worker=_text(entry.get("worker")),
            crashed=bool(entry.get("crashed", False)),
            exception=_text(entry.get("class")),
            message=_text(entry.get("message")),
            trace=_text(entry.get("trace")),
            notes=tuple(note for note in _list(entry.get("notes")) if is_text(note)),
        )
        for entry in _entries(document)
    )


FOREIGN_FIELDS: dict[str, tuple[type, ...]] = {
    "created_at": (datetime,),
    "scheduled_at": (datetime,),
    "priority": (int, float),
    "attempts": (int,),
    "crashes": (int,),
    "snoozes": (int,),
    "timeout": (int, float),
    "max_crashes": (int,),
    "expires_in": (int, float),
    "expires_at": (datetime,),
    "keep_failed": (int, float),
    "proc": (int, float),
    "mem": (int, float),
    "resources": (dict,),
    "at_most_once": (bool,),
    "method": (str,),
    "urn": (str,),
    "username": (str,),
    "retry_policy": (dict,),
    "last_execution": (dict,),
    "executions": (list,),
    "tags": (list,),
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
        return plain_value(raw), None  # or whoever looks at it later could not
    if len(raw) > LARGEST_JOB:
        return plain_value(raw), None
    return RawBSONDocument(raw, RAW), plain_value(raw), None


def plain_value(raw: bytes) -> Binary:
    """A document as mere bytes, cut to what certainly fits."""
    return Binary(raw[: LARGEST_JOB // 2])


NOT_BELIEVED = ("suspect", "started_by", "result", "reason", "why", "done", "archived_at", "original", *LOCK, *SAID)
"""What only the protocol writes; adopting a document removes it."""


def adopted_fields(document: Document, now: datetime) -> Document:
    """The fields that make a plain `{task, args}` document from any program a full job.

    Raises InvalidJob, or UnreadableDocument, with the reason when it cannot be one. Nothing it holds is believed: every
    field is checked.
    """
    if not is_job_id(document["_id"]):
        kind = type(document["_id"]).__name__
        raise InvalidJob(f"_id is {kind}; it must be an ObjectId, a short text, an integer or a UUID")
    if "task" not in document:
        raise InvalidJob("task is missing")
    check_name("task", document["task"])
    group = check_name("group", document.get("group", DEFAULT_GROUP))
    if not isinstance(document.get("args", {}), dict | list):
        raise InvalidJob(f"args is {type(document['args']).__name__}; it must be a document or an array")
    for name in ("attempts", "crashes", "snoozes"):
        if isinstance(document.get(name), int) and not 0 <= document[name] <= MOST_ATTEMPTS:
            raise InvalidJob(f"{name} is {document[name]}; it must be between 0 and {MOST_ATTEMPTS:,}")
    for name, types in FOREIGN_FIELDS.items():
        value = document.get(name)
        if value is None:
            continue
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise InvalidJob(f"{name} is {type(value).__name__}; it must be {' or '.join(t.__name__ for t in types)}")
    for name in ("timeout", "expires_in", "keep_failed"):
        if isinstance(document.get(name), int | float) and not 0 < document[name] < float("inf"):
            raise InvalidJob(f"{name} is {document[name]}; it must be a number of seconds above zero")
    if document.get("max_crashes") is not None:
        check_max_crashes(document["max_crashes"])
    if not all(isinstance(tag, str) for tag in document.get("tags") or ()):
        raise InvalidName("tags must all be text")
    needs_of(document)
    if document.get("key") is not None:
        check_name("key", document["key"])
    if not all(isinstance(execution, dict) for execution in document.get("executions") or ()):
        raise InvalidJob("executions must all be documents")
    cancelled = isinstance(document.get("cancel"), dict) and isinstance(document["cancel"].get("at"), datetime)
    fields: Document = {
        "args": document.get("args", {}),
        "group": group,
        "lane": CANCELLED_LANE if cancelled else lane_of({**document, "group": group, "suspect": False}),
        "priority": document.get("priority") or 0,
        "created_at": document.get("created_at") or now,
        "scheduled_at": document.get("scheduled_at") or now,
        "attempts": document.get("attempts") or 0,
    }
    if field.moment(fields, "scheduled_at") > now:
        fields["postponed"] = True
    if document.get("expires_in") is not None and document.get("expires_at") is None:
        fields["expires_at"] = expiry(fields["scheduled_at"], document["expires_in"])
    job_from({name: value for name, value in {**document, **fields}.items() if name not in NOT_BELIEVED})
    return fields
