"""Live pages: one reader serves all viewers, and without viewers nothing is read.

Every open page holds a stream. Viewers of the same page share a *topic*; each topic is read once,
made into HTML once, and sent to all of its viewers if it has changed. One task reads all topics, one after the other,
and rests after each for several times as long as it took. A slow read continues while the task reads quick topics. A
topic that has never been read may be slow too, so it waits for a slow read like a slow topic. With any number of
viewers MongoDB has two readers at most, which are idle most of the time.

A viewer that has the last version receives a *patch*: the parts that have changed, and where the others are in the
version before. Every other viewer receives the whole page. Streams are compressed.

While MongoDB does not answer, no topic is read. A task asks MongoDB every second whether it answers again.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
import time
import zlib
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from recruiter.errors import JobNotFound, RecruiterError, StoreUnreachable, TooManyViewers

REST = 4  # Rest after a read, as a multiple of the time that it took
MAX_REST_SECONDS = 60.0
MOST_VIEWERS = 500
MOST_TOPICS = 200
MAX_STREAMS_PER_USER = 100
MAX_TOPICS_PER_USER = 20  # Different pages that one user has open at the same time. Pages in the background disconnect
SLOW_SECONDS = 0.5  # A topic that takes longer to read is slow: it waits for other slow topics only
NO_ANSWER_SECONDS = 1.0  # After this time of reading, MongoDB is asked whether it answers at all
LONGEST = 3600.0  # Seconds that one stream lasts; the browser then asks again, and has to be let in again
BEAT_SECONDS = 10.0  # Pause between messages that confirm an unchanged page
_PULSE_SECONDS = 0.5
_GZIP_WINDOW_BITS = 16 + 14
_ZIP_MEMORY_LEVEL = 7  # With the window, 130 KB of memory for each stream
_TIME = re.compile(r"(<time[^>]*>)[^<]*")
_PIECES = re.compile(r"(?=<)|(?<=[>,\n])")
_MIN_COPY = 12  # Characters; to copy fewer costs as much as to send them


@dataclass(slots=True, eq=False)
class _Viewer:
    user: str
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    version: int = 0  # The version of the page in the browser; 0 for none
    trouble: tuple[str, str] | None = None  # The last trouble that was sent


@dataclass(slots=True, eq=False)
class _Topic:
    read: Callable[[], str]
    period: float
    next_at: float = 0.0
    began: float | None = None  # When the read that is under way began
    took: float | None = None  # How long the last read took; None before the first
    good_at: float | None = None  # When it was read last
    html: str = ""
    version: int = 0
    digest: bytes = b""
    patch: bytes = b""  # From the version before to this one
    trouble: tuple[str, str] | None = None  # Event and text
    viewers: set[_Viewer] = field(default_factory=set)

    @property
    def is_quick(self) -> bool:
        return self.took is not None and self.took <= SLOW_SECONDS

    def show(self, html: str) -> None:
        """Times tick in the browser: that they go by is no news."""
        digest = hashlib.blake2b(_TIME.sub(r"\1", html).encode("utf-8", "replace"), digest_size=16).digest()
        has_news = digest != self.digest or self.trouble is not None
        if digest != self.digest:
            self.patch = written("patch", json.dumps(patch_of(self.html, html)), self.version + 1)
            self.html, self.version, self.digest = html, self.version + 1, digest
        self.trouble = None
        if has_news:  # a viewer without news waits for the next beat
            self._wake()

    def fail(self, event: str, text: str) -> None:
        self.trouble = (event, text)
        self._wake()

    def _wake(self) -> None:
        for viewer in self.viewers:
            viewer.wake.set()

    def news_for(self, viewer: _Viewer, now: float) -> bytes | None:
        """The next message to this viewer; None if there is no news."""
        told, viewer.trouble = viewer.trouble, self.trouble
        if self.trouble is not None:
            return None if told == self.trouble else self.beat(now)
        had, viewer.version = viewer.version, self.version
        if had == self.version:
            return None if told is None else self.beat(now)
        if had and had == self.version - 1 and len(self.patch) < len(self.html):
            return self.patch
        return written("content", self.html, self.version)

    def beat(self, now: float) -> bytes:
        """The state once more, so that a viewer knows that the stream is alive."""
        age = None if self.good_at is None else round(now - self.good_at, 1)
        if self.trouble is not None:
            event, text = self.trouble
            return written(event, json.dumps({"text": text, "age": age}))
        return written("beat", json.dumps({"age": age}))


class Hub:
    """Topics and their viewers, for one event loop. `pulse` raises StoreUnreachable if MongoDB does not answer."""

    def __init__(
        self, pulse: Callable[[], object] = lambda: None, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._pulse = pulse
        self._monotonic = monotonic
        self._topics: dict[str, _Topic] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()
        self._trouble: str | None = None  # Why MongoDB is known not to answer
        self._trouble_at = float("-inf")  # When that was known last
        self._is_closed = False

    @property
    def viewers(self) -> int:
        return sum(len(topic.viewers) for topic in self._topics.values())

    async def watch(self, name: str, read: Callable[[], str], period: float, user: str = "") -> AsyncIterator[bytes]:
        """The changes of this topic. Raises TooManyViewers."""
        self._check_bounds(name, user)
        topic = self._topics.setdefault(name, _Topic(read, period))
        mine = _Viewer(user)
        topic.viewers.add(mine)
        mine.wake.set()
        self._begin()
        ends_at = self._monotonic() + LONGEST
        try:
            yield b"retry: 2000\n: hello\n\n"
            while self._monotonic() < ends_at and not self._is_closed:
                try:
                    await asyncio.wait_for(mine.wake.wait(), BEAT_SECONDS)
                except TimeoutError:
                    yield topic.beat(self._monotonic())
                    continue
                mine.wake.clear()
                if (topic.version or topic.trouble) and (news := topic.news_for(mine, self._monotonic())) is not None:
                    yield news
        finally:
            topic.viewers.discard(mine)
            if not topic.viewers:
                self._topics.pop(name, None)

    def close(self) -> None:
        """Ends every stream; browsers connect again to the next server."""
        self._is_closed = True
        for topic in self._topics.values():
            for viewer in topic.viewers:
                viewer.wake.set()

    def _check_bounds(self, name: str, user: str) -> None:
        if self.viewers >= MOST_VIEWERS or (name not in self._topics and len(self._topics) >= MOST_TOPICS):
            raise TooManyViewers("too many pages are open; close some, or pause their live updates")
        theirs = Counter(
            topic_name for topic_name, topic in self._topics.items() for viewer in topic.viewers if viewer.user == user
        )
        has_too_many_topics = name not in theirs and len(theirs) >= MAX_TOPICS_PER_USER
        if has_too_many_topics or theirs.total() >= MAX_STREAMS_PER_USER:
            raise TooManyViewers("you have too many pages open; close some, or pause their live updates")

    def _begin(self) -> None:
        self._wake.set()
        for name, task in (("reader", self._run), ("pulse", self._feel_pulse)):
            if name not in self._tasks or self._tasks[name].done():
                self._tasks[name] = asyncio.get_running_loop().create_task(task(), name=f"recruiter web {name}")

    async def _run(self) -> None:
        """Reads the topics while there are viewers."""
        slow: asyncio.Task[None] | None = None
        while self._topics:
            slow = None if slow is not None and slow.done() else slow
            topic = self._due(with_slow=slow is None)
            if topic is None:
                await self._rest(slow)
                continue
            was_slow = topic.took is not None and not topic.is_quick
            reading = asyncio.get_running_loop().create_task(self._read(topic))
            await asyncio.wait({reading}, timeout=0 if was_slow else SLOW_SECONDS)
            if reading.done():
                await asyncio.sleep(min(1.0, topic.took or 0.0))  # others want the processor too
            elif slow is None:
                slow = reading
            else:
                await asyncio.wait({slow, reading}, return_when=asyncio.FIRST_COMPLETED)
                slow = reading if slow.done() else slow
        if slow is not None:
            await slow

    def _due(self, *, with_slow: bool) -> _Topic | None:
        """The quickest topic that is due."""
        if self._trouble is not None:
            return None
        now = self._monotonic()
        due = [topic for topic in self._topics.values() if topic.began is None and topic.next_at <= now]
        return min(
            (topic for topic in due if with_slow or topic.is_quick), key=lambda topic: topic.took or 0.0, default=None
        )

    async def _rest(self, slow: asyncio.Task[None] | None) -> None:
        """Until the next topic is due, a viewer comes, MongoDB answers again, or the slow read has ended."""
        now = self._monotonic()
        nexts = [topic.next_at for topic in self._topics.values() if topic.began is None and topic.next_at > now]
        wait = _PULSE_SECONDS if self._trouble is not None else min(nexts, default=now + _PULSE_SECONDS) - now
        self._wake.clear()
        woken: asyncio.Task[Any] = asyncio.get_running_loop().create_task(self._wake.wait())
        try:
            awaited = {woken} if slow is None else {woken, slow}
            await asyncio.wait(awaited, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
        finally:
            woken.cancel()

    async def _read(self, topic: _Topic) -> None:
        topic.began = began = self._monotonic()
        try:
            html = await asyncio.to_thread(topic.read)
        except StoreUnreachable as error:
            self._lose(str(error))
        except JobNotFound as error:
            topic.fail("gone", str(error))
        except RecruiterError as error:
            topic.fail("trouble", str(error))
        except Exception as error:
            logging.getLogger("recruiter.web").exception("a live page could not be read")
            topic.fail("trouble", f"the console has failed: {type(error).__name__}")
        else:
            topic.good_at = self._monotonic()
            topic.show(html)
        finally:
            now, topic.began = self._monotonic(), None
            # While MongoDB does not answer, the time is not the cost of the topic.
            if self._trouble_at < began:
                topic.took = now - began
            topic.next_at = now + max(topic.period, min(MAX_REST_SECONDS, REST * (topic.took or 0.0)))

    # -- MongoDB does not answer ---------------------------------------------------------------------------------------

    async def _feel_pulse(self) -> None:
        while self._topics:
            await asyncio.sleep(_PULSE_SECONDS)
            now = self._monotonic()
            is_late = any(
                topic.began is not None and now - topic.began > NO_ANSWER_SECONDS for topic in self._topics.values()
            )
            if self._trouble is None and not is_late:
                continue
            try:
                await asyncio.to_thread(self._pulse)
            except RecruiterError as error:
                self._lose(str(error))
            else:
                self._recover()
        self._trouble = None

    def _lose(self, why: str) -> None:
        """Sends the trouble to every viewer."""
        self._trouble, self._trouble_at = why, self._monotonic()
        for topic in self._topics.values():
            topic.fail("trouble", why)

    def _recover(self) -> None:
        if self._trouble is not None:
            self._trouble, self._trouble_at = None, self._monotonic()
            for topic in self._topics.values():
                topic.next_at = 0.0
            self._wake.set()


async def zipped(messages: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The messages as one gzip stream; each is complete when it arrives."""
    packer = zlib.compressobj(6, wbits=_GZIP_WINDOW_BITS, memLevel=_ZIP_MEMORY_LEVEL)
    async for message in messages:
        yield packer.compress(message) + packer.flush(zlib.Z_SYNC_FLUSH)


def written(event: str, data: str, id: int | None = None) -> bytes:
    """A server-sent event."""
    lines = "".join(f"data: {line}\n" for line in data.split("\n"))
    number = "" if id is None else f"id: {id}\n"
    return f"event: {event}\n{number}{lines}\n".encode("utf-8", "replace")


def patch_of(old: str, new: str) -> list[str | list[int]]:
    """How to make the new text from the old one: texts, and pairs of a place and a length in the old text. Both are
    counted in UTF-16 units, as browsers do.

    Like a dictionary coder: each piece of the new text that occurs in the old text is copied from there, together with
    the pieces that follow it in both. This takes one pass.
    """
    pieces, places, offsets = _PIECES.split(old), dict[str, list[int]](), [0]
    for index, piece in enumerate(pieces):
        places.setdefault(piece, []).append(index)
        offsets.append(offsets[-1] + _units(piece))
    found: list[str | list[int]] = []
    expected = 0
    for piece in _PIECES.split(new):
        if expected < len(pieces) and pieces[expected] == piece:
            index = expected
        else:
            known = places.get(piece, [-1])
            index = known[bisect_left(known, expected) % len(known)]
        last = found[-1] if found else None
        if index >= 0:
            expected = index + 1
            if isinstance(last, list) and last[0] + last[1] == offsets[index]:
                last[1] += offsets[index + 1] - offsets[index]
                continue
            if offsets[index + 1] - offsets[index] >= _MIN_COPY:
                found.append([offsets[index], offsets[index + 1] - offsets[index]])
                continue
        if isinstance(last, str):
            found[-1] = last + piece
        else:
            found.append(piece)
    return found


def _units(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2
