"""`recruiter job …`: what a person sees, what a script can rely on, and what is refused."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from recruiter import JobHandle, Recruiter, RetryManyTimes, current_job
from recruiter.store.database import Store
from tests.acceptance.test_command_line import run

Command = Callable[..., tuple[int, str]]


@pytest.fixture
def command(target: str) -> Command:
    def command(*arguments: str, columns: int = 200) -> tuple[int, str]:
        return run("job", *arguments, RECRUITER_TARGET=target, COLUMNS=str(columns))

    return command


@pytest.fixture
def recruiter(target: str, store: Store) -> Iterator[Recruiter]:
    """Two jobs that succeeded, one that failed twice, and three that wait."""
    del store  # prepared
    with Recruiter(target) as recruiter:

        @recruiter.task(group="mail", name="shown_send", retry=RetryManyTimes(1, 0))
        def send(to: str, customer: dict[str, int]) -> str:
            current_job.stage("connecting", progress=0.5)
            current_job.log(f"dialling {to}")
            assert customer["id"] == len(to)
            if "@" not in to:
                raise ValueError(f"{to} is no address")
            return f"sent to {to}"

        for to in ("a@b.c", "b@c.d", "nobody"):
            send.job(to, {"id": len(to)}).tagged_as("campaign:7").owned_by("ada").in_background().execute()
        assert len(recruiter.run_all(send)) == 4
        for number in range(3):
            recruiter.job("unheard_of", {"n": number}).in_group("lost").with_id(
                f"job-{number}"
            ).in_background().execute()
        yield recruiter


def ids(said: str) -> list[str]:
    return [row["id"] for row in json.loads(said)]


def the_failed_one(recruiter: Recruiter) -> str:
    return str(recruiter.jobs.list(state="failed").jobs[0].id)


def listed(command: Command, *arguments: str) -> list[dict[str, Any]]:
    code, said = command("list", "--output", "jsonl", "--all", *arguments)
    assert code == 0, said
    return [json.loads(line) for line in said.splitlines()]


class TestList:
    def test_those_that_wait_and_then_those_that_have_ended(self, recruiter: Recruiter, command: Command) -> None:
        code, said = command("list")

        assert code == 0
        lines = [line.split() for line in said.splitlines()]
        assert lines[0][:4] == ["id", "state", "task", "group"]
        assert [line[1] for line in lines[1:]] == ["waiting"] * 3 + ["failed", "succeeded", "succeeded"]
        assert "ValueError" in lines[4]
        del recruiter

    @pytest.mark.parametrize(
        ("filter", "states"),
        [
            (["--state", "failed"], ["failed"]),
            (["--state", "failed", "--state", "waiting"], ["waiting"] * 3 + ["failed"]),
            (["--task", "unheard_of"], ["waiting"] * 3),
            (["--group", "mail", "--state", "succeeded"], ["succeeded"] * 2),
            (["--tag", "campaign:7"], ["failed", "succeeded", "succeeded"]),
            (["--owner", "ada", "--attempts", "2"], ["failed"]),
            (["--error", "ValueError"], ["failed"]),
            (["--arg", "customer.id=6"], ["failed"]),
            (["--arg", "to=a@b.c"], ["succeeded"]),
            (["--arg", "n=2"], ["waiting"]),
            (["--since", "1h", "--state", "succeeded"], ["succeeded"] * 2),
            (["--until", "1h"], []),
            (["--slow", "1h"], []),
            (["--delayed", "1h"], []),
        ],
        ids=str,
    )
    def test_filters(self, recruiter: Recruiter, command: Command, filter: list[str], states: list[str]) -> None:
        assert [job["state"] for job in listed(command, *filter)] == states
        del recruiter

    def test_page_by_page(self, recruiter: Recruiter, command: Command) -> None:
        """Given six jobs, when listed two at a time, each page where the last one ended, then each is seen once."""
        seen: list[str] = []
        more: list[str] = []
        while len(seen) < 10:
            code, said = command("list", "--limit", "2", "--output", "json", *more)
            assert code == 0
            rows, _, hint = said.partition("there are more: ")
            seen += ids(rows)
            if not hint:
                break
            more = hint.split()

        assert len(seen) == len(set(seen)) == 6
        assert seen[:3] == ["job-0", "job-1", "job-2"]
        del recruiter

    @pytest.mark.parametrize("columns", [60, 80, 160])
    def test_it_fits_the_terminal(self, recruiter: Recruiter, command: Command, columns: int) -> None:
        _, said = command("list", columns=columns)

        assert max(map(len, said.splitlines())) <= columns
        assert all(word in said for word in ("job-0", "waiting", "failed"))
        del recruiter

    def test_nothing_is_cut_where_nobody_watches(self, recruiter: Recruiter, target: str) -> None:
        recruiter.job("unheard_of").tagged_as(
            *(f"a-rather-long-tag-{number}" for number in range(20))
        ).in_background().execute()
        clean = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
        command = [sys.executable, "-m", "recruiter.cli.main", "job", "list"]

        said = subprocess.run(
            command, env={**clean, "RECRUITER_TARGET": target}, capture_output=True, text=True, check=True
        )

        assert "a-rather-long-tag-19" in said.stdout
        assert "…" not in said.stdout

    def test_no_jobs(self, target: str, store: Store, command: Command) -> None:
        del target, store
        assert command("list") == (0, "No jobs.\n")
        assert command("list", "--output", "json") == (0, "[]\n")
        assert command("list", "--output", "jsonl") == (0, "")


class TestShow:
    def test_everything(self, recruiter: Recruiter, command: Command) -> None:
        """Given a job that failed twice, when it is shown, then how it ended, its arguments, both attempts with their
        trace, its stages and its log are there."""
        code, said = command("show", the_failed_one(recruiter))

        assert code == 0
        assert re.search(r"^job \w{24} failed\nhas ended at .* ValueError: nobody is no address$", said, re.MULTILINE)
        assert re.search(r"^owner +ada *$", said, re.MULTILINE)
        assert re.search(r"^tags +campaign:7 *$", said, re.MULTILINE)
        assert re.search(r'^  to +"nobody"$', said, re.MULTILINE)
        assert re.search(r"^  1  .* took .*: ValueError: nobody is no address$", said, re.MULTILINE)
        assert re.search(r"^  2  .* took .*: ValueError: nobody is no address$", said, re.MULTILINE)
        assert said.count("Traceback (most recent call last)") == 1
        assert "with the same traceback" in said
        assert re.search(r" 50% connecting \(running\)$", said, re.MULTILINE)
        assert re.search(r"^  .*  dialling nobody$", said, re.MULTILINE)

    def test_a_result(self, recruiter: Recruiter, command: Command) -> None:
        done = recruiter.jobs.list(state="succeeded").jobs[0]

        _, said = command("show", str(done.id))

        assert re.search(r'^result\n  "sent to .@.\.."$', said, re.MULTILINE)

    def test_one_that_waits_and_why(self, recruiter: Recruiter, command: Command) -> None:
        code, said = command("show", "job-1")

        assert code == 0
        assert "no recruiter leads" in said
        del recruiter

    def test_for_scripts(self, recruiter: Recruiter, command: Command) -> None:
        code, said = command("show", the_failed_one(recruiter), "--output", "json")

        told = json.loads(said)
        assert code == 0
        assert (told["state"], told["attempts"], told["args"]["to"]) == ("failed", 2, "nobody")
        assert [each["exception"] for each in told["executions"]] == ["ValueError"] * 2
        assert told["log"][0]["text"] == "dialling nobody"

    @pytest.mark.parametrize("columns", [80, 160])
    def test_it_fits_the_terminal(self, recruiter: Recruiter, command: Command, columns: int) -> None:
        _, said = command("show", the_failed_one(recruiter), columns=columns)

        assert max(map(len, said.splitlines())) <= columns
        assert "…" not in said

    @pytest.mark.parametrize("id", ["507f1f77bcf86cd799439011", "42", "-3", "9f0c2c2e-5d1f-4e5b-9d3f-0d6c1f3f7a11"])
    def test_a_text_that_looks_like_another_kind_of_id(self, recruiter: Recruiter, command: Command, id: str) -> None:
        recruiter.job("unheard_of").with_id(id).in_background().execute()

        code, said = command("show", "--output", "json", "--", id)

        assert (code, json.loads(said)["id"]) == (0, id)

    def test_other_kinds_of_ids(self, recruiter: Recruiter, command: Command) -> None:
        recruiter.job("unheard_of").with_id(42).in_background().execute()

        assert json.loads(command("show", "42", "--output", "json")[1])["id"] == 42


class TestControl:
    def test_cancel_some_by_id(self, recruiter: Recruiter, command: Command) -> None:
        code, _ = command("cancel", "job-0", "job-2", "--reason", "not needed", "--by", "ada")

        assert code == 0
        assert "cancelled by ada: not needed" in recruiter.explain("job-2")
        assert [job["id"] for job in listed(command, "--state", "queued")] == ["job-1"]

    def test_cancel_many_by_a_filter(self, recruiter: Recruiter, command: Command) -> None:
        code, said = command("cancel", "--task", "unheard_of", "--yes")

        assert (code, said.splitlines()[-1]) == (0, "3 jobs cancelled; those that run are stopped")
        assert recruiter.jobs.count(state="queued").number == 0

    def test_recover_what_failed(self, recruiter: Recruiter, command: Command) -> None:
        failed = the_failed_one(recruiter)

        code, said = command("recover", "--tag", "campaign:7", "--yes")

        assert (code, said.splitlines()[-1]) == (0, "1 job recovered")
        (again,) = recruiter.jobs.list(task="shown_send", state="waiting").jobs
        assert str(again.recovered_from) == failed

    def test_recover_one_later(self, recruiter: Recruiter, command: Command) -> None:
        code, _ = command("recover", the_failed_one(recruiter), "--schedule-at", "2040-01-01T00:00:00Z")

        assert code == 0
        assert recruiter.jobs.count(state="postponed", task="shown_send").number == 1

    def test_remove_by_a_filter(self, recruiter: Recruiter, command: Command) -> None:
        code, said = command("remove", "--state", "succeeded", "--yes")

        assert (code, said.splitlines()[-1]) == (0, "2 jobs removed")
        assert recruiter.jobs.count(state="succeeded").number == 0
        assert recruiter.jobs.count().number == 4

    def test_remove_one(self, recruiter: Recruiter, command: Command) -> None:
        failed = the_failed_one(recruiter)

        assert command("remove", failed, "--yes") == (0, "1 job removed\n")

        assert command("show", failed)[0] == 1

    def test_remove_everything_that_has_ended(self, recruiter: Recruiter, command: Command) -> None:
        assert command("remove", "--everything", "--yes")[0] == 0

        assert {job["state"] for job in listed(command)} == {"waiting"}
        del recruiter

    @pytest.mark.parametrize(("answer", "left"), [(b"n\n", 0), (b"y\n", 3)])
    def test_it_asks_first(self, recruiter: Recruiter, target: str, answer: bytes, left: int) -> None:
        """Given a person at a terminal, when they are asked, then it is done only if they say yes."""
        ours, theirs = pty.openpty()
        with subprocess.Popen(
            [sys.executable, "-m", "recruiter.cli.main", "job", "cancel", "--group", "lost"],
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "RECRUITER_TARGET": target},
        ) as process:
            os.close(theirs)
            os.write(ours, answer)
            said = process.communicate(timeout=40)[0].decode()
        os.close(ours)

        assert "Cancel 3 jobs (group lost)? [y/N]" in said
        assert process.returncode == 0
        assert 3 - recruiter.jobs.count(state="queued").number == left


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["show", "nothing"], 1, "there is no job 'nothing'"),
        (["cancel", "nothing"], 1, "there is no job 'nothing'"),
        (["list", "--state", "asleep"], 2, "'asleep' is no state; a job is waiting, running"),
        (["list", "--group", "mial"], 2, "no job has the group 'mial'; there are: mail"),
        (["list", "--task", "shown_sent"], 2, "no job has the task 'shown_sent'; there are: shown_send"),
        (["list", "--since", "yesterday"], 2, "since is 'yesterday'; write a date"),
        (["list", "--until", "2030-13-01"], 2, "until is '2030-13-01'; write a date"),
        (["list", "--slow", "very"], 2, "'very'"),
        (["list", "--arg", "customer"], 2, "--arg is 'customer'; write PATH=VALUE"),
        (["list", "--arg", 'customer={"$gt": 1}'], 2, "is an operator of MongoDB"),
        (["list", "--arg", "$where=1"], 2, "$where"),
        (["list", "--after", "nonsense"], 2, "nonsense"),
        (["list", "--limit", "0"], 2, "limit is 0"),
        (["list", "--since", "1h", "--until", "2h"], 2, "the first must be the earlier one"),
        (["list", "--state", "waiting", "--why", "done"], 2, "has not ended"),
        (["cancel"], 2, "say which jobs"),
        (["cancel", "job-1", "--state", "waiting"], 2, "ids or a filter, not both"),
        (["cancel", "--state", "failed", "--yes"], 2, "jobs that are failed cannot be cancelled"),
        (["remove", "--state", "waiting", "--yes"], 2, "jobs that are waiting cannot be removed"),
        (["remove", "--state", "failed"], 1, "say --yes to do it without asking"),
        (["remove", "job-1", "--yes"], 1, "job-1"),
        (["recover", "job-1"], 1, "job-1"),
        (["recover", "job-1", "--schedule-at", "soon"], 2, "'soon' is no date"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_bad_input(recruiter: Recruiter, command: Command, arguments: list[str], code: int, sentence: str) -> None:
    answer, said = command(*arguments)

    assert (answer, sentence in said) == (code, True), said
    assert "Traceback" not in said
    assert recruiter.jobs.count().number == 6


def test_a_job_that_has_ended_is_not_cancelled(recruiter: Recruiter, command: Command) -> None:
    done: JobHandle[Any] = recruiter.handle(recruiter.jobs.list(state="succeeded").jobs[0].id)

    code, said = command("cancel", str(done.id))

    assert code == 1
    assert "has ended" in said
