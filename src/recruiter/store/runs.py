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
import re
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID, uuid4

from recruiter.domain.arguments.typed import decode_result, encode_result, lost_fields
from recruiter.domain.job import FAILURE, GAVE_UP, NO_SIGNAL, Checkpoint, JobId, Signal, SignalWait, check_checkpoint
from recruiter.domain.names import id_told
from recruiter.domain.text import plural
from recruiter.errors import (
    InvalidName,
    InvalidSession,
    JobEnded,
    JobTooLarge,
    StoreError,
    Superseded,
    UnsupportedValue,
)
from recruiter.store.codec import LARGEST_JOB, Document, encode
from recruiter.store.job_fields import checkpoints_of, record, signal_wait_from, signals_of
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
            self.note(store.transactions.session_id, *sessions)
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

    def note(self, *sessions: SessionId) -> None:
        """Stores these sessions on the roster, once for each registration. Raises Superseded."""
        new = [session for session in sessions if (os.getpid(), self.worker, repr(session)) not in _noted]
        if new and not self.store.roster.note_sessions(self.worker, os.getpid(), new):
            raise self.lost()
        _noted.update((os.getpid(), self.worker, repr(session)) for session in new)


_noted: set[tuple[int, str, str]] = set()
"""The sessions that are on the roster: process, worker, session. Storing a session twice does no harm."""


# -- checkpoints ---------------------------------------------------------------------------------------------------


_WAIT_FOR, _WAIT_FOR_ANY, _AND = "wait_for", "wait_for_any", ", "


_RESERVED = re.compile(r"sleep \d+$|wait_for |wait_for_any |failure |gave up ")
_MAX_NAMES = 5


class StepFailures(NamedTuple):
    """How often a step with its own retry policy has failed in one attempt of the job. It is the stored result of the
    checkpoint `failure of …`, which has the time and the error of the last failure."""

    attempt: int
    number: int
    first: datetime


def check_step_name(name: str) -> str:
    """Raises InvalidName for the name of a step that the checkpoint of a sleep, a wait or a failure may have."""
    if _RESERVED.match(check_checkpoint("the name of a checkpoint or a signal", name)):
        raise InvalidName(f"a step cannot be named {name!r}: sleeps, waits and failures are stored under such names")
    return name


def _names(names: Sequence[str]) -> str:
    more = ", …" if len(names) > _MAX_NAMES else ""
    return ", ".join(map(repr, names[:_MAX_NAMES])) + more


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
        self._before = tuple(self._kept)
        """The checkpoints of earlier runs."""
        self._threads: set[int] = set()
        """The threads in which this run has asked for checkpoints."""
        self._numbers: Counter[str] = Counter()
        self._waits: list[str] = []
        """The waits for signals that this run has reached, in their order."""
        self._used: dict[str, None] = {}
        """The checkpoints that this run has reached, in their order."""
        self._calls: dict[str, tuple[Any, ...]] = {}
        """The calls of this run that have received a result, by the names of their steps."""
        self._lost: set[str] = set()
        """The fields of stored results that the types of the code do not have."""
        self._numbering = threading.Lock()
        self._given_up: dict[str, Checkpoint] = {}
        """The steps that have given up in this run."""
        self._failures: dict[str, Checkpoint] = {}
        """The failures in this run of steps with their own retry policy."""
        self._adding = threading.Lock()
        self._paused = False
        """Whether the checkpoints of the pause are known, and no other can be added."""

    # -- once ----------------------------------------------------------------------------------------------------

    def find(self, name: str) -> Checkpoint | None:
        self._used.setdefault(check_checkpoint("the name of a checkpoint", name))
        self._threads.add(threading.get_ident())
        return self._kept.get(name)

    def check_alike(self, name: str, call: tuple[Any, ...]) -> None:
        """Raises InvalidName if this run has received the result of another call under this name."""
        before = self._calls.setdefault(name, call)
        try:
            alike = before == call
        except Exception:  # arguments that cannot be compared
            return
        if not alike:
            raise InvalidName(
                f"step {name!r} was called before in this run, with another function or other arguments, and has the "
                "result of that call. Names are unique in a job: in a loop, use a different name for each call"
            )

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

    def hold(self) -> Document | None:
        """Proves that this run has its job. Returns the query that finds the job as long as that is true; None for a
        job that was never stored. Raises Superseded."""
        run = self._run()
        run.prove()
        return None if run.token is None else {"_id": run.id, "token": run.token}

    def begin(self) -> None:
        """Call this before a step whose result is kept: a run that has lost its job must not do it. Raises Superseded,
        JobEnded, InvalidSession."""
        self.check()
        self._run().prove()
        while self._given_up:
            self._add(self._given_up.popitem()[1])

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
            try:
                result = decode_result(opened, returns)
                if checkpoint.name in self._before:
                    lost = lost_fields(opened, encode_result(result, returns))
                    self._lost.update(f"{field} of {checkpoint.name!r}" for field in lost)
                return result
            except UnsupportedValue as mismatch:
                raise UnsupportedValue(
                    f"step {checkpoint.name!r} of job {self._document['_id']!r} was done by other code, and its stored "
                    f"result no longer fits the annotation of its function ({mismatch}). Give the new step "
                    "another name, or let its function return the old type"
                ) from None
        error = JobTooLarge if "larger than" in checkpoint.problem else UnsupportedValue
        raise error(
            f"{checkpoint.name!r} of job {self._document['_id']!r} is done, but its result could not be kept: "
            f"{checkpoint.problem}. Return less, or something that BSON can hold"
        )

    def _add(self, checkpoint: Checkpoint) -> Checkpoint:
        run = self._run()
        with self._adding:
            if self._paused:
                raise JobEnded(f"this run of job {id_told(run.id)} has ended; {checkpoint.name!r} was not kept")
            self._kept[checkpoint.name] = checkpoint  # first: a pause stores all of them
        try:
            if run.stored:
                run.prove()
                assert run.token is not None
                if not run.store.scheduled.add_checkpoint(run.id, run.token, record(checkpoint)):
                    raise run.lost()
        except (StoreError, Superseded):
            self._kept.pop(checkpoint.name, None)
            raise
        return checkpoint

    # -- sleep and wait ------------------------------------------------------------------------------------------

    def next_name(self, what: str) -> str:
        """A numbered name: the first sleep of every run has the same name."""
        with self._numbering:
            self._numbers[what] += 1
            name = f"{what} {self._numbers[what]}"
            if what != "sleep":
                self._waits.append(name)
            return name

    def run_again(self) -> None:
        """Call this before the job runs again in the same attempt."""
        self._numbers.clear()
        self._waits.clear()
        self._used.clear()
        self._calls.clear()

    def slept(self, name: str) -> Checkpoint:
        """For the pause: the sleep ends when the job runs again."""
        return Checkpoint(name, self._now())

    def at_the_pause(self, last: Checkpoint | None) -> list[Document] | None:
        """The checkpoints of a job that pauses, with this one and with the steps that have failed or given up; None if
        all of them are stored. Other threads may have added some since the pause was raised; from now on they
        cannot."""
        with self._adding:
            self._paused = True
            new = [*self._failures.values(), *self._given_up.values(), *([] if last is None else [last])]
            kept = {**self._kept, **{checkpoint.name: checkpoint for checkpoint in new}}
        return list(map(record, kept.values())) if new else None

    def failures(self, step: str, attempt: int) -> StepFailures | None:
        """The failures of a step with its own retry policy, in this attempt of the job."""
        kept = self._kept.get(f"{FAILURE}of {step}")
        if kept is None or not isinstance(kept.result, dict) or kept.result.get("attempt") != attempt:
            return None
        return StepFailures(**kept.result)

    def failed(self, step: str, failures: StepFailures, error: str) -> None:
        """A step with its own retry policy has failed, and is tried again; stored with the pause."""
        self._failures[step] = Checkpoint(f"{FAILURE}of {step}", self._now(), failures._asdict(), error)

    def give_up(self, step: str, problem: str) -> None:
        """A step with its own retry policy has failed for the last time. If the job goes on, this is stored before its
        next step: it must not do this step after it has taken another way."""
        self._given_up[step] = Checkpoint(f"{GAVE_UP}{step}", self._now(), problem=problem)

    def given_up(self, step: str) -> str | None:
        """The failure of a step after which the job went on, in an earlier run."""
        checkpoint = self._kept.get(f"{GAVE_UP}{step}")
        return None if checkpoint is None else checkpoint.problem

    # -- changed code --------------------------------------------------------------------------------------------

    def changes(self) -> str | None:
        """The changes in the code since an earlier run, for a run that has passed all its checkpoints. The order means
        something only in a job that runs in one thread."""
        changes: list[str] = []
        if self._lost:
            lost = ", ".join(sorted(self._lost)[:_MAX_NAMES])
            changes.append(f"fields of stored results that the code no longer uses: {lost}")
        before = [name for name in self._before if not name.startswith((FAILURE, GAVE_UP))]
        unused = [name for name in before if name not in self._used]
        in_code = [name for name in self._used if name in before]
        if unused:
            number = plural(len(unused), "checkpoint")
            changes.append(f"{number} of an earlier run that the code no longer uses: {_names(unused)}")
        elif in_code != before and len(self._threads) == 1:
            changes.append(
                f"checkpoints in another order than in an earlier run: {_names(in_code)} instead of {_names(before)}"
            )
        return "; ".join(changes) or None

    def wait_name(self, signals: Sequence[str]) -> str:
        """The name of the next wait for these signals."""
        return self.next_name(f"{_WAIT_FOR if len(signals) == 1 else _WAIT_FOR_ANY} {_AND.join(signals)}")

    def signal_numbers(self, wait: str, signals: Sequence[str]) -> list[tuple[str, int]]:
        """The number of the signal of each name that this wait takes: each earlier wait took one signal, except waits
        that timed out and waits that took a signal of another name."""
        earlier = self._waits[: self._waits.index(wait)]
        return [(signal, 1 + sum(self._takes(signal, other) for other in earlier)) for signal in signals]

    def _takes(self, signal: str, wait: str) -> bool:
        """Whether an earlier wait has taken a signal of this name, or will."""
        what, _, signals = wait.rpartition(" ")[0].partition(" ")
        kept = self._kept.get(wait)
        if kept is not None and kept.problem == NO_SIGNAL:
            return False
        if what == _WAIT_FOR:
            return signals == signal
        return kept is not None and self.result(kept)["name"] == signal

    def first_signal(self, numbers: Sequence[tuple[str, int]]) -> Signal | None:
        """The first signal that has come of these names and numbers."""
        run, document = self._run(), self._document
        for again in (False, True):
            came: Counter[str] = Counter()
            for signal in signals_of(document):
                came[signal.name] += 1
                if (signal.name, came[signal.name]) in numbers:
                    data = self._payload.open(Sealed.SIGNAL, self._owner, signal.data, signal.name)
                    return signal._replace(data=data)
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
        """The fields for an archived document, or for a document that is stored for the first time; empty if nothing is
        new."""
        return self._fields() if len(self._kept) > len(self._before) else {}

    def _fields(self) -> Document:
        return {"checkpoints": list(map(record, list(self._kept.values())))} if self._kept else {}
