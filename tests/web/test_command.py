"""`recruiter web`, and the console of `recruiter dev`."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import httpx
import pytest

from tests.cli_here import here
from tests.conftest import Starter, eventually

OpenLink = Callable[[str], tuple[str, httpx.Client]]


@pytest.fixture
def open_link() -> Iterator[OpenLink]:
    """Gives the address in a log, and a client that has opened the link."""
    with ExitStack() as stack:
        yield lambda log: _opened(log, stack)


def _opened(log: str, stack: ExitStack) -> tuple[str, httpx.Client]:
    (link,) = re.findall(r"web console at\s+(http://127\.0\.0\.1:\d+/\?token=\S+)", log)
    client = stack.enter_context(httpx.Client(trust_env=False, follow_redirects=True, timeout=20))
    assert client.get(link.rstrip(",")).status_code == 200
    return link.partition("?")[0], client


def test_web_serves_the_console_and_only_shows(start: Starter, open_link: OpenLink) -> None:
    process = start("web", "--port", "0")
    process.says("read-only (--actions allows actions)")
    address, client = open_link(process.log)
    assert "No recruiter leads" in client.get(address).text
    assert client.post(f"{address}api/actions", json={"verb": "block-starts"}).status_code == 403
    assert process.stop() == 0


def test_web_may_act_if_told_so(start: Starter, open_link: OpenLink) -> None:
    process = start("web", "--port", "0", "--actions")
    process.says("web console at")
    address, client = open_link(process.log)
    assert client.post(f"{address}api/actions", json={"verb": "block-starts"}).status_code == 200


def test_web_ends_at_once_while_somebody_looks(start: Starter, open_link: OpenLink) -> None:
    process = start("web", "--port", "0")
    process.says("web console at")
    address, client = open_link(process.log)
    with client.stream("GET", f"{address}live/overview") as answer:
        assert answer.status_code == 200
        process.stop(within=10)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--host", "0.0.0.0"], "without sign-in"),
        (["--trust-header", "X-User", "--trusted-proxy", "everybody"], "a trusted proxy is an address"),
    ],
)
def test_what_is_not_safe_is_refused(target: str, arguments: list[str], told: str) -> None:
    code, said = here(target, "web", *arguments)
    assert (code, told in said) == (2, True), said


def test_a_port_that_is_taken_is_told(target: str) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        code, said = here(target, "web", "--port", str(port))
    assert code == 2
    assert f"cannot listen on 127.0.0.1:{port}" in said


def test_users_of_the_environment_open_another_address(start: Starter) -> None:
    process = start("web", "--host", "0.0.0.0", "--port", "0", RECRUITER_WEB_USERS="ada:secret")
    process.says("web console at")
    (port,) = re.findall(r":(\d+)/", process.log)
    assert httpx.get(f"http://127.0.0.1:{port}/").status_code == 401
    assert httpx.get(f"http://127.0.0.1:{port}/", auth=("ada", "secret")).status_code == 200


def test_dev_serves_it_too_and_may_act(start: Starter, target: str, open_link: OpenLink) -> None:
    process = start("dev", "--target", target)
    process.says("web console at")
    address, client = open_link(process.log)
    eventually(lambda: "1 worker" in client.get(address).text, within=60)
    assert client.post(f"{address}api/actions", json={"verb": "block-starts"}).status_code == 200
    assert process.stop() == 0


def test_dev_without_it(start: Starter, target: str) -> None:
    process = start("dev", "--target", target, "--no-web")
    process.says("ready", within=60)
    assert "web console" not in process.log
