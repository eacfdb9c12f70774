"""A warm start: `recruiter ARGUMENTS…`, `python -m MODULE ARGUMENTS…` or `python FILE ARGUMENTS…`, in a process that is
forked from one which has imported everything already.

Importing takes longer than most tests, and the suite starts hundreds of processes. Each one here has its own
environment, directory, output and exit code, as if a shell had started it; that a shell can start it is shown by the
tests that say `cold=True`.

    test ──request──▶ server (this file, run as a program) ──fork──▶ the command
         ◀── pid, and later the exit code ──

Processes that such a process starts itself would import everything once more. So it forks them before it does anything
else, when nothing distinguishes them from new ones but what is imported, and they wait until they are wanted: the fork
server of a worker, which its children come from, and the members of a fleet. Those that are wanted later are new ones.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import functools
import gc
import importlib
import json
import os
import queue
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from multiprocessing import util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
from pymongo.synchronous import monitor

import recruiter.cli.main
import recruiter.processes.child.main
import recruiter.processes.inline.flush
import recruiter.processes.inline.worker
from recruiter.cli.main import COMMANDS
from recruiter.domain.arguments.typed import load_pydantic
from recruiter.processes import fleet

try:
    from pymongo.periodic_executor import PeriodicExecutor
except ImportError:  # pymongo 4.9
    from pymongo.synchronous.periodic_executor import PeriodicExecutor  # type: ignore[import-not-found, no-redef]


class Forked:
    """What a test needs of `subprocess.Popen`."""

    def __init__(self, pid: int, args: list[str]) -> None:
        self.pid = pid
        self.args = args
        self.returncode: int | None = None
        self._ended = threading.Event()

    def ended(self, code: int) -> None:
        self.returncode = code
        self._ended.set()

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and we have not heard of it yet
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Warm:
    """The server as tests see it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, __file__, str(theirs.fileno())]
        self._server = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        theirs.close()
        self._stream = ours.makefile("rw", encoding="utf-8")
        self._socket = ours
        self._asking = threading.Lock()
        self._born: queue.SimpleQueue[Forked] = queue.SimpleQueue()
        self._running: dict[int, Forked] = {}
        threading.Thread(target=self._listen, name="warm", daemon=True).start()

    def fork(
        self,
        arguments: list[str],
        environment: dict[str, str],
        out: Path,
        err: Path | None = None,
        cwd: Path | None = None,
    ) -> Forked:
        request = {"arguments": arguments, "environment": environment, "out": str(out), "err": str(err or out)}
        with self._asking:
            self._stream.write(json.dumps({**request, "cwd": str(cwd or Path.cwd())}) + "\n")
            self._stream.flush()
            return self._born.get(timeout=60)

    def pids(self) -> list[int]:
        """Everything below it that runs."""
        return [process.pid for process in psutil.Process(self._server.pid).children(recursive=True)]

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._server.wait(timeout=20)

    def _listen(self) -> None:
        for line in self._stream:
            message = json.loads(line)
            if "code" in message:
                self._running.pop(message["pid"]).ended(message["code"])
            else:
                process = self._running[message["pid"]] = Forked(message["pid"], message["arguments"])
                self._born.put(process)


@functools.cache
def warm() -> Warm:
    """One for the whole suite."""
    server = Warm()
    atexit.register(server.close)
    return server


# -- the server ------------------------------------------------------------------------------------------------------


def serve(connection: socket.socket) -> dict[str, Any]:
    """Forks for every request; returns only in those that are forked, with the request."""
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    pending = b""
    gc.freeze()
    while True:
        readable, _, _ = select.select([connection.fileno(), wake], [], [])
        if wake in readable:
            os.read(wake, 4096)
        for pid, status in _ended():
            _tell(connection, pid=pid, code=os.waitstatus_to_exitcode(status))
        if connection.fileno() not in readable:
            continue
        data = connection.recv(1 << 16)
        if not data:
            raise SystemExit(0)
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            request = dict(json.loads(line))
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for end in (wake, woken, connection.detach()):
                    os.close(end)
                return request
            _tell(connection, pid=pid, arguments=request["arguments"])


def become(request: dict[str, Any]) -> None:
    """As if a shell had started this process so."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    out, err = (os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_APPEND) for name in ("out", "err"))
    for opened, standard in ((nothing, 0), (out, 1), (err, 2)):
        os.dup2(opened, standard)
        os.close(opened)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = ["recruiter", *request["arguments"]]
    sys.path[0] = request["cwd"]


def have_fork_server() -> None:
    """Forks the fork server of this worker, which waits until multiprocessing would start one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if not pid:
        ours.close()
        _be_fork_server(theirs)
    theirs.close()
    start_new = util.spawnv_passfds

    def start(path: bytes, args: Sequence[Any], passfds: Sequence[int]) -> int:
        if ours.fileno() < 0 or "multiprocessing.forkserver" not in args[-1]:
            return start_new(path, args, passfds)
        given = {"code": args[-1], "descriptors": list(passfds), "environment": dict(os.environ)}
        with ours:
            socket.send_fds(ours, [json.dumps(given).encode()], passfds)
        return pid

    util.spawnv_passfds = start


def _be_fork_server(connection: socket.socket) -> None:
    data, received, _, _ = socket.recv_fds(connection, 1 << 20, 2)
    connection.close()
    if not data:
        os._exit(0)  # the worker has ended without one
    given = json.loads(data)
    apart = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 1000) for descriptor in received]
    for descriptor, copy, number in zip(received, apart, given["descriptors"], strict=True):
        os.close(descriptor)
        os.dup2(copy, number)
        os.close(copy)
    os.environ.clear()
    os.environ.update(given["environment"])
    sys.argv = ["-c"]
    sys.path[0] = ""
    try:
        exec(given["code"], {})
    except SystemExit as end:
        leave(end.code)


class Member:
    """A member of a fleet that has been forked already; what `Fleet` needs of `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._wait(os.WNOHANG)

    def wait(self) -> int | None:
        return self._wait(0)

    def terminate(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM)

    def _wait(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode


def have_members(count: int) -> None:
    """Forks so many members of this fleet, which wait until it starts them; after them it starts new ones."""
    waiting: list[tuple[int, socket.socket]] = []
    for _ in range(count):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if not pid:
            for connection in (ours, *(other for _, other in waiting)):
                connection.close()
            _be_member(theirs)
        theirs.close()
        waiting.append((pid, ours))

    def start(command: list[str], *, env: Mapping[str, str], process_group: int) -> Member | subprocess.Popen[bytes]:
        if not waiting:
            return subprocess.Popen(command, env=env, process_group=process_group)
        pid, connection = waiting.pop(0)
        os.setpgid(pid, process_group)
        with connection:
            connection.send(json.dumps({"arguments": command[3:], "environment": dict(env)}).encode())
        return Member(pid)

    fleet.subprocess = SimpleNamespace(Popen=start)  # type: ignore[assignment, attr-defined]


def _be_member(connection: socket.socket) -> None:
    with connection:
        data = connection.recv(1 << 20)
    if not data:
        os._exit(0)  # the fleet has ended without this one
    given = json.loads(data)
    os.environ.clear()
    os.environ.update(given["environment"])
    sys.argv = ["recruiter", *given["arguments"]]
    ctypes.CDLL(None).prctl(_PR_SET_NAME, sys.argv[-1].encode(), 0, 0, 0)
    run()


_PR_SET_NAME = 15
"""So that a test finds a member by its name, as it finds a new one by its arguments."""


def _ended() -> list[tuple[int, int]]:
    ended: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if not pid:
            return ended
        ended.append((pid, status))


def _tell(connection: socket.socket, **message: Any) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def close_at_once() -> None:
    """Clients of MongoDB with a listener, which ours are, wait at their end until the thread that calls the listener
    has noticed. That takes half a second for each one that a test or a process closes, so nobody waits: the thread
    ends by itself."""
    wait = PeriodicExecutor.join

    def join(executor: PeriodicExecutor, timeout: int | None = None) -> None:
        if executor._name != "pymongo_events_thread":
            wait(executor, timeout)

    PeriodicExecutor.join = join  # type: ignore[assignment, method-assign]


def leave(code: object) -> None:
    """Like the end of any program; but nobody waits until pymongo's threads have noticed, which takes half a second,
    nor until all that was imported is taken apart."""
    atexit.unregister(getattr(monitor, "_shutdown_resources", None))  # type: ignore[arg-type]
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code if isinstance(code, int) else code is not None)


def run() -> None:
    """What the arguments say, to its end."""
    if sys.argv[1:3] == ["start", "worker"]:
        have_fork_server()
    elif sys.argv[1:3] == ["start", "all"]:
        have_members(3)
    elif sys.argv[1:2] == ["dev"]:
        have_members(6)  # it may be reloaded once
    try:
        if sys.argv[1:2] == ["-m"]:
            name = sys.argv.pop(2)
            del sys.argv[1]
            runpy.run_module(name, run_name="__main__")
        elif sys.argv[1:] and sys.argv[1].endswith(".py"):
            del sys.argv[0]
            sys.path[0] = str(Path(sys.argv[0]).parent)
            runpy.run_path(sys.argv[0], run_name="__main__")
        else:
            recruiter.cli.main.main()
        leave(0)
    except SystemExit as end:
        leave(end.code)


if __name__ == "__main__":
    close_at_once()
    load_pydantic()
    for place, _ in COMMANDS.values():
        importlib.import_module(f"recruiter.cli.{place.partition(':')[0]}")
    become(serve(socket.socket(fileno=int(sys.argv[1]))))
    run()
