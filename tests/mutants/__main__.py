"""Applies each mutant to a copy of the source and runs its check, which must fail; prints a table.

python -m tests.mutants [NAME …]
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.catalogue import MUTANTS, SIMULATOR, Mutant

ROOT = Path(__file__).parents[2]
_SEEDS = 500
_LONGEST_CHECK = 600.0


@dataclass(frozen=True)
class Outcome:
    mutant: Mutant
    caught: bool
    told: str
    seconds: float


def copied(folder: Path) -> Path:
    """The source and the tests, without what was built from them."""
    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def run(check: str, root: Path) -> tuple[bool, str]:
    """Whether the check passes on this copy, and the line of its answer that says most."""
    if check == SIMULATOR:
        command = ["-m", "tests.simulator", "--seeds", str(_SEEDS), "--stop"]
    else:
        command = ["-m", "pytest", "-x", "-q", "-p", "no:randomly", *check.split()]
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
    lines = [line for line in done.stdout.splitlines() if line.startswith(("seed ", "FAILED", "ERROR"))]
    return done.returncode == 0, (lines or done.stdout.splitlines() or [done.stderr[-200:]])[0][:160]


def attempt(mutant: Mutant) -> Outcome:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        root = copied(Path(folder))
        try:
            mutant.apply(root)
        except LookupError as error:
            return Outcome(mutant, False, str(error), 0.0)
        passes, told = run(mutant.check, root)
    return Outcome(mutant, not passes, told, time.monotonic() - began)


def main(names: list[str]) -> int:
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    wrong = 0
    for check in sorted({mutant.check for mutant in chosen}):
        with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
            passes, told = run(check, copied(Path(folder)))
        if not passes or told.startswith("not done"):
            print(f"{check} does not pass without any mutant: {told}", flush=True)
            wrong += 1
    print("| mutant | the rule that it leaves out | check | caught by |\n|---|---|---|---|", flush=True)
    for mutant in chosen:
        outcome = attempt(mutant)
        wrong += not outcome.caught
        told = outcome.told if outcome.caught else f"**NOT CAUGHT** {outcome.told.splitlines()[0]}"
        print(f"| {mutant.name} | {mutant.rule} | {mutant.check} | {told} ({outcome.seconds:.0f} s) |", flush=True)
    print(f"\n{len(chosen) - wrong} of {len(chosen)} as they should be")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
