"""Tests that interrupt their own process by a signal: one that hits anything but the test ends that process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

ALONE = "RECRUITER_TESTS_ALONE"
BY_SIGNAL = pytest.mark.skipif("PYTEST_XDIST_WORKER" in os.environ, reason="run_alone runs it in a process of its own")


def run_alone(*files: str, which: str) -> None:
    """Runs these tests in a process that runs nothing else."""
    assert ALONE not in os.environ, f"-k {which!r} selects the test that starts it: it would go on without end"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")} | {ALONE: "1"}
    command = [sys.executable, "-m", "pytest", *files, "-k", which, "-q", "-p", "no:xdist"]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert ended.returncode == 0, f"code {ended.returncode}:\n{ended.stdout[-4000:]}\n{ended.stderr[-2000:]}"
