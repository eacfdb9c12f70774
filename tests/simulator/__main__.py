"""Runs many small worlds, each from one seed.

python -m tests.simulator [--seeds 10000] [--first 0] [--processes 2]      all of them
python -m tests.simulator --seed 4711                                      one, with everything that happened in it
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import sys
import time
import traceback

from tests.simulator.world import Result, World

_TELL_EVERY = 1000
_COLLECT_EVERY = 10
"""Worlds between two collections of garbage: a world is small, and to look for garbage all the time takes a fifth."""


def begin() -> None:
    """Call this in a process before it runs many worlds."""
    gc.collect()
    gc.freeze()
    gc.disable()


def run(seed: int) -> Result:
    try:
        return World(seed).run()
    except Exception:
        return Result(seed, traceback.format_exc(), 0, 0, 0, 0)
    finally:
        if seed % _COLLECT_EVERY == 0:
            gc.collect()


def one(seed: int) -> int:
    world = World(seed, tells=True)
    result = world.run()
    print("\n".join(world.ledger.lines))
    print(f"seed {seed}: {result.violation or 'nothing wrong'}")
    return 1 if result.violation else 0


def all_of(seeds: range, processes: int, *, stop: bool = False) -> int:
    began = time.monotonic()
    wrong: list[Result] = []
    jobs = runs = hits = calls = 0
    with multiprocessing.Pool(processes, begin) as pool:
        for done, result in enumerate(pool.imap_unordered(run, seeds, chunksize=20), 1):
            if done % _TELL_EVERY == 0:
                print(f"{done:,} seeds, {len(wrong)} with a violation", file=sys.stderr, flush=True)
            jobs, runs = jobs + result.jobs, runs + result.runs
            hits, calls = hits + result.hits, calls + result.calls
            if result.violation:
                wrong.append(result)
                print(f"seed {result.seed}: {result.violation}", flush=True)
                if stop:
                    break
    took = time.monotonic() - began
    print(
        f"{len(seeds):,} seeds in {took:.0f} s ({len(seeds) / took:.0f} a second): {jobs:,} jobs, {runs:,} runs, "
        f"{calls:,} calls to the server, {hits:,} processes hit; {len(wrong)} seeds with a violation"
    )
    return 1 if wrong else 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, help="run this one and print what happened")
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--stop", action="store_true", help="stop at the first violation")
    given = parser.parse_args(arguments)
    if given.seed is not None:
        return one(given.seed)
    return all_of(range(given.first, given.first + given.seeds), given.processes, stop=given.stop)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of a set must not depend on the process
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.simulator", *sys.argv[1:]],
            os.environ | {"PYTHONHASHSEED": "0"},
        )
    sys.exit(main())
