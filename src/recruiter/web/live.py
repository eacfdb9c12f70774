"""Live pages: one reader serves all viewers, and without viewers nothing is read.

Every open page holds a stream. Viewers of the same page share a *topic*; each topic is read once,
made into HTML once, and sent to all of its viewers if it has changed. One task reads all topics, one after the other,
and rests after each for several times as long as it took. So with any number of viewers MongoDB has one reader, which
is idle most of the time.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import re
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from recruiter.errors import JobNotFound, RecruiterError, TooManyViewers

REST = 4
"""Rest after a read, as a multiple of the time that it took."""
MOST_VIEWERS = 500
MOST_TOPICS = 200
LONGEST = 3600.0
"""Seconds that one stream lasts; the browser then asks again, and has to be let in again."""
_TIME = re.compile(r"(<time[^>]*>)[^<]*")
_QUIET = 15.0
"""Seconds without news after which a comment is sent, so that a dead connection is noticed."""


@dataclass(frozen=True, slots=True)
class News:
    """A message to viewers: HTML, or an error."""

    event: str
    data: str

    def written(self) -> bytes:
        lines = "".join(f"data: {line}\n" for line in self.data.split("\n"))
        return f"event: {self.event}\n{lines}\n".encode()


@dataclass(slots=True, eq=False)
class _Topic:
    read: Callable[[], str]
    period: float
    next_at: float = 0.0
    last: News | None = None
    digest: bytes = b""
    viewers: set[asyncio.Queue[News]] = field(default_factory=set)


class Hub:
    """Topics and their viewers, for one event loop."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._topics: dict[str, _Topic] = {}
        self._reader: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()

    @property
    def viewers(self) -> int:
        return sum(len(topic.viewers) for topic in self._topics.values())

    async def watch(self, name: str, read: Callable[[], str], period: float) -> AsyncIterator[bytes]:
        """The changes of this topic. Raises TooManyViewers."""
        if self.viewers >= MOST_VIEWERS or (name not in self._topics and len(self._topics) >= MOST_TOPICS):
            raise TooManyViewers("too many pages are open; close some, or pause their live updates")
        topic = self._topics.setdefault(name, _Topic(read, period))
        mine: asyncio.Queue[News] = asyncio.Queue(maxsize=1)
        topic.viewers.add(mine)
        if topic.last is not None:
            mine.put_nowait(topic.last)
        self._begin()
        ends_at = self._monotonic() + LONGEST
        try:
            yield b"retry: 2000\n: hello\n\n"
            while self._monotonic() < ends_at:
                try:
                    news = await asyncio.wait_for(mine.get(), _QUIET)
                    yield news.written()
                except TimeoutError:
                    yield b": still here\n\n"
        finally:
            topic.viewers.discard(mine)
            if not topic.viewers:
                self._topics.pop(name, None)

    def _begin(self) -> None:
        self._wake.set()
        if self._reader is None or self._reader.done():
            self._reader = asyncio.get_running_loop().create_task(self._run(), name="recruiter web reader")

    async def _run(self) -> None:
        """Reads the topics while there are viewers."""
        while self._topics:
            name, topic = min(self._topics.items(), key=lambda item: item[1].next_at)
            wait = topic.next_at - self._monotonic()
            if wait > 0:
                self._wake.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), wait)
                continue
            began = self._monotonic()
            news = await asyncio.to_thread(_look, topic.read)
            took = self._monotonic() - began
            topic.next_at = self._monotonic() + max(topic.period, REST * took)
            if name in self._topics:
                _publish(topic, news)
            await asyncio.sleep(min(1.0, took))  # others want the processor too


def _look(read: Callable[[], str]) -> News:
    try:
        return News("content", read())
    except JobNotFound as error:
        return News("gone", json.dumps({"text": str(error)}))
    except RecruiterError as error:
        return News("trouble", json.dumps({"text": str(error)}))
    except Exception as error:
        logging.getLogger("recruiter.web").exception("a live page could not be read")
        return News("trouble", json.dumps({"text": f"the console has failed: {type(error).__name__}"}))


def _publish(topic: _Topic, news: News) -> None:
    # Times tick in the browser: that they go by is no news.
    said = _TIME.sub(r"\1", f"{news.event}\n{news.data}")
    digest = hashlib.blake2b(said.encode("utf-8", "replace"), digest_size=16).digest()
    if digest == topic.digest:
        return
    topic.digest, topic.last = digest, news
    for viewer in topic.viewers:
        while not viewer.empty():  # the latest is enough
            viewer.get_nowait()
        viewer.put_nowait(news)
