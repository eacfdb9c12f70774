"""A thread that runs user code, for tests of interruptions."""

from __future__ import annotations

import threading
from collections.abc import Callable

from recruiter.interruption import Interruptible


class JobThread(threading.Thread):
    """Runs code that can be interrupted like any job in a thread."""

    def __init__(self, code: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._code = code
        self.interruptible = Interruptible()
        self.raised: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            with self.interruptible:
                self._code()
        except BaseException as error:
            self.raised = error
