"""The cost of `aenqueue` for a coroutine, compared with threads that call `enqueue`, and with an AsyncMongoClient.

    python benchmarks/async_face.py --jobs 4096

For 1, 32 and 256 coroutines that enqueue one job after another: jobs a second, processor time a job, the median and the
99th percentile of one call, and the longest time for which the event loop was held up. `threads` runs `enqueue` in the
threads of the async face, as calls other than `aenqueue` do. The client of `async` writes one document a call; `async,
together` shares a write among the calls that have gathered while the last one was on its way, as `aenqueue` does. The
ways take turns, in four rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from pymongo import AsyncMongoClient, WriteConcern

from recruiter import Recruiter
from recruiter.async_face import in_a_thread
from recruiter.embedded import EmbeddedServer
from recruiter.store.codec import decode, encode_job

ROUNDS = 4
Enqueue = Callable[[int], Awaitable[Any]]


class Together:
    """Documents of callers that come while a write is on its way go into the next one."""

    def __init__(self, collection: Any) -> None:
        self._collection = collection
        self._waiting: list[tuple[dict[str, Any], asyncio.Future[None]]] = []
        self._writing = False

    async def store(self, document: dict[str, Any]) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((document, done))
        if not self._writing:
            self._writing = True
            while self._waiting:
                batch, self._waiting = self._waiting, []
                await self._collection.insert_many([each for each, _ in batch], ordered=False)
                for _, future in batch:
                    future.set_result(None)
            self._writing = False
        await done


async def lag(stop: asyncio.Event) -> float:
    """The longest time for which the loop did not come round."""
    longest, before = 0.0, time.perf_counter()
    while not stop.is_set():
        await asyncio.sleep(0.001)
        now = time.perf_counter()
        longest, before = max(longest, now - before - 0.001), now
    return longest


@dataclass
class Measured:
    """The cost of one method, over all rounds."""

    taken: list[float] = field(default_factory=list)
    wall: float = 0.0
    cpu: float = 0.0
    longest: float = 0.0

    async def measure(self, enqueue: Enqueue, jobs: int, callers: int) -> None:
        async def caller(count: int, keep: bool) -> None:
            for number in range(count):
                began = time.perf_counter()
                await enqueue(number)
                if keep:
                    self.taken.append(time.perf_counter() - began)

        await caller(20, keep=False)  # connections and threads are there
        stop = asyncio.Event()
        watching = asyncio.create_task(lag(stop))
        cpu, began = time.process_time(), time.perf_counter()
        await asyncio.gather(*(caller(jobs // callers, keep=True) for _ in range(callers)))
        self.wall += time.perf_counter() - began
        self.cpu += time.process_time() - cpu
        stop.set()
        self.longest = max(self.longest, await watching)

    def __str__(self) -> str:
        taken, late = sorted(self.taken), int(len(self.taken) * 0.99)
        return (
            f"{len(taken) / self.wall:9,.0f} jobs/s{self.cpu / len(taken) * 1e6:8.0f} µs cpu"
            f"{statistics.median(taken) * 1e3:8.2f} ms{taken[late] * 1e3:8.2f} ms p99{self.longest * 1e3:8.1f} ms loop"
        )


async def compare(recruiter: Recruiter, target: str, jobs: int) -> None:
    async with AsyncMongoClient[dict[str, Any]](target) as client:
        database = client[recruiter.target.database]
        collection = database.get_collection("recruiter.scheduled", write_concern=WriteConcern("majority", j=True))
        together = Together(collection)

        def document(number: int) -> dict[str, Any]:
            return dict(decode(bytes(encode_job(recruiter.job("noop", {"number": number}).build()).raw)))

        ways: dict[str, Enqueue] = {
            "threads": lambda number: in_a_thread(recruiter.job("noop", {"number": number}).enqueue),
            "aenqueue": lambda number: recruiter.job("noop", {"number": number}).aenqueue(),
            "async": lambda number: collection.insert_one(document(number)),
            "async, together": lambda number: together.store(document(number)),
        }
        for callers in (1, 32, 256):
            found = {name: Measured() for name in ways}
            for number in range(ROUNDS):  # in turns, for what MongoDB has to tidy up comes later
                for name in list(ways)[:: -1 if number % 2 else 1]:
                    await found[name].measure(ways[name], jobs // ROUNDS, callers)
            for name, each in found.items():
                print(f"{callers:4} callers  {name:20}{each}", flush=True)
            recruiter.store.empty()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=4096)
    jobs = parser.parse_args().jobs
    with EmbeddedServer() as server:
        target = server.uri.replace("/?", "/async_face?")
        with Recruiter(target) as recruiter:
            asyncio.run(compare(recruiter, target, jobs))


if __name__ == "__main__":
    main()
