"""An address of the kind mongodb+srv:// while DNS is down: an outage like any other, never a mistake of the caller."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Literal

import dns.flags
import dns.message
import dns.rcode
import dns.resolver
import pytest

from recruiter import InvalidTarget, Recruiter, StoreUnreachable
from tests.cli_here import here

Failure = Literal["silent", "SERVFAIL", "NXDOMAIN"]
FAILURES: tuple[Failure, ...] = ("silent", "SERVFAIL", "NXDOMAIN")
ADDRESS = "mongodb+srv://ada:hunter2@cluster.shop.test/shop"


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


@pytest.fixture(autouse=True)
def only_name_server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host whose only name server is ours."""
    if "name_server" in request.fixturenames:
        resolver = dns.resolver.Resolver(configure=False)
        resolver.nameservers = ["127.0.0.1"]
        resolver.port = request.getfixturevalue("name_server").port
        monkeypatch.setattr(dns.resolver, "default_resolver", resolver)


@pytest.mark.parametrize(
    ("name_server", "command"),
    [*((failure, ["job", "list"]) for failure in FAILURES), ("SERVFAIL", ["start", "worker"]), ("silent", ["health"])],
    indirect=["name_server"],
    ids=str,
)
def test_a_command_exits_with_4_and_says_why(name_server: NameServer, command: list[str]) -> None:
    began = time.monotonic()
    code, said = here(f"{ADDRESS}?connectTimeoutMS=1000" if command[0] == "job" else ADDRESS, *command)

    assert code == 4, said
    assert "DNS" in said
    assert "cluster.shop.test" in said
    assert "hunter2" not in said
    assert "Traceback" not in said
    assert name_server.asked
    assert time.monotonic() - began < 60  # not the twenty seconds of the driver for each of its questions


@pytest.mark.parametrize("name_server", ["silent"], indirect=True)
@pytest.mark.usefixtures("name_server")
def test_a_liveness_probe_kills_no_worker() -> None:
    code, said = here(ADDRESS, "health", "--role", "worker", "--live")

    assert code == 0, said


@pytest.mark.parametrize("name_server", ["SERVFAIL"], indirect=True)
def test_a_process_that_starts_asks_again_for_a_while(name_server: NameServer) -> None:
    here(ADDRESS, "job", "list")
    by_a_command = name_server.asked

    here(ADDRESS, "start", "cleaner")

    assert name_server.asked > 2 * by_a_command + 1


@pytest.mark.parametrize("name_server", ["NXDOMAIN"], indirect=True)
@pytest.mark.parametrize("target", ["mongodb+srv://127.0.0.1/shop", "mongodb+srv://a.b.c:27017/shop"])
@pytest.mark.usefixtures("name_server")
def test_a_mistake_in_the_address_is_still_a_mistake(target: str) -> None:
    for command in (["job", "list"], ["health", "--live"]):
        code, said = here(target, *command)
        assert code == 2, said


def test_python_is_told_that_it_passes() -> None:
    with Recruiter("mongodb+srv://cluster.shop.invalid/shop") as recruiter:
        recruiter.patience = 1.0
        for _ in range(2):
            with pytest.raises(StoreUnreachable, match=r"DNS .*cluster\.shop\.invalid"):
                recruiter.find("x")
    with Recruiter("mongodb+srv://127.0.0.1/shop") as recruiter, pytest.raises(InvalidTarget):
        recruiter.find("x")
