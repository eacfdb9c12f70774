"""Limits by key, declared in code: never above for any key, and no key holds up another."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from recruiter import InvalidJob, Recruiter, Workable
from recruiter.errors import SettingsError
from recruiter.steps.assign import assign
from recruiter.steps.clean import clean_starts
from recruiter.store.database import Store
from tests.cli_here import here
from tests.conftest import Process, eventually
from tests.samples import on_the_roster

Start = Callable[..., Process]

APPLICATION = """
import os, pathlib, time
from recruiter import Recruiter
recruiter = Recruiter()

def runs(path):
    pid = int(path.name.partition("-")[0])
    try:
        os.kill(pid, 0)
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (OSError, ValueError):
        return False

@recruiter.task(limits={"customer": 2})
def export(folder: str, customer: int) -> int:
    mine = pathlib.Path(folder) / str(customer)
    mine.mkdir(exist_ok=True)
    mark = mine / f"{os.getpid()}-{time.monotonic_ns()}"
    mark.touch()
    at_once = sum(map(runs, mine.iterdir()))
    time.sleep(0.05)
    mark.unlink()
    return at_once
"""


def test_no_customer_ever_runs_more_than_allowed_while_workers_are_killed(
    recruiter: Recruiter, fleet: Start, start: Start, bootstrap: str, tmp_path: Path, target: str
) -> None:
    """Given three customers with 20 jobs each and more slots than they may use, when a worker is killed in the middle,
    then no customer ever has more than two jobs running, each uses both places, and all jobs end."""
    options = ("--processes", "4", "--considered-dead-after", "2s", "--heartbeat", "200ms")
    fleet(bootstrap, *options)
    other = start("start", "worker", "--bootstrap", bootstrap, *options)
    other.says("joined the roster")
    folder = tmp_path / "customers"
    folder.mkdir()
    for number in range(60):
        customer = number % 3
        recruiter.job("export", [str(folder), customer]).limited_by(customer=customer).enqueue()
    eventually(lambda: recruiter.jobs.count(state="succeeded").number > 10)

    other.signal(signal.SIGKILL)

    eventually(lambda: recruiter.jobs.count(state="succeeded").number == 60)
    most = Counter[str]()
    for job in recruiter.jobs.iterate(task="export"):
        most[str(job.limited_by)] = max(most[str(job.limited_by)], int(job.result))
    assert most.keys() == {"customer:0", "customer:1", "customer:2"}
    assert set(most.values()) <= {1, 2}, "never above"
    assert 2 in most.values(), "both places are used"
    (limit,) = json.loads(here(target, "limit", "list", "--output", "json")[1])
    assert (limit["subject"], limit["source"]) == ("key:export/customer", "declared")


@pytest.fixture
def declared(recruiter: Recruiter, store: Store) -> Recruiter:
    """An application whose limits a worker has declared; nothing runs."""

    @recruiter.task(limits={"customer": "2/10s"})
    def notify(customer: int) -> None: ...

    @recruiter.task(limits={"customer": 1})
    def export(customer: int) -> None: ...

    store.limits.declare(recruiter.registry.names(), recruiter.registry.limits(), recruiter.clock.now())
    on_the_roster(store, tasks=["notify", "export"], slots=100, prefetch=0)
    return recruiter


def given(store: Store, now: Any) -> int:
    return assign(store, 1, now, store.limits.read()).assigned


def test_a_rate_holds_for_each_key_and_no_key_holds_up_another(declared: Recruiter, store: Store) -> None:
    """Given a rate of two in ten seconds for each customer, when one customer has many jobs, then two of them start in
    any ten seconds, and those of the others start all the same."""
    for _ in range(5):
        declared.job("notify", [1]).limited_by(customer=1).enqueue()
    declared.job("notify", [2]).limited_by(customer=2).enqueue()
    declared.job("notify", [3]).enqueue()  # without a key: not counted
    now = declared.clock.now() + timedelta(seconds=1)

    assert given(store, now) == 4
    assert given(store, now + timedelta(seconds=9)) == 0
    waiting = next(iter(declared.jobs.iterate(state="queued")))
    assert "key customer:1 of task notify may start 2 per 10s" in explained(declared, store, waiting.id)
    assert given(store, now + timedelta(seconds=11)) == 2
    assert given(store, now + timedelta(seconds=22)) == 1


def explained(recruiter: Recruiter, store: Store, id: Any) -> str:
    facts = {"host": "here", "pid": 1, "renewed_at": recruiter.clock.now()}
    assert store.leases.acquire(store.leases.look(), "me", facts) is not None
    return recruiter.explain(id)


def test_tasks_are_counted_apart_and_the_limit_is_named(declared: Recruiter, store: Store) -> None:
    """Given a customer whose export runs, when another export and a notification of this customer are due, then only
    the export waits, and it names the limit, the key and the job that holds it."""
    first = declared.job("export", [1]).limited_by(customer=1).enqueue().id
    assert given(store, declared.clock.now()) == 1
    second = declared.job("export", [1]).limited_by("customer:1").enqueue().id
    declared.job("notify", [1]).limited_by(customer=1).enqueue()

    assert given(store, declared.clock.now()) == 1

    told = explained(declared, store, second)
    assert told.startswith(f"key customer:1 of task export is at its limit of 1 (held by job {first})")


def test_an_operator_replaces_it_and_a_new_version_removes_it(declared: Recruiter, store: Store) -> None:
    declared.controls.set_limit("key:export/customer", 5, by="ada")
    assert {limit.subject: limit.at_once for limit in declared.controls.limits()}["key:export/customer"] == 5
    declared.controls.remove_limit("key:export/customer")

    store.limits.declare(["export", "notify"], [], declared.clock.now())

    assert declared.controls.limits() == []


def test_counts_of_starts_that_no_limit_needs_are_removed(declared: Recruiter, store: Store) -> None:
    for customer in range(20):
        declared.job("notify", [customer]).limited_by(customer=customer).enqueue()
    now = declared.clock.now()
    assert given(store, now) == 20
    assert len(store.limits.read().starts) == 20

    assert clean_starts(store, now + timedelta(seconds=30)) == 0
    assert clean_starts(store, now + timedelta(seconds=90)) == 20
    assert store.limits.read().starts == {}


def test_a_workable_declares_the_same(recruiter: Recruiter) -> None:
    class ExportsByKey(Workable, limits={"customer": 3}):
        def execute(self) -> None: ...

    limits = {limit.subject: limit.at_once for limit in recruiter.registry.limits(["ExportsByKey"])}
    assert limits == {"key:ExportsByKey/customer": 3}


@pytest.mark.parametrize("limits", [{"customer": "often"}, {"customer": 1.5}, {"a b": 2}, {"a:b": 2}, ["customer"]])
def test_what_is_no_limit_is_refused_when_the_task_is_defined(recruiter: Recruiter, limits: Any) -> None:
    def export() -> None: ...

    with pytest.raises(SettingsError) as raised:
        recruiter.task(limits=limits)(export)
    assert "checked" not in str(raised.value)


def test_a_job_has_one_key(recruiter: Recruiter) -> None:
    assert recruiter.job("x").limited_by(customer=42).build().limited_by == "customer:42"
    for wrong in ({}, {"customer": 1, "region": 2}):
        with pytest.raises(InvalidJob, match="limited_by needs one key"):
            recruiter.job("x").limited_by(**wrong)
    for value in ("a b", "", 1.5, True, None):
        with pytest.raises(InvalidJob):
            recruiter.job("x").limited_by(customer=value)  # type: ignore[arg-type]
    for key in ("customer", "customer:", ":42", "", 1.5, True):
        with pytest.raises(InvalidJob):
            recruiter.job("x").limited_by(key)  # type: ignore[arg-type]
