"""A change waiter waits on a change stream, so that a process need not poll.

Events are hints: the owner queries when it is woken, and regularly without being woken. A lost stream costs latency,
never a job.

A change stream makes the server read every write to the collection. So it is open only while its owner is idle (`arm`).
Under load the owner closes it (`hang_up`).

The stream is read by plain commands, one batch at a time: one batch wakes the owner once. The driver's cursor would
return one event after the other, and would reopen a stream that we have closed.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import PyMongoError

from recruiter.domain.planning.arrivals import Arrival
from recruiter.store.codec import LENIENT, Document
from recruiter.store.connection import drop_connections
from recruiter.store.errors import DRIVER_REFUSES, Meaning, meaning_of, translate
from recruiter.store.fields import is_job_id
from recruiter.store.sessions import cluster_time

_PATIENCE_MS = 10_000
"""The server waits this long for an event. A longer time means fewer operations on an idle system."""
FLOW_JOBS, LULL_SECONDS = 16, 1.0
"""Number of jobs that arrive together while work flows, and the time after the last of them for which polling is still
cheaper than a stream."""
_QUIET_SECONDS = 30.0
"""A passing failure of the stream is reported after this time: a new primary takes a few seconds."""
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.05, 1.0
_STALE_AFTER_SECONDS = 10.0
"""After this time without a read, a new stream is cheaper than reading the old events."""

_NO_FIELDS: Document = {}
LANE_CHANGES: Document = {"updateDescription.updatedFields.lane": 1}


@dataclass(frozen=True, slots=True)
class Change:
    """An event of a change stream."""

    collection: str | None
    lane: str | None
    """The lane of an inserted or replaced document; with `LANE_CHANGES`, the new lane of an updated document."""
    event: Document = field(default_factory=dict, compare=False)
    arrival: Arrival | None = None


class ChangeWaiter:
    """A thread that listens to a change stream. While armed, it calls `wake` with the changes that match; and with
    nothing when the stream was just opened, because changes may have happened before."""

    def __init__(
        self,
        place: Collection[Document] | Database[Document],
        match: Document,
        wake: Callable[[Sequence[Change]], None],
        on_trouble: Callable[[str | None], None],
        fields: Document = _NO_FIELDS,
    ) -> None:
        """`fields` are the fields of an event that the owner reads."""
        self.match = match
        of: str | int
        if isinstance(place, Database):
            self._database, of, self._cursors = place, 1, "$cmd.aggregate"
        else:
            self._database, of, self._cursors = place.database, place.name, place.name
        projection = {
            **dict.fromkeys(("_id", "ns.coll", "operationType", "clusterTime"), 1),
            **{f"fullDocument.{name}": 1 for name in ("_id", "lane", "scheduled_at")},
            **fields,
        }
        self._watch: Document = {
            "aggregate": of,
            "pipeline": [{"$changeStream": {}}, {"$match": match}, {"$project": projection}],
            "cursor": {},
            "readConcern": {"level": "majority"},  # streams take no other
        }
        self._wake = wake
        self._on_trouble = on_trouble
        """Called with the reason when it cannot listen, and with None when it listens again."""
        self._troubled = False
        self._not_listening_since: float | None = None
        self._pause = _FIRST_PAUSE_SECONDS
        self._armed = threading.Event()
        self._closed = False
        self._stale = False
        self._stream: tuple[int, ClientSession] | None = None
        self._read_at = 0.0
        self._thread = threading.Thread(target=self._listen, name=f"change-waiter-{place.name}", daemon=True)
        self._thread.start()

    @property
    def listening(self) -> bool:
        """Whether a stream is open now, so that the owner can sleep long."""
        return self._armed.is_set() and self._stream is not None

    @property
    def is_open(self) -> bool:
        """Whether a stream is open that has all events since it was opened."""
        return self._stream is not None and not self._stale

    def arm(self) -> None:
        self._armed.set()

    def hang_up(self) -> None:
        """Closes the stream while work flows: its owner polls then. The next `arm` opens a new stream."""
        if self._stale:
            return
        self._stale = True
        self._armed.clear()
        stream = self._stream
        if stream is not None:
            self._kill(stream[0])  # its open read ends with the next write

    def close(self) -> None:
        """The thread ends when the server answers its open read."""
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
                self._drop(kill=False)  # the server has closed it
                if not self._stale:  # otherwise `hang_up` has closed it
                    self._stream_failed(error)
        self._drop()

    def _stream_failed(self, error: PyMongoError) -> None:
        """The stream is lost or cannot be opened. The owner polls until there is a new one. A passing failure is
        reported only if it lasts: the owner itself reports that MongoDB does not answer."""
        meaning, now = meaning_of(error), time.monotonic()
        if meaning is Meaning.RECONNECT:
            drop_connections(self._database.client)
        self._not_listening_since = now if self._not_listening_since is None else self._not_listening_since
        passing = meaning is not Meaning.NOT_OURS and now - self._not_listening_since < _QUIET_SECONDS
        if not passing and not self._troubled and not self._closed:
            self._troubled = True
            self._on_trouble(str(translate(error)))
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, _MAX_PAUSE_SECONDS)

    def _wait_once(self) -> None:
        """Waits for events for a limited time, and wakes the owner if there are some; until it is armed again, nothing
        more is read. If no stream is open, or it is stale, it opens one and wakes the owner with nothing."""
        if self._stale or time.monotonic() - self._read_at > _STALE_AFTER_SECONDS:
            self._stale = False
            self._drop()
        changes: list[Change] = []
        if self._stream is None:
            self._open()
        else:
            try:
                changes = self._read()
                if not changes:
                    return
            except DRIVER_REFUSES:  # an event contains a document that was written by hand; its owner polls
                self._read_at = time.monotonic()
            self._armed.clear()
        self._wake(changes)

    def _open(self) -> None:
        session = self._database.client.start_session(causal_consistency=False)
        try:
            opened = self._database.command(self._watch, session=session, codec_options=LENIENT)
        except BaseException:
            session.end_session()
            raise
        self._stream = opened["cursor"]["id"], session
        self._read_at = time.monotonic()
        self._not_listening_since, self._pause = None, _FIRST_PAUSE_SECONDS
        if self._troubled:
            self._troubled = False
            self._on_trouble(None)

    def _read(self) -> list[Change]:
        """The next events; nothing if there were none for a while."""
        assert self._stream is not None
        id, session = self._stream
        command = {"getMore": id, "collection": self._cursors, "maxTimeMS": _PATIENCE_MS}
        cursor = self._database.command(command, session=session, codec_options=LENIENT)["cursor"]
        self._read_at = time.monotonic()
        if not cursor["id"]:  # the collection was dropped, for example
            self._drop()
        return [_change(event) for event in cursor["nextBatch"]]

    def _drop(self, *, kill: bool = True) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            id, session = stream
            if kill:
                self._kill(id)
            session.end_session()

    def _kill(self, cursor: int) -> None:
        with contextlib.suppress(PyMongoError):  # otherwise the server closes it later
            self._database.command({"killCursors": self._cursors, "cursors": [cursor]})


def _change(event: Document) -> Change:
    inserted = event.get("fullDocument", {})
    changed = event.get("updateDescription", {}).get("updatedFields", {})
    lane, place = inserted.get("lane", changed.get("lane")), event.get("ns", {}).get("coll")
    return Change(place, lane if isinstance(lane, str) else None, event, _arrival(event, inserted))


def _arrival(event: Document, inserted: Document) -> Arrival | None:
    """The inserted job; None for updates, because an updated job may be held. The event is unchecked."""
    id, lane, due = (inserted.get(name) for name in ("_id", "lane", "scheduled_at"))
    if event.get("operationType") != "insert" or not is_job_id(id):
        return None
    if not isinstance(lane, str) or not isinstance(due, datetime):
        return None
    return Arrival(id, lane, due, cluster_time(event.get("clusterTime")))
