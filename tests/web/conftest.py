"""What tests of the web console share: a browser, a world for it to show, and consoles without one."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from bson import ObjectId

from recruiter import Recruiter
from recruiter.embedded import EmbeddedServer
from recruiter.web import dashboard
from recruiter.web.pages import Assets, environment
from recruiter.web.server import served
from tests.web.world import World, fill, world

if TYPE_CHECKING:
    from playwright.sync_api import Browser

FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--in-process-gpu"),
)


BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""The first is the same browser without windows, and takes half as long for all of this."""


def chromium() -> str | None:
    """Where the browser is: Debian's, or any other of that name."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = chromium()
    if program is None:
        pytest.skip("no chromium on this machine: apt-get install chromium-headless-shell")
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - half a second for each who collects

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        yield started
        started.close()


@pytest.fixture(scope="module")
def shop(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A real fleet on a database of this module's own, and a console that may act."""
    name = f"test_{ObjectId()}"
    uri = server.uri.replace("/?", f"/{name}?")
    with world(uri, tmp_path_factory.mktemp("world"), processes=3, actions=True) as made:
        yield made
        made.recruiter.store.client.drop_database(name)


@pytest.fixture(scope="module")
def filled(shop: World) -> dict[str, str]:
    """The shop on an ordinary day; ids of some of its jobs."""
    return fill(shop, 120)


Consoles = Callable[..., httpx.Client]


def local_user() -> str:
    """The access of a console that everybody may open, under this name."""
    return "a local user"


@pytest.fixture
def console(recruiter: Recruiter) -> Iterator[Consoles]:
    """Serves a console on this test's database, and gives a client of it."""
    with ExitStack() as stack:

        def make(*, client: dict[str, Any] | None = None, **wanted: Any) -> httpx.Client:
            address = stack.enter_context(served(dashboard(recruiter, **{"access": local_user, **wanted})))
            made = httpx.Client(base_url=address, timeout=20, trust_env=False, verify=False, **(client or {}))
            return stack.enter_context(made)

        yield make


def what_is_asked(question: str) -> str:
    """The action that a question is about, as the form sends it."""
    return unescape(re.search(r'name="what" value="([^"]*)"', question)[1])  # type: ignore[index]


@pytest.fixture(scope="session", autouse=True)
def templates_compiled_once() -> Iterator[None]:
    """A console compiles its templates and compresses its files when it starts; nearly every test here starts one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("recruiter.web.console.Assets", cache(Assets))
        patch.setattr("recruiter.web.console.environment", cache(environment))
        yield


@pytest.fixture(autouse=True)
def nobody_signs_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RECRUITER_WEB_USERS", raising=False)


@pytest.fixture(scope="session")
def axe() -> str:
    return (Path(__file__).parent / "vendor" / "axe.min.js").read_text()
