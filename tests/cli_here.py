"""The command line in this process, where there is much to ask: a process takes a second to start."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout

import pytest

from recruiter.cli.main import main


def here(target: str, *arguments: str, **environment: str) -> tuple[int, str]:
    """Runs `recruiter ARGUMENTS…` to its end; returns the exit code and everything it said."""
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(said), redirect_stderr(said):
        patch.setenv("RECRUITER_CONFIG", "")  # an option may set it, and that must not outlive this command
        for name, value in {"COLUMNS": "200", "RECRUITER_TARGET": target, **environment}.items():
            patch.setenv(name, value)
        patch.setattr("sys.argv", ["recruiter", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
    return int(ended.value.code or 0), said.getvalue()
