"""One reader for all who look; nobody looking, nothing read."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import pytest

from recruiter import Recruiter
from recruiter.caches import Cache
from recruiter.doctor import examine
from recruiter.errors import JobNotFound, StoreUnreachable, TooManyViewers
from recruiter.web import live
from recruiter.web.live import Hub
from tests.conftest import eventually
from tests.web.conftest import Consoles


async def until_news(stream: AsyncIterator[bytes], text: str) -> bytes:
    async for each in stream:
        if text.encode() in each:
            return each
    raise AssertionError("the stream has ended")


class Source:
    """What is read, and how often."""

    def __init__(self) -> None:
        self.reads = 0
        self.text = "first"

    def read(self) -> str:
        self.reads += 1
        return self.text


def test_all_who_look_at_the_same_share_one_reading() -> None:
    async def main() -> None:
        hub, source = Hub(), Source()
        streams = [hub.watch("a", source.read, 0.05) for _ in range(50)]
        async with asyncio.timeout(20):
            await asyncio.gather(*(until_news(stream, "first") for stream in streams))
            assert source.reads <= 3
            source.text = "second"
            await asyncio.gather(*(until_news(stream, "second") for stream in streams))
        for stream in streams:
            await stream.aclose()  # type: ignore[attr-defined]
        assert hub.viewers == 0

    asyncio.run(main())


def test_nobody_looking_means_that_nothing_is_read() -> None:
    async def main() -> None:
        hub, source = Hub(), Source()
        stream = hub.watch("a", source.read, 0.01)
        async with asyncio.timeout(20):
            await until_news(stream, "first")
            await stream.aclose()  # type: ignore[attr-defined]
            await asyncio.gather(*hub._tasks.values())  # they end by themselves
        reads = source.reads
        await asyncio.sleep(0.1)
        assert source.reads == reads

    asyncio.run(main())


def test_what_has_not_changed_is_not_sent_and_time_going_by_is_no_change() -> None:
    async def main() -> None:
        hub, source = Hub(), Source()
        source.text = '<time datetime="x">1s ago</time>'
        stream = hub.watch("a", source.read, 0.01)
        async with asyncio.timeout(20):
            await until_news(stream, "1s ago")
            source.text = '<time datetime="x">2s ago</time>'
            reads = source.reads
            while source.reads < reads + 3:
                await asyncio.sleep(0.01)
            source.text = '<time datetime="y">3s ago</time>'
            assert b"2s ago" not in await until_news(stream, "s ago")
        await stream.aclose()  # type: ignore[attr-defined]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("error", "event"),
    [
        (JobNotFound("there is no job 7"), "gone"),
        (StoreUnreachable("MongoDB is away"), "trouble"),
        (KeyError(), "trouble"),
    ],
)
def test_what_goes_wrong_is_told_and_the_stream_goes_on(error: Exception, event: str) -> None:
    async def main() -> None:
        hub, source = Hub(), Source()
        failing = [error]

        def read() -> str:
            if failing:
                raise failing[0]
            return source.read()

        stream = hub.watch("a", read, 0.01)
        async with asyncio.timeout(20):
            await until_news(stream, f"event: {event}")
            failing.clear()
            await until_news(stream, "first")
        await stream.aclose()  # type: ignore[attr-defined]

    asyncio.run(main())


def test_more_viewers_than_it_can_serve_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MOST_VIEWERS", 2)

    async def main() -> None:
        hub, source = Hub(), Source()
        streams = [hub.watch("a", source.read, 1.0) for _ in range(3)]
        await asyncio.gather(*(anext(stream) for stream in streams[:2]))
        with pytest.raises(TooManyViewers):
            await anext(streams[2])
        for stream in streams[:2]:
            await stream.aclose()  # type: ignore[attr-defined]

    asyncio.run(main())


def test_many_slow_searches_of_one_viewer_delay_no_page_of_another() -> None:
    """Given an open overview, when a viewer opens 20 searches that take longer than the test, the overview is read
    again and again, and at most one search is read at a time."""

    async def main() -> None:
        hub, quick, gate = Hub(), Source(), threading.Event()
        begun: list[int] = []

        def search(number: int) -> str:
            begun.append(number)
            gate.wait(60)
            return "found"

        overview = hub.watch("overview", quick.read, 0.01, "bob")
        async with asyncio.timeout(60):
            await until_news(overview, "first")
            searches = [hub.watch(f"search {n}", lambda n=n: search(n), 0.01, "ada") for n in range(20)]  # type: ignore[misc]
            for stream in searches:
                await anext(stream)
            while not begun:
                await asyncio.sleep(0.01)
            reads, until = quick.reads, time.monotonic() + 20
            while quick.reads < reads + 10 and time.monotonic() < until:
                await asyncio.sleep(0.01)
            seen = (quick.reads >= reads + 10, len(begun))
            gate.set()
            assert seen == (True, 1)
            await asyncio.gather(*(until_news(stream, "found") for stream in searches))
        for stream in (overview, *searches):
            await stream.aclose()  # type: ignore[attr-defined]

    asyncio.run(main())


def test_a_page_that_has_become_slow_delays_the_others_once() -> None:
    async def main() -> None:
        hub, quick, gate = Hub(), Source(), threading.Event()
        gate.set()
        streams = [
            hub.watch("overview", quick.read, 0.01, "bob"),
            hub.watch("search", lambda: "found" if gate.wait(60) else "", 0.01, "ada"),
        ]
        async with asyncio.timeout(60):
            await asyncio.gather(until_news(streams[0], "first"), until_news(streams[1], "found"))
            gate.clear()
            reads, until = quick.reads, time.monotonic() + 20
            while quick.reads < reads + 20 and time.monotonic() < until:
                await asyncio.sleep(0.01)
            gate.set()
            assert quick.reads >= reads + 20
        for stream in streams:
            await stream.aclose()  # type: ignore[attr-defined]

    asyncio.run(main())


def test_a_console_asks_mongodb_only_while_somebody_looks(console: Consoles, recruiter: Recruiter) -> None:
    client = console()
    client.get("")  # everything is there

    def asked() -> int:
        counters = recruiter.store.client.admin.command("serverStatus")["opcounters"]
        return int(counters["query"] + counters["getmore"])

    with ExitStack() as stack:
        lines = [stack.enter_context(client.stream("GET", "live/overview")).iter_lines() for _ in range(3)]
        for each in lines:
            assert any("event: content" in line for line in each)
        before = asked()
        eventually(lambda: asked() > before)

    def asked_within(seconds: float) -> int:
        before, until = asked(), time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(0.05)
        return asked() - before

    # Longer than two looks would be apart. The server asks itself a little now and then.
    eventually(lambda: asked_within(4.5) <= 2, within=30)


def test_a_stream_is_cut_into_lines_that_a_browser_puts_together_again(console: Consoles, recruiter: Recruiter) -> None:
    recruiter.job("hello", {"text": "one\r\ntwo\n\nevent: content\ndata: x"}).enqueue()
    with httpx.stream("GET", f"{console().base_url}live/jobs", timeout=20) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            assert line == "" or line.split(":")[0] in ("event", "data", "id", "retry", ""), line
            if line.startswith("data: </div>"):
                break


def test_what_takes_long_is_read_beside_and_what_is_known_is_shown_meanwhile() -> None:
    kept: Cache[str] = Cache(0.0)
    gate, read = threading.Event(), []

    def slow() -> str:
        gate.wait(20)
        read.append(1)
        return f"answer {len(read)}"

    assert kept.get_stale("x", slow) is None
    assert kept.get_stale("x", slow) is None, "it is being read already"
    gate.set()
    eventually(lambda: kept.peek("x", old=True) == "answer 1")
    eventually(lambda: kept.get_stale("x", slow) == "answer 2")
    assert kept.get("y", lambda: "now") == "now"


def test_a_slow_read_of_one_key_delays_no_other_and_is_done_once() -> None:
    """Given a count that takes long, when others ask for it and for another one, then these get theirs at once."""
    kept: Cache[str] = Cache(60.0)
    begun, gate, read = threading.Event(), threading.Event(), []

    def slow() -> str:
        read.append(1)
        begun.set()
        gate.wait(20)
        return "counted"

    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(kept.get, "all jobs", slow) for _ in range(3)]
        begun.wait(20)
        assert pool.submit(kept.get, "failed jobs", lambda: "12").result(timeout=10) == "12"
        gate.set()
        assert [each.result(timeout=10) for each in waiting] == ["counted"] * 3
    assert read == [1]


def test_one_that_is_closed_has_read_to_the_end_and_reads_nothing_more() -> None:
    kept: Cache[str] = Cache(0.0)
    begun, gate, read = threading.Event(), threading.Event(), []

    def slow() -> str:
        begun.set()
        gate.wait(20)
        read.append(1)
        return "answer"

    kept.get_stale("x", slow)
    begun.wait(20)
    threading.Timer(0.05, gate.set).start()
    kept.close()

    assert read == [1]
    assert kept.get_stale("x", slow) == "answer"
    assert not [thread for thread in threading.enumerate() if thread.name == "recruiter web"]


def test_the_page_of_problems_does_not_wait_for_a_slow_doctor(
    console: Consoles, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = threading.Event()
    monkeypatch.setattr("recruiter.web.reader.examine", lambda store: ready.wait(60) and examine(store))
    client = console()

    assert "The doctor is looking" in client.get("/problems").text

    ready.set()
    eventually(lambda: "that are well" in client.get("/problems").text)
    assert client.get("/api/problems").json()["complete"]


def test_what_takes_too_long_to_read_shortly_comes_later() -> None:
    kept: Cache[str] = Cache(60.0)
    ready = threading.Event()

    def read() -> str:
        ready.wait(60)
        return "found"

    assert kept.get_within("all", read, 0.01) is None
    ready.set()
    assert kept.get_within("all", read, 60.0) == "found"


def test_what_cannot_be_read_shortly_is_raised() -> None:
    def read() -> str:
        raise StoreUnreachable("away")

    with pytest.raises(StoreUnreachable):
        Cache[str](60.0).get_within("all", read, 60.0)
