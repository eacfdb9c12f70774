"""A run of a job that writes to MongoDB itself. Its writes count only while its worker holds the job.

Most jobs never need this: their worker settles their outcome. A job that uses `current_job.transaction` writes from its
own process, which may continue when its worker has lost the job. So before its first write the run proves that its
worker holds the job, and leaves a *token* on the job's document, in one transaction:

    roster      {_id: worker, assigned: job}   a write, so that retiring the worker, or handing back the job, conflicts
    scheduled   {_id: job, attempts}           token, started_by, started_at

Settling, handing back a started job and retiring the worker remove the token. So a write of the run that requires
`{_id: job, token}` succeeds only for the holder, and does not touch the roster, which heartbeats and assignments need.
See `/docs/explanation/guarantees.md` for the guarantees to users.

A process that dies in a transaction keeps its locks for a minute. So the sessions of a run are stored on the roster
before they are used: the supervisor ends the sessions of a dead child, and the leader the sessions of a retired worker.

The checkpoints of a job (`current_job.once`, `sleep`, `wait_for`) are written under the same token.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from recruiter.domain.arguments.typed import decode_result, encode_result
from recruiter.domain.job import NO_SIGNAL, Checkpoint, JobId, Signal, SignalWait, check_checkpoint
from recruiter.domain.names import id_told
from recruiter.errors import InvalidSession, JobEnded, JobTooLarge, Superseded, UnsupportedValue
from recruiter.store.codec import LARGEST_JOB, Document, encode
from recruiter.store.job_fields import checkpoint_document, checkpoints_of, signal_wait_from, signals_of
from recruiter.store.outcomes import ToArchive
from recruiter.store.payload import Payload, Sealed, owner_of
from recruiter.store.sessions import SessionId

if TYPE_CHECKING:
    from recruiter.store.database import Store


class Run:
    """One run of a job. It writes nothing before it is asked to."""

    def __init__(
        self,
        store: Callable[[], Store],
        document: Document,
        worker: str,
        started_at: datetime,
        succeeded: Callable[[], ToArchive],
        *,
        stored: bool,
    ) -> None:
        """A job that is not `stored` runs in the process that created it."""
        self._store = store
        self.document = document
        self.worker = worker
        self.stored = stored
        self.started_at = started_at
        self.succeeded = succeeded
        """The outcome, if the job succeeds now."""
        self.token: UUID | None = None
        self._proving = threading.Lock()
        """Several threads of a job may prove the hold at the same time: there is one token."""
        self.in_transaction = False
        self.committed: ToArchive | None = None
        """The outcome, once the job has ended in its own transaction."""
        self.not_committed: BaseException | None = None
        """The error that prevented the commit of its own transaction."""
        self.answer_was_lost = False
        """The job ran again because the answer to its commit was lost."""
        self.ended_early = 0
        """The number of consecutive runs whose transaction MongoDB ended before the end of the block."""

    @property
    def id(self) -> JobId:
        id: JobId = self.document["_id"]
        return id

    @property
    def store(self) -> Store:
        return self._store()

    def prove(self, *sessions: SessionId, transaction: bool = False) -> None:
        """Proves the hold, once in a run. With `transaction` the job's own transaction follows: until it ends, no
        progress is written on the job. Raises Superseded."""
        with self._proving:
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
        """Whether this run has ended the job, and the answer was lost."""
        last = archived.get("last_execution") if isinstance(archived, dict) else None
        milliseconds = self.started_at.microsecond // 1000 * 1000  # the precision of BSON
        started_at = self.started_at.replace(microsecond=milliseconds)
        return isinstance(last, dict) and (last.get("worker"), last.get("started_at")) == (self.worker, started_at)

    def lost(self) -> Superseded:
        return Superseded(
            f"job {id_told(self.id)} no longer belongs to worker {self.worker}: the worker was retired, or handed it "
            "back. Nothing was written; the job runs elsewhere"
        )

    def _note(self, *sessions: SessionId) -> None:
        """Stores these sessions on the roster, once for each registration."""
        new = [session for session in sessions if (os.getpid(), self.worker, repr(session)) not in _noted]
        if new and not self.store.roster.note_sessions(self.worker, os.getpid(), new):
            raise self.lost()
        _noted.update((os.getpid(), self.worker, repr(session)) for session in new)


_noted: set[tuple[int, str, str]] = set()
"""The sessions that are on the roster: process, worker, session. Storing a session twice does no harm."""


# -- checkpoints ---------------------------------------------------------------------------------------------------


class Checkpoints:
    """The checkpoints of a job in one run.

    They are on the job's document, `checkpoints: [{name, at, result}]`, so the next run has them without a query. A
    write requires the token of the run: a run that has lost the job stores nothing. A job that was never stored keeps
    them in memory, and stores them when its retries go to the background.
    """

    def __init__(
        self, run: Callable[[], Run], document: Document, now: Callable[[], datetime], payload: Payload
    ) -> None:
        self._run = run
        self._document = document
        self._now = now
        self._payload = payload
        self._owner = owner_of(document)
        self._kept = {checkpoint.name: checkpoint for checkpoint in checkpoints_of(document)}
        self._before = len(self._kept)
        self._numbers: Counter[str] = Counter()
        self._numbering = threading.Lock()

    # -- once ----------------------------------------------------------------------------------------------------

    def find(self, name: str) -> Checkpoint | None:
        return self._kept.get(check_checkpoint("the name of a checkpoint", name))

    def check(self) -> None:
        """Raises InvalidSession inside the job's own transaction, and JobEnded after it."""
        run = self._run()
        if run.committed is not None:
            raise JobEnded(f"job {id_told(run.id)} has ended in its own transaction; nothing more can be kept")
        if run.in_transaction:
            raise InvalidSession(
                f"job {id_told(run.id)} is in its own transaction, which locks its document: call once(), sleep() and "
                "wait_for() before the block"
            )

    def begin(self) -> None:
        """Call this before a step whose result is kept: a run that has lost its job must not do it. Raises Superseded,
        JobEnded, InvalidSession."""
        self.check()
        self._run().prove()

    def keep(self, name: str, value: Any, returns: Any = Any) -> Checkpoint:
        """Stores a result durably. If it cannot be stored, the problem is: the step is done and not repeated."""
        try:
            encoded = encode_result(value, returns)
            stored, problem = self._payload.seal(Sealed.CHECKPOINT, self._owner, encoded, name), None
            size = len(encode({"result": stored})) + len(encode({**self._document, **self._fields()}))
            if size > LARGEST_JOB:
                stored, problem = None, f"its result made the job larger than {LARGEST_JOB:,} bytes"
        except UnsupportedValue as error:
            stored, problem = None, str(error)
        return self._add(Checkpoint(name, self._now(), stored, problem))

    def result(self, checkpoint: Checkpoint, returns: Any = Any) -> Any:
        """The stored result. Raises UnsupportedValue or JobTooLarge if it could not be stored."""
        if checkpoint.problem is None:
            opened = self._payload.open(Sealed.CHECKPOINT, self._owner, checkpoint.result, checkpoint.name)
            return decode_result(opened, returns)
        error = JobTooLarge if "larger than" in checkpoint.problem else UnsupportedValue
        raise error(
            f"{checkpoint.name!r} of job {self._document['_id']!r} is done, but its result could not be kept: "
            f"{checkpoint.problem}. Return less, or something that BSON can hold"
        )

    def _add(self, checkpoint: Checkpoint) -> Checkpoint:
        run = self._run()
        if run.stored:
            run.prove()
            assert run.token is not None
            if not run.store.scheduled.add_checkpoint(run.id, run.token, checkpoint_document(checkpoint)):
                raise run.lost()
        self._kept[checkpoint.name] = checkpoint
        return checkpoint

    # -- sleep and wait ------------------------------------------------------------------------------------------

    def next_name(self, what: str) -> str:
        """A numbered name: the first sleep of every run has the same name."""
        with self._numbering:
            self._numbers[what] += 1
            return f"{what} {self._numbers[what]}"

    def run_again(self) -> None:
        """Call this before the job runs again in the same attempt."""
        self._numbers.clear()

    def slept(self, name: str) -> list[Document]:
        """All checkpoints, including a sleep of this name: when the job runs again, it does not sleep again."""
        return [*self._fields().get("checkpoints", ()), checkpoint_document(Checkpoint(name, self._now()))]

    def signal_number(self, name: str) -> int:
        """The number of the signal that this wait takes: each earlier wait took one, unless it timed out."""
        what, _, number = name.rpartition(" ")
        before = (self._kept.get(f"{what} {earlier}") for earlier in range(1, int(number)))
        return int(number) - sum(wait is not None and wait.problem == NO_SIGNAL for wait in before)

    def signal(self, name: str, number: int) -> Signal | None:
        """The n-th signal of this name; None if it has not arrived."""
        run, document = self._run(), self._document
        for again in (False, True):
            came = [signal for signal in signals_of(document) if signal.name == name]
            if len(came) >= number:
                data = self._payload.open(Sealed.SIGNAL, self._owner, came[number - 1].data, name)
                return came[number - 1]._replace(data=data)
            if again or not run.stored:
                return None
            document = run.store.scheduled.document(run.id) or {}
        return None

    def waiting(self, checkpoint: str) -> SignalWait | None:
        """The wait of an earlier run at this checkpoint."""
        wait = signal_wait_from(self._document.get("waits_for"))
        return wait if wait is not None and wait.checkpoint == checkpoint else None

    def timed_out(self, name: str) -> None:
        self._add(Checkpoint(name, self._now(), problem=NO_SIGNAL))

    # -- for the outcome -----------------------------------------------------------------------------------------

    def fields(self) -> Document:
        """The field of a document that is archived or stored for the first time; empty without new checkpoints."""
        return self._fields() if len(self._kept) > self._before else {}

    def _fields(self) -> Document:
        return {"checkpoints": list(map(checkpoint_document, list(self._kept.values())))} if self._kept else {}
