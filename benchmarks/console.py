"""The cost of the web console: the time of each page with many jobs, the operations for 0, 1 and 50 viewers, and the
bytes that an open page transfers.

    python benchmarks/console.py [--ended N] [--waiting N] [--folder FOLDER]
    python benchmarks/console.py --wire SECONDS

It uses the jobs of `archive.py`. Times are medians of five whole requests on loopback. Operations per second come
from the counters of the server; with 0 viewers they are its own work.

`--wire` follows pages of a busy fleet for this time: 20 new jobs per second, some of which fail, and a running job that
writes 20 lines per second to its log.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import httpx
from archive import fill

sys.path.insert(0, str(Path(__file__).parents[1]))

from recruiter import Recruiter
from recruiter.embedded import EmbeddedServer
from recruiter.steps.clean import count_waiting
from recruiter.store.connection import Target
from recruiter.store.database import Store
from recruiter.web import dashboard
from recruiter.web.server import served
from tests.web.world import World, world

PAGES = (
    *("?within=5m", "?within=1h", "?within=24h", "?within=7d"),
    *("jobs", "jobs?state=queued", "jobs?state=failed", "jobs?state=failed&error=TimeoutError", "jobs?tag=user:7"),
    *("jobs?arg=customer.id=42&since=1h", "counts", "counts?task=task3"),
    *("workers", "groups", "schedules", "problems", "metrics"),
)
AGAIN = 5
WATCHED = 12.0
OPERATIONS = ("query", "getmore", "command", "insert", "update", "delete")


def timed(client: httpx.Client, place: str) -> tuple[float, float, int]:
    """The first, the median of the next, and the size of the answer."""
    took = []
    size = 0
    for _ in range(1 + AGAIN):
        began = time.perf_counter()
        answer = client.get(place)
        took.append((time.perf_counter() - began) * 1000)
        assert answer.status_code == 200, answer.text
        size = len(answer.content)
    return took[0], statistics.median(took[1:]), size


def operations(store: Store) -> int:
    counters = store.client.admin.command("serverStatus")["opcounters"]
    return sum(int(counters[name]) for name in OPERATIONS)


def watched(address: str, store: Store, viewers: int) -> float:
    """Operations per second with this number of viewers on the overview."""
    with ExitStack() as stack:
        limits = httpx.Limits(max_connections=None)
        client = stack.enter_context(httpx.Client(base_url=address, timeout=60, limits=limits))
        streams = [stack.enter_context(client.stream("GET", "live/overview?within=1h")) for _ in range(viewers)]
        lines = [stream.iter_lines() for stream in streams]  # kept, because a stream without a reader is closed
        for each in lines:
            assert any("event: content" in line for line in each)
        before, began = operations(store), time.monotonic()
        time.sleep(WATCHED)
        return (operations(store) - before) / (time.monotonic() - began)


def transferred(address: str, place: str, seconds: float) -> tuple[float, int]:
    """MiB per hour of an open page without its first load, and the number of its updates."""
    size, updates, unpacker = 0, 0, zlib.decompressobj(wbits=31)
    with httpx.stream("GET", f"{address}live/{place}", timeout=60, headers={"accept-encoding": "gzip"}) as answer:
        packed = answer.iter_raw()
        while b"event: content" not in unpacker.decompress(next(packed)):
            pass
        began = time.monotonic()
        for part in packed:
            size += len(part)
            updates += unpacker.decompress(part).count(b"event: ")
            if time.monotonic() - began > seconds:
                break
    return size / 2**20 * 3600 / (time.monotonic() - began), updates


def wire(seconds: float) -> None:
    with EmbeddedServer() as server, tempfile.TemporaryDirectory() as folder:
        uri = server.uri.replace("/?", "/wire?")
        with world(uri, Path(folder), processes=2, actions=True) as busy:
            over = threading.Event()
            producer = threading.Thread(target=_produce, args=(busy, over))
            producer.start()
            job = busy.enqueue("climb", gate=str(busy.folder / "gate"))
            busy.until(lambda: busy.state(job) == "running")
            places = ("overview?within=1h", "jobs", f"job?id={job}&tab=log", "workers", "groups", "tasks")
            time.sleep(30)  # the log is full
            with ThreadPoolExecutor(len(places)) as pool:
                found = pool.map(lambda place: transferred(busy.url, place, seconds), places)
                for place, (size, updates) in zip(places, found, strict=True):
                    print(f"{place.replace(job, 'ID'):25} {size:8.2f} MiB an hour, {updates} updates", flush=True)
            over.set()
            producer.join()
            (busy.folder / "gate").write_text("1")


def _produce(busy: World, over: threading.Event) -> None:
    for order in count():
        if over.wait(0.05):
            return
        busy.enqueue("charge", order=order, amount=9.9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ended", type=int, default=1_000_000)
    parser.add_argument("--waiting", type=int, default=200_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--wire", type=float)
    options = parser.parse_args()
    if options.wire is not None:
        wire(options.wire)
        return
    with EmbeddedServer(options.folder) as server:
        target = server.uri.replace("/?", f"/archive_{options.ended}_{options.waiting}?")
        store = Store(Target.parse(target))
        store.check()
        if store.archived.collection.estimated_document_count() < options.ended:
            store.drop()
            fill(store, options.ended, options.waiting)
        count_waiting(store)  # as the cleaner does
        print(f"{options.ended:,} ended and {options.waiting:,} waiting jobs")
        with Recruiter(target) as recruiter, served(dashboard(recruiter, access=lambda: "ada")) as address:
            with httpx.Client(base_url=address, timeout=60) as client:
                print(f"{'page':40} {'first ms':>9} {'median ms':>9} {'bytes':>9}")
                for place in PAGES:
                    first, median, size = timed(client, place)
                    print(f"{place:40} {first:9.1f} {median:9.1f} {size:9,}", flush=True)
            print(f"\n{'viewers':>8} {'operations a second':>20}")
            for viewers in (0, 1, 50):
                print(f"{viewers:8} {watched(address, store, viewers):20.1f}", flush=True)
        store.close()


if __name__ == "__main__":
    main()
