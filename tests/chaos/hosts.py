"""The hosts of MongoDB's nodes: each node has a separate disk and a separate clock.

A disk needs the right to mount, and a clock needs a C compiler. Without it, such faults do not happen.
"""

from __future__ import annotations

import mmap
import os
import platform
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from recruiter.embedded.process import find_mongod
from tests.warm import warm

_DISK_BYTES = 4 << 30
_ROOM = 64 << 10
"""Bytes that stay free on a full disk: it may not become smaller than its content, and the node continues to write."""
_TRIES = 20
_SOURCE = Path(__file__).with_name("clock.c")


class Disk:
    """A file system in memory. It is full when its size becomes that of its content."""

    def __init__(self, path: Path) -> None:
        """Raises OSError if this process must not mount."""
        self.path = path
        path.mkdir()
        try:
            _run("mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "tmpfs", str(path))
        except OSError:
            path.rmdir()
            raise

    def fill(self) -> bool:
        """Whether it is full now."""
        for _ in range(_TRIES):
            facts = os.statvfs(self.path)
            used = (facts.f_blocks - facts.f_bfree) * facts.f_frsize
            with suppress(OSError):  # more was written meanwhile
                self._resize(used + _ROOM)
                return True
        return False

    def free(self) -> None:
        self._resize(_DISK_BYTES)

    def close(self) -> None:
        with suppress(OSError):
            _run("umount", "-l", str(self.path))

    def _resize(self, size: int) -> None:
        _run("mount", "-o", f"remount,size={size}", str(self.path))


class Clock:
    """The wall clock of one node, see clock.c."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(struct.pack("@l", 0))
        with path.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), struct.calcsize("@l"))

    def step(self, seconds: int) -> None:
        """Moves it so far from the true time; 0 sets it right again."""
        self._shared[:] = struct.pack("@l", seconds)


class Hosts:
    """A folder, a disk and a clock for each node."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self.folders = [folder / f"node-{number}" for number in range(nodes)]
        self.disks: list[Disk] = []
        with suppress(OSError):
            for path in self.folders:
                self.disks.append(Disk(path))
        for path in self.folders:
            path.mkdir(exist_ok=True)
        self.clocks: list[Clock] = []
        self.clock_of_fleet: Clock | None = None
        self.binary: str | None = None
        """A mongod with such a clock; None for the usual one."""
        self._library, self._of_fleet = folder / "clock.so", folder / "fleet.clock"
        compiler = shutil.which("cc")
        if compiler is not None and platform.system() == "Linux":
            _run(*(compiler, "-shared", "-fPIC", "-O2", "-o", str(self._library)), *(str(_SOURCE), "-ldl"))
            self.clocks = [Clock(path.with_suffix(".clock")) for path in self.folders]
            self.binary = str(_mongod_with_clock(folder / "mongod", self._library))

    @contextmanager
    def environment_of_fleet(self) -> Iterator[None]:
        """For the start of the process from which the fleet is forked. If it runs already, the fleet has no clock."""
        if not self.clocks or warm.cache_info().currsize:
            yield
            return
        self.clock_of_fleet = Clock(self._of_fleet)
        os.environ |= {"LD_PRELOAD": str(self._library), "CHAOS_CLOCK": str(self._of_fleet)}
        try:
            yield
        finally:
            del os.environ["LD_PRELOAD"], os.environ["CHAOS_CLOCK"]

    def close(self) -> None:
        for disk in self.disks:
            disk.close()


def _mongod_with_clock(script: Path, library: Path) -> Path:
    """The second argument of mongod is the folder of the data, in the folder of the node."""
    script.write_text(
        f'#!/bin/sh\nCHAOS_CLOCK="$(dirname "$2").clock" LD_PRELOAD="{library}" exec "{find_mongod(None)}" "$@"\n'
    )
    script.chmod(0o755)
    return script


def _run(*command: str) -> None:
    """Raises OSError with the words of the command."""
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise OSError(f"{command[0]}: {ended.stderr.strip()}")
