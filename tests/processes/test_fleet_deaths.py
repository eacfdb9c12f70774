"""A member of a fleet that is killed from outside: the fleet says which one and how, and nothing that is not so."""

from __future__ import annotations

import json
import signal

import pytest

from recruiter.store.database import Store
from tests.applications import jobs
from tests.conftest import Starter, eventually

JOBS = jobs.__file__


@pytest.mark.parametrize("name", ["worker", "cleaner"])
def test_a_fleet_says_which_member_was_killed_and_how(start: Starter, store: Store, name: str) -> None:
    # given a fleet at work
    fleet = start("start", "all", "--bootstrap", JOBS, RECRUITER_LOG_FORMAT="json", RECRUITER_LOG_LEVEL="info")
    eventually(lambda: store.roster.read() and store.leases.read() and store.processes.entries())
    eventually(lambda: jobs.add.enqueue(1, 2).result(timeout=60) == 3)
    killed = fleet.member(name)

    # when one of it is killed from outside
    killed.send_signal(signal.SIGKILL)

    # then the fleet ends, and says which one it was and how it ended
    assert fleet.wait(40) == 1
    lines = [json.loads(line) for line in fleet.log.splitlines()]
    (told,) = [line for line in lines if line.get("event") == "fleet.member_ended"]
    assert (told["level"], told["member"], told["member_pid"]) == ("error", name, killed.pid)
    assert "was killed from outside by SIGKILL" in told["message"]
    assert "semaphore" not in fleet.log
    asked = {line["program"] for line in lines if line.get("event") == "process.stopping"}
    assert asked == {"recruiter", "worker", "cleaner"} - {name}
    assert lines.index(told) < min(lines.index(line) for line in lines if line.get("event") == "process.stopping")


def test_a_fleet_that_is_asked_to_stop_accuses_nobody(start: Starter, store: Store) -> None:
    fleet = start("start", "all", "--bootstrap", JOBS)
    eventually(lambda: store.roster.read())

    assert fleet.stop(40) == 0
    assert "killed" not in fleet.log
    assert "ended by itself" not in fleet.log
