"""The address of MongoDB may have a password in it: no command line shows it. (Logs and messages mask it.)"""

from __future__ import annotations

from recruiter.store.database import Store
from tests.applications import jobs
from tests.conftest import Starter, eventually

JOBS = jobs.__file__
SECRET = "not-for-everybody"


def test_no_process_of_a_fleet_shows_it(start: Starter, store: Store, target: str) -> None:
    # given a fleet that was told an address
    address = f"{target}{'&' if '?' in target else '/?'}appName={SECRET}"
    fleet = start("start", "all", "--bootstrap", JOBS, "--target", address, cold=True)
    eventually(lambda: store.roster.read())
    assert jobs.add.enqueue(1, 2).result(timeout=60) == 3

    # when somebody lists its processes
    shown = [" ".join(process.cmdline()) for process in fleet.descendants()]

    # then none of them shows the address
    assert len(shown) >= 4, "its members, and below the worker what runs the jobs"
    assert not [line for line in shown if SECRET in line]
