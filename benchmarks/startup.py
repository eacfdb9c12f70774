"""Measures imports and `recruiter --help`, compared with `import pymongo`; each in a fresh Python, with bytecode, the
best and the median of several rounds. All are measured in turn in each round, so that noise is the same for all.

    python benchmarks/startup.py --rounds 20
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

WHAT_PEOPLE_WRITE = "Recruiter, Workable, Cron, ExponentialBackoff, RetryManyTimes, current_job"
CASES = {
    "python": ["-c", "pass"],
    "import pymongo": ["-c", "import pymongo"],
    "import recruiter": ["-c", "import recruiter"],
    "from recruiter import Recruiter": ["-c", "from recruiter import Recruiter"],
    "from recruiter import Recruiter, Workable, Cron, …": ["-c", f"from recruiter import {WHAT_PEOPLE_WRITE}"],
    "import recruiter.pytest_plugin, beside pytest": ["-c", "import pytest; import recruiter.pytest_plugin"],
    "import pytest": ["-c", "import pytest"],
    "recruiter --help": ["-m", "recruiter.cli.main", "--help"],
    "recruiter job list --help": ["-m", "recruiter.cli.main", "job", "list", "--help"],
}


def seconds(arguments: list[str], environment: dict[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env=environment)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as bytecode:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode, "PYTHONDONTWRITEBYTECODE": ""}
        taken: dict[str, list[float]] = {name: [] for name in CASES}
        for number in range(rounds + 1):
            for name, arguments in CASES.items():
                took = seconds(arguments, environment)
                if number:  # the first round writes the bytecode
                    taken[name].append(took)
    pymongo = min(taken["import pymongo"]), statistics.median(taken["import pymongo"])
    print(f"{'':52}{'best':>8}{'median':>8}{'above pymongo':>20}")
    for name, each in taken.items():
        best, median = min(each), statistics.median(each)
        print(f"{name:52}{best:8.3f}{median:8.3f}{best - pymongo[0]:+10.3f}{median - pymongo[1]:+10.3f}")


if __name__ == "__main__":
    main()
