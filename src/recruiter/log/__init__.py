"""Logs: one listener turns events into lines, for people or for machines; jobs log and print through the same handler.

The processes of the command line call `configure`; the library itself never does. An application that has configured
logging when it was loaded keeps its own handlers and levels.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from recruiter.errors import SettingsError
from recruiter.events import Event
from recruiter.log.context import FindContext, JobContext, capture_prints, mark_records
from recruiter.log.lines import SENTENCES, UNKNOWN, JsonLines, PlainLines, sentence

if TYPE_CHECKING:
    from recruiter.settings import LogFormat, LogLevel

__all__ = [
    "JobContext",
    "JsonLines",
    "LogOptions",
    "PlainLines",
    "configure",
    "configure_child",
    "log_events",
]

LOGGER = "recruiter"
_CHATTY = ("asyncio", "pymongo", "watchfiles")
"""Libraries with many detailed messages; only their warnings are logged."""


@dataclass(frozen=True)
class LogOptions:
    """How a process and its children write their log."""

    level: LogLevel = "info"
    format: LogFormat = "text"
    program: str = ""
    config: str | None = None
    """A file for `logging.config.dictConfig`, in TOML or JSON, instead of level and format."""
    bootstrap: str | None = None
    """The application: classes that the file names may be next to it."""


def log_events(program: str) -> Callable[[Event], None]:
    """A listener that writes every event to the logger `recruiter`; configure that one as you like."""
    logger = logging.getLogger(LOGGER)

    def write(event: Event) -> None:
        level, _ = SENTENCES.get(event.name, UNKNOWN)
        if logger.isEnabledFor(level):
            extra = {"recruiter": {"program": program, "event": event}}
            logger.log(level, "%s", sentence(event)[1], extra=extra)

    return write


def configure(options: LogOptions, stream: TextIO | None = None) -> None:
    """Writes log lines to standard error, unless the application or `options.config` has configured logging."""
    mark_records(lambda: None)
    _configure(options, stream or sys.stderr)


def configure_child(options: LogOptions, find: FindContext) -> None:
    """The same for a process that runs jobs: their log lines and prints are marked with the job that `find` returns."""
    mark_records(find)
    if _configure(options, sys.stderr):
        logging.captureWarnings(True)
        capture_prints(find)


class _Handler(logging.StreamHandler[TextIO]):
    """Our handler. If the application has any other handler, ours is not used."""

    def handleError(self, record: logging.LogRecord) -> None:
        """A log that cannot be written must not harm the job that writes it."""


def _configure(options: LogOptions, stream: TextIO) -> bool:
    """Configures logging, unless the application has done so. Returns whether lines are written by our handler."""
    root = logging.getLogger()
    if options.config is not None:
        _configure_from(options.config, options.bootstrap)
        return False
    if logging.getLogger(LOGGER).level == logging.NOTSET:
        logging.getLogger(LOGGER).setLevel(options.level.upper())
    if any(not isinstance(handler, _Handler) for handler in root.handlers):
        return False
    handler = _Handler(stream)
    coloured = stream.isatty() and not os.environ.get("NO_COLOR")
    plain = options.format != "json"
    handler.setFormatter(PlainLines(options.program, coloured) if plain else JsonLines(options.program))
    root.handlers[:] = [handler]
    root.setLevel(options.level.upper())
    logging.getLogger(LOGGER).setLevel(options.level.upper())
    for name in _CHATTY:
        if logging.getLogger(name).level == logging.NOTSET:
            logging.getLogger(name).setLevel(logging.WARNING)
    return True


def _configure_from(file: str, bootstrap: str | None) -> None:
    """Configures logging from the user's file. It may name classes in the application's folder or in its own."""
    application = Path(bootstrap).parent if bootstrap is not None and bootstrap.endswith(".py") else Path.cwd()
    for folder in (Path(file).resolve().parent, application.resolve()):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    try:
        text = Path(file).read_text()
        config = tomllib.loads(text) if file.endswith(".toml") else json.loads(text)
        import_module("logging.config").dictConfig({"version": 1, "disable_existing_loggers": False, **config})
    except (OSError, ValueError, TypeError, AttributeError) as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        why = f"{error}: {type(cause).__name__}: {cause}" if cause is not error else str(error)
        raise SettingsError(f"the log cannot be configured from {file!r} (log_config): {why}") from None
