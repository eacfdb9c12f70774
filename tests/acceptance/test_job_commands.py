"""`recruiter job …`: what a person sees, and what a script can rely on."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from bson import ObjectId

from recruiter import JobHandle, Recruiter, RetryManyTimes, current_job
from recruiter.application import load_application
from recruiter.embedded import EmbeddedServer
from recruiter.store.connection import Target
from recruiter.store.database import Store
from tests.acceptance.test_command_line import run
from tests.cli_here import here
from tests.samples import a_job, insert, on_the_roster

Command = Callable[..., tuple[int, str]]


@pytest.fixture
def command(target: str) -> Command:
    """A process of its own, as a person starts it."""
    return lambda *arguments, **environment: run("job", *arguments, RECRUITER_TARGET=target, **environment)


class World:
    """An application to which everything has happened that can, with nothing running."""

    def __init__(self, recruiter: Recruiter, store: Store) -> None:
        self.recruiter = recruiter
        self.store = store

        @recruiter.task(group="mail", name="send_listed", retry=RetryManyTimes(1, 0.001))
        def send(to: str, customer: dict[str, int] | None = None) -> str:
            current_job.log(f"connecting for {to}, customer {customer}")
            current_job.stage("deliver", progress=0.5)
            if "@" not in to:
                raise ValueError(f"{to} is no address")
            return "sent"

        @recruiter.task(name="resize_listed")
        def resize(path: str) -> None: ...

        sent = send.job("a@b.c", {"id": 42}).owned_by("ada").tagged_as("user:42").in_background().execute()
        failed = send.enqueue("nobody")
        while recruiter.run_all(send) or not store.archived.which_exist([failed.id]):
            pass
        self.sent, self.failed = sent.id, failed.id
        self.queued = resize.job("/1.png").with_id("order-1").in_background().execute().id
        self.postponed = resize.job("/2.png").schedule_in("2h").execute().id
        (self.running,) = insert(store, a_job(task="encode", created_at=self.now, scheduled_at=self.now))
        on_the_roster(store, "host1:7:ab12", seen_at=self.now)
        store.roster.assign({"host1:7:ab12": [self.running]}, 1)
        since = {"job": self.running, "task": "encode", "since": self.now - timedelta(seconds=90)}
        store.roster.collection.update_one({"_id": "host1:7:ab12"}, {"$set": {"running": [since]}})

    @property
    def now(self) -> Any:
        return self.recruiter.clock.now()


@pytest.fixture
def world(target: str, store: Store) -> Iterator[World]:
    with Recruiter(target) as recruiter:
        yield World(recruiter, store)


@pytest.fixture(scope="module")
def seen(server: EmbeddedServer) -> Iterator[World]:
    """One for all tests that only look."""
    target = Target.parse(server.uri).in_database(f"test_{ObjectId()}")
    with Recruiter(target.uri) as recruiter:
        recruiter.store.prepare()
        yield World(recruiter, recruiter.store)
        recruiter.store.drop()


@pytest.fixture
def ask(seen: World) -> Command:
    return lambda *arguments, **environment: here(seen.recruiter.address, "job", *arguments, **environment)


def rows(said: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in said.splitlines() if line.startswith("{")]


class TestList:
    @pytest.mark.parametrize("width", [80, 160])
    def test_it_fits_the_terminal_and_no_id_is_cut(self, world: World, command: Command, width: int) -> None:
        long = world.recruiter.job("a.module.with.a.very.long.name.of.a.task", {}).in_group("a-group-with-a-long-name")
        long.with_id("an-order-of-2026-11-16-with-a-very-long-id-" * 2).in_background().execute()

        code, said = command("list", COLUMNS=str(width))

        assert code == 0
        assert max(map(len, said.splitlines())) <= width
        assert all(not line.endswith(" ") for line in said.splitlines())
        whole = re.sub(r"\s", "", "".join(line[:62] for line in said.splitlines()))
        assert str(world.sent) in whole
        assert "\x1b" not in said, "no colours in a pipe"
        assert ("group" in said.splitlines()[0]) == (width == 160)
        assert "…" in said, "what was cut says so"

    @pytest.mark.parametrize(
        ("options", "found"),
        [
            (["--state", "running", "--state", "queued"], ["running", "queued"]),
            (["--group", "mail", "--owner", "ada"], ["sent"]),
            (["--arg", "customer.id=42"], ["sent"]),
            (["--scheduled-since", "2020-01-01T00:00Z", "--state", "postponed"], ["postponed"]),
            (["--slow", "1m"], ["running"]),
            (["--attempts", "2"], ["failed"]),
            (["--no-recovered", "--state", "failed"], ["failed"]),
        ],
        ids=" ".join,
    )
    def test_filters_of_each_kind(self, seen: World, ask: Command, options: list[str], found: list[str]) -> None:
        code, said = ask("list", "--output", "jsonl", *options)

        assert code == 0
        assert [row["id"] for row in rows(said)] == [str(getattr(seen, name)) for name in found]

    def test_the_pages_of_a_list_together_have_every_job_once(self, ask: Command) -> None:
        first = ask("list", "--limit", "3", "--output", "jsonl")[1]
        (after,) = re.findall(r"There are more jobs\. Show the next page with: --after (\S+)", first)

        code, second = ask("list", "--limit", "3", "--output", "jsonl", "--after", after)

        assert code == 0
        assert "There are more" not in second
        everything = rows(ask("list", "--limit", "0", "--output", "jsonl")[1])
        assert [*rows(first), *rows(second)] == everything
        assert len(everything) == 5

    def test_a_reader_that_closes_the_pipe_early_sees_no_error(self, world: World, target: str) -> None:
        insert(world.store, *(a_job() for _ in range(2_000)))
        listing = [sys.executable, "-m", "recruiter.cli.main", "job", "list", "--limit", "0", "--output", "jsonl"]
        with subprocess.Popen(
            listing, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "RECRUITER_TARGET": target}
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.readline()
            process.stdout.close()
            assert process.stderr.read() == b""

    def test_an_empty_list_says_so_in_each_format(self, target: str) -> None:
        assert here(target, "job", "list") == (0, "There are no jobs.\n")
        assert here(target, "job", "list", "--since", "1h") == (0, "There are no jobs (since 1h ago).\n")
        assert here(target, "job", "list", "--output", "json") == (0, "[]\n")
        assert here(target, "job", "list", "--output", "jsonl") == (0, "")
        assert here(target, "job", "count") == (0, "0\n")


class TestShow:
    def test_show_has_every_section_of_a_failed_job(self, seen: World, ask: Command) -> None:
        code, said = ask("show", str(seen.failed), COLUMNS="80")

        assert code == 0
        for words in (
            rf"job {seen.failed}\n",
            r"  failed at .* UTC, after 2 attempts; its\s+retry\s+policy\s+allows\s+no\s+more:",
            r"more:\s+ValueError:\s+nobody is no\s+address\n",
            r"  state +failed\n",
            r"  task +send_listed\n",
            r"  retry +RetryManyTimes\(1, 0.001\)\n",
            r"\d\d:\d\d:\d\d\.\d{3}  created\n",
            r"  attempt 1 started on ",
            r"  stage deliver 50%\n",
            r"  attempt 2 failed with ValueError: nobody is no\n +address\n",
            r"  ended, tried-too-many-times\n",
            r'\narguments\n  \{"to": "nobody"',
            r"\nattempt 2, .*\n  Traceback \(most recent call last\):\n",
            r"\n  ValueError: nobody is no address\n",
            r"\nlog\n  .*  connecting for nobody, customer None\n  .*  connecting for nobody",
        ):
            assert re.search(words, said), f"{words} is not in\n{said}"
        assert max(map(len, said.partition("\nattempt 1")[0].splitlines())) <= 80

    def test_the_end_of_a_long_log(self, world: World) -> None:
        lines = [{"at": world.now, "text": f"line {number}"} for number in range(50)]
        world.store.archived.collection.update_one({"_id": world.sent}, {"$set": {"log": lines, "log_cut": 10}})

        some, everything = (
            here(world.recruiter.address, "job", "show", str(world.sent))[1],
            here(world.recruiter.address, "job", "show", str(world.sent), "--log", "0")[1],
        )

        assert "log (the last 20 lines of 60)" in some
        assert some.count("  line ") == 20
        assert everything.count("  line ") == 50

    def test_where_it_came_from_and_who_cancelled_it(self, world: World) -> None:
        anew = world.recruiter.recover(world.failed).id
        world.recruiter.cancel(anew, by="ada", reason="enough")

        assert f"recovered as  {anew}" in here(world.recruiter.address, "job", "show", str(world.failed))[1]
        said = here(world.recruiter.address, "job", "show", str(anew))[1]
        assert f"recovered from  {world.failed}" in said
        assert "being cancelled" in said
        assert "cancelled by ada: enough" in said


class TestIds:
    def test_an_id_that_may_mean_two_jobs_is_refused(self, store: Store, target: str) -> None:
        insert(store, a_job(4711), a_job("4711"))

        code, said = here(target, "job", "show", "4711")

        assert (code, said) == (
            1,
            "recruiter: '4711' may be any of '4711' and 4711; use recruiter.find() in Python to choose one\n",
        )


class TestActing:
    @pytest.mark.parametrize(("answer", "left"), [("y", 0), ("", 2)])
    def test_jobs_are_removed_only_if_the_person_answers_yes(
        self, world: World, target: str, answer: str, left: int
    ) -> None:
        code, said = at_a_terminal(target, f"{answer}\n", "job", "remove", "--group", "mail")

        assert "2 jobs (group mail). Remove them? [y/N]" in said
        assert code == (1 if left else 0)
        assert world.recruiter.jobs.count(group="mail") == (left, True)


def at_a_terminal(target: str, typed: str, *arguments: str) -> tuple[int, str]:
    """Runs a command with somebody there to answer."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "recruiter.cli.main", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "RECRUITER_TARGET": target, "COLUMNS": "100", "TERM": "dumb"},
    )
    os.close(theirs)
    os.write(ours, typed.encode())
    said = b""
    with suppress(OSError):  # that is how the end of it is told
        while some := os.read(ours, 10_000):
            said += some
    os.close(ours)
    return process.wait(40), said.decode()


_SEALING = """
from recruiter import Recruiter, current_job
from recruiter.crypto import AesGcm

recruiter = Recruiter(codec=AesGcm({"k": bytes(32)}, "k"))


@recruiter.task
def pay_out() -> str:
    return current_job.wait_for("approved")
"""


class TestSignal:
    @pytest.fixture
    def job(self, target: str, store: Store) -> Iterator[JobHandle[str]]:
        """It waits for a signal."""
        with Recruiter(target) as recruiter:

            @recruiter.task
            def pay_out() -> str:
                return f"approved by {current_job.wait_for('approved')}"

            handle = pay_out.enqueue()
            report = recruiter.run(pay_out)
            assert report is not None
            assert not report.done
            self.run_all: Callable[[], object] = lambda: recruiter.run_all(pay_out)
            yield handle

    def test_data_is_sealed_by_the_codec_of_the_application(
        self, command: Command, target: str, store: Store, tmp_path: Path
    ) -> None:
        """Given an application with a codec, when a person sends a signal with data, then it is sealed; and without the
        application nothing is stored."""
        application = tmp_path / "sealing.py"
        application.write_text(_SEALING)
        module = load_application(f"{application}:recruiter").module
        assert module is not None
        module.recruiter.point_at(target)
        job = module.pay_out.enqueue()
        assert not module.recruiter.run(module.pay_out).done
        signal = ("signal", str(job.id), "approved", "--data", '"PIN 1234"')

        code, said = command(*signal)
        assert (code, "--data would be stored in clear" in said) == (2, True), said
        assert "signals" not in (store.scheduled.document(job.id) or {})

        code, said = command(*signal, "--bootstrap", f"{application}:recruiter")
        assert (code, said) == (0, f"job {job.id} was sent the signal 'approved'\n")
        assert "PIN" not in str(store.scheduled.document(job.id))
        assert [report.result for report in module.recruiter.run_all(module.pay_out)] == ["PIN 1234"]
        module.recruiter.close()


class TestPutOff:
    """Jobs that sleep, wait for a signal, or were put off by their own transaction."""

    def test_one_that_waits_for_a_signal_has_no_date(self, recruiter: Recruiter, target: str) -> None:
        @recruiter.task(name="approved_listed")
        def approved() -> None:
            current_job.wait_for("approved")

        job = approved.enqueue()
        recruiter.run(approved)

        _, listed = here(target, "job", "list")
        assert "until its signal" in listed
        _, shown = here(target, "job", "show", str(job.id))
        assert "waits for the signal 'approved'" in shown
        assert "9999" not in listed + shown
