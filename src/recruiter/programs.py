"""A program that a job starts. Its input is written, its output is read, and it ends with the job.

It stays in the process group of the child that runs the job, so that ending the child ends it too. Since the group is
the child's as well, the processes of one program are found by parentage. They are stopped before they are counted: a
process that still runs may start another one after it was counted, which would then stay.
"""

from __future__ import annotations

import codecs
import io
import os
import selectors
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import IO

import psutil
from typing_extensions import TypedDict

from recruiter.domain.text import cut, mask
from recruiter.errors import CommandFailed
from recruiter.interruption import shielded

MAX_OUTPUT_BYTES = 64 * 1024
"""Bytes of each stream that are kept, the last ones; and bytes that a pipe holds."""
MAX_LINE_CHARACTERS = 64 * 1024
"""Characters after which a line that does not end is handed on in pieces."""
_CHECK_SECONDS = 0.05
"""Seconds between two checks of the program. In a child with several concurrent jobs a timeout arrives with the next
line of Python, so no wait may be long."""
_TERMINATE_SECONDS = 0.2
"""Seconds between SIGTERM and SIGKILL. A job at its timeout has half a second before its process is killed."""
_STOP_SECONDS = 0.05
"""Seconds for a process to obey SIGSTOP. A process that waits for a disk does not obey, and starts no other."""
_LINES_SHOWN, _CHARACTERS_SHOWN = 10, 1_500
"""The part of its last output in the message of the error."""
_LAST_WORDS_BYTES = 4 * 1024

OnLine = Callable[[str], object]


class CommandResult(TypedDict):
    """The end of a program. A document, so that it can be the result of a job."""

    code: int
    """Its exit code; negative if a signal has ended it."""
    stdout: str
    stderr: str


class ProcessOptions(TypedDict, total=False):
    on_line: OnLine | None
    cwd: str | os.PathLike[str] | None
    env: Mapping[str, str] | None
    input: str | bytes | None
    ok_codes: Iterable[int]
    keep: int


class Program:
    """One run of a program. The end of its job ends it, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._unwanted = False

    def run(
        self,
        command: Sequence[str],
        *,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        input: str | bytes | None = None,
        ok_codes: Iterable[int] = (0,),
        keep: int = MAX_OUTPUT_BYTES,
        on_line: OnLine | None = None,
    ) -> CommandResult:
        """Runs it to its end. `on_line` is called with every line it prints, when it prints it.

        Raises CommandFailed if it cannot be started, or ends with a code outside `ok_codes`. After any other
        exception, such as JobTimedOut or an error of `on_line`, the program has ended too.
        """
        given = input.encode() if isinstance(input, str) else input
        outputs = _Output(keep, on_line), _Output(keep, on_line)
        with self._ended_with_the_job():
            process = self._start(command, cwd, {**os.environ, **(env or {})}, with_input=given is not None)
            _listen(process, given or b"", *outputs)
            code = None
            while code is None:
                with suppress(subprocess.TimeoutExpired):
                    code = process.wait(_CHECK_SECONDS)
        stdout, stderr = (output.text(keep) for output in outputs)
        if self._unwanted:
            raise CommandFailed(f"{command[0]} was ended with its job", code, stdout, stderr)
        if code not in ok_codes:
            last_words = _last_lines(*(output.text(_LAST_WORDS_BYTES) for output in outputs))
            how = f"ended with code {code}" if code >= 0 else f"was killed by {signal_name(-code)}"
            raise CommandFailed(f"{command[0]} {how}; {last_words}", code, stdout, stderr)
        return CommandResult(code=code, stdout=stdout, stderr=stderr)

    def end(self) -> None:
        end_all([self])

    def unwanted(self) -> subprocess.Popen[bytes] | None:
        """Marks it as unwanted; returns its process, if it has started."""
        with self._lock:
            self._unwanted = True
            return self._process

    @contextmanager
    def _ended_with_the_job(self) -> Iterator[None]:
        """Ends the program if this block raises, because the job is interrupted; closes its streams in any case."""
        try:
            yield
        except BaseException:
            end_all([self])
            raise
        finally:
            if self._process is not None:
                for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
                    if stream is not None:
                        stream.close()

    @shielded  # an interruption between the start and the assignment would leave an unknown process
    def _start(
        self,
        command: Sequence[str],
        cwd: str | os.PathLike[str] | None,
        environment: Mapping[str, str],
        *,
        with_input: bool,
    ) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._unwanted:
                raise CommandFailed(f"{command[0]} was not started: its job has ended")
            try:
                self._process = subprocess.Popen(
                    command,
                    executable=_path_of(command[0], environment),
                    cwd=cwd,
                    env=environment,
                    stdin=subprocess.PIPE if with_input else subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    bufsize=0,
                )
            except OSError as error:
                raise CommandFailed(f"{command[0]} could not be started: {error}") from error
            return self._process


def end_all(programs: Iterable[Program]) -> None:
    """Ends these programs and all that they have started, with SIGTERM first; or keeps them from starting."""
    processes = [process for program in programs if (process := program.unwanted()) is not None]
    family = _stop_families([process.pid for process in processes if process.poll() is None])
    _signal(family, signal.SIGTERM)
    _signal(family, signal.SIGCONT)
    deadline = time.monotonic() + _TERMINATE_SECONDS
    while (alive := [member for member in family if _status(member) not in _DEAD]) and time.monotonic() < deadline:
        time.sleep(0.01)
    _signal(_stop_families([member.pid for member in alive]), signal.SIGKILL)
    for process in processes:
        process.wait()


class _Output:
    """The output of a program on one stream: hands on each line, and keeps the last bytes."""

    def __init__(self, keep: int, on_line: OnLine | None) -> None:
        self._keep = max(keep, _LAST_WORDS_BYTES)
        self._kept = bytearray()
        self._seen = 0
        self._on_line = on_line
        self._decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")("replace"), translate=True)
        self._begun = ""

    def add(self, chunk: bytes) -> None:
        self._seen += len(chunk)
        self._kept += chunk
        if len(self._kept) > 2 * self._keep:
            del self._kept[: -self._keep]
        if self._on_line is not None:
            self._hand_on(self._decoder.decode(chunk), self._on_line)

    def end(self) -> None:
        """Nothing more comes: a last line without an end is one too."""
        if self._on_line is not None:
            self._hand_on(self._decoder.decode(b"", final=True), self._on_line)
            if self._begun:
                self._hand_on("\n", self._on_line)

    def text(self, longest: int) -> str:
        if longest <= 0:
            return ""
        text = self._kept[-longest:].decode(errors="replace")
        missing = self._seen - longest
        return text if missing <= 0 else f"… {missing:,} bytes cut …\n{text}"

    def _hand_on(self, text: str, on_line: OnLine) -> None:
        *lines, self._begun = f"{self._begun}{text}".split("\n")
        if len(self._begun) > MAX_LINE_CHARACTERS:
            lines.append(self._begun)
            self._begun = ""
        for line in lines:
            on_line(line)


def _listen(process: subprocess.Popen[bytes], given: bytes, stdout: _Output, stderr: _Output) -> None:
    """Gives a program its input and takes its output, until it has closed its streams or ended.

    Processes that it has left behind may keep the streams open; they are not waited for.
    """
    waiting = memoryview(given)
    with selectors.DefaultSelector() as selector:
        _register(selector, process.stdin, selectors.EVENT_WRITE, None)
        _register(selector, process.stdout, selectors.EVENT_READ, stdout)
        _register(selector, process.stderr, selectors.EVENT_READ, stderr)
        ended = False
        while selector.get_map() and not ended:
            ended = process.poll() is not None  # before reading: then all it printed is in the pipes
            for key, _ in selector.select(0 if ended else _CHECK_SECONDS):
                if key.data is None:
                    waiting = _give(key.fd, waiting)
                    more = bool(waiting)
                else:
                    more = _take(key.fd, key.data)
                if not more:
                    selector.unregister(key.fileobj)
                    key.fileobj.close()  # type: ignore[union-attr]
    stdout.end()
    stderr.end()


def _register(selector: selectors.BaseSelector, stream: IO[bytes] | None, event: int, output: _Output | None) -> None:
    if stream is not None:
        os.set_blocking(stream.fileno(), False)
        selector.register(stream, event, output)


def _give(stream: int, waiting: memoryview) -> memoryview:
    """Writes input; returns the rest."""
    try:
        return waiting[os.write(stream, waiting[:MAX_OUTPUT_BYTES]) :]
    except BlockingIOError:
        return waiting
    except BrokenPipeError:
        return waiting[:0]  # it has closed its input


def _take(stream: int, output: _Output) -> bool:
    """Reads the pipe; returns whether more may come."""
    taken = 0
    with suppress(BlockingIOError):
        while taken < MAX_OUTPUT_BYTES:
            chunk = os.read(stream, MAX_OUTPUT_BYTES)
            if not chunk:
                return False
            output.add(chunk)
            taken += len(chunk)
    return True


def _stop_families(pids: Iterable[int]) -> list[psutil.Process]:
    """Stops these processes and all that they have started; returns them all: a stopped process starts no other."""
    stopped: dict[int, psutil.Process] = {}
    while new := [member for pid in pids for member in _family(pid) if member.pid not in stopped]:
        _signal(new, signal.SIGSTOP)
        deadline = time.monotonic() + _STOP_SECONDS
        while any(_status(member) not in _CANNOT_START for member in new) and time.monotonic() < deadline:
            time.sleep(0.001)
        stopped |= {member.pid: member for member in new}
    return list(stopped.values())


_DEAD = (None, psutil.STATUS_ZOMBIE)
_CANNOT_START = (*_DEAD, psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
"""States in which a process starts no other process."""


def _status(process: psutil.Process) -> str | None:
    """None if the process does not exist."""
    try:
        return str(process.status()) if process.is_running() else None
    except psutil.Error:
        return None


def _family(pid: int) -> list[psutil.Process]:
    with suppress(psutil.Error):
        first = psutil.Process(pid)
        return [first, *first.children(recursive=True)]
    return []


def _signal(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with suppress(psutil.Error):
            process.send_signal(number)


def _path_of(program: str, environment: Mapping[str, str]) -> str:
    """The absolute path of a program on this PATH, whose relative entries do not mean the folder of the job."""
    if "/" in program:
        return program
    found = shutil.which(program, path=environment.get("PATH", os.defpath))
    if found is None:
        raise FileNotFoundError("there is no such program on the PATH")
    return os.path.abspath(found)


def signal_name(number: int) -> str:
    """SIGKILL; or "signal 40", since not all of them have a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _last_lines(stdout: str, stderr: str) -> str:
    """The last lines of stderr; of stdout if stderr is empty."""
    for name, text in (("stderr", stderr), ("stdout", stdout)):
        if lines := "\n".join(text.rstrip().splitlines()[-_LINES_SHOWN:]):
            return f"its last output on {name}:\n{cut(mask(lines), _CHARACTERS_SHOWN)}"
    return "it printed nothing"
