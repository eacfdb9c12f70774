"""Logs: one listener turns events into lines, for people or for machines."""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TextIO

from recruiter.events import Event
from recruiter.settings import LogFormat, LogLevel

LOGGER = "recruiter"

_SENTENCES: dict[str, tuple[int, str]] = {
    "process.started": (logging.INFO, "{program} started on {target}"),
    "process.stopping": (logging.INFO, "asked to stop"),
    "leader.elected": (logging.INFO, "leads now, term {term}"),
    "leader.stept_back": (logging.INFO, "leads no more"),
    "recruiter.standing_by": (logging.INFO, "stands by: another recruiter leads"),
    "cleaner.at_work": (logging.DEBUG, "keeps the archive small"),
    "session.not_ended": (logging.WARNING, "{error}"),
    "worker.joined": (logging.INFO, "worker {worker} joined the roster with {slots} slots"),
    "worker.left": (logging.INFO, "worker {worker} left the roster"),
    "worker.lost": (
        logging.WARNING,
        "worker {worker} is no longer on the roster; ended {running} running jobs, joining again under a new id",
    ),
    "worker.retired": (
        logging.WARNING,
        "worker {worker} fell silent and was retired; {released} jobs released, crashed: {crashed}",
    ),
    "child.started": (logging.DEBUG, "child {pid} is ready"),
    "child.died": (logging.WARNING, "child {pid} died: {how}; jobs it ran: {jobs}"),
    "child.broken": (logging.ERROR, "child {pid} cannot load the application:\n{trace}"),
    "child.recycled": (logging.INFO, "child {pid} uses {memory} bytes and will be replaced"),
    "store.unreachable": (logging.WARNING, "{loop}: {error}; trying again"),
    "store.back": (logging.INFO, "{loop}: MongoDB answers again"),
    "doorbell.failed": (logging.WARNING, "cannot listen for changes and asks more often instead: {error}"),
    "loop.failed": (logging.ERROR, "{loop}: a mistake inside Recruiter; please report it:\n{trace}"),
    "lane.unserved": (
        logging.WARNING,
        "jobs of task {task} in group {group} wait, and no worker serves them: "
        "start one that knows the task and works on the group",
    ),
    "lane.never_fits": (logging.ERROR, "jobs of task {task} in group {group} cannot run: each {reason}"),
    "archive.cleaned": (logging.INFO, "removed {removed} old jobs from the archive"),
    "hook.failed": (logging.ERROR, "hook {hook} failed: {error}"),
    "listener.failed": (logging.WARNING, "listener {listener} failed on {event}: {error}; nothing else is affected"),
    "scheduler.repeated": (logging.DEBUG, "made {made} jobs of repeatable ones, skipped {skipped}"),
    "scheduler.broken": (logging.ERROR, "scheduler {urn} cannot be repeated: {reason}"),
    "scheduler.overdue": (logging.ERROR, "scheduler {urn} {told}"),
    "progress.refused": (logging.WARNING, "what jobs say of themselves cannot be written until they end: {error}"),
    "job.ended": (logging.DEBUG, "job {job}: {task} done in {seconds:.3f} s"),
    "job.failed": (logging.WARNING, "job {job} failed: {error}; next attempt at {next:%H:%M:%S}"),
    "job.failure.last": (logging.ERROR, "job {job}: {task} failed for good ({why}): {error}"),
    "job.crashed": (logging.WARNING, "job {job} crashed: {how}"),
    "job.ended_by_force": (logging.WARNING, "the process of job {job} was ended: {error}"),
    "job.snoozed": (logging.INFO, "job {job} wants to be run again at {next:%H:%M:%S}: {reason}"),
    "job.noted": (logging.WARNING, "job {job}: {note}; its outcome stays as it was"),
    "job.interrupted": (logging.WARNING, "job {job} interrupted and handed back: {why}"),
    "job.misplaced": (logging.WARNING, "job {job} is of a task that this worker does not know; put back to wait"),
    "job.reduced": (logging.ERROR, "the outcome of job {job} could not be stored as it was: {error}"),
    "job.superseded": (
        logging.WARNING,
        "the result of job {job} was dropped: worker {worker} had been retired",
    ),
    "job.set_aside": (logging.WARNING, "document {job} was set aside: {reason}"),
    "job.taken_over": (logging.WARNING, "document {job} was locked by {holder} for too long and is taken over"),
    "job.cancelling": (logging.INFO, "job {job} is told that it was cancelled by {by}: {reason}"),
    "job.cancelled": (logging.INFO, "job {job} cancelled"),
}
_UNKNOWN = (logging.INFO, "")
_COLOURS = {logging.DEBUG: "32", logging.INFO: "36", logging.WARNING: "33", logging.ERROR: "31"}


def log_events(program: str) -> Callable[[Event], None]:
    """A listener that writes every event to the logger `recruiter`; configure that one as you like."""
    logger = logging.getLogger(LOGGER)

    def write(event: Event) -> None:
        level, sentence = _SENTENCES.get(event.name, _UNKNOWN)
        if logger.isEnabledFor(level):
            text = sentence.format_map(event.fields) if sentence else f"{event.name} {event.fields}"
            logger.log(level, "%s", text, extra={"recruiter": {"program": program, "event": event}})

    return write


def configure(level: LogLevel, format: LogFormat, program: str, stream: TextIO | None = None) -> None:
    """Writes log lines to standard error; for the command line, never called by the library itself."""
    stream = stream or sys.stderr
    handler = logging.StreamHandler(stream)
    coloured = stream.isatty() and not os.environ.get("NO_COLOR")
    handler.setFormatter(_JsonLines(program) if format == "json" else _PlainLines(program, coloured))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger(LOGGER).setLevel(level.upper())


class _PlainLines(logging.Formatter):
    def __init__(self, program: str, coloured: bool) -> None:
        super().__init__()
        self._who = f"{socket.gethostname()}[{os.getpid()}] {program}"
        self._coloured = coloured

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        line = f"{moment} {self._who:<24} {record.levelname:<7} {record.getMessage()}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return f"\x1b[{_COLOURS.get(record.levelno, '0')}m{line}\x1b[0m" if self._coloured else line


class _JsonLines(logging.Formatter):
    def __init__(self, program: str) -> None:
        super().__init__()
        self._who = {"host": socket.gethostname(), "pid": os.getpid(), "program": program}

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            **self._who,
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        told = getattr(record, "recruiter", None)
        if told is not None:
            line["event"] = told["event"].name
            line.update((key, value) for key, value in told["event"].fields.items() if key not in line)
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
