"""What supervisor and child say to each other: frames of bytes over two pipes.

    frame = kind (1 byte) + number (4) + length (4) + payload

Payloads are BSON as it came from, or goes to, MongoDB. The supervisor moves them without looking inside. Before a job
stands what time it is: a child follows the clock of its supervisor, which agrees with the server's again and again.

The supervisor never waits for a pipe: what does not fit stays in `Outgoing` until the pipe takes more.
"""

from __future__ import annotations

import os
import struct
import threading
from collections import deque
from collections.abc import Collection, Iterator
from functools import partial
from itertools import islice
from typing import NamedTuple

from recruiter.clock import Clock, FollowingClock
from recruiter.domain.statistics import Attempted
from recruiter.domain.text import cut
from recruiter.errors import JobCancelled
from recruiter.events import Event, RareReports
from recruiter.interruption import Interruptible
from recruiter.processes.child.claims import Claims
from recruiter.store import outcomes
from recruiter.store.codec import Document, decode, encode, id_of
from recruiter.store.outcomes import Outcome, Rescheduled, Settled

_HEAD = struct.Struct("<BII")
HEAD = _HEAD.size

JOB = 1  # supervisor → child: what time it is; run this
HELLO = 2  # child → supervisor: ready; the tasks I know
BROKEN = 3  # child → supervisor: the application cannot be loaded
ARCHIVE = 4  # child → supervisor: ended; the archived document
RESCHEDULE = 5  # child → supervisor: to be tried again; the changes
CANCEL = 6  # supervisor → child, on a pipe of its own: cancel this one; who wants it, and why
PROGRESS = 7  # child → supervisor: it still runs; what it has said of itself so far
LISTENER_ERROR = 8  # child → supervisor: a listener has failed
SETTLED = 10  # child → supervisor: ended in its own transaction; the archived document
CLOCK = 9  # supervisor → child, on the pipe for cancellations: what time it is

READ_AT_ONCE = 1 << 16
"""Bytes: as many as a pipe holds."""
_BUFFERS_A_WRITE = 512
_TIME = struct.Struct("<dd")
_JOB_HEAD = struct.Struct("<BIIdd")


def frame(kind: int, number: int, payload: bytes) -> bytes:
    return _HEAD.pack(kind, number, len(payload)) + payload


class Time(NamedTuple):
    """What time it is, as a supervisor tells its children."""

    lead: float
    """By how many seconds it is ahead of the monotonic clock, which all processes of a host share."""
    at: float
    """When this was said, on that clock: frames of two pipes may be read in another order."""


def job_frame(number: int, time: Time, raw: bytes) -> bytes:
    """A job to run, and what time it is."""
    lead, at = time
    return _JOB_HEAD.pack(JOB, number, _TIME.size + len(raw), lead, at) + raw


def job_of(payload: bytes) -> bytes:
    return payload[_TIME.size :]


def time_and_job(payload: bytes) -> tuple[bytes, bytes]:
    """What time it is, still as bytes, and the job."""
    return payload[: _TIME.size], payload[_TIME.size :]


def clock_frame(time: Time) -> bytes:
    return frame(CLOCK, 0, _TIME.pack(*time))


def time_of(payload: bytes) -> Time:
    """In a job's frame and in a clock's."""
    return Time(*_TIME.unpack_from(payload))


class Outgoing:
    """Frames on their way into a pipe that does not block, each with the number of its job."""

    def __init__(self, end: int) -> None:
        self._end = end
        self._frames: deque[tuple[int, bytes | memoryview]] = deque()
        self._head_is_cut = False
        """The first one is half sent; it must be completed, or what follows cannot be read."""

    def __bool__(self) -> bool:
        return bool(self._frames)

    def add(self, number: int, frame: bytes) -> None:
        self._frames.append((number, frame))

    def flush(self) -> None:
        """Writes as much as the pipe takes; the rest when it takes more."""
        try:
            while self._frames:
                chunk = [data for _, data in islice(self._frames, _BUFFERS_A_WRITE)]
                self._sent(os.writev(self._end, chunk))
        except BlockingIOError:
            pass
        except OSError:  # nobody reads it any more: the child is ending, and its death will be noticed
            self.clear()

    def take_back(self, numbers: Collection[int]) -> set[int]:
        """Drops those of these frames of which nothing has been sent yet; returns their numbers."""
        whole = list(islice(self._frames, 1 if self._head_is_cut else 0, None))
        taken = {number for number, _ in whole if number in numbers}
        if taken:
            self._frames = deque(frame for frame in self._frames if frame[0] not in taken)
        return taken

    def clear(self) -> None:
        """For a pipe that gets no more: what is half sent is never complete, and so never started."""
        self._frames.clear()
        self._head_is_cut = False

    def _sent(self, written: int) -> None:
        self._head_is_cut = self._head_is_cut and not written
        while written:
            number, head = self._frames.popleft()
            if written < len(head):
                self._frames.appendleft((number, memoryview(head)[written:]))
                self._head_is_cut = True
                return
            written -= len(head)


class Frames:
    """Cuts what comes out of a pipe into frames."""

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        pending = self._pending + data if self._pending else data
        position, end = 0, len(pending)
        while end - position >= HEAD:
            kind, number, length = _HEAD.unpack_from(pending, position)
            if end - position - HEAD < length:
                break
            start = position + HEAD
            yield kind, number, pending[start : start + length]
            position = start + length
        self._pending = pending[position:]


def answer(number: int, outcome: Outcome) -> bytes:
    """What became of the job of this number."""
    if isinstance(outcome, bytes):
        return frame(ARCHIVE, number, outcome)
    if isinstance(outcome, Settled):
        return frame(SETTLED, number, outcome.document)
    change = {
        "_id": outcome.id,
        "attempts": outcome.attempts,
        "fields": outcome.fields,
        "unset": list(outcome.unset),
        "snoozes": outcome.snoozes,
        "attempted": None if outcome.attempted is None else list(outcome.attempted),
        "signal": outcome.signal,
    }
    return frame(RESCHEDULE, number, encode(change))


def safe_answer(number: int, raw: bytes, outcome: Outcome, clock: Clock) -> bytes:
    """The same, whatever is in it: an outcome that cannot be written must not end the process that tells it."""
    try:
        return answer(number, outcome)
    except Exception as error:
        told = f"its outcome cannot be written: {type(error).__name__}: {error}"
        return frame(ARCHIVE, number, outcomes.unreadable(id_of(raw), raw, clock.now(), told))


def tell(fd: int, number: int, progress: bytes) -> None:
    """What the job of this number has said of itself."""
    write_all(fd, frame(PROGRESS, number, progress))


def outcome_of(kind: int, payload: bytes) -> Outcome:
    if kind == ARCHIVE:
        return payload
    if kind == SETTLED:
        return Settled(payload)
    change = decode(payload)
    unset = tuple(change["unset"])
    attempted = None if change["attempted"] is None else Attempted(*change["attempted"])
    signal = None if change["signal"] is None else (change["signal"][0], change["signal"][1])
    return Rescheduled(change["_id"], change["attempts"], change["fields"], unset, change["snoozes"], attempted, signal)


def write_all(fd: int, data: bytes) -> None:
    """A blocking write of everything; for the child, whose pipe is blocking.

    If nobody reads the pipe, the supervisor is dead, and the child ends with it, without a word: there is no fault.
    """
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(fd, view) :]
    except BrokenPipeError:
        os._exit(1)


# -- listeners that have failed --------------------------------------------------------------------------------------


_SELDOM_FROM_A_CHILD, _SELDOM_IN_THE_LOG = 1.0, 60.0
"""Seconds between two reports about the same kind of event."""
_LONGEST = 500


class ListenerError(NamedTuple):
    listener: str
    event: str
    error: str
    times: int


class ListenerErrors:
    """In the child, where nobody reads a log: listeners that have failed, for the worker, which has a log.

    They travel with the answer of the next job that ends, and only now and then: a listener that fails once fails with
    every job.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._reports = RareReports(_SELDOM_FROM_A_CHILD)
        self._lock = threading.Lock()
        self._frames: list[bytes] = []

    def hear(self, event: Event) -> None:
        """Of a listener that has failed."""
        about = str(event.fields["event"])
        with self._lock:
            times = self._reports.due(about, self._clock.monotonic())
            if times:
                listener, error = (cut(str(event.fields[name]), _LONGEST) for name in ("listener", "error"))
                listener_error = ListenerError(listener, about, error, times)
                self._frames.append(frame(LISTENER_ERROR, 0, encode(listener_error._asdict())))

    def take(self) -> bytes:
        """To be sent before an answer; most of the time there is nothing."""
        if not self._frames:
            return b""
        with self._lock:
            frames, self._frames = self._frames, []
        return b"".join(frames)


class ListenerErrorLog:
    """In the worker: the failed listeners of all its children."""

    def __init__(self) -> None:
        self._reports = RareReports(_SELDOM_IN_THE_LOG)

    def due(self, payload: bytes, now: float) -> ListenerError | None:
        listener_error = ListenerError(**decode(payload))
        times = self._reports.due(listener_error.event, now, listener_error.times)
        return listener_error._replace(times=times) if times else None


# -- cancelling, in a child ------------------------------------------------------------------------------------------


class CancelListener:
    """In the child: a thread that reads a second pipe, beside the one for jobs, and so reaches jobs that are running.

    Through it come cancellations, and the time when that has changed while a job runs. A cancellation may come just
    before its job begins, or after it has ended: both do no harm.
    """

    def __init__(self, end: int, claims: Claims, clock: FollowingClock, *, by_signal: bool) -> None:
        self._end = end
        self._claims = claims
        self._clock = clock
        self._by_signal = by_signal
        self._lock = threading.Lock()
        self._interruptibles: dict[int, Interruptible] = {}
        threading.Thread(target=self._listen, name="control", daemon=True).start()

    def begin(self, number: int) -> Interruptible:
        """How the job of this number can be reached from now on."""
        with self._lock:
            return self._interruptible(number)

    def end(self, number: int) -> None:
        """The job of this number is over."""
        self._claims.end(number)
        with self._lock:
            self._interruptibles.pop(number, None)

    def _listen(self) -> None:
        frames = Frames()
        while data := os.read(self._end, READ_AT_ONCE):
            for kind, number, payload in frames.feed(data):
                if kind == CLOCK:
                    self._clock.follow(*time_of(payload))
                else:
                    self._cancel(number, decode(payload))

    def _cancel(self, number: int, flag: Document) -> None:
        with self._lock:
            if not self._claims.running(number):
                return  # it has just ended
            interruptible = self._interruptible(number)
        interruptible.interrupt(JobCancelled(flag.get("by"), flag.get("reason"), flag.get("at")))

    def _interruptible(self, number: int) -> Interruptible:
        """Under the lock."""
        if number not in self._interruptibles:
            self._interruptibles[number] = Interruptible(self._by_signal, partial(self._claims.tell, number))
        return self._interruptibles[number]
