"""A process that runs jobs by itself, as a script does, again and again: all due jobs, or new jobs for some seconds.

python -m tests.chaos.inline all|watch
"""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from contextlib import suppress

from recruiter.errors import RecruiterError
from tests.chaos import application

TASKS = (
    *(application.plain, application.flaky, application.once, application.counted, application.slow),
    *(application.durable, application.part, application.changed, application.fair, application.ordered),
)
"""No limited jobs: this process cannot end a job that was assigned to another worker (run-and-watch.md)."""
_WATCHES = 10.0


def main(way: str) -> None:
    stop = threading.Event()
    if way == "watch":  # `run_all` ends by SIGTERM as any script does
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
    while not stop.wait(0.1):
        with suppress(RecruiterError):  # MongoDB is away
            if way == "all":
                application.recruiter.run_all(random.choice(TASKS))
            else:
                application.recruiter.watch(*TASKS, stop=_Until(stop, time.monotonic() + _WATCHES))


class _Until:
    """Set when the process was asked to stop, and after this time."""

    def __init__(self, stop: threading.Event, deadline: float) -> None:
        self._stop = stop
        self._deadline = deadline

    def is_set(self) -> bool:
        return self._stop.is_set() or time.monotonic() > self._deadline


if __name__ == "__main__":
    main(sys.argv[1])
