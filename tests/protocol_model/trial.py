"""Runs designs and their mutants over seeds, and prints what was found."""

import importlib
import multiprocessing
import time
from collections import Counter

from tests.protocol_model.core import Violation

DESIGNS = ["flow_release", "flow_changes", "first_start"]


def attempt(task):
    """Tries a mutant (or, with None, the design itself) until it is caught; returns that, and what it achieved."""
    design, mutant, seeds = task
    simulate, score = _design(design).simulate, Counter()
    for seed in range(seeds):
        try:
            score.update(simulate(seed, mutant))
        except Violation as violation:
            return f"seed {seed}: {violation}", score
    return None, score


def _design(name):
    return importlib.import_module(f"tests.protocol_model.{name}")


def main(arguments):
    seeds = next((int(word) for word in arguments if word.isdigit()), 2000)
    designs = {name: _design(name) for name in DESIGNS if name in arguments}
    designs = designs or {name: _design(name) for name in DESIGNS}
    tasks = [
        (name, mutant, seeds)
        for name, design in designs.items()
        for mutant in [None, *design.RULES, *getattr(design, "SPARE", {})]
    ]
    began, wrong, table = time.monotonic(), 0, []
    with multiprocessing.Pool() as pool:
        for (name, mutant, _), (caught, score) in zip(tasks, pool.imap(attempt, tasks), strict=False):
            rule = designs[name].RULES.get(mutant)
            wrong += (caught is None) if rule else (caught is not None)
            if mutant is None:
                achieved = ", ".join(f"{count:,} {what}" for what, count in sorted(score.items()))
                found = f"BROKEN at {caught}" if caught else f"holds over {seeds:,} seeds: {achieved}"
                print(f"{name:18} {found}", flush=True)
            else:
                table.append(
                    (
                        name,
                        mutant,
                        caught or ("NOT CAUGHT" if rule else f"holds over {seeds:,} seeds"),
                        rule or "spare: " + designs[name].SPARE[mutant],
                    )
                )
    print(f"{time.monotonic() - began:.0f} s\n\nwithout one rule each")
    for row in table:
        print("{:18} {:27} {:62} {}".format(*row))
    print(f"\n{'everything as it should be' if not wrong else f'{wrong} NOT AS THEY SHOULD BE'}")
    return 1 if wrong else 0
