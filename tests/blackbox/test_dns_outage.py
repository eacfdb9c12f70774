"""An address of the kind mongodb+srv:// while DNS is down: an outage like any other, never a mistake of the caller."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Literal

import dns.flags
import dns.message
import dns.rcode
import pytest

from recruiter import InvalidTarget, Recruiter, StoreUnreachable

Failure = Literal["silent", "SERVFAIL", "NXDOMAIN"]
FAILURES: tuple[Failure, ...] = ("silent", "SERVFAIL", "NXDOMAIN")
ADDRESS = "mongodb+srv://ada:hunter2@cluster.shop.test/shop"

MAIN = """
import sys

import dns.resolver

from recruiter.cli.main import run

dns.resolver.default_resolver = dns.resolver.Resolver(configure=False)
dns.resolver.default_resolver.nameservers = ["127.0.0.1"]
dns.resolver.default_resolver.port = int(sys.argv[1])
run(sys.argv[2:])
"""
"""The command line, on a host whose only name server is ours."""


class NameServer:
    """A real name server on this host that resolves nothing."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        self.asked = 0
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            question, sender = self._socket.recvfrom(4096)
            if not question:
                return
            self.asked += 1
            if self.failure != "silent":
                answer = dns.message.make_response(dns.message.from_wire(question))
                answer.set_rcode(dns.rcode.from_text(self.failure))
                self._socket.sendto(answer.to_wire(), sender)

    def close(self) -> None:
        self._socket.sendto(b"", ("127.0.0.1", self.port))
        self._thread.join()
        self._socket.close()


@pytest.fixture
def name_server(request: pytest.FixtureRequest) -> Iterator[NameServer]:
    with closing(NameServer(request.param)) as server:
        yield server


def run(server: NameServer, *arguments: str, target: str = ADDRESS) -> tuple[int, str, float]:
    """The exit code, everything that the command said, and how many seconds it took."""
    began = time.monotonic()
    command = [sys.executable, "-c", MAIN, str(server.port), *arguments, "--target", target]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr, time.monotonic() - began


@pytest.mark.parametrize(
    ("name_server", "command"),
    [*((failure, ["job", "list"]) for failure in FAILURES), ("SERVFAIL", ["start", "worker"]), ("silent", ["health"])],
    indirect=["name_server"],
    ids=str,
)
def test_a_command_exits_with_4_and_says_why(name_server: NameServer, command: list[str]) -> None:
    code, said, took = run(name_server, *command)

    assert code == 4, said
    assert "DNS" in said
    assert "cluster.shop.test" in said
    assert "hunter2" not in said
    assert "Traceback" not in said
    assert name_server.asked
    assert took < 60  # not the twenty seconds of the driver for each of its questions


@pytest.mark.parametrize("name_server", ["silent"], indirect=True)
def test_a_liveness_probe_kills_no_worker(name_server: NameServer) -> None:
    code, said, _ = run(name_server, "health", "--role", "worker", "--live")

    assert code == 0, said


@pytest.mark.parametrize("name_server", ["SERVFAIL"], indirect=True)
def test_a_process_that_starts_asks_again_for_a_while(name_server: NameServer) -> None:
    run(name_server, "job", "list")
    by_a_command = name_server.asked

    run(name_server, "start", "cleaner")

    assert name_server.asked > 2 * by_a_command + 1


@pytest.mark.parametrize("name_server", ["NXDOMAIN"], indirect=True)
@pytest.mark.parametrize("target", ["mongodb+srv://127.0.0.1/shop", "mongodb+srv://a.b.c:27017/shop"])
def test_a_mistake_in_the_address_is_still_a_mistake(name_server: NameServer, target: str) -> None:
    for command in (["job", "list"], ["health", "--live"]):
        code, said, _ = run(name_server, *command, target=target)
        assert code == 2, said


def test_python_is_told_that_it_passes() -> None:
    with Recruiter("mongodb+srv://cluster.shop.invalid/shop") as recruiter:
        recruiter.patience = 1.0
        for _ in range(2):
            with pytest.raises(StoreUnreachable, match=r"DNS .*cluster\.shop\.invalid"):
                recruiter.find("x")
    with Recruiter("mongodb+srv://127.0.0.1/shop") as recruiter, pytest.raises(InvalidTarget):
        recruiter.find("x")
