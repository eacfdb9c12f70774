"""How a running attempt tells its progress: from any of its threads, as often as it likes.

What it says is taken down in memory. The first word after a silence is passed on; until the sender has come
for it (`carry`), nothing more needs to be. So ten thousand words a second cost ten thousand entries in memory, and a
few deliveries.

The job's own thread may be interrupted anywhere by the end of its time. So it takes locks that are C all through,
never holds one while it waits, and leaves nothing that is wrong if the next line does not come.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from datetime import datetime

from recruiter.domain.progress import Progress, Recorder

OnProgress = Callable[["AttemptProgress"], None]
"""Called when an attempt has new progress to send."""


def ignore_progress(_progress: AttemptProgress) -> None:
    """For attempts whose progress is only stored with their outcome."""


class AttemptProgress:
    def __init__(self, before: Progress, now: Callable[[], datetime], on_progress: OnProgress) -> None:
        self._recorder = Recorder(before)
        self._now = now
        self._on_progress = on_progress
        self._recording, self._carrying = threading.Lock(), threading.Lock()
        self._closed = False
        self._process = os.getpid()
        self.called = False
        """The sender is on the way, and has set this."""

    def stage(self, stage: str, progress: float | None) -> None:
        if self._is_ours():
            with self._recording:
                self._recorder.stage(stage, progress, self._now())
            self._tell()

    def progress(self, value: float) -> None:
        if self._is_ours():
            with self._recording:
                self._recorder.progress(value, self._now())
            self._tell()

    def log(self, text: str) -> None:
        if self._is_ours():
            with self._recording:
                self._recorder.log(text, self._now())
            self._tell()

    def carry(self, away: Callable[[Progress], None]) -> None:
        """Hands over all that was said so far, unless the attempt is over."""
        with self._carrying:
            if not self._closed:
                self.called = False  # first: what is said from here on is told again
                away(self._all())

    def so_far(self) -> Progress:
        """All that was said so far; the attempt goes on."""
        return self._all()

    def close(self) -> Progress:
        """The attempt is over: nothing more is carried away, and nothing is on its way any more."""
        with self._carrying:
            self._closed = True
            return self._all()

    def _all(self) -> Progress:
        with self._recording:
            return self._recorder.all()

    def _tell(self) -> None:
        if not self.called:
            self._on_progress(self)

    def _is_ours(self) -> bool:
        """Not in a process that the job has forked: nobody would come there, and a lock may be taken for ever."""
        return not self._closed and os.getpid() == self._process
