"""When each job ended, in a file that every process maps: slot n is for job n.

The same for every peer, and cheap compared with a job: no round trip, no lock, right with threads and processes. A
lost job leaves its slot empty, so nothing has to be believed of a peer's own counters.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

SLOT = 8


def make_stamps(path: Path, slots: int) -> memoryview[float]:
    """For the benchmark; processes that are started from now on find the file."""
    path.write_bytes(bytes(slots * SLOT))
    os.environ["PEERS_STAMPS"] = str(path)
    return find_stamps()


def find_stamps() -> memoryview[float]:
    with open(os.environ["PEERS_STAMPS"], "r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), 0)).cast("d")
