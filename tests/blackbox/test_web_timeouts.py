"""While MongoDB is away, a web request fails after five seconds, not after thirty."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from fastapi import FastAPI
from flask import Flask

from recruiter import Recruiter, StoreUnreachable
from recruiter.application import load_application
from recruiter.contrib.fastapi import lifespan
from recruiter.contrib.flask import FlaskRecruiter

NOWHERE = "mongodb://127.0.0.1:1/shop"

DJANGO = """
import time

from django.conf import settings

settings.configure(
    TASKS={"default": {"BACKEND": "recruiter.contrib.django.RecruiterBackend", "OPTIONS": OPTIONS}},
    INSTALLED_APPS=["recruiter.contrib.django"],
)
import django

django.setup()
try:
    from django.tasks import default_task_backend as backend
except ImportError:
    from django_tasks import default_task_backend as backend
from recruiter import StoreUnreachable

began = time.monotonic()
try:
    backend.recruiter.find("x")
except StoreUnreachable:
    print(time.monotonic() - began)
"""


@contextmanager
def raises_after(seconds: float) -> Iterator[None]:
    began = time.monotonic()
    with pytest.raises(StoreUnreachable):
        yield
    assert seconds * 0.8 < time.monotonic() - began < seconds + 10  # on a busy machine


def fastapi(_: Path) -> None:
    app = FastAPI(lifespan=lifespan(Recruiter(NOWHERE)))

    async def serve() -> None:
        async with app.router.lifespan_context(app):
            pytest.fail("it has started without MongoDB")

    with raises_after(5):
        asyncio.run(serve())


def flask(_: Path) -> None:
    with raises_after(5):
        FlaskRecruiter(Flask("shop"), NOWHERE).job("send", {}).enqueue()


def django(folder: Path, seconds: float = 5.0, **options: str) -> None:
    script = DJANGO.replace("OPTIONS}", f"{ {'target': NOWHERE, **options}!r}}}")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, cwd=folder)
    assert seconds * 0.8 < float(done.stdout) < seconds + 10, done.stderr


def test_applications_of_each_framework_give_up_after_5_seconds_without_mongodb(tmp_path: Path) -> None:
    pytest.importorskip("django")
    with ThreadPoolExecutor() as threads:
        list(threads.map(lambda gives_up: gives_up(tmp_path), (fastapi, flask, django)))
    django(tmp_path, 1.0, server_timeout="1s")


@pytest.mark.parametrize("how", ["argument", "environment"])
def test_a_timeout_of_the_user_holds(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if how == "environment":
        monkeypatch.setenv("RECRUITER_SERVER_TIMEOUT", "100ms")
    jobs = FlaskRecruiter(Flask("shop"), NOWHERE, server_timeout="100ms" if how == "argument" else None)

    began = time.monotonic()
    with pytest.raises(StoreUnreachable):
        jobs.find("x")
    assert time.monotonic() - began < 4


def test_a_worker_with_the_same_application_waits_as_long_as_any_worker(tmp_path: Path) -> None:
    file = tmp_path / "flask_shop.py"
    file.write_text(
        "from flask import Flask\n\nfrom recruiter.contrib.flask import FlaskRecruiter\n\n"
        f"jobs = FlaskRecruiter(Flask('shop'), {NOWHERE!r})\n\n\n@jobs.task\ndef send() -> None: ...\n"
    )

    assert {owner.default_patience for owner in load_application(f"{file}:jobs").owners} == {None}
