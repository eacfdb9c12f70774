"""A real server for an ASGI application, in a thread, and a client that talks to it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn

from recruiter.web.server import address_of, bound
from tests.conftest import eventually


@contextmanager
def served(app: Any) -> Iterator[httpx.Client]:
    """While the block runs, from the start of its lifespan to the end."""
    opened = bound("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]}, name="asgi", daemon=True)
    thread.start()
    try:
        eventually(lambda: server.started or not thread.is_alive())
        assert server.started, "its lifespan has failed"
        with httpx.Client(base_url=address_of(opened), timeout=30, verify=False) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join(timeout=20)
        opened.close()
    assert not thread.is_alive()
