"""What a coroutine pays for `aenqueue`; beside it threads that call `enqueue`, and an AsyncMongoClient.

    python benchmarks/async_face.py --jobs 2000

For 1, 32 and 256 coroutines that enqueue one job after another: jobs a second, processor time a job, the median and the
99th percentile of one call, and the longest time for which the event loop was held up. `threads` runs `enqueue` in the
threads of the async face, as calls other than `aenqueue` do. The client of `async` writes one document a call; `async,
together` shares a write among the calls that have gathered while the last one was on its way, as `aenqueue` does.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

from pymongo import AsyncMongoClient, WriteConcern

from recruiter import Recruiter
from recruiter.async_face import in_a_thread
from recruiter.embedded import EmbeddedServer
from recruiter.store.codec import decode, encode_job

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


async def measured(enqueue: Enqueue, jobs: int, callers: int) -> str:
    taken: list[float] = []

    async def caller(numbers: range) -> None:
        for number in numbers:
            began = time.perf_counter()
            await enqueue(number)
            taken.append(time.perf_counter() - began)

    await caller(range(50))  # connections and threads are there
    taken.clear()
    stop = asyncio.Event()
    watching = asyncio.create_task(lag(stop))
    cpu, began = time.process_time(), time.perf_counter()
    await asyncio.gather(*(caller(range(jobs // callers)) for _ in range(callers)))
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    stop.set()
    taken.sort()
    late = taken[int(len(taken) * 0.99)]
    return (
        f"{len(taken) / wall:9,.0f} jobs/s{cpu / len(taken) * 1e6:8.0f} µs cpu{statistics.median(taken) * 1e3:8.2f} ms"
        f"{late * 1e3:8.2f} ms p99{await watching * 1e3:8.1f} ms loop"
    )


async def compare(recruiter: Recruiter, target: str, jobs: int) -> None:
    async with AsyncMongoClient[dict[str, Any]](target) as client:
        database = client[recruiter.target.database]
        collection = database.get_collection("scheduled", write_concern=WriteConcern("majority", j=True))
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
            for name, enqueue in ways.items():
                print(f"{callers:4} callers  {name:20}{await measured(enqueue, jobs, callers)}", flush=True)
                recruiter.store.empty()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2000)
    jobs = parser.parse_args().jobs
    with EmbeddedServer() as server:
        target = server.uri.replace("/?", "/async_face?")
        with Recruiter(target) as recruiter:
            asyncio.run(compare(recruiter, target, jobs))


if __name__ == "__main__":
    main()
