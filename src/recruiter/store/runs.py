"""A run of a job, proved and fenced: what it writes on its own job, and in its own transaction, counts only while it is
the job's holder.

Most jobs never need this: what became of them is settled by their worker. A job that uses `current_job.transaction`
writes to MongoDB itself, from its own process, which may go on when its worker has lost the job. So before
its first such write the run proves that its worker holds the job, and leaves a *token* on the job's document, in one
transaction:

    roster      {_id: worker, assigned: job}   a write, so that retiring the worker, or handing back the job, conflicts
    scheduled   {_id: job, attempts}           token, started_by, started_at

Whatever ends the hold removes the token: settling, handing back a started job, retiring the worker. So each write of
the run that asks for `{_id: job, token}` is the holder's own, and the roster, which heartbeats and assignments need, is
not touched again. `/docs/explanation/guarantees.md` says what follows for users.

A process that dies in a transaction keeps its locks for a minute. So the sessions in which a run writes are noted on
the roster, with the process, before they are used: the supervisor ends those of a child that died, and the leader
those of a worker that it retires.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from recruiter.domain.job import JobId
from recruiter.domain.names import id_told
from recruiter.errors import Superseded
from recruiter.store.codec import Document
from recruiter.store.sessions import SessionId

if TYPE_CHECKING:
    from recruiter.store.database import Store


class Run:
    """One run of a job. Nothing is written before it is asked to."""

    def __init__(
        self,
        store: Callable[[], Store],
        document: Document,
        worker: str,
        started_at: datetime,
        succeeded: Callable[[], bytes],
        *,
        stored: bool,
    ) -> None:
        """A job that is not `stored` runs where it was made, and no other process knows of it."""
        self._store = store
        self.document = document
        self.worker = worker
        self.stored = stored
        self.started_at = started_at
        self.succeeded = succeeded
        """Makes the document for the archive, as of now."""
        self.token: UUID | None = None
        self.in_transaction = False
        self.committed: bytes | None = None
        """The archived document, once the job has ended in its own transaction."""
        self.not_committed: BaseException | None = None
        """Why its own transaction could not be committed, if that was not the job's own doing."""
        self.answer_was_lost = False
        """It ran again because nobody heard that it had committed."""
        self.ended_early = 0
        """Runs in a row whose transaction MongoDB had ended before the block was left."""

    @property
    def id(self) -> JobId:
        id: JobId = self.document["_id"]
        return id

    @property
    def store(self) -> Store:
        return self._store()

    def prove(self, *sessions: SessionId, transaction: bool = False) -> None:
        """Proves the hold, once in a run. With `transaction` the job's own transaction follows: until it is over, no
        progress is written on the job, which would have to wait for it. Raises Superseded."""
        if not self.stored or (self.token is not None and not transaction):
            return
        store = self.store
        self._note(store.transactions.session_id, *sessions)
        if self.token is None:
            token = uuid4()
            fields: Document = {"token": token, "started_by": self.worker, "started_at": self.started_at}
            if transaction:
                fields["transaction"] = True
            if not store.transactions.begin_run(self.worker, self.id, self.document["attempts"], fields):
                raise self.lost()
            self.token = token
        elif not store.scheduled.announce_transaction(self.id, self.token):
            raise self.lost()

    def is_mine(self, archived: Any) -> bool:
        """Whether this run is the one that ended the job: its answer was lost, and it looks again."""
        last = archived.get("last_execution") if isinstance(archived, dict) else None
        return isinstance(last, dict) and (last.get("worker"), last.get("started_at")) == (
            self.worker,
            _as_stored(self.started_at),
        )

    def lost(self) -> Superseded:
        return Superseded(
            f"job {id_told(self.id)} no longer belongs to worker {self.worker}: the worker was retired, or handed it "
            "back. Nothing was written; the job runs elsewhere"
        )

    def _note(self, *sessions: SessionId) -> None:
        """On the roster, once for each registration."""
        new = _noted.news(self.worker, sessions)
        if new and not self.store.roster.note_sessions(self.worker, os.getpid(), new):
            raise self.lost()
        _noted.add(self.worker, new)


class _Noted:
    """The sessions of this process that are on the roster."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: set[tuple[int, str, str]] = set()

    def news(self, worker: str, sessions: tuple[SessionId, ...]) -> list[SessionId]:
        with self._lock:
            return [session for session in sessions if self._key(worker, session) not in self._known]

    def add(self, worker: str, sessions: list[SessionId]) -> None:
        with self._lock:
            self._known.update(self._key(worker, session) for session in sessions)

    def _key(self, worker: str, session: SessionId) -> tuple[int, str, str]:
        return os.getpid(), worker, repr(session)


_noted = _Noted()


def _as_stored(moment: datetime) -> datetime:
    """BSON cuts to milliseconds."""
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)
