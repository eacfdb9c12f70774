"""A mistake of ours in a command: one clear line and exit code 1; a traceback only for those who ask for it."""

from __future__ import annotations

import pytest

from recruiter.cli.main import app
from tests.cli_here import here


class Odd(Exception):
    def __str__(self) -> str:
        raise RuntimeError("cannot even say what it is")


@pytest.fixture(params=[KeyError("beats"), RecursionError("deep"), Odd(), ValueError("mongodb://u:S3CRET@h\nforged")])
def broken(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Exception:
    """A command that fails as no command should."""
    error: Exception = request.param

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("recruiter.cli.doctor.settings_from", fail)
    return error


def test_one_line_and_exit_code_1(broken: Exception) -> None:
    code, said = here("127.0.0.1", "prepare")

    assert code == 1
    assert said.startswith(f"recruiter: unexpected error: {type(broken).__name__}: ")
    assert "Traceback" not in said
    assert "--debug" in said
    assert "\nforged" not in said
    assert "S3CRET" not in said


@pytest.mark.parametrize(("arguments", "environment"), [(["--debug"], {}), ([], {"RECRUITER_LOG_LEVEL": "debug"})])
def test_the_traceback_for_those_who_ask(broken: Exception, arguments: list[str], environment: dict[str, str]) -> None:
    code, said = here("127.0.0.1", "prepare", *arguments, **environment)

    assert code == 1
    assert "Traceback" in said
    assert "in fail" in said
    assert "S3CRET" not in said
    del broken


def test_the_help_names_it() -> None:
    code, said = here("127.0.0.1", "--help")

    assert code == 0
    assert "--debug" in said


@pytest.mark.parametrize("command", [name for name in app if not name.startswith("-")])
def test_help_has_no_markup_in_it(command: str) -> None:
    code, said = here("127.0.0.1", command, "--help")

    assert code == 0
    assert "[/" not in said
