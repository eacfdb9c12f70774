"""Log records name the job that runs. Each line that a job prints becomes such a record.

`attempt.py` knows the job that runs in this thread or task. It is above this module, so a process that runs jobs passes
a function that finds the job (`configure_child`).
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TextIO, cast


@dataclass(slots=True)
class JobContext:
    """The job that a log line is about."""

    job: Any
    task: str
    attempt: int
    worker: str
    trace_id: str | None = None
    unfinished: dict[tuple[int, int], str] = field(default_factory=dict)
    """Its printed text since the last line break, by level and thread."""

    def close(self) -> None:
        """The job has ended: writes its unfinished lines."""
        while self.unfinished:
            (level, _), text = self.unfinished.popitem()
            if text:
                write_printed(level, text, self)


FindContext = Callable[[], JobContext | None]

PRINTED = "recruiter.printed"
"""The logger of lines that jobs print."""

_FIELDS = ("job", "task", "attempt", "worker", "trace_id")
_find: FindContext = lambda: None  # noqa: E731
_make: Callable[..., logging.LogRecord] = logging.LogRecord
_installing = threading.Lock()


def mark_records(find: FindContext) -> None:
    """From now on, marks every log record with its job: `recruiter_job`, `recruiter_task`, `recruiter_attempt`,
    `recruiter_worker` and `recruiter_trace_id`, for any formatter. They are None where `find` finds no job."""
    global _find, _make
    with _installing:
        _find = find
        if logging.getLogRecordFactory() is not _marked:
            _make = logging.getLogRecordFactory()
            logging.setLogRecordFactory(_marked)


def context_of(record: logging.LogRecord) -> dict[str, Any]:
    """The job that a record is about, as fields; empty where there is none."""
    if getattr(record, "recruiter_job", None) is None:
        return {}
    fields = {name: getattr(record, f"recruiter_{name}", None) for name in _FIELDS}
    return {name: value for name, value in fields.items() if value is not None or name != "trace_id"}


def write_printed(level: int, line: str, context: JobContext | None) -> None:
    logger = logging.getLogger(PRINTED)
    record = logger.makeRecord(PRINTED, level, "", 0, "%s", (line,), None)
    _mark(record, context)
    logger.handle(record)


def _marked(*arguments: Any, **more: Any) -> logging.LogRecord:
    record = _make(*arguments, **more)
    try:
        _mark(record, _find())
    except Exception:  # a job whose document has unexpected values
        _mark(record, None)
    return record


def _mark(record: logging.LogRecord, context: JobContext | None) -> None:
    for name in _FIELDS:
        setattr(record, f"recruiter_{name}", getattr(context, name, None))


_MAX_LINE_CHARACTERS = 8_000
"""A longer line is cut into lines of this length."""

_writing: ContextVar[bool] = ContextVar("recruiter_printing", default=False)
"""A handler that writes to `sys.stderr` must not be sent back here."""


def capture_prints(find: FindContext) -> None:
    """Sends all prints to the log: standard output as information, standard error as warnings."""
    sys.stdout = cast(TextIO, Printed(sys.stdout, logging.INFO, find))
    sys.stderr = cast(TextIO, Printed(sys.stderr, logging.WARNING, find))


class Printed:
    """Replaces `sys.stdout` or `sys.stderr`. The output of programs that a job starts does not pass here."""

    def __init__(self, real: TextIO, level: int, find: FindContext) -> None:
        self._real = real
        self._level = level
        self._find = find
        self._outside = JobContext(None, "", 0, "")
        """For prints while no job runs."""

    def __getattr__(self, name: str) -> Any:
        """All other parts of a stream come from the real one."""
        return getattr(self._real, name)

    def write(self, text: str) -> int:
        """Sends the text to the log; to the real stream if it comes from a log handler, or if prints are not logged."""
        if _writing.get() or not logging.getLogger(PRINTED).isEnabledFor(self._level):
            return self._real.write(text)
        token = _writing.set(True)
        try:
            self._log(text)
        finally:
            _writing.reset(token)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def _log(self, text: str) -> None:
        """Logs each line that the text completes. The rest waits for its line break, apart for each thread."""
        context = self._find()
        unfinished = (context or self._outside).unfinished
        key = (self._level, threading.get_ident())
        *lines, unfinished_line = (unfinished.pop(key, "") + text).replace("\r", "\n").split("\n")
        while len(unfinished_line) > _MAX_LINE_CHARACTERS:
            lines.append(unfinished_line[:_MAX_LINE_CHARACTERS])
            unfinished_line = unfinished_line[_MAX_LINE_CHARACTERS:]
        if unfinished_line:
            unfinished[key] = unfinished_line
        for line in lines:
            if line:
                write_printed(self._level, line, context)

    def isatty(self) -> bool:
        return False

    def close(self) -> None:
        """A job must not close the output of the process."""
