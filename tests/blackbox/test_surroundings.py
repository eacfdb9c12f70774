"""Surroundings in which Recruiter cannot work well: the error names the cause and the remedy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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
