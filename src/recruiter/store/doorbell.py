"""A doorbell: waits on a change stream so that nobody has to ask all the time.

It is a hint, never a truth: whoever is woken looks for itself, and looks now and then even if nothing rings. Losing
the stream costs latency, never a job.

A change stream makes the server read every write that anybody makes, so it is only listened to while its owner is
idle (`arm`). When work flows the owner hangs up (`hang_up`): under load nobody listens, and the load costs nothing
extra.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pymongo.collection import Collection
from pymongo.command_cursor import CommandCursor
from pymongo.database import Database
from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern

from recruiter.store.codec import Document
from recruiter.store.translate import translate

_PATIENCE_MS = 10_000
"""How long the server holds a question open. Longer means fewer operations on an idle system."""

FLOW, LULL = 16, 1.0
"""Work flows when so many jobs come at once; then, for so many seconds after the last of them, asking is cheaper than
listening."""

_STALE_AFTER = 10.0
"""A stream not read for this long has piled up history; a new one is cheaper than reading it."""


@dataclass(frozen=True, slots=True)
class Ring:
    """What happened; of a stream that has just been opened, anything may have happened before."""

    collection: str | None = None
    lane: str | None = None
    """Of a document that was inserted or replaced."""


class Doorbell:
    """Calls `ring` when something that matches happens there, while armed."""

    def __init__(
        self,
        place: Collection[Document] | Database[Document],
        match: Document,
        ring: Callable[[Ring], None],
        trouble: Callable[[str], None],
    ) -> None:
        self.match = match
        self._place = place.with_options(read_concern=ReadConcern("majority"))  # streams take no other
        self._database, self._name = (
            (place.database, place.name) if isinstance(place, Collection) else (place, "$cmd.aggregate")
        )
        told = {"_id": 1, "ns.coll": 1, "fullDocument.lane": 1}
        self._pipeline: Sequence[Document] = [{"$changeStream": {}}, {"$match": match}, {"$project": told}]
        self._ring = ring
        self._trouble = trouble
        self._troubled = False
        self._armed = threading.Event()
        self._closed = False
        self._stale = False
        # Not `watch`: that one would open a stream again by itself when we hang up.
        self._stream: CommandCursor[Any] | None = None
        self._read_at = 0.0
        self._thread = threading.Thread(target=self._listen, name=f"doorbell-{place.name}", daemon=True)
        self._thread.start()

    @property
    def listening(self) -> bool:
        """Whether a stream is open now, so that the owner may sleep long."""
        return self._armed.is_set() and self._stream is not None

    def arm(self) -> None:
        self._armed.set()

    def hang_up(self) -> None:
        """Work flows: the server shall not read all of it for somebody who looks by itself. The next stream is a new
        one."""
        if self._stale:
            return
        self._stale = True
        self._armed.clear()
        stream = self._stream
        if stream is not None:
            with contextlib.suppress(PyMongoError):  # its question ends by itself in a few seconds
                self._database.command({"killCursors": self._name, "cursors": [stream.cursor_id]})

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
                if self._stale:
                    self._drop()
                    continue
                # The server is away, or the history is gone, or we may not listen. The owner polls meanwhile.
                if not self._troubled and not self._closed:
                    self._trouble(str(translate(error)))
                self._troubled = True
                self._drop()
                time.sleep(1.0)
        self._drop()

    def _wait_once(self) -> None:
        if self._stale or time.monotonic() - self._read_at > _STALE_AFTER:
            self._stale = False
            self._drop()
        if self._stream is None:
            self._stream = self._place.aggregate(self._pipeline, maxAwaitTimeMS=_PATIENCE_MS, batchSize=1000)
            self._read_at = time.monotonic()
            self._ring(Ring())  # what happened before it was open is seen by looking once more
            return
        event = self._stream.try_next()
        self._read_at = time.monotonic()
        if not self._stream.alive:  # the collection is gone, say
            self._drop()
        self._troubled = False
        if event is not None and self._armed.is_set():
            self._armed.clear()
            self._ring(_ring(event))

    def _drop(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            with contextlib.suppress(PyMongoError):  # it is gone either way
                stream.close()


def _ring(event: Document) -> Ring:
    lane = event.get("fullDocument", {}).get("lane")
    return Ring(event.get("ns", {}).get("coll"), lane if isinstance(lane, str) else None)
