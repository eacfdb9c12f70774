"""Health of a process, answered from memory over HTTP (`--health-port`), without starting another Python.

    GET /live     200 while the main loop goes round; 503 when it has not for two minutes: restart the process
    GET /ready    200 while the process is at work and MongoDB answers; 503 otherwise

The answer is JSON with the reasons. A MongoDB that is away makes a process unready and leaves it live: a restart would
not help. The server is a thread with an event loop. Each client has two seconds; when more than 32 are connected, the
oldest is dropped, so that a new probe is answered however many slow clients there are.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

from recruiter.errors import RecruiterError
from recruiter.events import Event
from recruiter.store.errors import answers

LIVE_WITHIN_SECONDS = 120.0
"""A step waits for MongoDB for half a minute, several in a row for longer."""
READY_WITHIN_SECONDS = 15.0
CLIENT_TIMEOUT_SECONDS = 2.0
MOST_CLIENTS = 32
LONGEST_REQUEST_BYTES = 8192
_START_TIMEOUT_SECONDS = 10.0

_AT_WORK = {"worker.joined", "leader.elected", "recruiter.standing_by", "cleaner.at_work"}
_NOT_AT_WORK = {
    "worker.lost": "the worker is off the roster, and joins again",
    "process.stopping": "the process was asked to stop",
}


class ProcessHealth:
    """The facts: the main loop reports each turn, and events show whether the process works."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._turned_at: float | None = None
        """None until the main loop begins: the application is being loaded."""
        self._answers = 0
        self._answered_at: float | None = None
        self._why_not = "the process is starting"

    def hear(self, event: Event) -> None:
        if event.name in _AT_WORK and self._why_not != _NOT_AT_WORK["process.stopping"]:
            self._why_not = ""
        elif event.name in _NOT_AT_WORK:
            self._why_not = _NOT_AT_WORK[event.name]

    def turned(self) -> None:
        """The main loop has come round."""
        self._turned_at = self._monotonic()
        self._note_answers()

    def _note_answers(self) -> None:
        if (number := answers()) != self._answers:
            self._answers, self._answered_at = number, self._monotonic()

    def reasons(self, of: Literal["live", "ready"]) -> list[str]:
        """Why the process is not live, or not ready; nothing if it is."""
        now, found = self._monotonic(), []
        if self._turned_at is not None and now - self._turned_at > LIVE_WITHIN_SECONDS:
            found.append(f"the main loop has not come round for {now - self._turned_at:.0f} seconds")
        if of == "ready":
            self._note_answers()
            if self._why_not:
                found.append(self._why_not)
            if self._answered_at is None:
                found.append("MongoDB has not answered yet")
            elif now - self._answered_at > READY_WITHIN_SECONDS:
                found.append(f"MongoDB has not answered for {now - self._answered_at:.0f} seconds")
        return found


class HealthPort:
    """The HTTP server. Begins to listen when it is made. Raises RecruiterError if it cannot."""

    def __init__(self, health: ProcessHealth, role: str, host: str, port: int) -> None:
        self._health = health
        self._role = role
        self._clients: list[asyncio.StreamWriter] = []
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda _loop, _context: None)  # a client's trouble is no news
        try:
            serving = asyncio.start_server(self._answer, host, port, limit=LONGEST_REQUEST_BYTES)
            self._server = self._loop.run_until_complete(asyncio.wait_for(serving, _START_TIMEOUT_SECONDS))
        except (OSError, TimeoutError) as error:
            self._loop.close()
            raise RecruiterError(
                f"--health-port: cannot listen on {host} port {port}: {error.strerror or error}. Choose another port "
                "or another --health-host"
            ) from None
        self.address: tuple[str, int] = self._server.sockets[0].getsockname()[:2]
        self._thread = threading.Thread(target=self._serve, name="health-port", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def close(self) -> None:
        def end() -> None:
            self._server.close()
            for client in self._clients:
                client.transport.abort()
            self._loop.call_soon(self._loop.stop)

        self._loop.call_soon_threadsafe(end)
        self._thread.join(CLIENT_TIMEOUT_SECONDS)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers one request. If there are too many clients, it cuts off the oldest."""
        self._clients.append(writer)
        if len(self._clients) > MOST_CLIENTS:
            self._clients.pop(0).transport.abort()
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(CLIENT_TIMEOUT_SECONDS):
                request = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._response(request.split(b"\r\n", 1)[0].decode("latin-1")))
                writer.close()
                await writer.wait_closed()
        writer.transport.abort()
        if writer in self._clients:
            self._clients.remove(writer)

    def _response(self, request_line: str) -> bytes:
        method, _, rest = request_line.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0].rstrip("/")
        if method not in ("GET", "HEAD"):
            return _http("405 Method Not Allowed", {"error": "use GET"})
        if path not in ("/live", "/ready"):
            return _http("404 Not Found", {"error": "there are /live and /ready"})
        reasons = self._health.reasons("live" if path == "/live" else "ready")
        status = "503 Service Unavailable" if reasons else "200 OK"
        body = {"role": self._role, path[1:]: not reasons, "reasons": reasons}
        return _http(status, body, with_body=method == "GET")


def _http(status: str, body: dict[str, Any], *, with_body: bool = True) -> bytes:
    content = json.dumps(body).encode() + b"\n"
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n"
        "Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (content if with_body else b"")
