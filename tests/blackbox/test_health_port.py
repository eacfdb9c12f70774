"""`--health-port`: probes over HTTP, answered from memory by each process."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from recruiter import Recruiter
from recruiter.embedded import EmbeddedServer
from tests.conftest import Process, Starter, eventually

pytestmark = pytest.mark.usefixtures("store")  # prepared

APPLICATION = """
from recruiter import Recruiter

recruiter = Recruiter()


@recruiter.task
def add(a: int, b: int) -> int:
    return a + b
"""
ROLES = ("recruiter", "worker", "cleaner")


@pytest.fixture
def application(tmp_path: Path) -> str:
    file = tmp_path / "health_application.py"
    file.write_text(APPLICATION)
    return str(file)


def port_of(process: Process) -> int:
    process.says("answers probes on")
    found = re.search(r"answers probes on \S+ port (\d+)", process.log)
    assert found is not None
    return int(found[1])


def ask(port: int, path: str, method: str = "GET") -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text else None
    finally:
        connection.close()


@pytest.mark.parametrize("role", ROLES)
def test_a_process_at_work_is_live_and_ready(role: str, start: Starter, application: str) -> None:
    process = start("start", role, "--bootstrap", application, "--health-port", "0", "--health-host", "127.0.0.1")
    port = port_of(process)

    eventually(lambda: ask(port, "/ready")[0] == 200)
    assert ask(port, "/ready") == (200, {"role": role, "ready": True, "reasons": []})
    assert ask(port, "/live") == (200, {"role": role, "live": True, "reasons": []})
    assert process.stop() == 0


def test_a_recruiter_that_stands_by_is_ready_too(start: Starter) -> None:
    start("start", "recruiter").says("is the leader now")
    second = start("start", "recruiter", RECRUITER_HEALTH_PORT="0", RECRUITER_HEALTH_HOST="127.0.0.1")
    second.says("stands by")

    assert ask(port_of(second), "/ready")[0] == 200


def test_other_requests_are_refused_in_words(start: Starter) -> None:
    port = port_of(start("start", "cleaner", "--health-port", "0"))

    assert ask(port, "/metrics") == (404, {"error": "there are /live and /ready"})
    assert ask(port, "/live", "POST") == (405, {"error": "use GET"})
    assert ask(port, "/live?verbose=1")[0] == 200
    assert ask(port, "/live", "HEAD") == (200, None)


def test_a_port_that_is_taken_is_named(start: Starter) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        process = start("start", "cleaner", "--health-port", str(port), "--health-host", "127.0.0.1")

        assert process.wait() == 1
        assert f"cannot listen on 127.0.0.1 port {port}" in process.log
        assert "Traceback" not in process.log


def test_three_processes_cannot_share_a_port(start: Starter) -> None:
    fleet = start("start", "all", RECRUITER_HEALTH_PORT="8089")

    assert fleet.wait() == 2
    assert "RECRUITER_HEALTH_PORT" in fleet.log


def test_without_mongodb_a_process_is_live_and_not_ready(start: Starter, tmp_path: Path, application: str) -> None:
    # given a fleet at work
    with EmbeddedServer(tmp_path / "db") as server:
        options = ("--bootstrap", application, "--health-port", "0")
        started = [start("start", role, *options, RECRUITER_TARGET=f"{server.uri}") for role in ROLES]
        ports = [port_of(process) for process in started]
        eventually(lambda: [ask(port, "/ready")[0] for port in ports] == [200] * 3)

        # when MongoDB stops answering
        mongod = psutil.Process(server.pid)
        mongod.suspend()
        try:
            # then each process says so, and none is to be restarted
            eventually(lambda: [ask(port, "/ready")[0] for port in ports] == [503] * 3)
            for port in ports:
                assert "MongoDB has not answered for" in " ".join(ask(port, "/ready")[1]["reasons"])
                assert ask(port, "/live")[0] == 200
        finally:
            mongod.resume()

        # and it is ready again when MongoDB is back
        eventually(lambda: [ask(port, "/ready")[0] for port in ports] == [200] * 3)


class TestClients:
    def test_slow_and_hostile_clients_hold_up_no_probe_and_no_job(
        self, start: Starter, recruiter: Recruiter, application: str
    ) -> None:
        # given a worker, and clients that never finish a request, send too much, or nothing that is HTTP
        start("start", "recruiter")
        worker = start("start", "worker", "--bootstrap", application, "--health-port", "0")
        port = port_of(worker)
        eventually(lambda: ask(port, "/ready")[0] == 200)
        with ExitStack() as clients:
            for number in range(300):
                client = clients.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5))
                with suppress(OSError):  # dropped already
                    client.sendall((b"GET /live HTTP/1.1\r\nX: ", b"\x00\xff" * 20_000, b"")[number % 3])

            # when a probe comes, then it is answered soon
            began = time.monotonic()
            assert ask(port, "/live")[0] == 200
            assert time.monotonic() - began < 2

            # and jobs run, and not many connections are kept
            job = recruiter.job("add", {"a": 1, "b": 2}).enqueue()
            assert job.result(60) == 3
            eventually(lambda: _connections(worker, port) <= 40)
        eventually(lambda: _connections(worker, port) == 0)

    def test_a_client_that_leaves_at_once_harms_nothing(self, start: Starter) -> None:
        port = port_of(start("start", "cleaner", "--health-port", "0"))

        for _ in range(50):
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.sendall(b"GET /live HTTP/1.1\r\n\r\n")

        assert ask(port, "/live")[0] == 200


def _connections(process: Process, port: int) -> int:
    found = psutil.Process(process.pid).net_connections("tcp")
    return sum(1 for each in found if each.laddr.port == port and each.status == psutil.CONN_ESTABLISHED)


def test_a_process_that_is_asked_to_stop_is_not_ready(start: Starter, recruiter: Recruiter, tmp_path: Path) -> None:
    file = tmp_path / "slow_application.py"
    file.write_text(f"{APPLICATION}\n\n@recruiter.task\ndef slow() -> None:\n    import time\n\n    time.sleep(60)\n")
    start("start", "recruiter")
    worker = start("start", "worker", "--bootstrap", str(file), "--health-port", "0", "--grace", "30s")
    port = port_of(worker)
    job = recruiter.job("slow").enqueue()
    eventually(lambda: recruiter.find(job.id).locked_by)

    worker.signal(signal.SIGTERM)

    eventually(lambda: ask(port, "/ready")[0] == 503)
    assert ask(port, "/ready")[1]["reasons"] == ["the process was asked to stop"]
    assert ask(port, "/live")[0] == 200


class TestTheCommand:
    def test_it_asks_the_process_on_the_port(self, start: Starter) -> None:
        port = str(port_of(cleaner := start("start", "cleaner", "--health-port", "0")))

        eventually(lambda: health("--health-port", port)[0] == 0)
        assert health("--health-port", port) == (0, "the cleaner is ready\n")
        assert health(f"--health-port={port}", "--live") == (0, "the cleaner is live\n")
        assert health("--live", RECRUITER_HEALTH_PORT=port)[0] == 0

        assert cleaner.stop() == 0
        code, said = health("--health-port", port, "--live")
        assert (code, f"no process answers on health port {port}" in said) == (1, True)

    def test_it_says_why_a_process_is_not_ready(self, start: Starter, tmp_path: Path) -> None:
        slow = tmp_path / "slow.py"
        slow.write_text(f"import time\n\ntime.sleep(60)\n{APPLICATION}")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        start("start", "recruiter", "--bootstrap", str(slow), "--health-port", port)

        eventually(lambda: "is starting" in health("--health-port", port)[1])
        assert health("--health-port", port)[0] == 1
        assert health("--health-port", port, "--live")[0] == 0

    def test_it_imports_nothing_large(self) -> None:
        asked = "import sys; sys.argv[1:] = ['health', '--health-port', '1']\nfrom recruiter.cli.entry import main\n"
        large = "{'pymongo', 'pydantic', 'cyclopts', 'rich'}"
        asked += f"try:\n    main()\nfinally:\n    print(sorted(set(sys.modules) & {large}))"
        done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, timeout=60)

        assert (done.returncode, done.stdout) == (1, "[]\n")


def health(*arguments: str, **environment: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "recruiter.cli.entry", "health", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=60)
    return done.returncode, done.stdout + done.stderr
