"""The fields of a job: one table, from which everything that lists them is derived.

A row has the names of a field in the document and in `Job`, its reader, its writer, the check for values that another
program has written, and its uses. A new field is one row here, one attribute of `Job`, and one line in
docs/reference/documents.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from enum import Flag, auto
from functools import partial
from typing import Any, NamedTuple

from bson import ObjectId

from recruiter.domain.duration import UNTIL_SIGNAL
from recruiter.domain.flow import FlowStep, On
from recruiter.domain.job import (
    HISTORY_KEPT,
    Cancellation,
    Checkpoint,
    Execution,
    Happened,
    HistoryEntry,
    Job,
    JobId,
    Signal,
    SignalWait,
)
from recruiter.domain.names import BLOCKED_LANE, DEFAULT_METHOD, check_name
from recruiter.domain.planning.needs import Needs
from recruiter.domain.progress import LINES_KEPT, STATUS_KEPT, LogLine, Progress, StatusEntry, between_0_and_1
from recruiter.domain.retry.decision import MOST_ATTEMPTS, check_max_crashes
from recruiter.domain.text import shown
from recruiter.errors import InvalidJob, InvalidName, UnreadableDocument
from recruiter.instruments import trace_context
from recruiter.store import fields as field
from recruiter.store.fields import is_job_id, is_text, moment_or_none, text_or_none

Fields = dict[str, Any]
Reader = Callable[[Mapping[str, Any], str], Any]
Check = Callable[[str, Any], object]


class Use(Flag):
    """The properties of a field by which the lists of fields are made."""

    REQUIRED = auto()
    """Every job in `scheduled` with a lane has it."""
    PROTOCOL = auto()
    """Only Recruiter writes it: it is removed from a document that another program has inserted."""
    OWN = auto()
    """Every occurrence of a scheduler has its own value; the template has none."""
    WAITING = auto()
    """Only in `scheduled`: for planning, or about the worker that runs it."""
    LOCK = auto()
    """Written by its worker while it runs, for people: the lock table is the roster."""
    PROGRESS = auto()
    """Reported by the job."""
    HISTORY = auto()
    """Its history: a recovered job begins without it."""
    DETAIL = auto()
    """Short lists leave it out: it may be large."""
    PLANNED = auto()
    """Decides when, where and how often the job runs again."""
    SMALL = auto()
    """Kept if hardly anything of an outcome can be stored."""
    LARGE = auto()
    """Dropped first if an outcome cannot be stored."""


class JobField(NamedTuple):
    """A field of jobs: how it is read, checked, written and used."""

    name: str
    """In the document."""
    attribute: str | None = None
    """Of `Job` or `ArchivedJob`; None for a field that is only in the document."""
    read: Reader | None = None
    """The value of the attribute. Raises UnreadableDocument."""
    default: Any = ...
    """A field with this value is not written; `...` for a field that the codec writes itself."""
    write: Callable[[Any], Any] | None = None
    """Converts the value for the document; None if it needs no conversion."""
    foreign: Check | None = None
    """Checks what another program has written. Raises InvalidJob."""
    use: Use = Use(0)


def needs_of(document: Mapping[str, Any]) -> Needs:
    """The resources that a job needs. Raises InvalidJob for impossible amounts."""
    resources = document.get("resources")
    return Needs.of(resources, proc=document.get("proc"), mem=document.get("mem"))


def priority_of(document: Mapping[str, Any]) -> int | float:
    """Any number except NaN, which has no order."""
    priority = document.get("priority")
    if isinstance(priority, float) and priority == priority:
        return priority
    whole: int = field.whole(document, "priority", least=-(2**63), most=2**63)
    return whole


def cancellation_from(flag: Any) -> Cancellation | None:
    """The request to cancel the job; invalid parts of a flag that was written by hand are skipped."""
    if not isinstance(flag, dict):
        return None
    return Cancellation(moment_or_none(flag.get("at")), text_or_none(flag.get("by")), text_or_none(flag.get("reason")))


def progress_from(document: Mapping[str, Any]) -> Progress:
    """The progress that the job has reported. Invalid entries, written by hand, are skipped here and below."""
    if "status" not in document and "log" not in document:
        return _NO_PROGRESS
    status = tuple(
        StatusEntry(
            entry["state"],
            text_or_none(entry.get("stage")),
            _number(entry.get("progress"), 0.0),
            text_or_none(entry.get("error")),
            entry["date"],
        )
        for entry in _named_entries(document, "status", "state", "date")[-STATUS_KEPT:]
    )
    log = tuple(LogLine(line["at"], line["text"]) for line in _named_entries(document, "log", "text")[-LINES_KEPT:])
    return Progress(status, log, _count(document.get("status_cut")), _count(document.get("log_cut")))


def entries_of(document: Mapping[str, Any]) -> list[Fields]:
    return _documents(document.get("executions")) or _documents([document.get("last_execution")])


def executions_of(document: Mapping[str, Any]) -> tuple[Execution, ...]:
    return tuple(
        Execution(
            started_at=moment_or_none(entry.get("started_at")),
            ended_at=moment_or_none(entry.get("ended_at")),
            worker=text_or_none(entry.get("worker")),
            crashed=bool(entry.get("crashed", False)),
            exception=text_or_none(entry.get("class")),
            message=text_or_none(entry.get("message")),
            trace=text_or_none(entry.get("trace")),
            notes=tuple(filter(is_text, notes)) if isinstance(notes := entry.get("notes"), list) else (),
            span=text_or_none(entry.get("span")),
        )
        for entry in entries_of(document)
    )


def record(value: Checkpoint | Signal | SignalWait) -> Fields:
    """Its stored form, without empty fields."""
    return {name: part for name, part in value._asdict().items() if part is not None and part != ()}


def checkpoints_of(document: Mapping[str, Any]) -> tuple[Checkpoint, ...]:
    return tuple(
        Checkpoint(entry["name"], entry["at"], entry.get("result"), text_or_none(entry.get("problem")))
        for entry in _named_entries(document, "checkpoints")
    )


def begun_at(document: Mapping[str, Any]) -> datetime | None:
    """When user code of this job may first have run, by its document; None if it has not begun.

    `begun_at` is written once, with the first write that a run of the job causes, and is never removed. That write is
    the mark before the start of an at-most-once or debounced job; the token of a run; the first progress mark; or the
    settlement after which the job waits again. The start of an ordinary job writes nothing: it may also have begun if a
    worker holds it now, by the roster.
    """
    written = moment_or_none(document.get("begun_at"))
    if written is not None:
        return written
    first = next(iter(entries_of(document)), {})  # for a job that ended in its first run, or of an earlier release
    started = moment_or_none(first.get("started_at"))
    if started is not None:
        return started
    # It has run, and nothing says when: certainly not before it was made.
    has_run = document.get("attempts") or document.get("snoozes")
    return moment_or_none(document.get("created_at")) if has_run else None


UNKNOWN_TASK_PAUSE = timedelta(minutes=1)
"""The wait of a job that came to a worker which does not know its task, or cannot open its arguments."""

NOT_BEGUN: Fields = {"begun_at": None, "attempts": 0, "snoozes": {"$in": [None, 0]}}
"""The same as a condition on documents in `scheduled`."""

MAY_EXPIRE: Fields = {"snoozed": None, "$or": [{"begun_at": None}, {"attempts": {"$gt": 0}}]}
"""Jobs that are not started after `expires_at`: they have not begun, or wait for a retry. A job that paused itself, or
whose run was interrupted, has begun and continues."""


def may_expire(document: Mapping[str, Any]) -> bool:
    """The same for one document."""
    return document.get("snoozed") is None and (document.get("begun_at") is None or bool(document.get("attempts")))


def signals_of(document: Mapping[str, Any]) -> tuple[Signal, ...]:
    return tuple(
        Signal(entry["name"], entry["at"], entry.get("data"), text_or_none(entry.get("by")))
        for entry in _named_entries(document, "signals")
    )


def _named_entries(document: Mapping[str, Any], name: str, text: str = "name", at: str = "at") -> list[Fields]:
    """The entries of a list that have a name and a date; other entries were written by hand and are skipped."""
    entries = _documents(document.get(name))
    return [entry for entry in entries if is_text(entry.get(text)) and moment_or_none(entry.get(at)) is not None]


def signal_wait_from(value: Any) -> SignalWait | None:
    since = moment_or_none(value.get("since")) if isinstance(value, dict) else None
    if since is None or not is_text(value.get("signal")):
        return None
    until, checkpoint = moment_or_none(value.get("until")), text_or_none(value.get("checkpoint"))
    several = value["any"] if isinstance(value.get("any"), list) else ()
    return SignalWait(value["signal"], since, until, checkpoint or "", tuple(filter(is_text, several)))


def waiting_for(document: Mapping[str, Any]) -> SignalWait | None:
    """The signal that the job waits for now. A job that received its signal and then failed keeps `waits_for` for its
    timeout, but waits for its retry, at another time."""
    wait = signal_wait_from(document.get("waits_for"))
    return wait if wait is not None and document.get("scheduled_at") == (wait.until or UNTIL_SIGNAL) else None


WAITS_FOR_SIGNAL: Fields = {
    "$and": [
        {"$eq": [{"$type": "$waits_for"}, "object"]},
        {"$eq": ["$scheduled_at", {"$ifNull": ["$waits_for.until", UNTIL_SIGNAL]}]},
    ]
}
"""The same as an expression of MongoDB: the job waits for a signal now."""


def history_entry(what: Happened, at: datetime, by: str | None = None, reason: str | None = None) -> Fields:
    given = {"by": by, "reason": reason}
    return {"at": at, "what": what.value, **{name: value for name, value in given.items() if value is not None}}


def pushed(entry: Fields) -> Fields:
    """The `$push` that adds an entry to the history of a job."""
    return {"history": {"$each": [entry], "$slice": -HISTORY_KEPT}}


def appended(entry: Fields) -> Fields:
    """The same as an expression, for the value of `history` in a pipeline."""
    history = {"$cond": [{"$isArray": "$history"}, "$history", []]}
    return {"$slice": [{"$concatArrays": [history, [entry]]}, -HISTORY_KEPT]}


def changes_of(document: Mapping[str, Any]) -> tuple[HistoryEntry, ...]:
    return tuple(
        HistoryEntry(
            entry["at"],
            entry["what"],
            text_or_none(entry.get("by")),
            text_or_none(entry.get("reason")),
            _value(entry.get("from")),
            _value(entry.get("to")),
        )
        for entry in _named_entries(document, "history", "what")[-HISTORY_KEPT:]
    )


def _value(value: Any) -> datetime | JobId | float | None:
    return value if is_job_id(value) or isinstance(value, float) else moment_or_none(value)


MOST_INDEXED = 20
"""A step with more dependencies is found by the id of its flow: to remove ten thousand index entries when it ends would
take longer than everything else."""


def flow_document(step: FlowStep) -> dict[str, Any]:
    """The field `flow` of a step. Empty parts are left out."""
    after, is_indexed = list(step.after), len(step.after) <= MOST_INDEXED
    parts = {
        "after": after if is_indexed else [step.flow],
        "many": None if is_indexed else after,
        "any": [dependency for dependency in after if dependency in step.any],
        "takes": list(step.takes),
        "on": None if step.on is None else step.on.value,
        "added": step.added,
        "delay": step.delay,
        "name": step.name,
        "failed": [dependency for dependency in after if dependency in step.failed],
        "part": list(step.part),
        "result_of": list(step.result_of),
        "item_of": list(step.item_of),
        "adder": step.adder,
    }
    kept = {name: part for name, part in parts.items() if part is not None and part != []}
    return {"id": step.flow, "step": step.step, **kept}


def dependencies(step: FlowStep) -> dict[str, Any]:
    """The fields of a stored step that say what it waits for."""
    names = ("after", "many", "any", "failed")
    return {f"flow.{name}": value for name, value in flow_document(step).items() if name in names}


def waits_after(document: Mapping[str, Any]) -> datetime:
    """Since when a job has been due: a released step of a flow has the place of its flow in the queue, and is due
    since its release."""
    due: datetime = document["scheduled_at"]
    flow = document.get("flow")
    released = flow.get("due") if isinstance(flow, dict) else None
    return max(due, released) if isinstance(released, datetime) else due


_ON = (None, *On)


def flow_from(document: Mapping[str, Any]) -> FlowStep | None:
    """Parses the field `flow`; None for a job that is no step. Raises UnreadableDocument."""
    stored = field.mapping(document, "flow", None)
    if stored is None:
        return None
    id, on = stored.get("id"), stored.get("on")
    if not isinstance(id, ObjectId) or on not in _ON:
        raise UnreadableDocument(f"flow is {shown(stored, 60)}; it must be the place of a step in its flow")
    return FlowStep(
        id,
        step=field.job_id("flow.step", stored.get("step")),
        # The steps in `after` are indexed. If there are more than MOST_INDEXED, they are in `many` instead.
        after=_steps(stored, "many" if "many" in stored else "after"),
        any=frozenset(_steps(stored, "any")),
        takes=_steps(stored, "takes"),
        on=On(on) if on is not None else None,
        added=added if isinstance(added := stored.get("added"), ObjectId) else None,
        delay=field.number(stored, "delay", None, least=0),
        name=text_or_none(stored.get("name")),
        failed=frozenset(_steps(stored, "failed")),
        due=moment_or_none(stored.get("due")),
        part=tuple(field.texts(stored, "part", ())),
        result_of=tuple(field.array(stored, "result_of", _depth, ())),
        item_of=tuple(field.array(stored, "item_of", _depth, ())),
        adder=adder if is_job_id(adder := stored.get("adder")) else None,
    )


def _depth(place: str, value: Any) -> int:
    depth: int = field.whole({place: value}, place)
    return depth


def _steps(stored: Mapping[str, Any], name: str) -> tuple[JobId, ...]:
    steps = stored.get(name)
    if steps is None:
        return ()
    if type(steps) is list and all(type(step) is ObjectId for step in steps):
        return tuple(steps)
    return tuple(field.array(stored, name, field.job_id, ()))


def read_fields(document: Mapping[str, Any]) -> Fields:
    """The attributes of a job; for a field that the document lacks, the default of `Job` applies. Raises
    UnreadableDocument, or InvalidJob."""
    fields: Fields = {"args": {}}
    for name, attribute, read, required in _READ:
        if required or document.get(name) is not None:
            fields[attribute] = read(document, name)
    if not _REPORTED.isdisjoint(document):
        progress = progress_from(document)
        fields |= progress._asdict()
        fields["progress"] = _number(document.get("progress"), progress.reached)
        fields["stage"] = text_or_none(document.get("stage")) or progress.stage
    return fields


def written_fields(job: Job) -> Fields:
    """The fields of a waiting job in its document; default values are left out."""
    fields: Fields = {}
    for name, attribute, default, write in _WRITTEN:
        value = getattr(job, attribute)
        if value is not default and value != default:
            fields[name] = value if write is None else write(value)
    return fields


def check_foreign(document: Mapping[str, Any]) -> None:
    """Checks every field that another program may have written. Raises InvalidJob."""
    if not is_job_id(document["_id"]):
        kind = type(document["_id"]).__name__
        raise InvalidJob(f"_id is {kind}; it must be an ObjectId, a short text, an integer or a UUID")
    if "task" not in document:
        hint = "; here job_name, payload and trigger_time are called task, args and scheduled_at"
        raise InvalidJob(f"task is missing{hint if 'job_name' in document else ''}")
    for name, check in _FOREIGN.items():
        if name in document and (document[name] is not None or name in _NEVER_NULL):
            check(name, document[name])
    needs_of(document)


def _must_be(*types: type) -> Check:
    """The check that a value has one of these types. True is no number."""

    def check(name: str, value: Any) -> None:
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise InvalidJob(f"{name} is {type(value).__name__}; it must be {' or '.join(t.__name__ for t in types)}")

    return check


def _check_arguments(name: str, value: Any) -> None:
    if not isinstance(value, dict | list):
        raise InvalidJob(f"{name} is {type(value).__name__}; it must be a document or an array")


def _check_count(name: str, value: Any) -> None:
    _must_be(int)(name, value)
    if not 0 <= value <= MOST_ATTEMPTS:
        raise InvalidJob(f"{name} is {value}; it must be between 0 and {MOST_ATTEMPTS:,}")


def _check_seconds(name: str, value: Any) -> None:
    _must_be(int, float)(name, value)
    if not 0 < value < float("inf"):
        raise InvalidJob(f"{name} is {value}; it must be a number of seconds above zero")


def _check_crashes(name: str, value: Any) -> None:
    _must_be(int)(name, value)
    check_max_crashes(value)


def _check_tags(name: str, value: Any) -> None:
    _must_be(list)(name, value)
    if not all(isinstance(tag, str) for tag in value):
        raise InvalidName("tags must all be text")


def _check_executions(name: str, value: Any) -> None:
    _must_be(list)(name, value)
    if not all(isinstance(execution, dict) for execution in value):
        raise InvalidJob("executions must all be documents")


def _read_arguments(document: Mapping[str, Any], name: str) -> Any:
    args = document.get(name, {})
    return args if isinstance(args, list) else field.mapping({name: args}, name)


def _number(value: Any, otherwise: float) -> float:
    return between_0_and_1(value) if isinstance(value, int | float) else otherwise


def _count(value: Any) -> int:
    return max(0, value) if isinstance(value, int) else 0


def _documents(value: Any) -> list[Fields]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _known_id(document: Mapping[str, Any], name: str) -> JobId | None:
    """The id of another job; None for any other value."""
    value = document[name]
    return value if is_job_id(value) else None


_NO_PROGRESS = Progress()
_NEVER_NULL = ("task", "args", "group")
_attempts = partial(field.whole, most=MOST_ATTEMPTS)
_U = Use
_REPORT = _U.PROTOCOL | _U.PROGRESS | _U.HISTORY
_MARK = _U.PROTOCOL | _U.LOCK | _U.WAITING
_END = _U.PROTOCOL | _U.SMALL

# fmt: off
JOB_FIELDS: tuple[JobField, ...] = (
    # identity
    JobField("_id", "id", lambda document, name: field.job_id(name, document[name]),
             use=_U.REQUIRED | _U.OWN | _U.HISTORY),
    JobField("task", "task", field.text, foreign=check_name, use=_U.REQUIRED | _U.SMALL),
    JobField("args", "args", _read_arguments, foreign=_check_arguments, use=_U.DETAIL),
    JobField("method", "method", field.text, DEFAULT_METHOD, foreign=_must_be(str)),
    JobField("group", "group", field.text, foreign=check_name,
             use=_U.REQUIRED | _U.SMALL | _U.PLANNED),
    JobField("priority", "priority", lambda document, _: priority_of(document), foreign=_must_be(int, float),
             use=_U.REQUIRED | _U.SMALL),
    JobField("created_at", "created_at", field.moment, foreign=_must_be(datetime),
             use=_U.REQUIRED | _U.OWN | _U.SMALL | _U.HISTORY),
    JobField("scheduled_at", "scheduled_at", field.moment, foreign=_must_be(datetime),
             use=_U.REQUIRED | _U.OWN | _U.SMALL | _U.PLANNED | _U.HISTORY),
    # options
    JobField("tags", "tags", lambda document, name: tuple(field.texts(document, name)), (), list, _check_tags),
    JobField("urn", "urn", field.text, None, foreign=_must_be(str), use=_U.OWN),
    JobField("username", "owner", field.text, None, foreign=_must_be(str)),
    JobField("at_most_once", "at_most_once", field.truth, False, foreign=_must_be(bool)),
    JobField("timeout", "timeout", field.number, None, foreign=_check_seconds),
    JobField("max_crashes", "max_crashes", partial(field.whole, least=1, most=MOST_ATTEMPTS), None,
             foreign=_check_crashes),
    JobField("expires_in", "expires_in", field.number, None, foreign=_check_seconds),
    JobField("expires_at", "expires_at", field.moment, None, foreign=_must_be(datetime), use=_U.OWN),
    JobField("keep_failed", "keep_failed", field.number, None, foreign=_check_seconds),
    JobField("proc", "needs", lambda document, _: needs_of(document), foreign=_must_be(int, float)),
    JobField("mem", "needs", lambda document, _: needs_of(document), foreign=_must_be(int, float, str)),
    JobField("resources", "needs", lambda document, _: needs_of(document), foreign=_must_be(dict)),
    JobField("key", "limited_by", field.text, None, foreign=check_name),
    JobField("retry_policy", "retry_policy", field.mapping, None, foreign=_must_be(dict)),
    JobField("recovered_from", "recovered_from", _known_id, None, use=_U.OWN),
    JobField("origin", "origin", _known_id, None, use=_U.PROTOCOL | _U.OWN),
    JobField("trace_context", "trace_context", lambda document, name: trace_context(document[name]), None,
             use=_U.OWN | _U.HISTORY),
    # place in the queue
    JobField("lane", "blocked", lambda document, name: document[name] == BLOCKED_LANE,
             use=_U.WAITING | _U.PLANNED | _U.HISTORY),
    JobField("flow", "flow", lambda document, _: flow_from(document), None, flow_document,
             use=_U.PROTOCOL | _U.OWN | _U.SMALL),
    JobField("step_results", "step_results", lambda document, name: tuple(_documents(document[name])), None, list,
             use=_U.PROTOCOL | _U.OWN | _U.DETAIL),
    JobField("postponed", use=_U.WAITING | _U.OWN | _U.PLANNED),
    JobField("debounced", "debounced", field.truth, False,
             use=_U.PROTOCOL | _U.OWN | _U.WAITING | _U.HISTORY),
    JobField("touched", use=_U.PROTOCOL | _U.OWN | _U.WAITING),
    JobField("unopened", use=_U.PROTOCOL | _U.OWN | _U.WAITING | _U.PLANNED),
    JobField("cancel", "cancel", lambda document, name: cancellation_from(document[name]),
             use=_U.HISTORY),
    # attempts
    JobField("attempts", "attempts", _attempts, foreign=_check_count,
             use=_U.OWN | _U.SMALL | _U.PLANNED | _U.HISTORY),
    JobField("crashes", "crashes", _attempts, foreign=_check_count, use=_U.PLANNED | _U.HISTORY),
    JobField("worker_deaths", "worker_deaths", field.whole, 0,
             use=_U.PROTOCOL | _U.OWN | _U.PLANNED | _U.HISTORY),
    JobField("snoozes", "snoozes", field.whole, foreign=_check_count, use=_U.PLANNED | _U.HISTORY),
    JobField("snoozed", use=_U.PLANNED),
    JobField("begun_at", "begun_at", lambda document, _: begun_at(document),
             use=_U.PROTOCOL | _U.OWN | _U.PLANNED | _U.HISTORY),
    JobField("conflicts", "conflicts", field.whole, use=_U.PROTOCOL | _U.PLANNED | _U.HISTORY),
    JobField("last_execution", "executions", lambda document, _: executions_of(document), foreign=_must_be(dict),
             use=_U.LARGE | _U.HISTORY),
    JobField("executions", "executions", lambda document, _: executions_of(document), foreign=_check_executions,
             use=_U.LARGE | _U.DETAIL | _U.HISTORY),
    # checkpoints, signals and history
    JobField("checkpoints", "checkpoints", lambda document, _: checkpoints_of(document), (),
             lambda checkpoints: list(map(record, checkpoints)),
             use=_U.PROTOCOL | _U.OWN | _U.LARGE | _U.DETAIL | _U.HISTORY),
    JobField("signals", "signals", lambda document, _: signals_of(document), (),
             lambda signals: list(map(record, signals)),
             use=_U.PROTOCOL | _U.OWN | _U.LARGE | _U.DETAIL | _U.HISTORY),
    JobField("waits_for", "waits_for", lambda document, _: waiting_for(document),
             use=_U.PROTOCOL | _U.WAITING | _U.PLANNED | _U.HISTORY),
    JobField("history", "changes", lambda document, _: changes_of(document),
             use=_U.PROTOCOL | _U.LARGE | _U.DETAIL | _U.HISTORY),
    # progress
    JobField("status", "status", use=_REPORT | _U.LARGE | _U.DETAIL),
    JobField("log", "log", use=_REPORT | _U.LARGE | _U.DETAIL),
    JobField("status_cut", "status_cut", use=_REPORT),
    JobField("log_cut", "log_cut", use=_REPORT),
    JobField("progress", "progress", use=_REPORT),
    JobField("stage", "stage", use=_REPORT),
    # the worker that runs it
    JobField("started_by", use=_U.PROTOCOL | _U.WAITING),
    JobField("token", use=_U.PROTOCOL | _U.WAITING),
    JobField("transaction", use=_U.PROTOCOL | _U.WAITING),
    JobField("locked_by", "locked_by", lambda document, name: text_or_none(document[name]),
             use=_MARK | _U.HISTORY),
    JobField("locked_at", "locked_at", lambda document, name: moment_or_none(document[name]),
             use=_MARK | _U.HISTORY),
    JobField("started_at", use=_MARK),
    JobField("reported_at", use=_MARK),
    # the end: only in `archived`
    JobField("archived_at", "archived_at", use=_END),
    JobField("done", "done", use=_END),
    JobField("why", "why", use=_END),
    JobField("reason", "reason", use=_U.PROTOCOL),
    JobField("result", "result", use=_U.PROTOCOL | _U.LARGE | _U.DETAIL),
    JobField("latency", "latency"),
    JobField("execution_time", "execution_time"),
    JobField("recovered_as", "recovered_as"),
    JobField("unreported", use=_U.PROTOCOL | _U.SMALL | _U.HISTORY),
    JobField("original", use=_U.PROTOCOL | _U.DETAIL),
)
# fmt: on


def names(use: Use) -> tuple[str, ...]:
    """The names of the fields with this use, in a document."""
    return tuple(field.name for field in JOB_FIELDS if use in field.use)


def attributes(use: Use) -> frozenset[str]:
    """The attributes of `Job` whose fields have this use."""
    return frozenset(field.attribute for field in JOB_FIELDS if use in field.use and field.attribute is not None)


def options() -> Iterable[str]:
    """The optional fields that an occurrence takes from the template of its scheduler."""
    written = {field.name for field in JOB_FIELDS if field.default is not ...} | {"proc", "mem", "resources"}
    return [field.name for field in JOB_FIELDS if field.name in written and Use.OWN not in field.use]


LOCK, PROGRESS, FROM_PROTOCOL = names(Use.LOCK), names(Use.PROGRESS), names(Use.PROTOCOL)
ONLY_WAITING, UNLOCKED = names(Use.WAITING), ("started_by", "token", "transaction", *LOCK)
REQUIRED = frozenset(names(Use.REQUIRED))
_FOREIGN = {each.name: each.foreign for each in JOB_FIELDS if each.foreign is not None}
NULLABLE = frozenset(_FOREIGN.keys() - {*_NEVER_NULL})
"""Fields in which another program may write null: it is removed."""
_REPORTED = frozenset(PROGRESS)
_READ = tuple(
    (each.name, each.attribute, each.read, Use.REQUIRED in each.use)
    for each in JOB_FIELDS
    if each.read is not None and each.attribute is not None
)
_WRITTEN = tuple(
    (each.name, each.attribute, each.default, each.write)
    for each in JOB_FIELDS
    if each.default is not ... and each.attribute is not None
)
