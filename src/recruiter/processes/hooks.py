"""The application's hooks: what it wants to be called when its recruiter begins to lead, and when it leads no more."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from recruiter.domain.text import said_by
from recruiter.events import Events


@dataclass(frozen=True, slots=True)
class Hook:
    name: str
    call: Callable[[], object]


class Hooks:
    """Calls them in order, on a thread of their own: a slow hook must not cost the lease.

    Whatever one raises is an event and harms nobody: the others are called, then and at the next change.
    """

    def __init__(self, events: Events, became_master: Sequence[Hook] = (), stept_back: Sequence[Hook] = ()) -> None:
        self._events = events
        self._became_master = became_master
        self._stept_back = stept_back
        self._calls: queue.Queue[Hook | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name="hooks", daemon=True)
        self._thread.start()

    def became_master(self) -> None:
        for hook in self._became_master:
            self._calls.put(hook)

    def stept_back(self) -> None:
        for hook in self._stept_back:
            self._calls.put(hook)

    def close(self) -> None:
        self._calls.put(None)
        self._thread.join(timeout=5.0)

    def _run(self) -> None:
        while (hook := self._calls.get()) is not None:
            try:
                hook.call()
            except BaseException as error:  # one that calls exit() too: it would end this thread, without a word
                self._events.emit("hook.failed", hook=hook.name, error=said_by(error, repr))
