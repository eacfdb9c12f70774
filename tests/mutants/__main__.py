"""Applies each mutant to a copy of the source and runs its check, which must fail; prints a table.

python -m tests.mutants [--from 1] [--to 40] [--at-once 2] [--also-simulate SEEDS] [NAME …]
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.mutants.catalogue import MUTANTS, SIMULATOR, Mutant

ROOT = Path(__file__).parents[2]
_SEEDS = 500
_LONGEST_CHECK = 300.0
_FAILED = ("FAILED ", "seed ")
"""How a check says that a rule is broken. One that cannot even begin shows nothing."""


@dataclass(frozen=True)
class Outcome:
    mutant: Mutant
    caught: bool
    by: str
    """The test that failed first, the seed, or why nothing did."""
    simulator: str
    """What the simulator says, where it was asked too."""
    seconds: float


@contextmanager
def copied() -> Iterator[Path]:
    """The source and the tests, without what was built from them."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        folder = Path(name)
        for part in ("src", "tests"):
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", folder)
        yield folder


def run(check: str, root: Path, seeds: int = _SEEDS) -> tuple[bool, str]:
    """Whether the check passes on this copy, and the line of its answer that says most."""
    if check == SIMULATOR:
        command = ["-m", "tests.simulator", "--seeds", str(seeds), "--processes", "1", "--stop"]
    else:
        command = ["-m", "pytest", "-x", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", *check.split()]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)])}
    try:
        done = subprocess.run(
            [sys.executable, *command],
            cwd=root,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_LONGEST_CHECK,
        )
    except subprocess.TimeoutExpired:
        return True, f"not done within {_LONGEST_CHECK:g} s"  # which shows nothing
    lines = [line for line in done.stdout.splitlines() if line.startswith(_FAILED)]
    if not lines and done.returncode != 0:
        return True, f"could not be run: {(done.stdout + done.stderr)[-200:]!r}"
    return not lines, (lines or ["it passes"])[0][:200]


def untouched(chosen: Sequence[Mutant]) -> Iterator[str]:
    """What is wrong with the checks where nothing was left out."""
    tests = sorted({mutant.check for mutant in chosen} - {SIMULATOR})
    for check in [*([" ".join(tests)] if tests else []), SIMULATOR]:
        with copied() as root:
            passes, told = run(check, root)
        if not passes or told != "it passes":
            yield f"a check does not pass without any mutant: {told}"


def attempt(mutant: Mutant, seeds: int) -> Outcome:
    began = time.monotonic()
    with copied() as root:
        try:
            mutant.apply(root)
        except LookupError as error:
            return Outcome(mutant, False, str(error).splitlines()[0], "", 0.0)
        passes, told = run(mutant.check, root)
        simulator = "yes" if mutant.check == SIMULATOR and not passes else ""
        if seeds and mutant.check != SIMULATOR:
            simulator = "" if run(SIMULATOR, root, seeds)[0] else "yes"
    return Outcome(mutant, not passes, _name(told), simulator, time.monotonic() - began)


def _name(told: str) -> str:
    """`tests/a.py`: `test_b[c]` of pytest's line, or the seed and what it violated."""
    if told.startswith("FAILED "):
        file, _, test = told.split()[1].partition("::")
        return f"`{file}`" + (f": `{test.rpartition('::')[2]}`" if test else "")
    return told.replace("|", "/")


def row(outcome: Outcome) -> str:
    by = outcome.by if outcome.caught else f"**NOT CAUGHT** {outcome.by}"
    return f"| `{outcome.mutant.name}` | {outcome.mutant.rule} | {by} | {outcome.simulator} |"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these")
    parser.add_argument("--from", dest="first", type=int, default=1, help="the first, counted from 1")
    parser.add_argument("--to", dest="last", type=int, default=len(MUTANTS), help="the last")
    parser.add_argument("--at-once", type=int, default=os.cpu_count())
    parser.add_argument("--also-simulate", type=int, default=0, metavar="SEEDS", help="ask the simulator as well")
    given = parser.parse_args(arguments)
    chosen = [m for m in MUTANTS[given.first - 1 : given.last] if not given.names or m.name in given.names]
    wrong = 0
    for told in untouched(chosen):
        wrong += 1
        print(told, flush=True)
    with ThreadPoolExecutor(given.at_once) as pool:
        print("| mutant | the rule that it leaves out | caught by | the simulator too |\n|---|---|---|---|", flush=True)
        seconds = []
        for outcome in pool.map(partial(attempt, seeds=given.also_simulate), chosen):
            wrong += not outcome.caught
            seconds.append(outcome.seconds)
            print(row(outcome), flush=True)
    print(
        f"\n{len(chosen) - wrong} of {len(chosen)} as they should be; the slowest took {max(seconds, default=0):.0f} s"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
