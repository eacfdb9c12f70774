"""Surroundings in which Recruiter cannot work well, and narrow terminals: the message names cause and remedy."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import recruiter as package
from recruiter import Recruiter
from recruiter.errors import NoServerBinary
from recruiter.testing import server
from tests.cli_here import here

_WITHOUT = """
import sys
sys.modules[{missing!r}] = None
import {module}
"""
_PATCHED_LATE = """
import _thread
from recruiter import Recruiter
recruiter = Recruiter({target!r})
real = _thread.allocate_lock
_thread.allocate_lock = lambda: real()  # as monkey.patch_all() does
recruiter.job("anything", {{}}).enqueue()
"""

_WITHOUT_UNIX = """
import os, psutil, signal, subprocess, sys, tempfile
for name in ("SIGALRM", "SIGHUP", "SIGKILL", "SIGQUIT", "pthread_sigmask", "pthread_kill", "setitimer"):
    delattr(signal, name)
for name in ("fork", "register_at_fork", "getpgid", "killpg", "setsid"):
    delattr(os, name)
sys.modules |= dict.fromkeys(("fcntl", "resource", "termios", "pwd", "grp"))
from recruiter import Recruiter
print(Recruiter({target!r}).job("anything", {{}}).enqueue())
"""


def output_of(program: str) -> str:
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    return ended.stdout + ended.stderr


@pytest.mark.parametrize(
    ("module", "missing", "extra"),
    [
        ("recruiter.contrib.flask", "click", "flask"),
        ("recruiter.contrib.fastapi", "fastapi", "web"),
        ("recruiter.contrib.sentry", "sentry_sdk", "sentry"),
        ("recruiter.contrib.opentelemetry", "opentelemetry", "otel"),
        ("recruiter.metrics", "prometheus_client", "metrics"),
        ("recruiter.web", "jinja2", "web"),
    ],
)
def test_a_missing_extra_is_named_with_the_command_that_installs_it(module: str, missing: str, extra: str) -> None:
    said = output_of(_WITHOUT.format(module=module, missing=missing))

    assert f"It belongs to the extra '{extra}': pip install" in said
    assert said.count("Traceback") == 1


def test_threads_that_are_patched_after_the_import_are_an_error_and_not_a_hang(target: str) -> None:
    assert "call monkey.patch_all() in the first line" in output_of(_PATCHED_LATE.format(target=target))


def test_a_program_without_the_unix_parts_of_python_can_enqueue(target: str) -> None:
    """As on Windows, where producers are supported and workers are not."""
    assert output_of(_WITHOUT_UNIX.format(target=target)).startswith("JobHandle(")


def test_a_folder_that_cannot_be_written_is_named(target: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()  # read-only folders do not stop root
    folder = str(tmp_path / "file" / "folder")

    code, said = here(target, "init", folder, "--name", "shop")
    assert (code, f"{folder}/" in said, "cannot be written" in said) == (2, True, True), said

    code, said = here(target, "dev", "--folder", folder)
    assert (code, f"the folder {folder} for the data of MongoDB cannot be made" in said) == (1, True), said


def test_dev_without_the_extra_web_says_that_there_is_no_console(target: str) -> None:
    program = "import sys\nsys.modules['uvicorn'] = None\nfrom recruiter.cli import dev, web\n" + (
        f"dev.run_fleet = lambda *_: 0\ndev.dev(target={target!r}, reload=False)"
    )
    said = output_of(program)
    assert "no web console; to see the jobs in a browser: pip install" in said


@pytest.fixture
def busy(recruiter: Recruiter) -> Recruiter:
    """Jobs of tasks and groups with long names; some have failed."""

    @recruiter.task(name="a_task_with_a_name_that_is_rather_long", group="a-group-with-a-long-name", retry=None)
    def fails(number: int) -> None:
        if number % 2:
            raise ValueError("a long message that tells what is wrong " * 5)

    for number in range(6):
        fails.job(number).owned_by("somebody-with-a-long-name").enqueue()
    for _ in range(4):
        recruiter.run(fails)
    return recruiter


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize(
    ("command", "headers"),
    [
        (["analytics"], ["group", "queued", "running", "a minute", "failed", "latency", "time"]),
        (["analytics", "--by", "task"], ["task", "queued", "running", "a minute", "failed", "latency", "time"]),
        (["analytics", "--by", "owner"], ["owner", "waiting", "running", "succeeded", "failed", "cancelled", "lost"]),
        (["top", "--once"], ["group/task", "queued", "running", "a minute", "failed", "latency", "time"]),
        (["top", "--once"], ["worker", "slots", "holds", "runs", "seen", "state"]),
        (["top", "--once"], ["failed", "ago", "task", "error"]),
    ],
)
def test_tables_keep_their_headers_at_80_columns(target: str, command: list[str], headers: list[str]) -> None:
    code, said = here(target, *command, COLUMNS="80")

    assert code == 0
    assert max(map(len, said.splitlines())) <= 80, said
    in_order = re.compile(r"\s+".join(map(re.escape, headers)))
    line = next((line for line in said.splitlines() if in_order.search(line.replace("postponed", ""))), None)
    assert line is not None, said
    assert "…" not in line


def test_an_empty_target_is_named() -> None:
    for empty in ("", "  "):
        code, said = here(empty, "job", "list")
        assert code == 2
        assert "the MongoDB address is empty" in said
        assert "RECRUITER_TARGET" in said


def test_pytest_without_a_mongod_is_told_what_helps_pytest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("RECRUITER_TEST_TARGET", raising=False)
    monkeypatch.setattr("recruiter.embedded.process._from_wheel", lambda: None)

    with pytest.raises(NoServerBinary) as raised:
        next(server())

    assert "RECRUITER_TEST_TARGET=mongodb://" in str(raised.value)
    assert "recruiter[embedded]" in str(raised.value)
    assert "--mongod" not in str(raised.value)
    assert "--target" not in str(raised.value)


def test_no_message_cites_a_file_that_an_installed_user_does_not_have() -> None:
    source = Path(package.__file__).parent
    found = []
    for file in source.rglob("*.py"):
        tree = ast.parse(file.read_text())
        described = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in described:
                found += [f"{file.name}:{node.lineno}"] if re.search(r"docs/[\w-]+/?[\w-]*\.md", node.value) else []
    found += [each.name for each in source.rglob("*.html") if "docs/" in each.read_text()]

    assert found == []
