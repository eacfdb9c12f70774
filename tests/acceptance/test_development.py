"""The development loop, with real processes: `recruiter dev` reloads, `init` writes a project that works, `shell`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml
from packaging.requirements import Requirement

from recruiter import Recruiter
from recruiter.cli.dev import Reloader
from recruiter.domain.job import Job
from recruiter.first_use import installing, requirement
from recruiter.store.database import Store
from tests.acceptance.test_command_line import run
from tests.cli_here import here
from tests.conftest import Process, Starter, eventually

CODE = """
import time
from pathlib import Path
from recruiter import Recruiter

recruiter = Recruiter()

@recruiter.task
def color() -> str:
    return "red"

@recruiter.task
def slow(gate: str) -> str:
    Path(gate + ".begun").touch()
    while not Path(gate).exists():
        time.sleep(0.01)
    return "red"
"""


def result_of(recruiter: Recruiter, task: str, **data: str) -> str:
    return str(recruiter.job(task, data).enqueue().result(timeout="60s"))


def dev(start: Starter, target: str, application: Path) -> Process:
    process = start("dev", str(application), "--target", target, "--no-web")
    process.says("ready, for 2 jobs at once")
    return process


def test_a_changed_file_is_reloaded_and_what_runs_finishes(
    start: Starter, recruiter: Recruiter, target: str, tmp_path: Path
) -> None:
    # given `recruiter dev`, and a job that runs
    application, gate = tmp_path / "paint.py", tmp_path / "gate"
    application.write_text(CODE)
    process = dev(start, target, application)
    assert result_of(recruiter, "color") == "red"
    running = recruiter.job("slow", {"gate": str(gate)}).enqueue()
    eventually(Path(f"{gate}.begun").exists)

    # when the file changes
    application.write_text(CODE.replace('"red"', '"blue"'))

    # then dev says so, the next job runs the new code, and the one that ran finishes with the old
    process.says("paint.py changed: reloading; jobs that run finish with the old code")
    process.says("paint.py; the next jobs run the new code")
    assert result_of(recruiter, "color") == "blue"
    gate.touch()
    assert running.result(timeout=60) == "red"
    assert recruiter.find(running.id).attempts == 1

    # when it changes into what cannot be loaded, then the old code stays in use
    application.write_text("one = 1\nimport nothing_of_this_name")
    process.says("the application cannot be loaded; the old code stays in use")
    process.says("No module named 'nothing_of_this_name'")
    process.says('paint.py", line 2')  # where it is in the user's own code, and nothing of ours
    assert "load_application" not in process.log
    assert result_of(recruiter, "color") == "blue"
    process.signal(signal.SIGINT)
    assert process.wait() == 0


def test_a_second_one_in_the_folder_says_whose_mongodb_it_uses(start: Starter, tmp_path: Path) -> None:
    """Given `recruiter dev` with its private MongoDB, when another one is started in its folder."""
    folder = ("--folder", str(tmp_path / "mongodb"), "--no-web")
    first = start("dev", *folder)
    first.says("ready, for 2 jobs at once")
    assert "another process" not in first.log

    second = start("dev", *folder)

    second.says("another process has started this MongoDB, and ends it")
    second.stop()
    first.stop()


def test_a_second_ctrl_c_ends_everything_at_once(
    start: Starter, recruiter: Recruiter, target: str, tmp_path: Path
) -> None:
    # given a job that would run for ever
    application, gate = tmp_path / "paint.py", tmp_path / "gate"
    application.write_text(CODE)
    process = dev(start, target, application)
    recruiter.job("slow", {"gate": str(gate)}).enqueue()
    eventually(Path(f"{gate}.begun").exists)
    family = process.descendants()
    process.signal(signal.SIGINT)
    process.says("running jobs finish first; Ctrl-C again ends everything immediately")
    asked = time.monotonic()
    eventually(lambda: time.monotonic() - asked > 0.6)  # further signals within half a second mean the same stop

    process.signal(signal.SIGINT)

    assert process.wait() == 128 + signal.SIGINT
    eventually(lambda: not [each for each in family if _lives(each)], within=20)


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def test_only_python_files_count_and_a_change_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "data"
    data.mkdir()
    reloader = Reloader("shop.py", [tmp_path], print, data)
    with reloader.watching():
        (tmp_path / "notes.txt").touch()
        found: list[str] = []

        def changed() -> list[str]:
            (data / "mongod.py").write_text(str(time.monotonic()))
            (tmp_path / "shop.py").write_text(str(time.monotonic()))  # the watcher may not look yet
            found.extend(reloader.take())
            return found

        assert set(eventually(changed)) == {"shop.py"}


# -- init ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path: Path, target: str) -> Path:
    folder = tmp_path / "My Shop"
    code, said = here(target, "init", str(folder))
    assert code == 0, said
    return folder


def test_a_new_project_passes_its_own_tests(project: Path, target: str) -> None:
    passed = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=project,
        env={**os.environ, "RECRUITER_TEST_TARGET": target},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (passed.returncode, "2 passed" in passed.stdout) == (0, True), passed.stdout + passed.stderr


@pytest.mark.parametrize(
    ("direct", "asked"),
    [
        (None, "recruiter[web]==9.9"),
        ({"url": "file:///home/ada/recruiter", "dir_info": {}}, "recruiter[web] @ file:///home/ada/recruiter"),
        (
            {"url": "https://git.example/recruiter.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "recruiter[web] @ git+https://git.example/recruiter.git@abc",
        ),
    ],
)
def test_extras_are_installed_from_where_recruiter_came_from(
    direct: dict[str, object] | None, asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "recruiter-9.9.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: recruiter\nVersion: 9.9\n")
    if direct is not None:
        (installed / "direct_url.json").write_text(json.dumps(direct))
    monkeypatch.syspath_prepend(str(tmp_path))

    assert requirement("web") == asked
    assert installing("web") == f"pip install '{asked}'"
    Requirement(asked)


def test_a_new_project_runs_its_jobs(
    project: Path, target: str, start: Starter, recruiter: Recruiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given `recruiter dev` in its folder: recruiter.toml names the application
    monkeypatch.chdir(project)
    start("dev", "--target", target, "--no-web").says("ready")

    assert result_of(recruiter, "send_welcome", to="ada@example.org", name="Ada") == "Dear Ada, welcome!"
    eventually(lambda: [each.urn for each in recruiter.schedulers()] == ["report:daily"])


def test_a_new_project_can_be_deployed(project: Path, tmp_path: Path) -> None:
    compose = yaml.safe_load((project / "compose.yaml").read_text())
    assert compose["services"].keys() == {"mongodb", "recruiter", "worker", "cleaner"}
    assert compose["services"]["worker"]["environment"]["RECRUITER_TARGET"].startswith(
        "mongodb://mongodb:27017/my_shop"
    )
    units = sorted((project / "deploy").iterdir())
    assert [unit.name for unit in units] == [f"my_shop-{name}.service" for name in ("cleaner", "recruiter", "worker")]
    texts = {path: path.read_text() for path in project.rglob("*") if path.is_file()}
    assert [path for path, text in texts.items() if "PROJECT" in text] == []
    if shutil.which("systemd-analyze") is None:
        return
    for unit in units:
        text = unit.read_text().replace("/srv/my_shop/.venv/bin/recruiter", sys.executable)
        (tmp_path / unit.name).write_text(text)
    places = [str(tmp_path / unit.name) for unit in units]
    checked = subprocess.run(["systemd-analyze", "verify", *places], capture_output=True, text=True, check=False)
    assert [line for line in checked.stderr.splitlines() if str(tmp_path) in line] == []


def test_init_overwrites_nothing_and_wants_a_name_that_can_be_stored(tmp_path: Path, target: str) -> None:
    (tmp_path / "jobs.py").write_text("mine")

    code, said = here(target, "init", str(tmp_path), "--name", "shop")
    assert (code, "these files exist already, and nothing was written" in said) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["jobs.py"]
    assert (tmp_path / "jobs.py").read_text() == "mine"

    code, said = here(target, "init", str(tmp_path / "new"), "--name", "a/b")
    assert (code, "give a --name" in said) == (2, True)


# -- shell, completion -----------------------------------------------------------------------------------------------


def test_a_shell_has_the_application_loaded(store: Store, target: str, tmp_path: Path) -> None:
    application = tmp_path / "paint.py"
    application.write_text(CODE)

    command = [sys.executable, "-m", "recruiter.cli.main", "shell", str(application), "--target", target]
    typed = "job = color.enqueue()\nrecruiter.run(color).result\n"
    shell = subprocess.run(command, input=typed, capture_output=True, text=True, check=True)
    assert ("Tasks: color, slow" in shell.stdout + shell.stderr, "'red'" in shell.stdout) == (True, True), shell
    assert store.scheduled.waiting() == list[Job]()

    # or runs one statement
    execute = ("shell", str(application), "--target", target, "--execute")
    assert run(*execute, "slow.enqueue('x').created") == (0, "True\n")
    assert [job.task for job in store.scheduled.waiting()] == ["slow"]
    code, said = run(*execute, "1 / 0")
    assert (code, "ZeroDivisionError" in said) == (1, True)


def test_completion_knows_the_commands_and_its_shell_reads_it(target: str, tmp_path: Path) -> None:
    """The scripts for zsh and fish are written by the same library, cyclopts."""
    code, script = here(target, "completion", "bash")

    assert code == 0
    assert all(name in script for name in ("scheduler", "considered-dead-after", "init"))
    (tmp_path / "script").write_text(script)
    subprocess.run(["bash", "-n", str(tmp_path / "script")], check=True)
