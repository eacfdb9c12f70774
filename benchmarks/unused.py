"""The cost of flows and unique jobs for jobs that do not use them: a drain with and without these features.

    python benchmarks/unused.py [--kind noop|cpu:1|cpu:10] [--jobs N] [--times N]

*Without* omits the shared costs: the indexes for steps of flows, the check for a flow in each job
that ends, and the query for markers in each round. Both take turns on one private MongoDB; figures of the steady state
as in `budget.py`. The rest is only there for jobs that ask for it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import budget  # noqa: E402
import kinds  # noqa: E402
from drain import Processes  # noqa: E402

from recruiter.cli.main import run  # noqa: E402
from recruiter.embedded import EmbeddedServer  # noqa: E402
from recruiter.store.collections import archived, scheduled  # noqa: E402
from recruiter.store.collections.due_jobs import DueJobs  # noqa: E402
from recruiter.store.collections.flows import FlowCollection  # noqa: E402

OF_FLOWS = {scheduled.BY_FLOW, scheduled.BY_DEPENDENCY}
ALONE = "--process-without"
INDEXES = {module: list(module.INDEXES) for module in (scheduled, archived)}


def without() -> None:
    """In this process."""
    for module in INDEXES:
        module.INDEXES[:] = [index for index in INDEXES[module] if index.document["name"] not in OF_FLOWS]
    FlowCollection.mark_ended = lambda *_: None  # type: ignore[method-assign]
    DueJobs.lanes_to_plan = DueJobs.lanes  # type: ignore[method-assign]


def with_all() -> None:
    for module, indexes in INDEXES.items():
        module.INDEXES[:] = indexes


class Without(Processes):
    def start(self, name: str, *arguments: str) -> None:
        command = [sys.executable, __file__, ALONE, "start", name, "--bootstrap", str(HERE / "noop.py"), *arguments]
        self.members[name] = subprocess.Popen(command, env=self._environment)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", default="noop", help="noop or cpu:N, in milliseconds")
    parser.add_argument("--jobs", type=int, default=40_000)
    parser.add_argument("--times", type=int, default=3)
    options = parser.parse_args()
    os.environ[kinds.KIND] = options.kind
    figures: dict[str, list[budget.Figures]] = {"with": [], "without": []}
    with EmbeddedServer() as server:
        for number in range(2 * options.times):
            kind = "with" if number % 2 == number // 2 % 2 else "without"  # each is the first of a pair in turn
            prepare, processes = (with_all, Processes) if kind == "with" else (without, Without)
            prepare()
            mongod = server.pid or 0
            figures[kind].append(budget.of_the_product(server.uri, mongod, options.jobs, 2, started_by=processes))
            print(f"  {kind:8} {figures[kind][-1]['drain /s']:8,.0f} /s", flush=True)
    names = [name for name in figures["with"][0] if name.startswith(("drain", "CPU"))]
    print(f"{options.jobs:,} plain jobs ({options.kind}), {options.times} times each")
    print(f"{'':28} {'with':>8} {'without':>8}   ratios of the pairs")
    for name in names:
        each = [[run[name] for run in figures[kind]] for kind in ("with", "without")]
        ratios = sorted(ours / bare for ours, bare in zip(*each, strict=True))
        told = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        print(f"{name:28} {statistics.median(each[0]):8,.1f} {statistics.median(each[1]):8,.1f}   {told}")


if __name__ == "__main__":
    if sys.argv[1:2] == [ALONE]:
        os.environ.setdefault("PYTHONPATH", str(HERE))
        without()
        run(sys.argv[2:])
    else:
        main()
