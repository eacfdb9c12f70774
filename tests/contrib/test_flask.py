"""Flask: the example application with its own command and a real worker, and the extension."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import flask_orders as orders
import pytest
from flask import Flask, current_app
from flask.sessions import SecureCookieSessionInterface
from flask.testing import FlaskClient

from recruiter import ApplicationError, JobFailed, Recruiter
from recruiter.contrib.flask import FlaskRecruiter
from recruiter.store.database import Store
from tests.acceptance.docs.pages import page
from tests.conftest import Starter, eventually
from tests.contrib.serving import served

pytestmark = pytest.mark.usefixtures("store")  # prepared

EXAMPLE = str(Path(orders.__file__))
FLASK = str(Path(sys.executable).parent / "flask")


@pytest.fixture
def shop(target: str, store: Store) -> Iterator[FlaskClient]:
    app = orders.create_app(target)
    yield app.test_client()
    orders.recruiter.close()
    orders.recruiter.point_at(None)


def test_an_order_comes_in_a_worker_sends_the_receipt_and_it_is_read(shop: FlaskClient, start: Starter) -> None:
    # given the processes that the application's own command starts
    fleet = start("--app", EXAMPLE, "recruiter", "start", "all", script=FLASK)
    fleet.says("joined the roster")

    # when a request comes in
    made = shop.post("/orders?item=cat&price=7")
    assert made.status_code == 201

    # then another process has run the job, inside the application's context, and its result goes out
    place = f"/receipts/{made.json['receipt']}"  # type: ignore[index]
    ended = eventually(lambda: (answer := shop.get(place).json) and answer["receipt"] and answer)
    assert ended == {"state": "succeeded", "receipt": "Receipt for one cat: 7 euros"}
    assert fleet.stop() == 0


def test_the_command_works_on_the_mongodb_of_the_application(shop: FlaskClient, target: str) -> None:
    shop.post("/orders?item=cat&price=7")

    listed = subprocess.run(
        [FLASK, "--app", EXAMPLE, "recruiter", "job", "list", "--output", "json"],
        env={**os.environ, "RECRUITER_TARGET": target},
        capture_output=True,
        text=True,
        check=True,
    )

    (job,) = json.loads(listed.stdout)
    assert (job["task"], job["group"]) == ("send_receipt", "mail")


def test_the_shell_has_the_names_of_the_application(shop: FlaskClient, target: str) -> None:
    statement = "send_receipt.enqueue('cat', 7).created, app.config['CURRENCY'], recruiter.target.database != ''"
    said = subprocess.run(
        [FLASK, "--app", EXAMPLE, "recruiter", "shell", "--execute", statement],
        env={**os.environ, "RECRUITER_TARGET": target},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == "(True, 'euros', True)\n"


def test_async_functions_run_in_the_context_too_and_plain_calls_stay_plain(target: str, store: Store) -> None:
    app = Flask("kennel")
    recruiter = FlaskRecruiter(app, target)

    @recruiter.task
    async def bark(times: int = 1) -> str:
        return f"{current_app.name} barks {times} times"

    job = bark.enqueue(2)
    recruiter.run(bark)
    assert job.result(timeout="10s") == "kennel barks 2 times"
    with pytest.raises(RuntimeError, match="outside of application context"):
        asyncio.run(bark())
    assert app.extensions["recruiter"] is recruiter
    recruiter.close()


def test_a_job_without_an_application_says_what_is_missing(target: str, store: Store) -> None:
    recruiter = FlaskRecruiter(None, target)

    @recruiter.task
    def bark() -> None: ...

    job = bark.enqueue()
    recruiter.run(bark)

    with pytest.raises(JobFailed, match=r"call init_app\(app\)"):
        job.result(timeout="10s")
    with pytest.raises(ApplicationError):
        _ = recruiter.app
    recruiter.close()


def test_the_command_works_with_the_prefix_of_the_application(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given an application with its own prefix, and a job in it
    monkeypatch.delenv("RECRUITER_PREFIX", raising=False)
    (tmp_path / "kennel.py").write_text(
        "from flask import Flask\nfrom recruiter.contrib.flask import FlaskRecruiter\n"
        f"app = Flask('kennel')\nrecruiter = FlaskRecruiter(app, {target!r}, prefix='dogs_')\n"
    )
    with Recruiter(target, prefix="dogs_") as recruiter:
        recruiter.job("bark").enqueue()

    # when its own command lists jobs
    command = [sys.executable, "-m", "flask", "--app", "kennel", "recruiter", "job", "list", "--output", "json"]
    listed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)

    # then it finds the job
    assert [job["task"] for job in json.loads(listed.stdout)] == ["bark"]


def test_the_console_reads_the_session_of_flask_as_its_page_shows(target: str, store: Store) -> None:
    # given the program on the page of the console, on this test's database
    (block,) = (block for block in page("how-to/web-console.md").blocks if block.file == "console.py")
    names: dict[str, Any] = {}
    exec(block.text.replace("mongodb://localhost:27017/shop", target), names)
    sessions = SecureCookieSessionInterface().get_signing_serializer(names["flask_app"])
    assert sessions is not None

    def status(cookie: str) -> int:
        with served(names["console"]) as client:
            return client.get("/jobs/", headers={"cookie": f"session={cookie}"}).status_code

    # then only a session of the application with an operator in it opens the console
    assert status(str(sessions.dumps({"user": "ada", "is_operator": True}))) == 200
    assert status(str(sessions.dumps({"user": "bob"}))) == 401
    assert status("forged") == 401
