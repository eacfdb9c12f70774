"""What supervisor and child say to each other: frames of bytes over two pipes.

    frame = kind (1 byte) + number (4) + length (4) + payload

Payloads are BSON as it came from, or goes to, MongoDB. The supervisor moves them without looking inside.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from datetime import datetime

from recruiter.store import moves
from recruiter.store.codec import decode, encode, id_of
from recruiter.store.moves import Ended
from recruiter.store.settlement import Rescheduled

_HEAD = struct.Struct("<BII")
HEAD = _HEAD.size

JOB = 1  # supervisor → child: run this
HELLO = 2  # child → supervisor: ready; the tasks I know
BROKEN = 3  # child → supervisor: the application cannot be loaded
ARCHIVE = 4  # child → supervisor: ended; the archived document
RESCHEDULE = 5  # child → supervisor: to be tried again; the changes
CANCEL = 6  # supervisor → child, on a pipe of its own: cancel this one; who wants it, and why
PROGRESS = 7  # child → supervisor: it still runs; what it has said of itself so far
COMPLAINT = 8  # child → supervisor: a listener has failed

READ_AT_ONCE = 1 << 20
NUMBERS = 1 << 32


def frame(kind: int, number: int, payload: bytes) -> bytes:
    return _HEAD.pack(kind, number, len(payload)) + payload


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


def answer(number: int, move: Ended) -> bytes:
    """What became of the job of this number."""
    if isinstance(move, bytes):
        return frame(ARCHIVE, number, move)
    change = {
        "_id": move.id,
        "attempts": move.attempts,
        "fields": move.fields,
        "unset": list(move.unset),
        "snoozes": move.snoozes,
    }
    return frame(RESCHEDULE, number, encode(change))


def safe_answer(number: int, raw: bytes, move: Ended, at: datetime) -> bytes:
    """The same, whatever is in it: an outcome that cannot be written must not end the process that tells it."""
    try:
        return answer(number, move)
    except Exception as error:
        told = f"its outcome cannot be written: {type(error).__name__}: {error}"
        return frame(ARCHIVE, number, moves.unreadable(id_of(raw), raw, at, told))


def tell(fd: int, number: int, progress: bytes) -> None:
    """What the job of this number has said of itself."""
    write_all(fd, frame(PROGRESS, number, progress))


def move_of(kind: int, payload: bytes) -> Ended:
    if kind == ARCHIVE:
        return payload
    change = decode(payload)
    unset = tuple(change["unset"])
    return Rescheduled(change["_id"], change["attempts"], change["fields"], unset, change["snoozes"])


def write_all(fd: int, data: bytes) -> None:
    """A blocking write of everything; for the child, whose pipe is blocking."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
