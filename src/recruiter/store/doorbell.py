"""A doorbell: waits on a change stream so that nobody has to ask all the time.

It is a hint, never a truth: whoever is woken looks for itself, and looks now and then even if nothing rings. Losing
the stream costs latency, never a job.

A change stream makes the server read every write that anybody makes, so it is only listened to while its owner is
idle (`arm`). Under load nobody listens, and the load costs nothing extra.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from pymongo.change_stream import ChangeStream
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern

from recruiter.store.codec import Document
from recruiter.store.translate import translate

_PATIENCE_MS = 10_000
"""How long the server holds a question open. Longer means fewer operations on an idle system."""

FLOW, LULL = 16, 0.25
"""Work flows when so many jobs come at once; then, for so many seconds after the last of them, asking is cheaper than
listening."""

_STALE_AFTER = 1.0
"""A stream not read for this long has piled up history; a new one is cheaper than reading it."""


class Doorbell:
    """Calls `ring` when something that matches happens there, while armed."""

    def __init__(
        self,
        place: Collection[Document] | Database[Document],
        match: Document,
        ring: Callable[[], None],
        trouble: Callable[[str], None],
    ) -> None:
        self.match = match
        self._place = place.with_options(read_concern=ReadConcern("majority"))  # streams take no other
        self._pipeline: Sequence[Document] = [{"$match": match}, {"$project": {"_id": 1}}]
        self._ring = ring
        self._trouble = trouble
        self._troubled = False
        self._armed = threading.Event()
        self._closed = False
        self._stream: ChangeStream[Any] | None = None
        self._read_at = 0.0
        self._thread = threading.Thread(target=self._listen, name=f"doorbell-{place.name}", daemon=True)
        self._thread.start()

    @property
    def listening(self) -> bool:
        """Whether a stream is open now, so that the owner may sleep long."""
        return self._armed.is_set() and self._stream is not None

    def arm(self) -> None:
        self._armed.set()

    def close(self) -> None:
        """Stops listening. The thread ends by itself when the server answers its open question."""
        self._closed = True
        self._armed.set()

    def _listen(self) -> None:
        while True:
            self._armed.wait()
            if self._closed:
                break
            try:
                self._wait_once()
            except PyMongoError as error:
                # The server is away, or the history is gone, or we may not listen. The owner polls meanwhile.
                if not self._troubled and not self._closed:
                    self._trouble(str(translate(error)))
                self._troubled = True
                self._drop()
                time.sleep(1.0)
        self._drop()

    def _wait_once(self) -> None:
        if self._stream is not None and time.monotonic() - self._read_at > _STALE_AFTER + _PATIENCE_MS / 1000:
            self._drop()
        if self._stream is None:
            self._stream = self._place.watch(self._pipeline, max_await_time_ms=_PATIENCE_MS, batch_size=1000)
            self._read_at = time.monotonic()
            self._ring()  # what happened before it was open is seen by looking once more
            return
        event = self._stream.try_next()
        self._read_at = time.monotonic()
        self._troubled = False
        if event is not None and self._armed.is_set():
            self._armed.clear()
            self._ring()

    def _drop(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            with contextlib.suppress(PyMongoError):  # it is gone either way
                stream.close()
