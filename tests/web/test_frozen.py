"""A real MongoDB that freezes or stops under an open console, and comes back."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from recruiter import Recruiter
from recruiter.embedded import EmbeddedServer
from recruiter.web import dashboard
from recruiter.web.server import served
from tests.conftest import eventually, starting
from tests.web.conftest import local_user

if TYPE_CHECKING:
    from playwright.sync_api import Browser

SOON_SECONDS = 15.0
"""It takes 7 at most; a loaded machine needs longer."""
PULSE_SECONDS, PAGE_SECONDS = 1.0, 4.0
"""A page waits for one answer; without the first bound it waits for longer than the second."""
pytestmark = pytest.mark.timeout(180)


class Frozen:
    """A private MongoDB that can stand still."""

    def __init__(self, server: EmbeddedServer) -> None:
        self.server = server
        assert server.pid is not None
        self.pid = server.pid

    def freeze(self) -> float:
        os.kill(self.pid, signal.SIGSTOP)
        return time.monotonic()

    def thaw(self) -> float:
        os.kill(self.pid, signal.SIGCONT)
        return time.monotonic()


@pytest.fixture
def mongodb() -> Iterator[Frozen]:
    with EmbeddedServer() as server:
        made = Frozen(server)
        yield made
        if server.running:
            made.thaw()


@pytest.fixture
def address(mongodb: Frozen) -> Iterator[str]:
    with Recruiter(mongodb.server.uri.replace("/?", "/shop?")) as recruiter:
        recruiter.store.prepare()
        recruiter.job("hello", {}).enqueue()
        with served(dashboard(recruiter, access=local_user, actions=True)) as address:
            yield address


class Stream:
    """The events of an open page."""

    def __init__(self, answer: httpx.Response) -> None:
        self._lines = answer.iter_lines()

    def until(self, *events: str) -> str:
        """The data of the next event of this kind."""
        for line in self._lines:
            if line in [f"event: {event}" for event in events]:
                return next(data for data in self._lines if data.startswith("data: ")).removeprefix("data: ")
        raise AssertionError("the stream has ended")


def test_an_open_page_is_told_soon_that_mongodb_is_frozen_and_that_it_is_back(mongodb: Frozen, address: str) -> None:
    with httpx.stream("GET", f"{address}live/overview", timeout=60) as answer:
        stream = Stream(answer)
        stream.until("content")
        frozen_at = mongodb.freeze()

        trouble = json.loads(stream.until("trouble"))

        now = time.monotonic()
        assert now - frozen_at < SOON_SECONDS
        assert "MongoDB did not finish in time" in trouble["text"]
        shown_at = now - trouble["age"]
        assert frozen_at - 4 < shown_at < frozen_at + 0.5, "the page shows the values from before"

        thawed_at = mongodb.thaw()
        fresh = stream.until("content", "patch", "beat")

        assert time.monotonic() - thawed_at < SOON_SECONDS
        if fresh.startswith("{"):
            assert json.loads(fresh)["age"] < 1


@pytest.mark.parametrize("way", ["frozen", "stopped"])
def test_no_page_waits_long_for_a_mongodb_that_does_not_answer(
    mongodb: Frozen, address: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recruiter.web.reader._PULSE_SECONDS", PULSE_SECONDS)
    with httpx.Client(base_url=address, timeout=60, trust_env=False) as client:
        eventually(lambda: client.get("").status_code == 200)
        if way == "frozen":
            mongodb.freeze()
        else:
            mongodb.server.kill()
        for page in ("", "jobs", "api/overview", "help") if way == "frozen" else ("jobs",):
            began = time.monotonic()
            answer = client.get(page)
            assert (answer.status_code, time.monotonic() - began < PAGE_SECONDS) == (503, True), page
            assert "MongoDB" in answer.text
        began = time.monotonic()
        action = client.post("api/actions", json={"verb": "pause-group", "name": "mail"})
        assert (action.status_code, time.monotonic() - began < PAGE_SECONDS) == (503, True)
        assert client.get("static/console.js").status_code == 200


def test_ctrl_c_while_mongodb_is_frozen_ends_without_a_traceback(mongodb: Frozen, tmp_path: Path) -> None:
    target = mongodb.server.uri.replace("/?", "/shop?")
    with Recruiter(target) as recruiter:
        recruiter.store.prepare()
    with starting(target, tmp_path) as start:
        process = start("web", "--port", "0", RECRUITER_WEB_USERS="ada:secret", RECRUITER_LOG_LEVEL="warning")
        process.says("web console at")
        (port,) = re.findall(r":(\d+)/", process.log)
        place = f"http://127.0.0.1:{port}/live/overview"
        with httpx.stream("GET", place, auth=("ada", "secret"), timeout=60) as answer:
            stream = Stream(answer)
            stream.until("content")
            mongodb.freeze()
            stream.until("trouble")
            process.signal(signal.SIGINT)
            assert process.wait(60) == 0
    assert "Traceback" not in process.log


def test_the_page_names_the_time_of_its_values_and_is_live_again(
    browser: Browser, mongodb: Frozen, address: str
) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415 - half a second for each who collects

    page = browser.new_context(timezone_id="UTC").new_page()
    page.goto(address)
    expect(page.locator("#live-text")).to_have_text("live")
    mongodb.freeze()
    frozen_at = page.evaluate("Date.now()") / 1000

    expect(page.locator("#live-text")).to_have_text("lost", timeout=SOON_SECONDS * 1000)

    told = page.locator("#lost").inner_text()
    hours, minutes, seconds = map(int, re.search(r"What you see is from (\d\d):(\d\d):(\d\d)", told).groups())  # type: ignore[union-attr]
    behind = (frozen_at % 86400 - (hours * 3600 + minutes * 60 + seconds)) % 86400
    assert min(behind, 86400 - behind) < 6
    mongodb.thaw()
    expect(page.locator("#live-text")).to_have_text("live", timeout=SOON_SECONDS * 1000)
    expect(page.locator("#lost")).to_be_hidden()
    page.context.close()
