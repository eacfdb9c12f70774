"""The command line: what a person sees, and what a script can rely on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from pymongo import MongoClient

from recruiter.embedded import find_mongod
from recruiter.store.database import Store
from tests.applications import jobs
from tests.cli_here import here
from tests.conftest import Starter, eventually
from tests.warm import warm

EXAMPLES = Path(__file__).parents[2] / "examples"


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
    command = [sys.executable, "-m", "recruiter.cli.main", "start", "worker", "--help"]
    said = subprocess.run(
        command, env={**os.environ, "COLUMNS": "200"}, capture_output=True, text=True, check=True
    ).stdout

    options = ["--target", "--bootstrap", "--work-on", "--processes", "--memory-limit", "--grace", "--log-level"]
    assert [option for option in [*options, "--considered-dead-after"] if option not in said] == []


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["start", "worker", "--no-such-option"], 2, ["--no-such-option"]),
        (["start", "worker", "--grace", "soon"], 2, ["grace", "'soon'", "RECRUITER_GRACE"]),
        (["start", "recruiter", "--lease-time", "1ms"], 2, ["lease_time"]),
        (["start", "worker", "--work-on", "a b"], 2, ["'a b'"]),
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


@pytest.mark.parametrize("command", [["start", "worker"], ["start", "recruiter"], ["start", "all"]])
def test_a_file_without_a_recruiter_is_no_application(command: list[str], tmp_path: Path, target: str) -> None:
    (tmp_path / "notes.py").write_text("x = 1\n")

    code, said = run(*command, "--bootstrap", "notes.py", "--target", target, cwd=tmp_path)

    assert code == 3, said
    assert "notes.py has no Recruiter, so none of its tasks would be known" in said
    assert "Traceback" not in said


def test_a_file_with_only_workables_is_an_application(start: Starter, tmp_path: Path) -> None:
    application = tmp_path / "letters.py"
    application.write_text(
        "from recruiter import Workable\nclass Letter(Workable):\n    def execute(self) -> None: ...\n"
    )

    worker = start("start", "worker", "--bootstrap", str(application))

    worker.says("joined the roster")
    assert "ready-made" not in worker.log


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


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["web", "--redact", "("], "--redact"),
        (["web", "--port", "99999"], "--port"),
        (["web", "--port", "-1"], "--port"),
        (["metrics", "--port", "77777"], "--port"),
        (["analytics", "--within", "banana"], "--within"),
        (["top", "--every", "x"], "--every"),
        (["scheduler", "next", "tidy", "--count", "0"], "--count"),
        (["scheduler", "next", "tidy", "--count", "-2"], "--count"),
        (["flow", "list", "--limit", "-3"], "--limit"),
        (["dev", "--processes", "0"], "--processes"),
        (["job", "list", "--target", "postgres://db"], "MongoDB address"),
        (["start", "worker", "--grace", "soon"], "--grace"),
    ],
)
def test_a_bad_option_is_named_before_anything_is_asked(arguments: list[str], option: str) -> None:
    code, said = here("127.0.0.1:1/?serverSelectionTimeoutMS=300", *arguments)

    assert code == 2, said
    assert option in said
    assert "unexpected" not in said


def test_a_standalone_server_is_refused_with_the_two_lines_that_help(tmp_path: Path) -> None:
    port = "28931"
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(
            [find_mongod(), "--dbpath", tmp_path, "--port", port, "--bind_ip", "127.0.0.1", "--nounixsocket"],
            stdout=log,
        )
    try:
        with MongoClient[dict[str, object]]("127.0.0.1", int(port), directConnection=True) as client:
            client.admin.command("ping")
        for command in (["start", "worker"], ["start", "recruiter"], ["start", "cleaner"], ["doctor"]):
            code, said = run(*command, "--target", f"127.0.0.1:{port}")
            assert code == 4
            assert "--replSet rs0" in said
            assert "rs.initiate()" in said
    finally:
        server.kill()
        server.wait()


def test_options_come_from_the_environment_and_the_file_too(start: Starter, store: Store, tmp_path: Path) -> None:
    config = tmp_path / "settings.toml"
    config.write_text('processes = 3\nwork_on = ["mail", "html"]\n')
    settings = {"RECRUITER_CONFIG": str(config), "RECRUITER_PROCESSES": "2", "RECRUITER_LOG_FORMAT": "json"}

    worker = start("start", "worker", "--bootstrap", jobs.__file__, **settings)
    worker.says('"event": "worker.joined"')

    (entry,) = store.roster.entries()
    assert entry.registration.slots == 2
    assert entry.registration.groups == frozenset({"mail", "html"})


def test_doctor_says_what_is_wrong_and_what_to_do(start: Starter, store: Store, target: str) -> None:
    # given nothing but a job of a task nobody knows, and a document that is no job
    store.scheduled.collection.insert_many([{"task": "unheard_of", "args": {}}, {"_id": "junk", "task": 7}])
    code, said = run("doctor", "--target", target)
    assert code == 1
    assert "recruiter start recruiter" in said
    assert "recruiter start worker" in said

    # when processes run
    start("start", "all", "--bootstrap", jobs.__file__, cold=True).says("joined the roster")
    eventually(lambda: store.archived.get("junk"))
    code, said = run("doctor", "--target", target)

    # then what remains is named with its reason
    assert code == 1
    assert "unheard_of" in said
    assert "no worker knows the task" in said
    assert "'junk'" in said
    assert "task must be one text, not int" in said
    assert ", term 1;" in said


def test_doctor_for_scripts_and_notes_do_not_fail(fleet: Starter, store: Store, target: str) -> None:
    # given a fleet that is well, on a MongoDB of one node
    fleet(jobs.__file__)
    eventually(lambda: store.leases.read() is not None and len(store.processes.entries()) == 2)

    code, said = run("doctor", "--target", target, "--output", "json")

    findings = json.loads(said)
    assert {finding["level"] for finding in findings} == {"ok", "note"}, said
    assert code == 0
    assert {tuple(finding) for finding in findings} == {("level", "about", "code", "text", "todo")}


def test_dev_runs_everything_on_a_private_mongodb(start: Starter, tmp_path: Path) -> None:
    # given `recruiter dev` in one terminal
    folder = tmp_path / "mongodb"
    dev = start("dev", str(EXAMPLES / "hello.py"), "--folder", str(folder), cold=True)
    dev.says("ready, for 2 jobs at once", within=40)
    address = dev.log.partition("private MongoDB at ")[2].split(",")[0].strip()

    # when a three-line script runs in another
    script = "from hello import hello\nprint(hello.enqueue('Ada').result(timeout='20s'))\n"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "RECRUITER_TARGET": address, "PYTHONPATH": str(EXAMPLES)},
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )

    # then it gets its result, dev tells of the job, and Ctrl-C ends everything
    assert done.stdout == "Hello, Ada!\n", done.stderr
    dev.says("hello done")
    dev.signal(signal.SIGINT)
    assert dev.wait(30) == 0
