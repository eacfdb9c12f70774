"""The packages: what is in them; and, with RECRUITER_WHEEL=1 as in `make dist`, the README run from the wheel alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.acceptance.docs.pages import ROOT, Page
from tests.conftest import eventually

SOURCE = ROOT / "src"
README = Page(ROOT / "README.md")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    environment = {**os.environ, "RECRUITER_REPOSITORY": "https://example.org/owner/recruiter"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return folder


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    wanted = {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*") if path.is_file() and _kept(path)}

    with zipfile.ZipFile(wheel) as opened:
        there = {name for name in opened.namelist() if ".dist-info/" not in name}

    assert there == wanted
    assert {"recruiter/py.typed", "recruiter/cli/project/jobs.py.template"} <= there


def test_every_link_of_the_description_is_absolute(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        (name,) = (name for name in opened.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = opened.read(name).decode()

    assert "Project-URL: Repository, https://example.org/owner/recruiter\n" in metadata
    assert [link for link in re.findall(r"\]\(([^)]+)\)", metadata) if not link.startswith("https://")] == []
    assert re.search(r"\]\(https://example\.org/owner/recruiter/raw/v[\d.]+/docs/pictures/\S+\.png\)", metadata)


def _kept(path: Path) -> bool:
    return "__pycache__" not in path.parts and not any(part.endswith(".egg-info") for part in path.parts)


def test_the_sdist_builds_by_itself(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as opened:
        there = {name.partition("/")[2] for name in opened.getnames()}

    assert {"pyproject.toml", "README.md", "LICENSE", "src/recruiter/app.py", "tests/conftest.py"} <= there


def test_twine_has_no_complaints(built: Path) -> None:
    packages = [str(path) for path in built.iterdir()]
    checked = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *packages], capture_output=True, text=True, check=False
    )

    assert checked.returncode == 0, checked.stdout + checked.stderr


# -- installed in an empty environment -------------------------------------------------------------------------------

installed = pytest.mark.skipif(
    "RECRUITER_WHEEL" not in os.environ, reason="installs packages: `make dist` runs it, with RECRUITER_WHEEL=1"
)


@pytest.fixture(scope="module")
def environment(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel in it, its extra `embedded`, what it needs, and nothing else."""
    (wheel,) = built.glob("*.whl")
    place = tmp_path_factory.mktemp("empty") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    install = [str(place / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", f"{wheel}[embedded]"]
    subprocess.run(install, check=True, cwd=place)
    return place / "bin"


@installed
def test_the_first_screen_of_the_readme_runs_from_the_wheel(environment: Path, tmp_path: Path) -> None:
    # given an empty folder with the file that the README says to write, and `recruiter dev`
    application = next(block.text for block in README.blocks if block.language == "python")
    (tmp_path / "shop.py").write_text(application)
    log = tmp_path / "dev.log"
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "RECRUITER"))}
    with log.open("wb") as output:
        dev = subprocess.Popen(
            [environment / "recruiter", "dev", "shop.py"], cwd=tmp_path, env=plain, stdout=output, stderr=output
        )
    try:
        eventually(lambda: "ready" in log.read_text() or dev.poll() is not None)
        (address,) = re.findall(r"private MongoDB at (\S+),", log.read_text())

        # when a Python of that environment runs the file
        ran = subprocess.run(
            [environment / "python", "shop.py"],
            cwd=tmp_path,
            env={**plain, "RECRUITER_TARGET": address},
            capture_output=True,
            text=True,
            check=False,
        )

        # then the job has run, and `recruiter job show` knows it
        assert "Dear Ada, welcome! (sent to ada@example.org)" in ran.stdout, ran.stderr
        show = [environment / "recruiter", "job", "show", ran.stdout.split()[0], "--target", address]
        assert "send_welcome" in subprocess.run(show, capture_output=True, text=True, check=True, env=plain).stdout
    finally:
        dev.terminate()
        dev.wait()


USERS_FILE = """
from recruiter import Recruiter

recruiter = Recruiter()

@recruiter.task
def send(to: str, copies: int = 1) -> str:
    return to

job = send.enqueue("ada@example.org", copies=2)
reveal_type(job.result())
send.enqueue(5)
"""


@installed
def test_the_types_of_the_installed_package_are_seen(environment: Path, tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(USERS_FILE)
    python = str(environment / "python")
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--python-executable", python, "user.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert 'Revealed type is "str"' in checked.stdout.replace("builtins.", "")
    assert 'Argument 1 to "enqueue" of "Task" has incompatible type "int"; expected "str"' in checked.stdout
    assert "Found 1 error" in checked.stdout, checked.stdout
