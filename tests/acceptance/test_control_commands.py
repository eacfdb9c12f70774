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
from tests.acceptance.test_command_line import run
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

    @pytest.mark.parametrize("verb", ["drain", "resume"])
    def test_one_that_is_not_there(self, target: str, store: Store, verb: str) -> None:
        del store
        code, said = run("worker", verb, "nobody", RECRUITER_TARGET=target)

        assert code == 1
        assert said == "recruiter: no worker 'nobody' is on the roster\n"

    def test_drain_and_resume(self, recruiter: Recruiter, store: Store, command: Command) -> None:
        code, said = command("worker", "drain", "host1:7:ab12", "--reason", "it swaps", "--by", "ada")

        assert (code, "recruiter worker resume host1:7:ab12" in said) == (0, True)
        assert "drained by ada: it swaps" in command("worker", "list")[1]
        assert [worker.draining for worker in store.roster.read()] == [True]
        assert command("worker", "resume", "host1:7:ab12") == (0, "worker host1:7:ab12 gets jobs again\n")
        assert [worker.draining for worker in store.roster.read()] == [False]
        del recruiter


class TestGroups:
    def test_fair(self, recruiter: Recruiter, command: Command) -> None:
        """Given a group without jobs, when it is shared, changed and no longer shared, then each is shown."""
        assert command("group", "fair", "post") == (
            0,
            "the jobs of group post take turns by owner. Undo it with: recruiter group fair post --off\n"
            "note: there is no group 'post'; there are images, mail\n",
        )
        assert command("group", "fair", "post", "--by", "key", "--weight", "customer:7=3")[0] == 0
        assert "active, shared by key (customer:7=3)" in lines(command("group", "list")[1])["post"]
        code, said = command("group", "fair", "post", "--off", "--weight", "ada=3")
        assert (code, "give it without --by and --weight" in said) == (2, True), said
        assert recruiter.controls.rules().fair
        assert command("group", "fair", "post", "--off") == (0, "group post is no longer shared\n")
        assert command("group", "fair", "post", "--off") == (0, "group post was not shared\n")

    @pytest.mark.parametrize("weight", ["ada", "=3", "ada=much", "ada=0"])
    def test_a_weight_that_makes_no_sense(self, recruiter: Recruiter, command: Command, weight: str) -> None:
        code, said = command("group", "fair", "mail", "--weight", weight)

        assert (code, "weight" in said) == (2, True), said
        assert not recruiter.controls.rules().fair

    @pytest.mark.parametrize(
        ("arguments", "code", "told"),
        [
            (["pause"], 2, "name a group, or give --all"),
            (["pause", "mail", "--all"], 2, "name a group, or give --all"),
            (["pause", "a b"], 2, "group 'a b' is not a name"),
        ],
        ids=str,
    )
    def test_bad_input(self, store: Store, command: Command, arguments: list[str], code: int, told: str) -> None:
        del store
        answer, said = command("group", *arguments)

        assert answer == code
        assert said.startswith(f"recruiter: {told}")
        assert said.count("\n") == 1

    def test_all(self, recruiter: Recruiter, command: Command) -> None:
        assert command("group", "pause", "--all", "--reason", "night")[0] == 0
        assert recruiter.controls.rules().blocked
        listed = command("group", "list")[1]
        assert "all starts are blocked by" in lines(listed)["mail"]
        assert re.search(r"All starts are blocked by \S+ since .* UTC: night\. Allow them with: ", listed)
        assert re.search(r"ALL STARTS ARE BLOCKED by \S+ since .* UTC: night", command("top", "--once")[1])
        assert command("group", "resume", "--all") == (0, "jobs start again\n")
        assert command("group", "resume", "--all") == (0, "starts were not blocked\n")


class TestLimits:
    def test_set_list_and_remove(self, recruiter: Recruiter, target: str, command: Command) -> None:
        assert run("limit", "set", "task:send", "2", RECRUITER_TARGET=target) == (0, "subject task:send, at once 2\n")
        assert command("limit", "set", "group:mail", "--count", "100", "--per", "1m")[0] == 0
        assert command("limit", "set", "resource:mem", "64GiB")[0] == 0

        code, said = command("limit", "list")

        assert code == 0
        assert lines(said)["task:send"].split()[:4] == ["task:send", "2", "set", "by"]
        assert "100 per 1m" in lines(said)["group:mail"]
        assert [limit["subject"] for limit in json.loads(command("limit", "list", "--output", "json")[1])] == [
            limit.subject for limit in recruiter.controls.limits()
        ]
        assert command("limit", "remove", "task:send") == (0, "task:send has no limit now\n")
        assert "task:send" not in command("limit", "list")[1]

    @pytest.mark.parametrize(
        ("arguments", "code", "told"),
        [
            (["set", "send", "2"], 2, "'send'"),
            (["set", "task:send"], 2, ""),
            (["set", "task:send", "many"], 2, ""),
            (["set", "task:send", "--count", "5"], 2, ""),
            (["remove", "task:nobody"], 1, "there is no limit on 'task:nobody'"),
        ],
        ids=str,
    )
    def test_bad_input(self, store: Store, command: Command, arguments: list[str], code: int, told: str) -> None:
        del store
        answer, said = command("limit", *arguments)

        assert answer == code
        assert said.startswith("recruiter: ")
        assert told in said
        assert said.count("\n") == 1


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
