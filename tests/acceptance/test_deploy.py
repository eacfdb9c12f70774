"""The examples of examples/deploy: every file is well-formed, and every command in them is one that the command line
understands; those of the compose file are really run."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tomllib
from configparser import RawConfigParser
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from recruiter.cli.main import app
from recruiter.domain.duration import to_seconds
from recruiter.settings import Settings
from recruiter.store.connection import Target
from recruiter.store.database import Store
from tests.acceptance.docs.pages import page
from tests.acceptance.test_command_line import run
from tests.conftest import Starter, eventually

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "examples" / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text())
PROCESSES = ("recruiter", "worker", "cleaner")
DEPLOYMENTS: dict[str, dict[str, Any]] = {
    document["metadata"]["name"]: document["spec"]["template"]["spec"]
    for document in yaml.safe_load_all((DEPLOY / "kubernetes" / "recruiter.yaml").read_text())
    if document["kind"] == "Deployment"
}
AFTER_GRACE = 60
"""Seconds that a worker may need when the grace is over: to end its children, settle and leave."""


def parses(arguments: list[str]) -> None:
    assert all(isinstance(argument, str) for argument in arguments), f"quote the numbers: {arguments}"
    app.parse_args(arguments, exit_on_error=False, print_error=False)


def grace_of(arguments: list[str]) -> float:
    if "--grace" in arguments:
        return to_seconds(arguments[arguments.index("--grace") + 1])
    return Settings.model_fields["grace"].default.total_seconds() if "worker" in arguments else 0.0


def are_settings(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
        assert name.removeprefix("RECRUITER_").lower() in Settings.model_fields, name
    assert Target.parse(Settings.load().target).database == "shop"


def test_what_the_page_names_is_there() -> None:
    named = re.findall(r"examples/deploy/[\w./*-]+\w", page("how-to/deploying.md").text)
    assert len(named) >= 5
    assert [place for place in named if not list(DEPLOY.parents[1].glob(place))] == []


def test_the_page_about_images_shows_the_dockerfile_of_a_new_project() -> None:
    template = (ROOT / "src" / "recruiter" / "cli" / "project" / "Dockerfile.template").read_text()
    (dockerfile,) = (block.text for block in page("how-to/image.md").blocks if block.language == "text")
    assert dockerfile == template.replace("PROJECT", "shop")


@pytest.mark.parametrize(
    ("schema", "file"),
    [
        ("vendor.github-workflows", ROOT / ".github" / "workflows" / "check.yml"),
        ("vendor.github-workflows", ROOT / ".github" / "workflows" / "release.yml"),
        ("vendor.compose-spec", DEPLOY / "docker" / "compose.yaml"),
        ("vendor.compose-spec", ROOT / "src" / "recruiter" / "cli" / "project" / "compose.yaml.template"),
    ],
    ids=["the workflow", "the release", "compose", "compose of a new project"],
)
def test_a_file_fits_the_schema_of_its_tool(schema: str, file: Path) -> None:
    pytest.importorskip("check_jsonschema")
    check = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--force-filetype",
        "yaml",
        "--builtin-schema",
        schema,
        str(file),
    ]
    checked = subprocess.run(check, capture_output=True, text=True, check=False)

    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_workflow_does_what_make_check_does() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "check.yml").read_text())
    commands = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]

    goals = [command.split()[1] for command in commands if command.startswith("make ")]
    assert goals == ["check", "test", "dist", "sbom", "versions"]
    supported = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
    assert workflow["jobs"]["check"]["strategy"]["matrix"]["python"] == supported


class TestSystemd:
    @pytest.mark.parametrize("unit", UNITS, ids=[unit.name for unit in UNITS])
    def test_a_unit_fits_what_it_starts(self, unit: Path) -> None:
        service = _Unit(unit)
        program, *arguments = shlex.split(service["ExecStart"])
        parses(arguments)
        assert Path(program).name == "recruiter"
        assert service["Type"] == "notify"
        assert service["KillMode"] == "mixed"  # what jobs have started is the supervisor's to end
        assert service["RestartPreventExitStatus"] == "2 3"
        assert to_seconds(service["TimeoutStopSec"]) >= grace_of(arguments) + AFTER_GRACE * ("worker" in arguments)
        assert to_seconds(service["WatchdogSec"]) >= 120
        assert service["NoNewPrivileges"] == "yes"

    def test_there_is_one_for_each_process(self) -> None:
        assert {shlex.split(_Unit(unit)["ExecStart"])[2] for unit in UNITS} == set(PROCESSES)

    @pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
    def test_systemd_understands_them(self, tmp_path: Path) -> None:
        for unit in UNITS:
            text = unit.read_text().replace("/srv/shop/.venv/bin/recruiter", sys.executable)
            (tmp_path / unit.name).write_text(text)

        units = [str(tmp_path / unit.name) for unit in UNITS]
        checked = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False)

        complaints = [line for line in checked.stderr.splitlines() if str(tmp_path) in line]
        assert (checked.returncode, complaints) == (0, [])

    def test_its_environment_says_to_systemd_and_a_shell_what_recruiter_understands(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = DEPLOY / "systemd" / "recruiter.env"
        lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
        by_systemd = dict("".join(shlex.split(line)).split("=", 1) for line in lines)
        printed = subprocess.run(["sh", "-c", f"set -a; . {file}; env -0"], env={}, capture_output=True, check=True)
        by_shell = dict(entry.split("=", 1) for entry in printed.stdout.decode().split("\0") if entry)

        assert {name: by_shell[name] for name in by_systemd} == by_systemd
        are_settings(by_systemd, monkeypatch)


class _Unit:
    """The service of a unit file."""

    def __init__(self, path: Path) -> None:
        parser = RawConfigParser(strict=False)
        parser.optionxform = str  # type: ignore[assignment, method-assign]
        parser.read_string(path.read_text())
        self._service = dict(parser["Service"])

    def __getitem__(self, name: str) -> str:
        return self._service[name].replace("min", " minutes")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class TestDocker:
    @pytest.fixture
    def instructions(self) -> dict[str, str]:
        text = (DEPLOY / "docker" / "Dockerfile").read_text().replace("\\\n", " ")
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        return {line.split(maxsplit=1)[0]: line.split(maxsplit=1)[1] for line in lines}

    def test_what_the_image_runs(self, instructions: dict[str, str]) -> None:
        entrypoint, command = json.loads(instructions["ENTRYPOINT"]), json.loads(instructions["CMD"])
        assert entrypoint == ["tini", "--", "recruiter"]
        parses(command)
        health = json.loads(instructions["HEALTHCHECK"].partition("CMD ")[2])
        assert health[0] == "recruiter"
        parses(health[1:])
        assert "--live" in health

    def test_it_is_not_root(self, instructions: dict[str, str]) -> None:
        assert int(instructions["USER"]) > 0

    def test_its_variables_are_settings(self, instructions: dict[str, str]) -> None:
        names = re.findall(r"RECRUITER_(\w+)=", instructions["ENV"])
        assert names
        assert {name.lower() for name in names} <= set(Settings.model_fields)

    def test_what_it_copies_is_there(self) -> None:
        """In the folder that the build is given, which the compose file names."""
        build = COMPOSE["x-process"]["build"]
        context = (DEPLOY / "docker" / build["context"]).resolve()
        assert (context / build["dockerfile"]).resolve() == DEPLOY / "docker" / "Dockerfile"
        copied = re.findall(r"^COPY (.+) \S+$", (DEPLOY / "docker" / "Dockerfile").read_text(), re.MULTILINE)
        sources = [source for line in copied for source in line.split()]
        assert {"pyproject.toml", "src"} <= {*sources}
        for source in sources:
            assert (context / source).exists(), source

    def test_everything_that_the_package_is_built_from_is_copied(self) -> None:
        project = tomllib.loads((DEPLOY.parents[1] / "pyproject.toml").read_text())["project"]
        dockerfile = (DEPLOY / "docker" / "Dockerfile").read_text()
        for file in (project["readme"], *project["license-files"]):
            assert f" {file} " in dockerfile


class TestCompose:
    @pytest.mark.parametrize("name", PROCESSES)
    def test_its_commands_are_understood(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        service = COMPOSE["services"][name]
        parses(service["command"])
        assert service["command"][:2] == ["start", name]
        kind, program, *probe = service["healthcheck"]["test"]
        assert (kind, program) == ("CMD", "recruiter")
        parses(probe)
        assert to_seconds(service["stop_grace_period"]) >= grace_of(service["command"]) + AFTER_GRACE * (
            name == "worker"
        )
        assert service["depends_on"]["mongodb"]["condition"] == "service_healthy"
        are_settings(service["environment"], monkeypatch)

    def test_mongodb_makes_itself_a_replica_set(self) -> None:
        service = COMPOSE["services"]["mongodb"]
        script = service["healthcheck"]["test"][-1]
        assert service["command"][:3] == ["mongod", "--replSet", "rs0"]
        assert "rs.initiate" in script
        assert '_id: "rs0"' in script
        assert 'host: "mongodb:27017"' in script  # as the others call it: drivers go where the set says
        assert "isWritablePrimary" in script

    def test_they_run(self, start: Starter, target: str, store: Store) -> None:
        """Given the commands of the file, with its application, then its own probes find them healthy."""
        ports = {name: str(free_port()) for name in PROCESSES}  # containers have their own network

        def of_file(name: str, words: list[str]) -> list[str]:
            assert "8080" in words
            return [ports[name] if word == "8080" else word for word in words]

        for name in PROCESSES:
            command = of_file(name, COMPOSE["services"][name]["command"])
            start(*command, RECRUITER_BOOTSTRAP=str(DEPLOY / "docker" / "shop.py"))

        for name in PROCESSES:
            probe = of_file(name, COMPOSE["services"][name]["healthcheck"]["test"][2:])
            eventually(lambda: run(*probe, RECRUITER_TARGET=target)[0] == 0, within=60)  # noqa: B023
        (worker,) = store.roster.entries()
        assert worker.registration.tasks >= {"hello"}


class TestKubernetes:
    @pytest.fixture(params=PROCESSES)
    def pod(self, request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
        return request.param, DEPLOYMENTS[request.param]

    def test_its_commands_are_understood(self, pod: tuple[str, dict[str, Any]]) -> None:
        role, spec = pod
        (container,) = spec["containers"]
        parses(container["args"])
        assert container["args"][:2] == ["start", role]
        enough = grace_of(container["args"]) + AFTER_GRACE * (role == "worker")
        assert spec["terminationGracePeriodSeconds"] >= enough
        for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
            path = "/live" if kind == "livenessProbe" else "/ready"
            assert container[kind]["httpGet"] == {"path": path, "port": "health"}
        (port,) = container["ports"]
        assert port["name"] == "health"
        assert container["args"][-2:] == ["--health-port", str(port["containerPort"])]

    def test_its_objects_fit_the_schemas_of_kubernetes(self) -> None:
        kubernetes = pytest.importorskip("kubernetes_validate")
        for each in yaml.safe_load_all((DEPLOY / "kubernetes" / "recruiter.yaml").read_text()):
            kubernetes.validate(each, kubernetes.latest_version(), strict=True)

    def test_their_target_is_an_address(self) -> None:
        text = (DEPLOY / "kubernetes" / "recruiter.yaml").read_text()
        (secret,) = [each for each in yaml.safe_load_all(text) if each["kind"] == "Secret"]
        store = Store(Target.parse(secret["stringData"]["RECRUITER_TARGET"]))
        with closing(store):
            assert store.target.database == "shop"
            assert "PASSWORD" not in str(store.target)
