"""`recruiter limit|group|worker …`: what a person sees and what a script can rely on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from recruiter import Recruiter
from recruiter.store.database import Store
from tests.acceptance.test_command_line import run
from tests.conftest import Starter, eventually

Command = Callable[..., tuple[int, str]]


@pytest.fixture
def command(target: str) -> Command:
    return lambda *arguments: run(*arguments, RECRUITER_TARGET=target)


@pytest.fixture
def recruiter(target: str, store: Store) -> Iterator[Recruiter]:
    del store  # prepared
    with Recruiter(target) as recruiter:
        yield recruiter


def rows(command: Command, *arguments: str) -> list[dict[str, Any]]:
    code, said = command(*arguments, "--output", "json")
    assert code == 0, said
    found: list[dict[str, Any]] = json.loads(said)
    return found


class TestLimit:
    def test_set_change_list_and_remove(self, recruiter: Recruiter, command: Command) -> None:
        assert command("limit", "list") == (0, "There are no limits.\n")
        assert command("limit", "set", "task:resize", "2")[0] == 0
        assert command("limit", "set", "task:resize", "3", "--count", "100", "--per", "1m")[0] == 0

        (row,) = rows(command, "limit", "list")

        assert (row["subject"], row["at_once"]) == ("task:resize", 3)
        assert "100" in row["rate"]
        assert command("limit", "remove", "task:resize")[0] == 0
        assert recruiter.controls.limits() == []

    def test_one_record_a_line(self, recruiter: Recruiter, command: Command) -> None:
        recruiter.controls.set_limit("task:resize", 2)
        recruiter.controls.set_limit("group:mail", 3)

        code, said = command("limit", "list", "--output", "jsonl")

        assert code == 0
        assert {json.loads(line)["subject"] for line in said.splitlines()} == {"task:resize", "group:mail"}

    @pytest.mark.parametrize(
        ("arguments", "word"),
        [
            (["set", "resize", "2"], "resize"),
            (["set", "task:resize"], "task:resize"),
            (["set", "task:resize", "many"], "many"),
            (["set", "task:resize", "--count", "3"], "in what time"),
            (["set", "task:resize", "--count", "3", "--per", "soon"], "soon"),
            (["remove", "task:nothing"], "task:nothing"),
        ],
        ids=" ".join,
    )
    def test_bad_input(self, recruiter: Recruiter, command: Command, arguments: list[str], word: str) -> None:
        code, said = command("limit", *arguments)

        assert code in (1, 2)
        assert word in said
        assert "Traceback" not in said
        assert recruiter.controls.limits() == []


class TestGroup:
    def test_pause_list_and_resume(self, recruiter: Recruiter, command: Command) -> None:
        recruiter.job("send").in_group("mail").in_background().execute()

        assert command("group", "pause", "mail", "--by", "ada", "--reason", "the relay is down")[0] == 0

        (row,) = rows(command, "group", "list")
        assert (row["group"], row["jobs"], row["workers"]) == ("mail", 1, 0)
        assert row["state"] == "paused by ada: the relay is down"
        assert command("group", "resume", "mail") == (0, "group mail goes on\n")
        assert command("group", "resume", "mail") == (0, "group mail was not paused\n")
        assert rows(command, "group", "list")[0]["state"] == "active"

    def test_block_all_starts(self, recruiter: Recruiter, command: Command) -> None:
        assert command("group", "pause", "--all", "--by", "ada")[0] == 0

        assert recruiter.controls.rules().blocked
        assert command("group", "resume", "--all") == (0, "jobs start again\n")
        assert not recruiter.controls.rules().blocked

    @pytest.mark.parametrize("arguments", [[], ["mail", "--all"]], ids=["neither", "both"])
    def test_a_group_or_all(self, recruiter: Recruiter, command: Command, arguments: list[str]) -> None:
        code, said = command("group", "pause", *arguments)

        assert (code, "name a group, or say --all" in said) == (2, True)
        assert recruiter.controls.rules().paused == {}

    def test_no_groups(self, recruiter: Recruiter, command: Command) -> None:
        del recruiter
        assert command("group", "list") == (0, "No group has jobs.\n")


class TestWorker:
    def test_list_drain_and_resume(self, recruiter: Recruiter, command: Command, start: Starter, target: str) -> None:
        """Given a worker, when it is to be given nothing, then the list says so, and no job starts until it may."""
        start(
            "start", "all", "--target", target, "--bootstrap", "tests.applications.jobs", "--work-on", "generic"
        ).says("joined the roster")
        (worker,) = rows(command, "worker", "list")
        assert {"worker", "host", "pid", "groups", "slots", "holds", "runs", "state", "seen", "joined_at"} <= set(
            worker
        )
        assert (worker["groups"], worker["slots"], worker["state"]) == (["generic"], 1, "works")

        code, said = command("worker", "drain", worker["worker"], "--by", "ada", "--reason", "a new kernel")

        assert (code, "recruiter worker resume" in said) == (0, True)
        (drained,) = rows(command, "worker", "list")
        assert drained["state"] == "kept idle by ada: a new kernel"
        job = recruiter.job("add", {"a": 1, "b": 2}).in_background().execute()
        eventually(lambda: "kept idle" in recruiter.explain(job.id))
        assert command("worker", "resume", worker["worker"])[0] == 0
        assert job.result(timeout=30) == 3

    def test_what_it_runs(self, recruiter: Recruiter, command: Command, start: Starter, target: str) -> None:
        start("start", "all", "--target", target, "--bootstrap", "tests.applications.jobs").says("joined the roster")
        job = recruiter.job("nap", {"seconds": 60}).in_background().execute()

        def runs() -> list[str]:
            found: list[str] = rows(command, "worker", "list")[0]["runs"]
            return found

        eventually(lambda: runs() != [])
        assert f"nap {job.id}" in runs()[0]
        recruiter.cancel(job.id)
        assert job.wait(timeout=30).why == "cancelled"

    def test_nobody(self, recruiter: Recruiter, command: Command) -> None:
        del recruiter
        assert command("worker", "list") == (0, "No worker is on the roster.\n")

    @pytest.mark.parametrize("verb", ["drain", "resume"])
    def test_an_unknown_worker(self, recruiter: Recruiter, command: Command, verb: str) -> None:
        code, said = command("worker", verb, "nobody")

        assert code == 1
        assert "nobody" in said
        del recruiter
