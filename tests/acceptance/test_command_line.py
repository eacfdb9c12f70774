"""The command line: what a person sees, and what a script can rely on."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from recruiter.cli.main import app
from recruiter.store.database import Store
from tests.cli_here import here
from tests.conftest import Starter
from tests.samples import a_job, insert
from tests.warm import warm


def run(*arguments: str, within: float = 40.0, cwd: Path | None = None, **environment: str) -> tuple[int, str]:
    """Runs `recruiter ARGUMENTS…` to its end; returns the exit code and everything it said."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("RECRUITER_")}
    with TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        process = warm().fork(list(arguments), {**clean, "COLUMNS": "200", **environment}, out, err, cwd)
        try:
            code = process.wait(within)
        finally:
            process.kill()
        return code, out.read_text() + err.read_text()


def test_help_shows_every_option_of_a_worker() -> None:
    _, said = here("127.0.0.1", "start", "worker", "--help")

    options = ["--target", "--bootstrap", "--work-on", "--processes", "--memory-limit", "--grace", "--log-level"]
    assert [option for option in [*options, "--considered-dead-after"] if option not in said] == []


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["start", "worker", "--bootstrap", "nowhere.py"], 3, ["nowhere.py"]),
        (["start", "recruiter", "--bootstrap", "no.such.module"], 3, ["no.such.module"]),
        (["job", "list", "--config", "nowhere.toml"], 2, ["--config names 'nowhere.toml'", "no such file"]),
        (["start", "recruiter", "--target", "http://x"], 2, ["http://x", "mongodb://"]),
        (["doctor", "--target", "127.0.0.1:1/?serverSelectionTimeoutMS=300"], 4, ["does not answer"]),
    ],
)
def test_bad_input_gets_one_clear_sentence_and_its_exit_code(
    arguments: list[str], code: int, words: list[str], tmp_path: Path
) -> None:
    answer, said = run(*arguments, cwd=tmp_path)

    assert answer == code
    assert [word for word in words if word not in said] == []
    assert "Traceback" not in said


def test_a_worker_without_an_application_says_that_it_knows_little(start: Starter) -> None:
    worker = start("start", "worker")

    worker.says("this worker knows only the ready-made tasks; name yours with --bootstrap")
    worker.says("joined the roster")


def test_an_application_that_cannot_be_loaded_shows_its_own_error(tmp_path: Path, target: str) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("import does_not_exist\n")

    code, said = run("start", "worker", "--bootstrap", str(broken), "--target", target)

    assert code == 3
    assert "No module named 'does_not_exist'" in said


def test_passwords_are_never_shown(tmp_path: Path) -> None:
    target = "mongodb://ada:s3cret@127.0.0.1:1/shop?serverSelectionTimeoutMS=300"

    code, said = run("start", "cleaner", "--target", target, cwd=tmp_path)

    assert code == 4
    assert "s3cret" not in said


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


def test_the_help_names_it() -> None:
    code, said = here("127.0.0.1", "--help")

    assert code == 0
    assert "--debug" in said


@pytest.mark.parametrize("command", [name for name in app if not name.startswith("-")])
def test_help_has_no_markup_in_it(command: str) -> None:
    code, said = here("127.0.0.1", command, "--help")

    assert code == 0
    assert "[/" not in said
