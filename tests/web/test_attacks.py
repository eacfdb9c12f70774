"""Attacks on a running console with real connections: what a stranger sends, and what a viewer can find out."""

from __future__ import annotations

import re
import socket
import time
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from recruiter import Recruiter
from recruiter.web import BasicAuth, dashboard, live, server
from recruiter.web.live import patch_of
from recruiter.web.server import served
from tests.conftest import Starter, eventually
from tests.web.conftest import Consoles, local_user

HUGE_BYTES = 300 * 2**20


def lines(first: int, last: int) -> str:
    return "".join(f"<li>line {number} 𝄞</li>" for number in range(first, last))


def connected(client: httpx.Client) -> socket.socket:
    made = socket.create_connection((client.base_url.host, client.base_url.port or 80), timeout=20)
    made.settimeout(20)
    return made


def is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


class TestBodies:
    @pytest.mark.parametrize("path", ["/api/actions", "/do", "/jobs", "/nowhere"])
    @pytest.mark.parametrize("length", [f"content-length: {HUGE_BYTES}", "transfer-encoding: chunked"])
    def test_the_body_of_a_stranger_is_refused_and_not_read(self, console: Consoles, path: str, length: str) -> None:
        """Given a stranger who announces 300 MiB, then the answer comes before the body, and the connection ends."""
        client = console(access=BasicAuth({"ada": "secret"}), actions=True)
        with connected(client) as stranger:
            head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{length}\r\n\r\n"
            stranger.sendall(head.encode())
            answer = stranger.makefile("rb").read()  # until the console closes the connection
        status = b"413" if "content-length" in length else b"401"  # a large body that is announced is not waited for
        assert answer.startswith(b"HTTP/1.1 " + status), answer[:200]
        assert b"connection: close" in answer.lower()

    def test_the_body_of_a_user_is_bounded(self, console: Consoles, recruiter: Recruiter) -> None:
        client = console(actions=True)
        wanted = {"verb": "pause-group", "name": "mail", "reason": "x" * 70_000}
        chunks = iter([b'{"verb": "pause-group", "name": "' + b"x" * 70_000, b'"}'])
        answers = [
            client.post("api/actions", json=wanted),
            client.post("do", data=wanted),
            client.post("api/actions", content=chunks, headers={"content-type": "application/json"}),
        ]
        assert [answer.status_code for answer in answers] == [413, 413, 413]
        assert answers[0].json()["detail"].startswith("The body of a request has at most 64 KiB")
        assert recruiter.controls.rules().paused == {}


class TestConnections:
    @pytest.fixture(autouse=True)
    def quick(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(server, "HEAD_TIMEOUT_SECONDS", 0.5)

    @pytest.mark.parametrize("before", [b"", b"GET /help HTTP/1.1\r\nhost: x\r\n\r\n"])
    def test_a_connection_whose_head_does_not_end_is_closed(self, console: Consoles, before: bytes) -> None:
        with connected(console()) as slow:
            if before:
                slow.sendall(before)
                assert slow.recv(100).startswith(b"HTTP/1.1 200")
            slow.sendall(b"GET / HTTP/1.1\r\nhost: ")
            while slow.recv(65536):
                pass

    def test_a_flood_of_connections_leaves_room_for_a_user(
        self, console: Consoles, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(server, "MAX_CONNECTIONS", 20)
        monkeypatch.setattr(server, "HEAD_TIMEOUT_SECONDS", 600.0)
        client = console()
        flood: list[socket.socket] = []
        with ExitStack() as stack:
            for _ in range(60):
                flood.append(stack.enter_context(connected(client)))
                flood[-1].sendall(b"GET / HTTP/1.1\r\n")
            assert client.get("help").status_code == 200
            eventually(lambda: sum(map(is_closed, flood)) >= 40, 20)

    def test_a_stream_outlives_the_bound_on_heads(self, console: Consoles) -> None:
        with console().stream("GET", "live/overview") as answer:
            began = time.monotonic()
            for line in answer.iter_lines():
                if line.startswith("event: ") and time.monotonic() - began > 1.5:
                    break


class TestRedaction:
    SECRETS = (
        *("X-Api-Key", "api-key", "private-key", "pwd", "pass", "jwt", "otp", "ssh_key", "encryption_key", "dsn"),
        *("card_number", "userPass", "API_KEY", "accessKey", "db_password", "Set-Cookie"),
    )
    SHOWN = ("compass", "passenger", "option", "keyboard", "monkey", "passed", "dsname")

    def test_names_of_secrets_in_all_spellings_are_hidden_and_others_are_not(
        self, console: Consoles, recruiter: Recruiter
    ) -> None:
        secrets = {name: f"hunter{number}!" for number, name in enumerate(self.SECRETS)}
        shown = {name: f"harmless{number}!" for number, name in enumerate(self.SHOWN)}
        pairs = [["Authorization", "Bearer hunter99!"], ["accept", "harmless99!"]]
        job = recruiter.job("call", {"options": {**secrets, **shown}, "headers": pairs}).enqueue()
        client = console()
        for place in ("job", "job?tab=document", "api/job"):
            page, _, query = place.partition("?")
            text = client.get(page, params={"id": str(job.id), **dict([query.split("=")] if query else [])}).text
            assert re.findall(r"hunter\d+!", text) == [], place
            assert set(re.findall(r"harmless\d+!", text)) == {*shown.values(), "harmless99!"}, place

    @pytest.mark.parametrize(
        "condition",
        [
            'options={"API_KEY":"hunter2"}',
            'options={"inner":{"API_KEY":"hunter2"}}',
            "options.inner.API_KEY=hunter2",
            'headers=["Authorization","hunter2"]',
            'headers=[["Authorization","hunter2"]]',
            'list=[{"deep":{"pwd":"hunter2"}}]',
            "headers.0.1=hunter2",
            "X-Api-Key=hunter2",
        ],
    )
    def test_a_filter_cannot_find_a_hidden_value(self, console: Consoles, condition: str) -> None:
        client = console(actions=True)
        for place in ("jobs", "api/jobs", "api/jobs/count"):
            answer = client.get(place, params={"arg": condition})
            assert answer.status_code == 400, (place, answer.text)
        action = {"verb": "cancel", "filter": {"arg": [condition]}}
        assert client.post("api/actions", json=action).status_code == 400
        assert client.get("api/jobs/count", params={"arg": "order=7"}).status_code == 200

    def test_passwords_in_addresses_are_masked_wherever_a_text_leaves(
        self, console: Consoles, recruiter: Recruiter
    ) -> None:
        secret = "mongodb://ada:hunter2@db1/shop"

        @recruiter.task
        def connect() -> None:
            raise ConnectionError(f"no answer from {secret}")

        flow = recruiter.flow(f"copy {secret}")
        flow.add(connect)
        flow.start()
        recruiter.run_all(connect)
        waiting = recruiter.job("wait", {"x": 1}).owned_by(secret).tagged_as(secret).enqueue()
        recruiter.controls.pause_group("default", by=secret, reason=f"moving {secret}")
        recruiter.store.scheduled.collection.update_one({"_id": waiting.id}, {"$set": {"stage": f"reads {secret}"}})
        client = console(actions=True)
        client.post("api/actions", json={"verb": "pause-group", "name": "x", "reason": secret})
        places = ["", "jobs", "flows", "groups", "schedules", "problems", f"job?id={waiting.id}", "workers"]
        (found,) = recruiter.flows.latest(limit=1)
        for place in (*places, f"flow?id={found.id}"):
            for kind in (place, f"api/{place or 'overview'}"):
                answer = client.get(kind)
                assert answer.status_code == 200, kind
                assert "hunter2" not in answer.text, kind


class TestPaths:
    @pytest.mark.parametrize("kept", [True, False])
    @pytest.mark.parametrize("root", ["/jobs", "/ops/jobs"])
    def test_a_proxy_may_keep_or_remove_the_path(self, recruiter: Recruiter, root: str, kept: bool) -> None:
        sent = root if kept else ""
        with (
            served(dashboard(recruiter, access=local_user), root_path=root) as address,
            httpx.Client(base_url=address, trust_env=False) as client,
        ):
            titles = {"/": "Overview", "/jobs": "Jobs", "/workers": "Workers"}
            for page, title in titles.items():
                answer = client.get(f"{sent}{page}")
                assert answer.status_code == 200
                assert f"<title>{title} " in answer.text
                assert f'<base href="{root}/">' in answer.text
            assert client.get(f"{sent}/api/jobs").json()["jobs"] == []
            moved = client.get(f"{sent}/find", params={"q": "state:failed"})
            assert moved.headers["location"] == f"{root}/jobs?state=failed"

    @pytest.mark.parametrize("page", ["workers/", "jobs/", "api/jobs/"])
    def test_a_slash_at_the_end_redirects_nowhere(self, console: Consoles, page: str) -> None:
        assert console().get(page).status_code == 200


class TestLimits:
    @pytest.mark.parametrize(
        "values",
        [
            *({"at_once": "1e30"}, {"at_once": 10**30}),
            *({"count": count, "per": "1m"} for count in (10**30, "²", "9" * 5000)),
        ],
    )
    def test_a_number_that_is_too_large_or_none_is_an_error_of_the_caller(
        self, console: Consoles, values: dict[str, Any]
    ) -> None:
        client = console(actions=True)
        answer = client.post("api/actions", json={"verb": "set-limit", "name": "task:x", **values})
        assert 400 <= answer.status_code < 500, answer.text
        texts = {name: str(value) for name, value in values.items()}
        form = client.post("do", data={"verb": "set-limit", "name": "task:x", **texts})
        assert form.status_code == 400, form.text


class TestStreams:
    def test_one_viewer_with_many_pages_leaves_the_others_theirs(
        self, console: Consoles, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(live, "MOST_TOPICS", 8)
        monkeypatch.setattr(live, "MAX_TOPICS_PER_USER", 4)
        client = console(access=BasicAuth({"ada": "secret", "bob": "secret"}))
        with ExitStack() as stack:
            answers = [
                stack.enter_context(client.stream("GET", f"live/jobs?task=task{number}", auth=("ada", "secret")))
                for number in range(6)
            ]
            assert [answer.status_code for answer in answers] == [200] * 4 + [429] * 2
            other = stack.enter_context(client.stream("GET", "live/overview", auth=("bob", "secret")))
            assert any("event: content" in line for line in other.iter_lines())

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ("", "<p>a</p>"),
            ("<p>a</p>" * 50, "<p>a</p>" * 49),
            ("<i>𝄞 ä</i><b>one, two</b>" * 9, "<i>𝄞 ä</i><b>one, three</b>" * 9 + "𝄞"),
            (lines(0, 500), lines(7, 507)),
        ],
    )
    def test_a_patch_makes_the_new_page_from_the_old_one(self, old: str, new: str) -> None:
        units = old.encode("utf-16-le")
        parts = [
            part.encode("utf-16-le") if isinstance(part, str) else units[2 * part[0] : 2 * (part[0] + part[1])]
            for part in patch_of(old, new)
        ]
        assert b"".join(parts).decode("utf-16-le") == new


def test_ctrl_c_with_an_open_page_ends_without_a_traceback(start: Starter) -> None:
    process = start("web", "--port", "0", RECRUITER_WEB_USERS="ada:secret")
    process.says("web console at")
    (port,) = re.findall(r":(\d+)/", process.log)
    with httpx.stream("GET", f"http://127.0.0.1:{port}/live/overview", auth=("ada", "secret"), timeout=20) as answer:
        lines = answer.iter_lines()
        assert any("event: content" in line for line in lines)
        assert process.stop(within=15) == 0
    assert "Traceback" not in process.log
    assert "Error" not in process.log
