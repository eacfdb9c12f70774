"""The console behind a real nginx: the example of the docs, and the configuration that everybody writes first."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import httpx
import pytest

from recruiter import Recruiter
from tests.conftest import Starter, eventually

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "web-console.md").read_text()
(EXAMPLE,) = re.findall(r"```nginx\n(.*?)```", PAGE, re.S)
SECRET = "a-secret-of-a-test-0123456789"

Nginx = Callable[[str], str]


@pytest.fixture
def nginx(tmp_path: Path) -> Iterator[Nginx]:
    """Starts a private nginx with these locations, and returns its address."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None:
        pytest.skip("no nginx on this machine: apt-get install nginx-light")
    with ExitStack() as stack:

        def start(locations: str) -> str:
            with closing(socket.create_server(("127.0.0.1", 0))) as free:
                port = free.getsockname()[1]
            paths = "".join(
                f"{name}_temp_path {tmp_path}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
            )
            file = tmp_path / "nginx.conf"
            file.write_text(
                f"daemon off; master_process off; pid {tmp_path}/pid; error_log {tmp_path}/error.log;\n"
                f"events {{}}\nhttp {{ access_log off; {paths}\n"
                f"server {{ listen 127.0.0.1:{port}; server_name jobs.example.org;\n{locations}\n}} }}\n"
            )
            process = subprocess.Popen([program, "-p", str(tmp_path), "-c", str(file)], stderr=subprocess.DEVNULL)
            stack.callback(process.wait, 20)
            stack.callback(process.terminate)

            def listens() -> bool:
                with socket.socket() as probe:
                    return probe.connect_ex(("127.0.0.1", port)) == 0

            eventually(listens)
            return f"http://127.0.0.1:{port}"

        yield start


def port_of(log: str) -> str:
    (port,) = re.findall(r"http://127\.0\.0\.1:(\d+)/", log)
    return str(port)


def test_a_plain_proxy_opens_nothing_to_strangers(start: Starter, nginx: Nginx, recruiter: Recruiter) -> None:
    """Given `proxy_pass` and no more: nginx rewrites Host and adds no header that names the stranger."""
    process = start("web", "--port", "0", "--actions")
    process.says("web console at")
    address = nginx(f"location / {{ proxy_pass http://127.0.0.1:{port_of(process.log)}; }}")
    with httpx.Client(base_url=address, trust_env=False, timeout=20) as stranger:
        for page in ("/", "/jobs", "/api/jobs", "/live/overview", "/static/console.js", "/metrics"):
            answer = stranger.get(page)
            assert answer.status_code == 401, page
            assert recruiter.target.database not in answer.text
        assert stranger.post("/api/actions", json={"verb": "block-starts"}).status_code == 401
    assert recruiter.controls.rules().paused == {}


@pytest.mark.parametrize("way", ["kept", "removed", "socket"])
def test_the_example_of_the_docs(start: Starter, nginx: Nginx, recruiter: Recruiter, tmp_path: Path, way: str) -> None:
    file = tmp_path / "web.sock"
    listening = ["--socket", str(file)] if way == "socket" else ["--port", "0"]
    options = ["--actions", "--root-path", "/jobs", "--trust-header", "X-Forwarded-User"]
    secret = {} if way == "socket" else {"RECRUITER_WEB_PROXY_SECRET": SECRET}
    process = start("web", *listening, *options, "--allowed-host", "jobs.example.org", **secret)
    process.says("web console at")
    (tmp_path / "htpasswd").write_text("Gödel:{PLAIN}correct horse\n", encoding="utf-8")
    place = f"http://unix:{file}" if way == "socket" else f"http://127.0.0.1:{port_of(process.log)}"
    example = EXAMPLE.replace("/etc/nginx/jobs.htpasswd", str(tmp_path / "htpasswd"))
    example = example.replace(
        "http://127.0.0.1:8420;", f"{place}{':/' if way == 'socket' else '/' * (way == 'removed')};"
    )
    address = nginx(example.replace("Recruiter-Secret SECRET", f"Recruiter-Secret {SECRET}"))

    with httpx.Client(base_url=address, trust_env=False, timeout=20, headers={"host": "jobs.example.org"}) as client:
        assert client.get("/jobs/").status_code == 401
        client.auth = httpx.BasicAuth("Gödel", "correct horse")
        page = client.get("/jobs/", headers={"x-forwarded-user": "root"})
        assert (page.status_code, '<base href="/jobs/">' in page.text, "Gödel" in page.text) == (200, True, True)
        assert client.get("/jobs/jobs").status_code == 200
        assert client.get("/jobs/", headers={"host": "evil.example"}).status_code == 421
        own = {"origin": "https://jobs.example.org", "sec-fetch-site": "same-origin"}
        wanted = {"verb": "pause-group", "name": "mail"}
        assert client.post("/jobs/do", data=wanted, headers=own).status_code == 200
        with client.stream("GET", "/jobs/live/overview") as stream:
            assert any(line == "event: content" for line in stream.iter_lines())
    assert recruiter.controls.rules().paused["group:mail"].by == "Gödel"
    if way != "socket":
        forged = {"host": "jobs.example.org", "x-forwarded-user": "root"}
        assert httpx.get(f"{place}/jobs/", headers=forged, trust_env=False).status_code == 403
