"""A program inside a job: given its input, listened to, and ended with the job.

It stays in the process group of the child that runs the job, so that whoever ends the child ends it too. What the job's
own timeout ends is found by parentage, since the group is the child's as well.
"""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import psutil

from recruiter.errors import CommandFailed, JobTimedOut

LONGEST_OUTPUT = 64 * 1024
"""Bytes of each stream that are kept: the last ones."""
_LOOK = 0.05
"""Seconds between two looks at the program. In a child that runs several jobs at once, a timeout arrives with the next
line of Python, so no wait may be long."""
_TIME_TO_LEAVE = 0.2
"""Seconds between SIGTERM and SIGKILL. A job whose time is over has half a second before its process is ended."""
_PIPE = 64 * 1024
"""Bytes that a pipe holds."""


def run_program(
    command: Sequence[str], *, cwd: str | Path | None, env: Mapping[str, str], input: str | None
) -> tuple[int, str, str]:
    """Its exit code (negative: the signal that ended it) and the ends of what it printed on stdout and stderr.

    Raises CommandFailed if it cannot be started. Whatever else is raised, as JobTimedOut is, the program has ended.
    """
    process = _started(command, cwd, {**os.environ, **env}, with_input=input is not None)
    with _ended_with_the_job(process):
        stdout, stderr = _listen(process, (input or "").encode())
        return _wait(process), stdout, stderr


def _started(
    command: Sequence[str], cwd: str | Path | None, environment: Mapping[str, str], *, with_input: bool
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command,
            executable=_found(command[0], environment),
            cwd=cwd,
            env=environment,
            stdin=subprocess.PIPE if with_input else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
    except JobTimedOut:  # which is an OSError too
        raise
    except OSError as error:
        raise CommandFailed(f"{command[0]} could not be started: {error}") from error


class _Tail:
    """The end of what a program prints, however much that is."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._seen = 0

    def add(self, chunk: bytes) -> None:
        self._seen += len(chunk)
        self._kept += chunk
        if len(self._kept) > 2 * LONGEST_OUTPUT:
            del self._kept[:-LONGEST_OUTPUT]

    def text(self) -> str:
        text = self._kept[-LONGEST_OUTPUT:].decode(errors="replace")
        missing = self._seen - LONGEST_OUTPUT
        return text if missing <= 0 else f"… {missing:,} bytes cut …\n{text}"


def _listen(process: subprocess.Popen[bytes], given: bytes) -> tuple[str, str]:
    """Gives it its input and takes its output, until it has closed its streams or ended.

    What it has started and left behind may keep the streams open; that is not waited for.
    """
    stdout, stderr = _Tail(), _Tail()
    waiting = memoryview(given)
    with selectors.DefaultSelector() as selector:
        _register(selector, process.stdin, selectors.EVENT_WRITE, None)
        _register(selector, process.stdout, selectors.EVENT_READ, stdout)
        _register(selector, process.stderr, selectors.EVENT_READ, stderr)
        ended = False
        while selector.get_map() and not ended:
            ended = process.poll() is not None  # before reading: then all it printed is in the pipes
            for key, _ in selector.select(0 if ended else _LOOK):
                if key.data is None:
                    waiting = _give(key.fd, waiting)
                    more = bool(waiting)
                else:
                    more = _take(key.fd, key.data)
                if not more:
                    selector.unregister(key.fileobj)
                    key.fileobj.close()  # type: ignore[union-attr]
    return stdout.text(), stderr.text()


def _register(selector: selectors.BaseSelector, stream: IO[bytes] | None, event: int, tail: _Tail | None) -> None:
    if stream is not None:
        os.set_blocking(stream.fileno(), False)
        selector.register(stream, event, tail)


def _give(stream: int, waiting: memoryview) -> memoryview:
    """What is still to be given."""
    try:
        return waiting[os.write(stream, waiting[:_PIPE]) :]
    except BlockingIOError:
        return waiting
    except BrokenPipeError:
        return waiting[:0]  # it does not want to read any more


def _take(stream: int, tail: _Tail) -> bool:
    """Takes what is in the pipe; whether there may be more later."""
    taken = 0
    with suppress(BlockingIOError):
        while taken < _PIPE:
            chunk = os.read(stream, _PIPE)
            if not chunk:
                return False
            tail.add(chunk)
            taken += len(chunk)
    return True


def _wait(process: subprocess.Popen[bytes]) -> int:
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(_LOOK)


@contextmanager
def _ended_with_the_job(process: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        _end(process)
        raise
    finally:
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends it with everything it has started, politely first."""
    family = _family(process.pid) if process.poll() is None else []
    _signal(family, signal.SIGTERM)
    deadline = time.monotonic() + _TIME_TO_LEAVE
    while (alive := [member for member in family if _is_alive(member)]) and time.monotonic() < deadline:
        time.sleep(0.01)
    _signal((each for member in alive for each in _family(member.pid)), signal.SIGKILL)
    process.wait()


def _is_alive(process: psutil.Process) -> bool:
    """A dead one whose parent has not noticed is dead."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _family(pid: int) -> list[psutil.Process]:
    with suppress(psutil.Error):
        first = psutil.Process(pid)
        return [first, *first.children(recursive=True)]
    return []


def _signal(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with suppress(psutil.Error):
            process.send_signal(number)


def _found(program: str, environment: Mapping[str, str]) -> str:
    """Where it is, by the PATH and not by the job's folder, which is where a relative PATH would lead."""
    if "/" in program:
        return program
    found = shutil.which(program, path=environment.get("PATH", os.defpath))
    if found is None:
        raise FileNotFoundError("there is no such program on the PATH")
    return os.path.abspath(found)
