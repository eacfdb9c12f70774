"""Whether a worker grows: the memory of its processes while it runs very many no-op jobs.

    python benchmarks/soak.py [--jobs N] [--concurrency N]

One worker with one child. Starts a private MongoDB and real processes; prints a line after every tenth of the jobs.
Memory is the private memory of a process (USS), so that pages shared with the fork server are not counted twice.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import psutil

from recruiter.embedded import EmbeddedServer

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import noop  # noqa: E402
from drain import Processes  # noqa: E402

_BATCH = 5_000


def family(worker: int) -> dict[str, psutil.Process]:
    """The processes of a worker with one child, by role."""
    supervisor = psutil.Process(worker)
    server = next(each for each in supervisor.children() if "forkserver" in " ".join(each.cmdline()))
    (guard,) = server.children()
    (child,) = guard.children()
    return {"supervisor": supervisor, "fork server": server, "guard": guard, "child": child}


def run(jobs: int) -> None:
    """Enqueues so many, never more than a batch ahead, and waits until they have ended."""
    archived = noop.recruiter.store.archived.collection
    before, sent = archived.estimated_document_count(), 0
    while (ended := archived.estimated_document_count() - before) < jobs:
        if sent < jobs and sent - ended < _BATCH:
            count = min(_BATCH, jobs - sent)
            noop.noop.enqueue_many([(number, "x") for number in range(count)])
            sent += count
        else:
            time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--concurrency", type=int, default=1)
    given = parser.parse_args()
    with EmbeddedServer() as server:
        target = server.uri.replace("/?", "/bench?")
        noop.recruiter.point_at(target)
        noop.recruiter.store.prepare()
        processes = Processes(target)
        try:
            processes.start("recruiter")
            processes.start("worker", "--concurrency", str(given.concurrency))
            run(100)
            members = family(processes.members["worker"].pid)
            print(f"{'jobs':>9}  {'jobs/s':>7}  " + "  ".join(f"{name:>11}" for name in members), flush=True)
            done = 0
            for _ in range(10):
                began = time.monotonic()
                run(given.jobs // 10)
                done += given.jobs // 10
                speed = given.jobs / 10 / (time.monotonic() - began)
                memory = "  ".join(f"{each.memory_full_info().uss / 2**20:>8.1f} MB" for each in members.values())
                print(f"{done:>9,}  {speed:>7,.0f}  {memory}", flush=True)
        finally:
            processes.stop()


if __name__ == "__main__":
    main()
