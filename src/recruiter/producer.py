"""The producer: the connection of an application to its database, and everything that stores jobs over it."""

from __future__ import annotations

import _thread
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self, TypeVar

from bson.raw_bson import RawBSONDocument

from recruiter.async_face import async_face, calls_run_user_code
from recruiter.attempt import log_context, note_session
from recruiter.clock import SystemClock
from recruiter.domain.duration import DurationLike, to_seconds
from recruiter.domain.job import Job, JobId
from recruiter.domain.names import check_prefix, check_remark, id_told
from recruiter.errors import JobExists, PayloadSealed, RecruiterError, SettingsError, StoreUnreachable
from recruiter.events import Event
from recruiter.first_use import cached_property
from recruiter.instruments import SendStart
from recruiter.interruption import shielded
from recruiter.log import log_events
from recruiter.log.context import mark_records
from recruiter.registry import RegistryOwner
from recruiter.results import JobHandle, Results
from recruiter.steps import execute, recover, settle, signal
from recruiter.steps.enqueue import Enqueuer
from recruiter.store import database
from recruiter.store.connection import Target, seconds_left
from recruiter.store.database import Store, TargetLike
from recruiter.store.fields import check_id
from recruiter.store.in_session import InSession, Session, in_callers_session, in_own_transaction
from recruiter.store.payload import Owner, Payload, PayloadCodec, Sealed, owner_of
from recruiter.views import find

if TYPE_CHECKING:
    from recruiter.settings import TargetSettings

T = TypeVar("T")

_LOCK_AT_IMPORT = _thread.allocate_lock

PATIENCE_SECONDS = 30.0
WEB_PATIENCE_SECONDS = 5.0
"""In a web process, where a user waits for the response."""
_ON_THIS_CONNECTION = ("store", "_enqueuer", "_executor", "_inline", "_configured_patience")


def _settings() -> type[TargetSettings]:
    """Imported when they are needed: an application that names its target does without them, and they take long to
    import."""
    settings: type[TargetSettings] = import_module("recruiter.settings").TargetSettings
    return settings


class Producer(RegistryOwner):
    """Connects on first use, and stores jobs. One can be shared by all threads."""

    def __init__(
        self,
        target: TargetLike | None = None,
        *,
        prefix: str | None = None,
        server_timeout: DurationLike | None = None,
        codec: PayloadCodec | None = None,
        clear: Iterable[str] = (),
        sealed_only: bool = False,
    ) -> None:
        super().__init__()
        # Seals and opens arguments and results.
        self.payload = Payload(codec, clear, sealed_only=sealed_only)
        self._target_given = target
        self._prefix_given = None if prefix is None else check_prefix(prefix)
        self._target: Target | None = None
        self._results = Results(lambda: self.store, self.payload)
        # Called when jobs have been stored; for tests that run them immediately.
        self.after_send: Callable[[], None] = lambda: None
        # Seconds to wait for a server; None for the default.
        self.patience = None if server_timeout is None else to_seconds(server_timeout)
        # Whether the first use makes collections and indexes where there are none.
        self.prepares = True
        self._opening = threading.Lock()
        # Whether another address than the one it was made for is used.
        self._pointed = False
        mark_records(log_context)  # formats that name the job work in every process that has a Recruiter

    @property
    def target(self) -> Target:
        """The address of its jobs; prints without the password. Raises InvalidTarget."""
        if self._target is None:
            given = self._target_given
            self._target, _ = database.target_of(_settings().load().target if given is None else given, self._prefix)
        return self._target

    @property
    def address(self) -> str:
        """The same as a URI; may hold a password."""
        return self.target.uri

    @property
    def _prefix(self) -> str:
        return _settings().load().prefix if self._prefix_given is None else self._prefix_given

    def point_at(self, target: str | Target | None) -> None:
        """Uses another MongoDB from now on, over a new connection, or with None the one it was made for; for processes
        that were started with --target, and for tests. The prefix stays unless a `Target` brings its own."""
        store: Store | None = self.__dict__.get("store")
        self._forget_connection()
        if store is not None:
            store.abandon()
        self._pointed = target is not None
        self._target = Target.parse(target, self._prefix) if isinstance(target, str) else target

    @property
    def clock(self) -> SystemClock:
        """The time as MongoDB sees it: `recruiter.clock.now()`."""
        return self.store.clock

    def prepare(self) -> None:
        """Connects, and creates missing collections and indexes. The first use does this too. Call it when your program
        starts if its first use may be inside a transaction, which cannot see collections that are newer than itself."""
        self.store.prepare()

    aprepare = async_face(prepare)

    def close(self) -> None:
        """Closes the connection; the next use opens another. Leaving a `with` block does it too."""
        store: Store | None = self.__dict__.get("store")
        self._forget_connection()
        if store is not None:
            store.close()

    # -- signals and recovery ------------------------------------------------------------------------------------

    def signal(
        self, id: JobId, name: str, data: Any = None, *, by: str | None = None, session: Session | None = None
    ) -> None:
        """Sends a signal to a job: `recruiter.signal(job.id, "approved", {"by": "ada"})`. A job that waits for it
        (`current_job.wait_for("approved")`) continues with the data. The signal may come before the job waits for it.
        `by` is shown in the history of the job.

        Returns when it is durable; with a `session` it is part of the caller's own transaction. Raises JobNotFound if
        the job has ended or does not exist, InvalidName, UnsupportedValue, JobTooLarge and InvalidSession; and
        PayloadSealed if this process has another key than the producer of the job.
        """
        check_remark(by, None)
        name, stored = signal.checked_signal(name, data)
        job = find.meant(self.store, id)
        if not self.produce(self.signalling(job, name, stored, by), session):
            raise signal.not_signalled(self.store, job, name)

    asignal = async_face(signal)

    def signalling(self, job: JobId, name: str, stored: Any, by: str | None) -> Callable[[InSession], bool]:
        """The function for `produce` that sends a checked signal; it returns false if the job cannot take it."""

        def send(here: InSession) -> bool:
            found = here.find_waiting(job) if self.payload.has_codec else None
            owner = Owner(job) if found is None else owner_of(found)
            if found is not None:
                # A job that takes a signal which it cannot open fails, and so does each job that repeats it.
                try:
                    self.payload.open_arguments(str(found.get("task")), found.get("args"), owner)
                except PayloadSealed as error:
                    raise PayloadSealed(
                        f"job {id_told(job)} cannot be sent the signal {name!r}, because it could not open it: {error}"
                    ) from error
            sealed = self.payload.seal(Sealed.SIGNAL, owner, stored, name)
            return here.signal(job, name, sealed, self.clock.now(), by)

        return send

    def recover(
        self, id: JobId, *, schedule_at: datetime | None = None, again: bool = False, session: Session | None = None
    ) -> JobHandle[Any]:
        """Runs an ended job once more, as a new job; its `recovered_from` is the id of the old one, and its `key` is
        that of the old one.

        The old job stays in the archive. A job that succeeded, or was recovered before, needs `again=True`. With a
        `session` the new job is part of the caller's own transaction. Raises JobNotFound if the job has not ended or
        does not exist, JobSucceeded, JobRecovered, and InvalidSession.
        """
        at = recover.checked_moment(schedule_at)
        job = recover.job_anew(self.store, find.meant(self.store, id), self.clock.now(), at, again=again)
        with self.instruments.producing(lambda: SendStart(job.task, 1, self, job.group)):
            job = self.instruments.stamped(job)
            self.produce(recover.recovering(job, again=again), session)
        return self.handle(job.id, key=job.key)

    arecover = async_face(recover)

    # -- for extensions ------------------------------------------------------------------------------------------

    def handle(
        self, id: JobId, returns: Any = Any, *, created: bool = True, key: JobId | None = None
    ) -> JobHandle[Any]:
        """A handle of a job by its id, to wait for its result; `returns` is the type that this will have."""
        return JobHandle(check_id(id), self._results, returns, created=created, key=key)

    def send(self, job: Job, returns: Any = Any) -> JobHandle[Any]:
        """Stores a job; returns when it is durable. Raises JobTooLarge."""
        left = seconds_left()
        self._enqueuer.one(job, self._patience if left is None else left)
        self.after_send()
        return self.handle(job.id, returns)

    @property
    def sends_from_loops(self) -> bool:
        """Whether a coroutine may make and send a job without a thread: the connection is there, and no user code runs
        on the way that may take long."""
        return "store" in self.__dict__ and not self.payload.has_codec and not calls_run_user_code()

    async def asend(self, job: Job, returns: Any = Any) -> JobHandle[Any]:
        """Like `send`, for an event loop, where `sends_from_loops`."""
        left = seconds_left()
        await self._enqueuer.aone(job, self._patience if left is None else left)
        self.after_send()
        return self.handle(job.id, returns)

    def send_many(self, parts: Iterable[Sequence[RawBSONDocument]]) -> dict[int, RecruiterError]:
        """Stores many encoded jobs, part by part; returns the errors of the others, by position."""
        refusals = self._enqueuer.many(parts)
        self.after_send()
        return refusals

    def produce(self, write: Callable[[InSession], T], session: Session | None = None) -> T:
        """Writes in the caller's session, or in a new transaction."""
        if session is not None:
            return in_callers_session(self.store, session, write)
        produced = in_own_transaction(self.store, write)
        self.after_send()
        return produced

    def run_here(self, job: Job, returns: Any = Any, *, check_id: bool = False) -> JobHandle[Any]:
        """Runs a job in this process, now; only its retries go to the background. With `check_id` it refuses an id that
        is taken: JobExists."""
        if check_id and (self.store.scheduled.exists(job.id) or self.store.archived.exists(job.id)):
            raise JobExists(
                f"a job with id {id_told(job.id)} exists already; it was not changed, and this one did not run"
            )
        settle.run_inline(self.store, self._executor.run, job, own_id=check_id)
        return self.handle(job.id, returns)

    @cached_property
    @shielded
    def store(self) -> Store:
        """Its database."""
        _check_threads()
        left = seconds_left()
        if not self._opening.acquire(timeout=-1 if left is None else left):  # of many threads one connects
            raise StoreUnreachable(f"MongoDB at {self.target} has not answered within the time of this call")
        try:
            if "store" not in self.__dict__:
                given = None if self._pointed else self._target_given
                client = None if given is None else database.target_of(given, self._prefix)[1]
                patience = self._patience or PATIENCE_SECONDS
                self.__dict__["store"] = database.open_store(
                    self.target, client, patience, prepares=self.prepares, silent=self._tell_silence
                )
                self.__dict__["store"].transactions.note_session = note_session
            store: Store = self.__dict__["store"]
            return store
        finally:
            self._opening.release()

    @property
    def _patience(self) -> float | None:
        """Seconds to wait for MongoDB; None for the default."""
        if self.patience is not None:
            return self.patience
        return self.default_patience if self._configured_patience is None else self._configured_patience

    @cached_property
    def _configured_patience(self) -> float | None:
        """From the environment or the settings file, which are read once for a connection."""
        timeout = _settings().load().server_timeout
        return None if timeout is None else timeout.total_seconds()

    def _tell_silence(self, waiting: str) -> None:
        event = Event("store.silent", {"target": str(self.target), "waiting": waiting})
        self.events.emit(event.name, **event.fields)
        if not self.events.heard:  # no process log is configured
            log_events("producer")(event)

    @cached_property
    def _enqueuer(self) -> Enqueuer:
        return Enqueuer(self.store, self._tell_silence)

    @cached_property
    def _executor(self) -> execute.Executor:
        return self._executor_of(execute.HERE)

    def _executor_of(self, worker: str) -> execute.Executor:
        return execute.Executor(self.registry, self.policies, self.clock, worker, owners=(self,))

    def _forget_connection(self) -> None:
        """Closes everything that uses the connection. The next use opens another one."""
        enqueuer: Enqueuer | None = self.__dict__.get("_enqueuer")
        if enqueuer is not None:
            enqueuer.close()
        executor: execute.Executor | None = self.__dict__.get("_executor")
        if executor is not None:
            executor.close()
        for name in _ON_THIS_CONNECTION:
            self.__dict__.pop(name, None)
        self._results.close()

    def _begin_anew(self) -> None:
        """In a forked child, which must not use the connection of its parent. The next use opens another."""
        for name in _ON_THIS_CONNECTION:
            _inherited.append(self.__dict__.pop(name, None))
        self._opening = threading.Lock()
        self._results.begin_anew()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_inherited: list[object] = []
"""Objects of the parent in a forked child, kept: to close or collect them would use the parent's connections."""


def _after_fork() -> None:
    for owner in list(RegistryOwner.alive):
        if isinstance(owner, Producer):
            owner._begin_anew()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_after_fork)


def _check_threads() -> None:
    """Raises SettingsError if gevent or eventlet has replaced threads after this import: some of our threads and locks
    would then be real and others not, and a call would wait forever."""
    if _thread.allocate_lock is not _LOCK_AT_IMPORT:
        raise SettingsError(
            "gevent or eventlet has patched threads after recruiter was imported; call monkey.patch_all() in the first "
            "line of the program, before any other import"
        )
