"""Reloading: `recruiter dev` watches the files of the application and starts its processes again when one changes.

The new code is loaded first in a process of its own. If it cannot be loaded, the old code goes on.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from recruiter.domain.text import plural
from recruiter.processes.fleet import Fleet

MISSING = "files are not watched: pip install 'recruiter[reload]' to have changes reloaded"
_LOAD = "import sys; from recruiter.application import load_application; load_application(sys.argv[1])"
_LAST_LINES = 12


def is_installed() -> bool:
    """Whether the extra is there."""
    return importlib.util.find_spec("watchfiles") is not None


def folder_of(bootstrap: str) -> Path:
    """Where the files of an application are: the folder of its file, or for a module the working directory."""
    place = bootstrap.partition(":")[0] if not Path(bootstrap).exists() else bootstrap
    return Path(place).resolve().parent if place.endswith(".py") else Path.cwd()


class Reloader:
    """Collects changes of Python files, in a thread, until the fleet asks for them."""

    def __init__(self, bootstrap: str, folders: Iterable[Path], say: Callable[[str], None]) -> None:
        self._bootstrap = bootstrap
        self._folders = [str(folder) for folder in folders]
        self._say = say
        self._changed: set[str] = set()
        self._lock = threading.Lock()
        self._end = threading.Event()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While this block runs."""
        # Imported here, because the extra may not be installed.
        watchfiles = import_module("watchfiles")
        watched = watchfiles.watch(*self._folders, watch_filter=watchfiles.PythonFilter(), stop_event=self._end)
        thread = threading.Thread(target=self._collect, args=(watched,), name="reload", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._end.set()
            thread.join(timeout=10)

    def _collect(self, watched: Iterable[set[tuple[int, str]]]) -> None:
        for changes in watched:
            with self._lock:
                self._changed.update(path for _, path in changes)

    def take(self) -> list[str]:
        """The files that have changed since the last call, as a person names them."""
        with self._lock:
            changed, self._changed = self._changed, set()
        return sorted(os.path.relpath(path) for path in changed)

    def reload(self, fleet: Fleet) -> None:
        """To be called again and again; reloads the fleet if a file has changed and the application can be loaded."""
        changed = self.take()
        if not changed:
            return
        files = ", ".join(changed[:3]) + (f" and {plural(len(changed) - 3, 'more file')}" if len(changed) > 3 else "")
        trace = _error_of(self._bootstrap)
        if trace is not None:
            self._say(f"{files} changed, and the application cannot be loaded; the old code goes on:\n{trace}")
            return
        self._say(f"{files} changed: reloading; jobs that run finish with the old code")
        fleet.reload(lambda: self._say(f"reloaded {files}; the next jobs run the new code"))


def _error_of(bootstrap: str) -> str | None:
    """Loads the application in a process of its own; the end of the traceback if that fails."""
    ended = subprocess.run(
        [sys.executable, "-c", _LOAD, bootstrap], capture_output=True, text=True, check=False, process_group=0
    )
    return None if ended.returncode == 0 else "\n".join(ended.stderr.splitlines()[-_LAST_LINES:])
