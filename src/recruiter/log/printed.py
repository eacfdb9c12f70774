"""Standard output and error of a process that runs jobs: each line that a job prints is a line of the log."""

from __future__ import annotations

import io
import logging
import sys
import threading
from contextvars import ContextVar
from typing import Any, TextIO

from recruiter.log.context import PRINTED, FindContext, JobContext, write_printed

_LONGEST = 8_000
"""Characters; what goes on without a line break is cut into lines of this length."""

_writing: ContextVar[bool] = ContextVar("recruiter_printing", default=False)
"""A handler that writes to `sys.stderr` must not be sent back here."""


def capture_prints(find: FindContext) -> None:
    """What is printed from now on goes to the log: standard output as information, standard error as warnings."""
    sys.stdout = Printed(sys.stdout, logging.INFO, find)
    sys.stderr = Printed(sys.stderr, logging.WARNING, find)


class Printed(io.TextIOBase):
    """Takes the place of `sys.stdout` or `sys.stderr`. What programs write that a job starts does not pass here."""

    def __init__(self, real: TextIO, level: int, find: FindContext) -> None:
        self._real = real
        self._level = level
        self._find = find
        self._outside = JobContext(None, "", 0, "")
        """For what is printed while no job runs."""

    def write(self, text: str) -> int:
        if _writing.get() or not logging.getLogger(PRINTED).isEnabledFor(self._level):
            return self._real.write(text)
        token = _writing.set(True)
        try:
            self._take(text)
        finally:
            _writing.reset(token)
        return len(text)

    def _take(self, text: str) -> None:
        context = self._find()
        unfinished = (context or self._outside).unfinished
        key = (self._level, threading.get_ident())
        *lines, rest = (unfinished.pop(key, "") + text).replace("\r", "\n").split("\n")
        while len(rest) > _LONGEST:
            lines.append(rest[:_LONGEST])
            rest = rest[_LONGEST:]
        if rest:
            unfinished[key] = rest
        for line in lines:
            if line:
                write_printed(self._level, line, context)

    # -- the rest of a text stream is that of the real one -------------------------------------------------------

    @property
    def buffer(self) -> Any:
        return self._real.buffer

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._real.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        return self._real.errors

    def fileno(self) -> int:
        return self._real.fileno()

    def flush(self) -> None:
        self._real.flush()

    def isatty(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def close(self) -> None:
        """The process's own output is not closed by a job."""
