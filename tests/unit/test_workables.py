"""The ready-made workables, stored, rebuilt and run without a process of their own."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from recruiter import Workable
from recruiter.errors import InvalidArguments, JobTimedOut
from recruiter.store.codec import Document
from recruiter.workable import stored
from recruiter.workables.factory import FactoryMethodCommand
from recruiter.workables.shell import ShellCommand
from tests.bench import Bench, ended
from tests.samples import a_job

COMMAND_FAILED = "recruiter.errors.CommandFailed"
INVALID_ARGUMENTS = "recruiter.errors.InvalidArguments"
TIMED_OUT = "recruiter.errors.JobTimedOut"


class Runner(Bench):
    """A bench for workables."""

    def workable(self, workable: Workable, **options: Any) -> Document:
        """Runs it as a job would be: stored, and rebuilt from that."""
        return self.document(workable.task_name, stored(workable), **options)

    def document(self, task: str, args: Any, **options: Any) -> Document:
        return ended(self.of_job(a_job(task=task, args=args, **options)))


@pytest.fixture
def bench() -> Iterator[Runner]:
    bench = Runner()
    yield bench
    bench.executor.close()


@pytest.fixture
def enabled() -> Iterator[None]:
    ShellCommand.enable()
    yield
    ShellCommand.disable()


@pytest.fixture
def limited() -> Iterator[None]:
    ShellCommand.enable("echo", "printenv", variables=["COLOUR"])
    yield
    ShellCommand.disable()


def failure(job: Document) -> tuple[str, str]:
    assert not job["done"], job
    return job["last_execution"]["class"], job["last_execution"]["message"]


def sh(script: str, **options: Any) -> ShellCommand:
    return ShellCommand(["sh", "-c", script], **options)


class TestWhoMayRunCommands:
    def test_nobody_until_the_application_says_so(self, bench: Runner, tmp_path: Path) -> None:
        trace = tmp_path / "trace"

        name, message = failure(bench.workable(ShellCommand(["touch", str(trace)])))

        assert name == COMMAND_FAILED
        assert "not enabled" in message
        assert "ShellCommand.enable('touch')" in message
        assert not trace.exists()

    @pytest.mark.parametrize("method", ["enable", "disable"])
    def test_a_stored_job_cannot_change_it(self, bench: Runner, method: str) -> None:
        """Given somebody who can write to the database, then naming a method opens no door."""
        job = bench.document("ShellCommand", {"command": ["true"]}, method=method)

        assert not job["done"]
        assert not bench.workable(ShellCommand(["true"]))["done"]

    @pytest.mark.usefixtures("limited")
    def test_only_the_programs_that_are_named(self, bench: Runner) -> None:
        assert bench.workable(ShellCommand(["echo", "hello"]))["done"]
        for program in ("true", "/bin/echo", "./echo", "echo "):
            name, message = failure(bench.workable(ShellCommand([program])))
            assert name == COMMAND_FAILED
            assert "echo, printenv" in message

    @pytest.mark.usefixtures("limited")
    @pytest.mark.parametrize("variable", ["PATH", "LD_PRELOAD", "colour"])
    def test_a_program_gets_only_variables_that_are_named(self, bench: Runner, variable: str) -> None:
        allowed = bench.workable(ShellCommand(["printenv", "COLOUR"], env={"COLOUR": "blue"}))
        refused = bench.workable(ShellCommand(["echo"], env={"COLOUR": "blue", variable: "/tmp"}))

        assert allowed["result"]["stdout"] == "blue\n"
        assert f"may not set {variable}" in failure(refused)[1]

    @pytest.mark.usefixtures("limited")
    def test_the_folder_of_a_job_does_not_decide_which_program_it_is(
        self, bench: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        impostor = tmp_path / "echo"
        impostor.write_text("#!/bin/sh\necho I am not echo\n")
        impostor.chmod(0o755)
        monkeypatch.setenv("PATH", ":/usr/bin:/bin")

        job = bench.workable(ShellCommand(["echo", "hello"], cwd=tmp_path))

        assert job["result"]["stdout"] == "hello\n"


@pytest.mark.usefixtures("enabled")
class TestShellCommand:
    def test_more_input_and_output_than_the_pipes_hold(self, bench: Runner) -> None:
        text = "".join(f"{number}\n" for number in range(200_000))

        result = bench.workable(ShellCommand(["cat"], input=text))["result"]

        assert result["stdout"].endswith("199998\n199999\n")

    def test_a_password_is_not_told(self, bench: Runner) -> None:
        message = failure(bench.workable(sh("echo cannot reach mongodb://ada:secret@host/ >&2; exit 1")))[1]

        assert "mongodb://***@host/" in message
        assert "secret" not in message

    def test_a_background_process_of_a_program_is_not_waited_for(self, bench: Runner) -> None:
        started = time.monotonic()
        result = bench.workable(sh("sleep 60 & echo $!"))["result"]
        took = time.monotonic() - started

        psutil.Process(int(result["stdout"])).kill()
        assert took < 10

    def test_a_timeout_while_it_starts_is_no_other_error(self, bench: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
        def too_late(*_: object, **__: object) -> None:
            raise JobTimedOut("too late")

        monkeypatch.setattr(subprocess, "Popen", too_late)

        assert failure(bench.workable(ShellCommand(["true"]))) == (TIMED_OUT, "too late")

    @pytest.mark.parametrize(
        "args",
        [
            {},
            {"command": []},
            {"command": [""]},
            {"command": "rm -rf /"},
            {"command": [["true"]]},
            {"command": ["true", 5]},
            {"command": ["true", "a\0b"]},
            {"command": ["true"], "env": {"A=B": "c"}},
            {"command": ["true"], "env": {"": "c"}},
            {"command": ["true"], "env": {"A": 5}},
            {"command": ["true"], "cwd": ["/"]},
            {"command": ["true"], "ok_codes": 5},
            {"command": ["true"], "shell": True},
            ["true"],
        ],
        ids=repr,
    )
    def test_documents_of_others_are_checked(self, bench: Runner, args: Any) -> None:
        assert failure(bench.document("ShellCommand", args))[0] == INVALID_ARGUMENTS


class Mailer:
    """What an application has."""

    format = "html"
    path_of_class = Path
    look = staticmethod(len).__func__

    def __init__(self, host: str = "localhost", *, port: int = 25) -> None:
        self.on_sent = print
        self.host = f"{host}:{port}"
        self.receivers: list[str] = []

    @property
    def printer(self) -> Any:
        return print

    def to(self, *receivers: str) -> Mailer:
        self.receivers += receivers
        return self

    def send(self, text: str, *, at: datetime | None = None) -> dict[str, Any]:
        return {"to": self.receivers, "text": text, "at": at, "host": self.host}

    async def send_later(self, text: str) -> str:
        await asyncio.sleep(0)
        return f"later: {text}"

    def text(self) -> str:
        return "{0}"

    def kind(self) -> type[Mailer]:
        return Mailer

    def path(self) -> Path:
        return Path("/")

    def module(self) -> Any:
        return subprocess

    def function(self) -> Any:
        return self.text

    def _secret(self) -> str:
        return "secret"


@FactoryMethodCommand.factory("post")
def mailer(*args: Any, **kwargs: Any) -> Mailer:
    return Mailer(*args, **kwargs)


class TestFactoryMethodCommand:
    def test_what_is_stored(self) -> None:
        command = FactoryMethodCommand.from_("post").to("a@b.c").send("hello", at=None)

        assert stored(command) == {
            "factory": "post",
            "calls": [
                {"method": "to", "args": ["a@b.c"]},
                {"method": "send", "args": ["hello"], "kwargs": {"at": None}},
            ],
        }
        assert repr(command) == "FactoryMethodCommand.from_('post').to(…).send(…)"

    def test_a_factory_that_is_not_registered_here(self, bench: Runner) -> None:
        name, message = failure(bench.workable(FactoryMethodCommand.from_("nobody").send("hi")))

        assert name == "recruiter.errors.UnknownTask"
        assert "no factory 'nobody'" in message
        assert "FactoryMethodCommand.register('nobody', …)" in message

    @pytest.mark.parametrize("method", ["_secret", "__class__", "__init__", "", "a.b", "a-b", None, 5, ["to"]])
    def test_what_is_no_public_method_is_refused_when_made_and_when_run(self, bench: Runner, method: Any) -> None:
        with pytest.raises(InvalidArguments):
            FactoryMethodCommand.from_("post").call(method)
        if isinstance(method, str) and method.startswith("_") and not method.startswith("__"):
            with pytest.raises(AttributeError, match="private"):
                getattr(FactoryMethodCommand.from_("post"), method)

        job = bench.document("FactoryMethodCommand", {"factory": "post", "calls": [{"method": method}]})

        assert failure(job)[0] == INVALID_ARGUMENTS

    @pytest.mark.parametrize("reached", ["text", "kind", "path", "module", "function"])
    def test_a_chain_goes_from_object_to_object_and_nowhere_else(self, bench: Runner, reached: str) -> None:
        """Given somebody who writes his own chain, then texts, classes, files and modules lead him nowhere."""
        name, message = failure(bench.workable(FactoryMethodCommand.from_("post").call(reached).call("format")))

        assert name == INVALID_ARGUMENTS
        assert "only on objects" in message

    @pytest.mark.parametrize(
        "method", ["no_such_method", "format", "host", "on_sent", "printer", "path_of_class", "look"]
    )
    def test_a_chain_refuses_an_attribute_that_is_no_method(self, bench: Runner, method: str) -> None:
        name, message = failure(bench.workable(FactoryMethodCommand.from_("post").call(method)))

        assert name == INVALID_ARGUMENTS
        assert f"a Mailer, which has no method {method!r}" in message

    @pytest.mark.parametrize("method", ["register", "factory", "from_", "call", "import_", "export"])
    def test_its_own_methods_are_no_jobs(self, bench: Runner, method: str) -> None:
        assert not bench.document("FactoryMethodCommand", {"factory": "post"}, method=method)["done"]
