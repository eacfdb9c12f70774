"""Resources and limits across a fleet: never crossed, nobody starved; a job that kills workers is found out."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from recruiter.store.database import Store
from tests.applications import limited
from tests.conftest import Process, Starter, eventually

APPLICATION = str(Path(limited.__file__))
HOSTS = {"small": (2, "proc=2,mem=2000"), "medium": (4, "proc=4,mem=4000"), "large": (6, "proc=8,mem=8000")}
LIMITS = {"a": 3, "b": 5}
FLEET_MEMORY = 11_000
GIB = 2**30


@pytest.fixture(autouse=True)
def application(target: str) -> Iterator[None]:
    limited.recruiter.point_at(target)
    yield
    limited.recruiter.close()


def a_fleet(start: Starter) -> dict[str, str]:
    """Three workers on hosts of different sizes; their ids by host."""
    start("start", "recruiter", "--bootstrap", APPLICATION)
    for host, (slots, resources) in HOSTS.items():
        options = ("--processes", "1", "--concurrency", str(slots), "--resources", resources, "--host", host)
        start("start", "worker", "--bootstrap", APPLICATION, *options)
    roster = eventually(lambda: len(limited.recruiter.store.roster.entries()) == 3)
    assert roster
    return {entry.id: entry.host for entry in limited.recruiter.store.roster.entries()}


def moments(executions: list[dict[str, Any]]) -> Iterator[tuple[datetime, int, dict[str, Any]]]:
    """Every start (+1) and end (-1) of a run, in order; ends first, for a slot that is given on at once."""
    events = [(run["last_execution"]["ended_at"], -1, run) for run in executions]
    events += [(run["last_execution"]["started_at"], 1, run) for run in executions]
    yield from sorted(events, key=lambda event: (event[0], event[1]))


def test_random_jobs_never_cross_a_limit(start: Starter, store: Store) -> None:
    # given three hosts of different sizes, two tasks with a limit, and one on the memory of the fleet
    chance = random.Random(7)
    for task, limit in LIMITS.items():
        limited.recruiter.controls.set_limit(f"task:{task}", limit)
    limited.recruiter.controls.set_limit("resource:mem", FLEET_MEMORY)
    hosts = a_fleet(start)

    # when jobs of all sizes come
    jobs = []
    for number in range(250):
        chosen = chance.choice([limited.a, limited.b, limited.c])
        needs = {"proc": chance.choice([0, 1, 1, 2, 4]), "mem": chance.choice([0, 100, 500, 1500, 4000])}
        if number % 25 == 24:
            needs = {"proc": 8, "mem": 8000}  # all of the largest host
        job = chosen.job(chance.uniform(0.0, 0.03)).needing(**needs)
        jobs.append(job.with_priority(chance.choice([0, 0, 1])).in_background().execute())
    for handle in jobs:
        assert handle.wait(90).done

    # then no limit was crossed at any moment
    running: dict[str, float] = defaultdict(float)
    capacity = {host: dict(part.split("=") for part in text.split(",")) for host, (_, text) in HOSTS.items()}
    for _, change, run in moments(list(store.archived.collection.find())):
        host = hosts[run["last_execution"]["worker"]]
        running[run["task"]] += change
        for resource in ("proc", "mem"):
            amount = change * run.get(resource, 0)
            running[f"{host}/{resource}"] += amount
            running[resource] += amount
            assert running[f"{host}/{resource}"] <= float(capacity[host][resource]) * (GIB if resource == "mem" else 1)
        assert all(running[task] <= limit for task, limit in LIMITS.items())
        assert running["mem"] <= FLEET_MEMORY * GIB
    assert {run["attempts"] for run in store.archived.collection.find()} == {1}


def test_a_job_that_kills_its_whole_worker_is_set_aside_after_three_that_it_had_alone_and_harms_nobody(
    start: Starter, store: Store
) -> None:
    # given somebody who starts a worker whenever one has died, as a service manager does
    quick = {"RECRUITER_HEARTBEAT": "300ms", "RECRUITER_CONSIDERED_DEAD_AFTER": "1500ms"}
    start("start", "recruiter", "--bootstrap", APPLICATION, **quick)
    workers: list[Process] = []

    def keep_working() -> bool:
        if not workers or workers[-1].popen.poll() is not None:
            workers.append(start("start", "worker", "--bootstrap", APPLICATION, **quick))
        return True

    # when the poison comes, with others before and after it
    before = [limited.innocent.enqueue(number) for number in range(3)]
    poison = limited.poison.enqueue()
    after = [limited.innocent.enqueue(number) for number in range(3, 6)]
    ended = eventually(lambda: store.archived.get(poison.id) if keep_working() else None, within=60)
    assert ended is not None
    eventually(lambda: keep_working() and all(store.archived.get(job.id) for job in before + after), within=30)

    # then it is set aside after three deaths that were certainly its own, and the others have lost no attempt
    assert (ended.why, ended.crashes) == ("crashed-too-many-times", 3)
    assert len(workers) <= 5
    others = [store.archived.get(job.id) for job in before + after]
    assert [(job.done, job.attempts, job.crashes) for job in others if job] == [(True, 1, 0)] * 6

    # and it can be brought back
    again = limited.recruiter.recover(poison.id)
    assert limited.recruiter.find(again.id).recovered_from == poison.id
    limited.recruiter.cancel(again.id)
