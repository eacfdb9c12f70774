"""The facts behind `/live` and `/ready`, with a clock that the test moves."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing

import pytest

from recruiter.errors import StoreError
from recruiter.events import Event
from recruiter.processes.health_port import LIVE_WITHIN_SECONDS, READY_WITHIN_SECONDS, HealthPort, ProcessHealth
from recruiter.store.errors import store_call


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@store_call
def mongodb_answers() -> None: ...


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def health(clock: Clock) -> ProcessHealth:
    return ProcessHealth(clock)


@pytest.fixture
def port(health: ProcessHealth) -> Iterator[int]:
    with closing(HealthPort(health, "worker", "127.0.0.1", 0)) as served:
        yield served.address[1]


def status(port: int, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def at_work(health: ProcessHealth) -> None:
    mongodb_answers()
    health.turned()
    health.hear(Event("worker.joined", {}))


def test_a_main_loop_that_hangs_is_not_live(health: ProcessHealth, clock: Clock, port: int) -> None:
    at_work(health)
    assert (status(port, "/live"), status(port, "/ready")) == (200, 200)

    clock.now += LIVE_WITHIN_SECONDS + 1
    mongodb_answers()  # of another thread

    assert health.reasons("live") == ["the main loop has not come round for 121 seconds"]
    assert (status(port, "/live"), status(port, "/ready")) == (503, 503)
    health.turned()
    assert (status(port, "/live"), status(port, "/ready")) == (200, 200)


def test_a_silent_mongodb_makes_it_unready(health: ProcessHealth, clock: Clock) -> None:
    at_work(health)

    clock.now += READY_WITHIN_SECONDS + 5
    health.turned()

    assert health.reasons("live") == []
    assert health.reasons("ready") == ["MongoDB has not answered for 20 seconds"]
    mongodb_answers()
    assert health.reasons("ready") == []


def test_a_process_that_stops_does_not_become_ready_again(health: ProcessHealth) -> None:
    at_work(health)

    health.hear(Event("process.stopping", {}))
    health.hear(Event("worker.joined", {}))

    assert health.reasons("ready") == ["the process was asked to stop"]


def test_a_failed_call_is_no_answer(health: ProcessHealth) -> None:
    @store_call
    def fails() -> None:
        raise StoreError("no")

    before = health.reasons("ready")
    with pytest.raises(StoreError):
        fails()

    assert health.reasons("ready") == before
