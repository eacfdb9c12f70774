"""Runs a part of the suite with other versions: the newest dependencies on each Python that is here, and the oldest
versions of all dependencies together on the oldest Python.

    python packaging/versions.py                                  # every combination
    python packaging/versions.py --python 3.13                    # one Python
    python packaging/versions.py --dependencies oldest            # the lower bounds of pyproject.toml

Each combination has its own virtual environment in a temporary folder, with the wheel in it, so that the tests run
against the package that users install.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
EXTRAS = ("embedded", "srv", "web", "metrics", "otel", "sentry", "crypto", "reload", "flask", "django")
TESTS = ("tests/unit", "tests/store", "tests/steps", "tests/contrib", "tests/processes/test_children.py")
NEEDED = (
    "pytest",
    "pytest-timeout",
    "pytest-xdist",
    "hypothesis",
    "pyyaml",
    "httpx",
    "mypy",
    "litestar",
    "opentelemetry-sdk",
    "opentelemetry-instrumentation-fastapi",
)


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


def lower_bounds() -> str:
    """The oldest version of each dependency, as a file of constraints."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [requirement for extra in EXTRAS for requirement in project["optional-dependencies"][extra]]
    bounds = (
        re.match(r"([\w.-]+)(?:\[\w+\])?>=([\w.]+)", requirement) for requirement in project["dependencies"] + extras
    )
    return "".join(f"{bound[1]}=={bound[2]}\n" for bound in bounds if bound)


def check(python: str, dependencies: str, wheel: Path, tests: list[str]) -> bool:
    with tempfile.TemporaryDirectory(prefix="recruiter-versions-") as folder:
        place, constraints = Path(folder) / "venv", Path(folder) / "constraints.txt"
        constraints.write_text(lower_bounds() if dependencies == "oldest" else "")
        package = f"{wheel}[{','.join(EXTRAS)}]"
        return (
            run(python, "-m", "venv", place)
            and run(place / "bin" / "pip", "install", "--quiet", "--constraint", constraints, package, *NEEDED)
            and run(place / "bin" / "python", "-m", "pytest", "-q", "-n", "2", "--dist", "loadscope", *tests)
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", action="append", help="such as 3.13; may be repeated")
    parser.add_argument("--dependencies", choices=("oldest", "newest"))
    parser.add_argument("tests", nargs="*", default=list(TESTS))
    given = parser.parse_args()
    pythons = given.python or PYTHONS
    wanted = [("newest", version) for version in pythons if given.dependencies != "oldest"]
    wanted += [("oldest", version) for version in pythons[:1] if given.dependencies != "newest"]
    with tempfile.TemporaryDirectory(prefix="recruiter-wheel-") as folder:
        if not run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT):
            return 1
        (wheel,) = Path(folder).glob("*.whl")
        results = []
        for dependencies, version in wanted:
            python = interpreter(version)
            passed = python is not None and check(python, dependencies, wheel, given.tests)
            result = "not here" if python is None else "ok" if passed else "FAILED"
            results.append((version, dependencies, result))
    print(
        "\n".join(
            f"Python {version:6} {dependencies} dependencies: {result}" for version, dependencies, result in results
        )
    )
    return 1 if any(result == "FAILED" for *_, result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
