"""The pipes between the dispatcher and its children: which of them have something to read, or take more again.

The dispatcher waits here for all of them at once: an answer, the death of a child, room in a pipe that was full, or a
wake-up from another thread.
"""

from __future__ import annotations

import contextlib
import os
import selectors
from collections.abc import Callable
from functools import partial

from recruiter.processes.worker.child_handle import ChildHandle

OnChild = Callable[[ChildHandle], None]


class ChildPipes:
    """One thread owns it; others may call `wake`."""

    def __init__(self, on_answer: OnChild, on_death: OnChild) -> None:
        self._on_answer = on_answer
        self._on_death = on_death
        self._selector = selectors.DefaultSelector()
        self._full: dict[int, ChildHandle] = {}
        """Ends of pipes that did not take all there is to send."""
        self._closed = False
        self._wake_read, self._wake_write = os.pipe()
        for end in (self._wake_read, self._wake_write):
            os.set_blocking(end, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._woken)

    def wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # enough wake-ups are waiting already
            if not self._closed:
                os.write(self._wake_write, b"!")

    def wait(self, seconds: float) -> list[Callable[[], None]]:
        """Waits until something happens, at most so long; returns what to call for it."""
        return [key.data for key, _ in self._selector.select(seconds)]

    def close(self) -> None:
        """To be called when no other thread is left that could wake it."""
        self._closed = True
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    # -- one child -----------------------------------------------------------------------------------------------

    def add(self, child: ChildHandle) -> None:
        self._selector.register(child.read_end, selectors.EVENT_READ, partial(self._on_answer, child))
        self._selector.register(child.process.sentinel, selectors.EVENT_READ, partial(self._on_death, child))

    def watch_full(self, child: ChildHandle) -> None:
        """After something was sent to it: waits for its full pipes to take more, and for no others."""
        full = set(child.blocked_ends)
        self._stop_watching([end for end in self._full_ends(child) if end not in full])
        for end in full.difference(self._full):
            self._full[end] = child
            self._selector.register(end, selectors.EVENT_WRITE, partial(self._flush, child))

    def stop_reading(self, child: ChildHandle) -> None:
        """It has closed its pipe, which would be readable for ever."""
        with contextlib.suppress(KeyError):
            self._selector.unregister(child.read_end)

    def stop_writing(self, child: ChildHandle) -> None:
        """Before its pipe for jobs is closed: the number of that end is used again for another file."""
        if child.write_end in self._full:
            self._stop_watching([child.write_end])

    def remove(self, child: ChildHandle) -> None:
        """It is dead, and about to be closed."""
        self.stop_reading(child)
        self._selector.unregister(child.process.sentinel)
        self._stop_watching(self._full_ends(child))

    def _full_ends(self, child: ChildHandle) -> list[int]:
        return [end for end, owner in self._full.items() if owner is child]

    def _stop_watching(self, ends: list[int]) -> None:
        for end in ends:
            del self._full[end]
            self._selector.unregister(end)

    def _flush(self, child: ChildHandle) -> None:
        if child in self._full.values():  # it may have been removed by what happened at the same moment
            child.flush()
            self.watch_full(child)

    def _woken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)
