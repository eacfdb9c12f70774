"""The messages between supervisor and child: frames of bytes over two pipes.

    frame = kind (1 byte) + number (4) + length (4) + payload

Jobs and archived documents travel as BSON, as they came from MongoDB or go there; the supervisor does not look inside.
It reads the header of an answer instead: another BSON document, with the facts for statistics, flows and the log. The
time comes before each job: a child follows the clock of its supervisor, which agrees with the server's regularly.

The supervisor never waits for a pipe: frames that do not fit stay in `Outgoing` until the pipe takes more.
"""

from __future__ import annotations

import os
import struct
import threading
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import NamedTuple

from recruiter.clock import FollowingClock
from recruiter.domain.job import JobId
from recruiter.domain.statistics import Attempted, JobEnd
from recruiter.domain.text import cut
from recruiter.errors import JobCancelled
from recruiter.events import Event, RareReports
from recruiter.interruption import Interruptible
from recruiter.processes.child.claims import Claims
from recruiter.processes.child.stack import stack_text
from recruiter.store import outcomes
from recruiter.store.codec import Document, decode, encode, id_of
from recruiter.store.outcomes import JobEvent, Outcome, Rescheduled, Settled, ToArchive, Update

_HEAD = struct.Struct("<BII")
HEAD = _HEAD.size

JOB = 1  # supervisor → child: the time, and a job to run
HELLO = 2  # child → supervisor: ready; the tasks of the application
BROKEN = 3  # child → supervisor: the application cannot be loaded
ARCHIVE = 4  # child → supervisor: ended; a header and the archived document
RESCHEDULE = 5  # child → supervisor: to be tried again; a header with the updates
CANCEL = 6  # supervisor → child, on the control pipe: the flag of a job to cancel
PROGRESS = 7  # child → supervisor: the progress of a running job
LISTENER_ERROR = 8  # child → supervisor: a listener has failed
SETTLED = 10  # child → supervisor: ended in its own transaction; a header
STACK = 11  # supervisor → child, on the control pipe, and back: the calls that the process is in
CLOCK = 9  # supervisor → child, on the control pipe: the time
ABOUT_NO_JOB = frozenset([HELLO, BROKEN, LISTENER_ERROR, STACK])

READ_AT_ONCE = 1 << 16
"""Bytes: as many as a pipe holds."""
_BUFFERS_A_WRITE = 512
_DOCUMENT_SIZE = struct.Struct("<i")
"""The first bytes of a BSON document."""
_TIME = struct.Struct("<dd")
_JOB_HEAD = struct.Struct("<BIIdd")


def frame(kind: int, number: int, payload: bytes) -> bytes:
    return _HEAD.pack(kind, number, len(payload)) + payload


class Time(NamedTuple):
    """The time that a supervisor sends to its children."""

    offset: float
    """Seconds by which it is ahead of the monotonic clock, which all processes of a host share."""
    at: float
    """When this was sent, on that clock: frames of two pipes may be read in another order."""


def job_frame(number: int, time: Time, raw: bytes) -> bytes:
    return _JOB_HEAD.pack(JOB, number, _TIME.size + len(raw), *time) + raw


def job_of(payload: bytes) -> bytes:
    return payload[_TIME.size :]


def clock_frame(time: Time) -> bytes:
    return frame(CLOCK, 0, _TIME.pack(*time))


def time_of(payload: bytes) -> Time:
    """In the frame of a job or of the clock."""
    return Time(*_TIME.unpack_from(payload))


class Outgoing:
    """Frames on their way into a pipe that does not block, each with the number of its job."""

    def __init__(self, end: int) -> None:
        self._end = end
        self._frames: deque[tuple[int, bytes | memoryview]] = deque()
        self._head_is_cut = False
        """The first one is half sent; it must be completed, or the next ones cannot be read."""

    def __bool__(self) -> bool:
        return bool(self._frames)

    def add(self, number: int, frame: bytes) -> None:
        self._frames.append((number, frame))

    def flush(self) -> None:
        """Writes as much as the pipe takes now. The rest stays for the next call."""
        try:
            while self._frames:
                chunk = [data for _, data in islice(self._frames, _BUFFERS_A_WRITE)]
                self._drop_written(os.writev(self._end, chunk))
        except BlockingIOError:
            pass
        except OSError:  # the child is ending, and its death will be noticed
            self.clear()

    def take_back(self, numbers: Collection[int]) -> set[int]:
        """Drops the frames of these numbers, unless a part was sent already; returns the numbers of the frames."""
        whole = list(islice(self._frames, 1 if self._head_is_cut else 0, None))
        taken = {number for number, _ in whole if number in numbers}
        if taken:
            self._frames = deque(frame for frame in self._frames if frame[0] not in taken)
        return taken

    def clear(self) -> None:
        """For a pipe that will be closed: a job that is half sent never starts."""
        self._frames.clear()
        self._head_is_cut = False

    def _drop_written(self, written: int) -> None:
        """Drops this number of bytes from the head of the frames, because they were written."""
        self._head_is_cut = self._head_is_cut and not written
        while written:
            number, head = self._frames.popleft()
            if written < len(head):
                self._frames.appendleft((number, memoryview(head)[written:]))
                self._head_is_cut = True
                return
            written -= len(head)


class Frames:
    """Cuts the bytes that come out of a pipe into frames."""

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """Yields kind, number and payload of each complete frame. The rest waits for more bytes."""
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
    """The frame that reports the outcome of a job. A header holds the facts that the supervisor reads."""
    event = None if outcome.event is None else outcome.event._asdict()
    if isinstance(outcome, ToArchive):
        return frame(ARCHIVE, number, encode({"end": outcome.end._asdict(), "event": event}) + outcome.document)
    if isinstance(outcome, Settled):
        return frame(SETTLED, number, encode({"event": event}))
    attempted = None if outcome.attempted is None else outcome.attempted._asdict()
    updates = [update._asdict() for update in outcome.updates]
    return frame(RESCHEDULE, number, encode({"event": event, "attempted": attempted, "updates": updates}))


def outcome_of(kind: int, id: JobId, payload: bytes) -> Outcome:
    """The outcome of this job, from the answer of a child."""
    size = _DOCUMENT_SIZE.unpack_from(payload)[0]
    header = decode(payload[:size])
    event = None if header["event"] is None else JobEvent(**header["event"])
    if kind == RESCHEDULE:
        attempted = None if header["attempted"] is None else Attempted(**header["attempted"])
        return Rescheduled(id, [Update(**update) for update in header["updates"]], attempted, event)
    assert event is not None
    return Settled(event) if kind == SETTLED else ToArchive(payload[size:], JobEnd(**header["end"]), event)


def write_all(fd: int, data: bytes) -> None:
    """Writes everything to the blocking pipe of a child. If the supervisor is dead, the child ends silently too."""
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(fd, view) :]
    except BrokenPipeError:
        os._exit(1)


# -- the child's side ------------------------------------------------------------------------------------------------


_LISTENER_ERRORS_EVERY_SECONDS = 1.0
"""Time between two reports about the same kind of event."""
_LONGEST = 500


class SupervisorLink:
    """In the child: the pipes for jobs and answers. Jobs may run in several threads."""

    def __init__(self, inbox: int, out: int, clock: FollowingClock) -> None:
        self.inbox = inbox
        self._out = out
        self._clock = clock
        self._frames = Frames()
        self._writing = threading.Lock()
        self._reports = RareReports(_LISTENER_ERRORS_EVERY_SECONDS)
        self._listener_errors: deque[Document] = deque()
        self.on_answer: Callable[[], None] = lambda: None
        """Called after each answer."""

    def receive(self) -> list[tuple[int, bytes]] | None:
        """The next numbers and payloads of jobs; None when the supervisor has closed the pipe."""
        data = os.read(self.inbox, READ_AT_ONCE)
        return [(number, payload) for _, number, payload in self._frames.feed(data)] if data else None

    def send(self, kind: int, number: int, payload: bytes) -> None:
        with self._writing:
            write_all(self._out, frame(kind, number, payload))

    def answer(self, number: int, raw: bytes, outcome: Outcome) -> None:
        """Sends the outcome of a job. An outcome that cannot be written must not end the child."""
        try:
            data = answer(number, outcome)
        except Exception as error:
            reason = f"its outcome cannot be written: {type(error).__name__}: {error}"
            data = answer(number, outcomes.unreadable(id_of(raw), raw, self._clock.now(), reason))
        with self._writing:
            while self._listener_errors:
                data = frame(LISTENER_ERROR, 0, encode(self._listener_errors.popleft())) + data
            write_all(self._out, data)
        self.on_answer()

    def note_listener_error(self, event: Event) -> None:
        """A listener has failed, and the log of the worker reports it. The report is sent with the next answer, because
        a job may be interrupted here; and rarely, because a listener that fails once fails with every job."""
        about = str(event.fields["event"])
        if times := self._reports.due(about, self._clock.monotonic()):
            listener, error = (cut(str(event.fields[name]), _LONGEST) for name in ("listener", "error"))
            self._listener_errors.append({"listener": listener, "event": about, "error": error, "times": times})


class CancelListener:
    """In the child: a thread that reads the control pipe, and so reaches running jobs.

    The pipe carries cancellations, questions for the stack, and the time when it has changed while a job runs. A
    cancellation may come just before its job begins, or after it has ended: both do no harm.
    """

    def __init__(
        self,
        end: int,
        claims: Claims,
        clock: FollowingClock,
        *,
        by_signal: bool,
        send: Callable[[int, int, bytes], None] = lambda *_: None,
    ) -> None:
        self.loop: AbstractEventLoop | None = None
        """The event loop of the process, if its jobs have one."""
        self._send = send
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
        self._claims.end(number)
        with self._lock:
            self._interruptibles.pop(number, None)

    def _listen(self) -> None:
        frames = Frames()
        while data := os.read(self._end, READ_AT_ONCE):
            for kind, number, payload in frames.feed(data):
                if kind == CLOCK:
                    self._clock.follow(*time_of(payload))
                elif kind == STACK:
                    with suppress(Exception):  # this thread must go on to hear of cancellations
                        self._send(STACK, 0, encode({**decode(payload), "text": stack_text(self.loop)}))
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
