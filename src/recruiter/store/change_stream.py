"""A change waiter waits on a change stream, so that a process need not poll.

It gives a hint, never a fact: its owner queries for itself when it is woken, and now and then without being woken.
Losing the stream costs latency, never a job.

A change stream makes the server read every write to the collection. So it is open only while its owner is idle (`arm`).
Under load the owner closes it (`hang_up`), and the stream costs nothing.

The stream is read by plain commands, a whole batch at a time: one batch wakes the owner once. The driver's own cursor
would return one event after the other, and would reopen a stream that we have closed.
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
from recruiter.store.errors import Meaning, meaning_of, translate
from recruiter.store.fields import is_job_id
from recruiter.store.sessions import cluster_time

_PATIENCE_MS = 10_000
"""How long the server holds a question open. Longer means fewer operations on an idle system."""

FLOW, LULL = 16, 1.0
"""Work flows when so many jobs come at once; then, for so many seconds after the last of them, asking is cheaper than
listening."""

_QUIET = 30.0
"""Seconds without a stream before this is reported, if the reason is a passing one: a new primary takes a few."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0

_STALE_AFTER = 10.0
"""A stream not read for this long has piled up history; a new one is cheaper than reading it."""


_NO_FIELDS: Document = {}
LANE_CHANGES: Document = {"updateDescription.updatedFields.lane": 1}


@dataclass(frozen=True, slots=True)
class Change:
    """What has happened."""

    collection: str | None
    lane: str | None
    """Of a document that was inserted or replaced; with `LANE_CHANGES`, also of one that has changed its lane."""
    event: Document = field(default_factory=dict, compare=False)
    """As much of it as was asked for."""
    arrival: Arrival | None = None
    """The job, if one was inserted."""


class ChangeWaiter:
    """Calls `wake` when something that matches happens there, while armed: with what it was, or with nothing when the
    stream has just been opened, and anything may have happened before."""

    def __init__(
        self,
        place: Collection[Document] | Database[Document],
        match: Document,
        wake: Callable[[Sequence[Change]], None],
        on_trouble: Callable[[str | None], None],
        fields: Document = _NO_FIELDS,
    ) -> None:
        """`fields` are those of an event that the owner wants to read itself."""
        self.match = match
        of: str | int
        if isinstance(place, Database):
            self._database, of, self._cursors = place, 1, "$cmd.aggregate"
        else:
            self._database, of, self._cursors = place.database, place.name, place.name
        told = {
            **dict.fromkeys(("_id", "ns.coll", "operationType", "clusterTime"), 1),
            **{f"fullDocument.{name}": 1 for name in ("_id", "lane", "scheduled_at")},
            **fields,
        }
        self._watch: Document = {
            "aggregate": of,
            "pipeline": [{"$changeStream": {}}, {"$match": match}, {"$project": told}],
            "cursor": {},
            "readConcern": {"level": "majority"},  # streams take no other
        }
        self._wake = wake
        self._on_trouble = on_trouble
        """Called with the reason when it cannot listen, and with None when it listens again."""
        self._troubled = False
        self._not_listening_since: float | None = None
        self._pause = _FIRST_PAUSE
        self._armed = threading.Event()
        self._closed = False
        self._stale = False
        self._stream: tuple[int, ClientSession] | None = None
        self._read_at = 0.0
        self._thread = threading.Thread(target=self._listen, name=f"change-waiter-{place.name}", daemon=True)
        self._thread.start()

    @property
    def listening(self) -> bool:
        """Whether a stream is open now, so that the owner may sleep long."""
        return self._armed.is_set() and self._stream is not None

    @property
    def is_open(self) -> bool:
        """Whether a stream is open that will tell of everything since it was opened, once it is read."""
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
            self._kill(stream[0])  # its question ends with the next write

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
                self._drop(kill=False)  # it is gone with its server, or with what the error is about
                if not self._stale:
                    self._stream_failed(error)
        self._drop()

    def _stream_failed(self, error: PyMongoError) -> None:
        """The stream is lost or cannot be opened. The owner polls until there is a new one. This is reported only if it
        lasts, because every process reports by itself that MongoDB does not answer."""
        meaning, now = meaning_of(error), time.monotonic()
        if meaning is Meaning.RECONNECT:
            drop_connections(self._database.client)
        self._not_listening_since = now if self._not_listening_since is None else self._not_listening_since
        passing = meaning is not Meaning.NOT_OURS and now - self._not_listening_since < _QUIET
        if not passing and not self._troubled and not self._closed:
            self._troubled = True
            self._on_trouble(str(translate(error)))
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def _heard(self) -> None:
        self._not_listening_since, self._pause = None, _FIRST_PAUSE
        if self._troubled:
            self._troubled = False
            self._on_trouble(None)

    def _wait_once(self) -> None:
        if self._stale or time.monotonic() - self._read_at > _STALE_AFTER:
            self._stale = False
            self._drop()
        changes: list[Change] = []
        if self._stream is None:
            self._open()
        else:
            changes = self._read()
            if not changes:
                return
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
        self._heard()

    def _read(self) -> list[Change]:
        """What has happened; nothing, if it was nothing for a while."""
        assert self._stream is not None
        id, session = self._stream
        question = {"getMore": id, "collection": self._cursors, "maxTimeMS": _PATIENCE_MS}
        cursor = self._database.command(question, session=session, codec_options=LENIENT)["cursor"]
        self._read_at = time.monotonic()
        if not cursor["id"]:  # the collection is gone, say
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
        with contextlib.suppress(PyMongoError):  # it is gone either way, sooner or later
            self._database.command({"killCursors": self._cursors, "cursors": [cursor]})


def _change(event: Document) -> Change:
    inserted = event.get("fullDocument", {})
    changed = event.get("updateDescription", {}).get("updatedFields", {})
    lane, place = inserted.get("lane", changed.get("lane")), event.get("ns", {}).get("coll")
    return Change(place, lane if isinstance(lane, str) else None, event, _arrival(event, inserted))


def _arrival(event: Document, inserted: Document) -> Arrival | None:
    """Only of an insert: a job that was updated may be held. Nothing here has been checked by anybody."""
    id, lane, due = (inserted.get(name) for name in ("_id", "lane", "scheduled_at"))
    if event.get("operationType") != "insert" or not is_job_id(id):
        return None
    if not isinstance(lane, str) or not isinstance(due, datetime):
        return None
    return Arrival(id, lane, due, cluster_time(event.get("clusterTime")))
