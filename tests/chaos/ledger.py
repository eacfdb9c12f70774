"""Ledgers: what happened, written outside MongoDB, one line a fact.

Each process appends to a file of its own, with one `write` per line and without a buffer: a line that was written
survives the death of its process. All lines carry `CLOCK_MONOTONIC`, which all processes of one machine share.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Line = dict[str, Any]


class Ledger:
    """The ledger of this process, also after a fork: each process has its own file."""

    def __init__(self, folder: Path, kind: str) -> None:
        self._folder = folder
        self._kind = kind
        self._opened: tuple[int, int] = (0, -1)
        """The process, and its file."""

    def write(self, what: str, **facts: Any) -> float:
        """Appends one fact; returns its moment."""
        pid, file = self._opened
        if pid != os.getpid():
            path = self._folder / f"{self._kind}-{os.getpid()}-{time.monotonic_ns()}.jsonl"
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            self._opened = os.getpid(), file  # two threads at once open two files, and both are read
        at = time.monotonic()
        os.write(file, json.dumps({"at": at, "what": what, **facts}).encode() + b"\n")
        return at


def read(folder: Path, kind: str) -> Iterator[Line]:
    """All lines of one kind. A last line without its end was being written when its process died: it says nothing."""
    for path in sorted(folder.glob(f"{kind}-*.jsonl")):
        with path.open("rb") as lines:
            for line in lines:
                if line.endswith(b"\n"):
                    yield json.loads(line)
