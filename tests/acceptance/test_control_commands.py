"""`recruiter worker|group|limit …`: what a person sees, and what a script can rely on."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from recruiter import Recruiter
from recruiter.store.database import Store
from tests.cli_here import here
from tests.samples import a_job, insert, on_the_roster

Command = Callable[..., tuple[int, str]]


@pytest.fixture
def command(target: str) -> Command:
    return lambda *arguments, **environment: here(target, *arguments, **environment)


@pytest.fixture
def recruiter(target: str, store: Store) -> Iterator[Recruiter]:
    """Five jobs in two groups, and a worker for one of them that runs one."""
    with Recruiter(target) as recruiter:
        now = recruiter.clock.now()
        when: dict[str, Any] = {"created_at": now, "scheduled_at": now}
        first, *_ = insert(store, *(a_job(group="mail", task="send", **when) for _ in range(3)))
        insert(store, *(a_job(group="images", task="resize", **when) for _ in range(2)))
        facts: dict[str, Any] = {"groups": ["mail"], "tasks": ["send"], "slots": 2, "resources": "mem=8000,proc=4"}
        on_the_roster(store, "host1:7:ab12", host="host1", pid=7, seen_at=now, joined_at=now, **facts)
        store.roster.assign({"host1:7:ab12": [first]}, 1)
        run = {"job": first, "task": "send", "since": now - timedelta(minutes=3)}
        store.roster.collection.update_one({"_id": "host1:7:ab12"}, {"$set": {"running": [run]}})
        yield recruiter


def lines(said: str) -> dict[str, str]:
    return {line.split()[0]: line for line in said.splitlines() if line.strip()}


class TestWorkers:
    def test_who_is_there_and_what_it_does(self, recruiter: Recruiter, command: Command) -> None:
        code, said = command("worker", "list")

        assert code == 0
        assert said.splitlines()[0].split()[:5] == ["worker", "state", "slots", "free", "runs"]
        line = lines(said)["host1:7:ab12"]
        assert re.search(r"works +2 +1 +send for 3m[ \ds]*, [0-9a-f]{24} +1 +\d+s ago +mail +host1 +7 ", line)
        (row,) = json.loads(command("worker", "list", "--output", "json")[1])
        assert {name: row[name] for name in ("worker", "host", "pid", "groups", "slots", "free", "holds", "state")} == {
            "worker": "host1:7:ab12",
            "host": "host1",
            "pid": 7,
            "groups": ["mail"],
            "slots": 2,
            "free": 1,
            "holds": 1,
            "state": "works",
        }
        assert row["runs"][0]["since"][-1] == "Z"
        del recruiter


@pytest.mark.parametrize("listing", ["worker", "group", "limit", "scheduler", "job"])
def test_a_database_that_nobody_has_prepared(target: str, listing: str) -> None:
    code, said = here(target, listing, "list")

    assert code == 0
    assert said.count("\n") == 1


def test_a_database_that_an_older_version_has_prepared(target: str, store: Store) -> None:
    """Given one without the indexes of this version, then it is said how to make them."""
    insert(store, a_job())
    store.archived.collection.drop_indexes()
    store.scheduled.collection.drop_indexes()

    code, said = here(target, "job", "list")

    assert code == 4
    assert said.startswith("recruiter: an index that this version of Recruiter needs is missing")
    assert "recruiter prepare" in said
    assert here(target, "prepare")[0] == 0
    assert here(target, "job", "list")[0] == 0
