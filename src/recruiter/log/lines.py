"""Formats log lines, for people or for machines. Every log message passes here and is made harmless.

A plain line begins with the time. All further lines of a message are indented, so that no job, id or exception can
write a line that looks like a line of another process. No line contains a password.
"""

from __future__ import annotations

import json
import logging
import math
import os
import socket
from collections.abc import Mapping
from datetime import UTC, datetime
from string import Formatter
from typing import Any

from recruiter.domain.duration import UNTIL_SIGNAL
from recruiter.domain.text import head, is_secret, json_safe, mask, one_line, plural, printable, said_by
from recruiter.events import Event
from recruiter.log.context import context_of

MAX_MESSAGE_CHARACTERS = 16_000
"""Characters of a message, and of a trace."""

_COLOURS = {logging.DEBUG: "32", logging.INFO: "36", logging.WARNING: "33", logging.ERROR: "31", logging.CRITICAL: "31"}
_HIDDEN = "***"
_CONTINUED = "\n    "
_OF_EVERY_RECORD = {*vars(logging.makeLogRecord({})), "message", "asctime", "recruiter", "taskName"}


class PlainLines(logging.Formatter):
    """Lines for people."""

    def __init__(self, program: str = "", coloured: bool = False) -> None:
        super().__init__()
        self._program = program
        self._coloured = coloured

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        who = f"{socket.gethostname()}[{os.getpid()}] {self._program}"
        text = _about(record) + _message(record)
        trace = _trace(record)
        text = _CONTINUED.join((text if trace is None else f"{text}\n{trace}").splitlines())
        line = f"{moment} {who:<24} {record.levelname:<7} {printable(text)}"
        return f"\x1b[{_COLOURS.get(record.levelno, '0')}m{line}\x1b[0m" if self._coloured else line


class JsonLines(logging.Formatter):
    """Lines for machines: one JSON document each."""

    def __init__(self, program: str = "") -> None:
        super().__init__()
        self._program = program

    def format(self, record: logging.LogRecord) -> str:
        event = _event(record)
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "program": self._program,
            "level": record.levelname.lower(),
            "message": _message(record),
        }
        if event is not None:
            line["event"] = event.name
        else:
            line["logger"] = record.name
            line |= context_of(record)
        fields = event.fields if event is not None else _extra(record)
        line |= {key: value for key, value in fields.items() if key not in line}
        trace = _trace(record)
        if trace is not None:
            line["trace"] = trace
        return json_safe(json.dumps(_plain(line)))


def sentence(event: Event) -> tuple[int, str]:
    """The level and the message of an event. No field of it can begin a new line."""
    level, template = SENTENCES.get(event.name, UNKNOWN)
    if not template:
        return level, f"{event.name} {one_line(said_by(_plain(event.fields)))}"
    return level, filled(template, {"process": f"{socket.gethostname()}:{os.getpid()}", **event.fields})


def filled(sentence: str, fields: Mapping[str, Any]) -> str:
    """The sentence with these fields, in one line. A missing field is written as `?`."""
    return _Harmless().vformat(sentence, (), fields)


class _Harmless(Formatter):
    """Fills in the sentence of an event. It never raises, and never begins a new line."""

    def get_value(self, key: int | str, args: Any, kwargs: Any) -> Any:
        del args
        return kwargs.get(key, "?")

    def format_field(self, value: Any, format_spec: str) -> str:
        """Writes `{jobs:#job}` as a number with its noun: 2 jobs; `{next:@%H:%M}` as the time of a job: at 12:30."""
        try:
            if format_spec.startswith("@"):
                return "when its signal comes" if value == UNTIL_SIGNAL else f"at {value:{format_spec[1:]}}"
            if isinstance(value, list | tuple | set | frozenset):
                return one_line(", ".join(map(_text, value)) or "none")
            if format_spec.startswith("#"):
                return one_line(plural(value, format_spec[1:]))
            return one_line(format(value, format_spec))
        except Exception:
            return one_line(_text(value))


def _event(record: logging.LogRecord) -> Event | None:
    marks = getattr(record, "recruiter", None)
    event = marks.get("event") if isinstance(marks, dict) else None
    return event if isinstance(event, Event) else None


def _message(record: logging.LogRecord) -> str:
    try:
        text = record.getMessage()
    except Exception as error:  # the arguments do not fit the message
        text = f"{record.msg!r} with {record.args!r}: {error}"
    return mask(head(text, MAX_MESSAGE_CHARACTERS))


def _about(record: logging.LogRecord) -> str:
    job = context_of(record)
    if not job or _event(record) is not None:
        return ""
    return one_line(f"job {job['job']}, {job['task']}, attempt {job['attempt']}: ")


def _trace(record: logging.LogRecord) -> str | None:
    event = _event(record)
    trace = event.fields.get("trace") if event is not None else None
    if record.exc_info:
        trace = logging.Formatter().formatException(record.exc_info)
    return None if trace is None else mask(said_by(trace, longest=MAX_MESSAGE_CHARACTERS))


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {
        key: value
        for key, value in vars(record).items()
        if key not in _OF_EVERY_RECORD and not key.startswith("recruiter_")
    }


def _plain(value: Any) -> Any:
    """The value as JSON knows it, without secrets."""
    if isinstance(value, bool | int | None):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return mask(head(value, MAX_MESSAGE_CHARACTERS))
    if isinstance(value, Mapping):
        named = ((_text(key), item) for key, item in value.items())
        return {name: _HIDDEN if is_secret(name, item) else _plain(item) for name, item in named}
    return [_plain(item) for item in value] if isinstance(value, list | tuple | set | frozenset) else _text(value)


def _text(value: Any) -> str:
    return mask(said_by(value))


_SENTENCES: dict[int, dict[str, str]] = {
    logging.DEBUG: {
        "cleaner.at_work": "cleaner {process} keeps the archive small",
        "child.started": "child {pid} is ready",
        "scheduler.repeated": "the leader created {made:#job} for due occurrences and skipped {skipped}",
        "job.ended": "job {job}: {task} done in {seconds:.3f}s",
    },
    logging.INFO: {
        "process.started": "{program} started on {target}",
        "process.answers_probes": "process {process} answers probes on {host} port {port}: /live and /ready",
        "process.stopping": "process {process} was asked to stop",
        "leader.elected": "recruiter {process} is the leader now, term {term}",
        "leader.stept_back": "recruiter {process} is no longer the leader",
        "recruiter.standing_by": "recruiter {process} stands by: another recruiter leads",
        "worker.joined": "worker {worker} joined the roster with {slots:#slot}",
        "worker.finishing": (
            "worker {worker} finishes {running:#running job}, for at most {grace}, and then stops; a second signal "
            "ends everything immediately"
        ),
        "worker.left": "worker {worker} left the roster",
        "child.recycled": "child {pid} uses {memory} bytes and will be replaced",
        "store.locked": "{loop}: {error}; trying again",
        "store.back": "{loop}: MongoDB answers again",
        "change_stream.back": "process {process} watches the change stream again",
        "flow.ended": "flow {flow_name} ({flow}) has ended: {state}",
        "archive.cleaned": "cleaner {process} removed {removed:#old job} from the archive",
        "job.snoozed": "job {job} runs again {next:@%H:%M:%S}: {reason}",
        "job.cancelling": "job {job} is being cancelled by {by}: {reason}",
        "job.cancelled": "job {job}: {task} cancelled by {by}: {reason}",
        "job.expired": "job {job} expired before it started",
    },
    logging.WARNING: {
        "schema.older": (
            "database {database} has schema {schema} of an earlier release, which still works; run `recruiter prepare`"
        ),
        "session.ended": (
            "worker {worker} held a lock and was silent: its session was ended, so that its locks do not block others"
        ),
        "session.not_ended": "{error}",
        "worker.no_application": (
            "no application was named, so this worker knows only the ready-made tasks; name yours with --bootstrap"
        ),
        "worker.lost": (
            "worker {worker} is no longer on the roster; ended {running:#running job}, joining again under a new id"
        ),
        "worker.retired": (
            "worker {worker} was silent and was retired; {released:#job} released; jobs that ran at its last "
            "heartbeat: {ran}"
        ),
        "worker.unreadable": (
            "worker {worker} could not be read on the roster ({unreadable}) and was retired; {released:#job} released; "
            "jobs that ran at its last heartbeat: {ran}"
        ),
        "child.died": "child {pid} died: {how}; jobs it ran: {jobs}",
        "store.unreachable": "{loop}: {error}; trying again",
        "store.silent": "MongoDB at {target} has not answered for a second; still waiting: {waiting}",
        "change_stream.failed": "process {process} cannot watch the change stream and polls instead: {error}",
        "lane.unserved": (
            "jobs of task {task} in group {group} wait, and no worker serves them: start one that knows the task and "
            "works on the group"
        ),
        "job.dependency_failed": "job {job} was archived and never ran: {reason}",
        "flow.end_renamed": "a job at the end of a flow runs as {job}: the id that it was to have, {wanted}, is in use",
        "listener.failed": "listener {listener} failed on {event}: {error}; nothing else is affected",
        "instrument.failed": "instrument {instrument} failed: {error}; no job is affected",
        "progress.refused": "the progress of running jobs cannot be written until they end: {error}",
        "job.failed": "job {job}: {task} failed: {error}; next attempt at {next:%H:%M:%S}",
        "job.crashed": "job {job} crashed: {how}",
        "job.ended_by_force": "the process of job {job} was ended: {error}",
        "job.noted": "job {job}: {note}; its outcome stays as it was",
        "job.interrupted": "job {job} was interrupted: {why}",
        "job.misplaced": "job {job} has a task that this worker does not know; it was handed back",
        "job.superseded": "the result of job {job} was dropped: worker {worker} had been retired",
        "job.set_aside": "document {job} was set aside: {reason}",
        "job.taken_over": "document {job} was locked by {holder} for too long; the lock was removed",
    },
    logging.ERROR: {
        "process.failed": "{error}",
        "fleet.member_ended": (
            "the {member} (pid {member_pid}) {how}. The other processes are stopped; start everything again"
        ),
        "child.broken": "child {pid} cannot load the application",
        "loop.failed": "{loop}: a bug in Recruiter; please report it",
        "lane.never_fits": "jobs of task {task} in group {group} cannot run: each {reason}",
        "flow.broken": "flow {flow} cannot be processed: {error}; the other flows go on",
        "hook.failed": "hook {hook} failed: {error}",
        "scheduler.broken": "scheduler {urn} cannot be repeated: {reason}",
        "scheduler.overdue": "scheduler {urn} {told}",
        "job.failure.last": "job {job}: {task} failed for good on {worker} ({why}): {error}",
        "job.unopened": "job {job} was handed back, no attempt is counted: {error}",
        "job.reduced": "the outcome of job {job} could not be stored as it was: {error}",
    },
}
SENTENCES = {name: (level, text) for level, texts in _SENTENCES.items() for name, text in texts.items()}
"""The level and the message of each event. `sentence` fills in the fields."""
UNKNOWN = (logging.INFO, "")
