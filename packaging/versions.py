"""Runs a part of the suite with other versions: each Python that is here, and the oldest and newest pymongo supported.

    python packaging/versions.py                       # every combination
    python packaging/versions.py --python 3.13         # one Python
    python packaging/versions.py --pymongo oldest      # one pymongo

Each combination has its own virtual environment in a temporary folder, with the wheel in it, so that the tests run
against the package that users install.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PYMONGOS = {"oldest": "pymongo==4.9.*", "newest": "pymongo<5"}
TESTS = ("tests/unit", "tests/store", "tests/steps", "tests/contrib", "tests/processes/test_children.py")
NEEDED = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "pyyaml", "httpx", "mypy", "litestar")


def interpreter(version: str) -> str | None:
    """The path of this Python: from the PATH or from pyenv."""
    found = shutil.which(f"python{version}")
    kept = sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(f"versions/{version}.*/bin/python"))
    return str(kept[-1]) if kept else found


def run(*command: str | Path, **environment: str) -> bool:
    return (
        subprocess.run(list(map(str, command)), cwd=ROOT, env={**os.environ, **environment}, check=False).returncode
        == 0
    )


def check(python: str, pymongo: str, wheel: Path, tests: list[str]) -> bool:
    with tempfile.TemporaryDirectory(prefix="recruiter-versions-") as folder:
        place = Path(folder) / "venv"
        extras = "embedded,web,reload,flask,django"
        return (
            run(python, "-m", "venv", place)
            and run(place / "bin" / "pip", "install", "--quiet", f"{wheel}[{extras}]", pymongo, *NEEDED)
            and run(place / "bin" / "python", "-m", "pytest", "-q", "-n", "2", "--dist", "loadscope", *tests)
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", action="append", help="such as 3.13; may be repeated")
    parser.add_argument("--pymongo", action="append", choices=list(PYMONGOS), help="may be repeated")
    parser.add_argument("tests", nargs="*", default=list(TESTS))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="recruiter-wheel-") as folder:
        if not run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT):
            return 1
        (wheel,) = Path(folder).glob("*.whl")
        told = []
        for version in given.python or PYTHONS:
            python = interpreter(version)
            for name in given.pymongo or PYMONGOS:
                pymongo = PYMONGOS[name]
                answer = (
                    "not here" if python is None else "ok" if check(python, pymongo, wheel, given.tests) else "FAILED"
                )
                told.append((version, name, pymongo, answer))
    print(
        "\n".join(f"Python {version:6} pymongo {name} ({pymongo}): {answer}" for version, name, pymongo, answer in told)
    )
    return 1 if any(answer == "FAILED" for *_, answer in told) else 0


if __name__ == "__main__":
    sys.exit(main())
