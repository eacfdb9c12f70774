"""What systemd hears: a real notify socket, and real processes that write to it."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from recruiter.domain.text import plural
from recruiter.embedded import EmbeddedServer
from recruiter.events import Events
from recruiter.processes.loop import Loop, Stop
from recruiter.processes.systemd import ServiceManager
from recruiter.store.database import Store
from tests.applications import jobs
from tests.conftest import Process, Starter, eventually


class Listener:
    """The other end: systemd's."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"\0{address[1:]}" if address.startswith("@") else address)
        self._socket.setblocking(False)
        self.lines: list[str] = []

    def heard(self) -> list[str]:
        while True:
            try:
                self.lines += self._socket.recv(4096).decode().splitlines()
            except BlockingIOError:
                return self.lines

    def hears(self, line: str, within: float = 30.0) -> None:
        eventually(lambda: any(each.startswith(line) for each in self.heard()), within)

    def forget(self) -> None:
        self.heard()
        self.lines.clear()

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Listener]:
    listener = Listener(str(tmp_path / "notify") if request.param == "path" else f"@recruiter-{secrets.token_hex(8)}")
    yield listener
    listener.close()


def test_a_worker_is_ready_when_it_is_on_the_roster(start: Starter, store: Store, systemd: Listener) -> None:
    worker = start("start", "worker", "--bootstrap", jobs.__file__, NOTIFY_SOCKET=systemd.address)

    systemd.hears("READY=1")
    (entry,) = store.roster.entries()
    assert entry.registration.ready
    slots = plural(entry.registration.slots, "slot")
    eventually(lambda: f"STATUS=works as {entry.id}, {slots}" in systemd.heard())

    worker.signal(signal.SIGTERM)
    systemd.hears("STOPPING=1")
    assert worker.wait() == 0
    assert systemd.heard().count("READY=1") == 1
    assert "WATCHDOG=1" not in systemd.heard()  # nobody asked for it


@pytest.mark.parametrize("systemd", ["path"], indirect=True)
def test_jobs_do_not_speak_for_their_worker(start: Starter, systemd: Listener) -> None:
    start("start", "recruiter")
    start("start", "worker", "--bootstrap", jobs.__file__, NOTIFY_SOCKET=systemd.address, WATCHDOG_USEC="20000000")
    systemd.hears("READY=1")

    seen = jobs.environment.enqueue().result(timeout=60)

    assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC"} & set(seen)


@pytest.mark.parametrize("systemd", ["path"], indirect=True)
def test_recruiters_are_ready_whether_they_lead_or_stand_by(start: Starter, systemd: Listener) -> None:
    leader = start("start", "recruiter", "--lease-time", "1s", NOTIFY_SOCKET=systemd.address)
    systemd.hears("READY=1")
    systemd.hears("STATUS=leads, term 1")
    systemd.forget()

    start("start", "recruiter", "--lease-time", "1s", NOTIFY_SOCKET=systemd.address)
    systemd.hears("READY=1")
    systemd.hears("STATUS=stands by")
    assert leader.stop() == 0
    systemd.hears("STATUS=leads, term 2")


@pytest.mark.parametrize("systemd", ["path"], indirect=True)
def test_a_fleet_is_ready_when_all_of_it_is(start: Starter, store: Store, systemd: Listener) -> None:
    settings = {"NOTIFY_SOCKET": systemd.address, "WATCHDOG_USEC": "1000000"}
    fleet = start("start", "all", "--bootstrap", jobs.__file__, **settings)

    systemd.hears("READY=1")
    assert store.roster.entries()[0].registration.ready
    eventually(lambda: {entry.role for entry in store.processes.entries()} == {"recruiter", "cleaner"})
    systemd.hears("WATCHDOG=1")

    fleet.signal(signal.SIGTERM)
    systemd.hears("STOPPING=1")
    assert fleet.wait() == 0
    assert systemd.heard().count("READY=1") == 1


def _falls_silent(systemd: Listener) -> None:
    """No ping for three times as long as there should be one."""

    def silent() -> bool:
        systemd.forget()
        deadline = time.monotonic() + 3.0
        while time.monotonic() < deadline:
            if "WATCHDOG=1" in systemd.heard():
                return False
            time.sleep(0.05)
        return True

    eventually(silent, within=60)


@pytest.mark.parametrize("systemd", ["path"], indirect=True)
@pytest.mark.parametrize("role", ["worker", "recruiter", "cleaner"])
def test_the_watchdog_hears_of_a_loop_that_goes_round(start: Starter, systemd: Listener, role: str) -> None:
    settings = {"NOTIFY_SOCKET": systemd.address, "WATCHDOG_USEC": "2000000"}
    process: Process = start("start", role, "--bootstrap", jobs.__file__, **settings)

    systemd.hears("READY=1")
    for _ in range(3):
        systemd.forget()
        systemd.hears("WATCHDOG=1")
    assert process.stop() == 0


@pytest.mark.parametrize("systemd", ["path"], indirect=True)
def test_a_watchdog_of_somebody_else_is_left_alone(start: Starter, systemd: Listener) -> None:
    settings = {"NOTIFY_SOCKET": systemd.address, "WATCHDOG_USEC": "200000", "WATCHDOG_PID": "1"}
    cleaner = start("start", "cleaner", **settings)

    systemd.hears("READY=1")
    assert cleaner.stop() == 0
    assert "WATCHDOG=1" not in systemd.heard()


@pytest.mark.parametrize("systemd", ["path"], indirect=True)
def test_a_recruiter_that_waits_for_a_frozen_mongodb_falls_silent(
    start: Starter, systemd: Listener, tmp_path: Path
) -> None:
    """Given a step that does not come back, then the watchdog hears nothing, although the process lives."""
    with EmbeddedServer(tmp_path / "mongodb") as server:
        settings = {"NOTIFY_SOCKET": systemd.address, "WATCHDOG_USEC": "1000000", "RECRUITER_TARGET": server.uri}
        recruiter = start("start", "recruiter", **settings)
        systemd.hears("READY=1")
        systemd.hears("WATCHDOG=1")
        assert server.pid is not None

        os.kill(server.pid, signal.SIGSTOP)
        try:
            _falls_silent(systemd)
        finally:
            os.kill(server.pid, signal.SIGCONT)

        systemd.forget()
        systemd.hears("WATCHDOG=1", within=60)
        assert recruiter.stop(40) == 0


def test_a_step_that_hangs_stops_the_pings(tmp_path: Path) -> None:
    systemd = Listener(str(tmp_path / "notify"))
    hang, hangs, stop = threading.Event(), threading.Event(), Stop()

    def step() -> float:
        if hangs.is_set():
            hang.wait()
        return 30.0  # far longer than the watchdog waits

    manager = ServiceManager(systemd.address, watchdog=0.2)
    loop = Loop("test", step, stop, Events(), manager=manager)
    thread = loop.start()
    for _ in range(3):
        systemd.forget()
        systemd.hears("WATCHDOG=1", within=10)

    hangs.set()
    loop.wake()

    _falls_silent(systemd)
    hang.set()
    systemd.hears("WATCHDOG=1", within=10)
    stop.ask()
    thread.join(10)
    systemd.close()
