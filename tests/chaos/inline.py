"""A process that runs jobs by itself, as a script does: everything that is due, then what comes for a while, and again.

python -m tests.chaos.inline
"""

from __future__ import annotations

import signal
import threading
import time
from contextlib import suppress

from recruiter.errors import RecruiterError
from tests.chaos import application

TASKS = (application.plain, application.flaky, application.once, application.counted, application.slow)
"""Not what is limited: who runs jobs by himself cannot end one when others are given it (run-and-watch.md)."""
_WATCHES = 3.0


def main() -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    while not stop.is_set():
        for act in (_all, _watch):
            with suppress(RecruiterError):  # MongoDB is away
                act(stop)
        time.sleep(0.1)


def _all(_: threading.Event) -> None:
    application.recruiter.run_all(application.counted)


def _watch(stop: threading.Event) -> None:
    until = _Until(stop, time.monotonic() + _WATCHES)
    application.recruiter.watch(*TASKS, stop=until)


class _Until:
    """Set when the process was asked to stop, and when this time is over."""

    def __init__(self, stop: threading.Event, deadline: float) -> None:
        self._stop = stop
        self._deadline = deadline

    def is_set(self) -> bool:
        return self._stop.is_set() or time.monotonic() > self._deadline


if __name__ == "__main__":
    main()
