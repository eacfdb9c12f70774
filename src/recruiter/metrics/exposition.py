"""Exposition: metrics as text, for whoever may scrape them; and the small server of `recruiter metrics`."""

from __future__ import annotations

import gzip
import os
import secrets
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET, AF_INET6

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from recruiter.app import Recruiter
from recruiter.errors import SettingsError
from recruiter.metrics.collector import RecruiterCollector

TOKEN_VARIABLE = "RECRUITER_METRICS_TOKEN"
"""Whoever scrapes says it: `Authorization: Bearer …`."""
_WORTH_ZIPPING = 500


class Exposition:
    """The metrics of one Recruiter, and nothing else."""

    def __init__(self, recruiter: Recruiter) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(RecruiterCollector(recruiter))

    def written(self, accept: str = "", accept_encoding: str = "") -> tuple[bytes, dict[str, str]]:
        """The text in the form that is asked for, and its headers."""
        encode, content_type = choose_encoder(accept)
        text: bytes = encode(self._registry)
        headers = {"content-type": content_type, "vary": "accept, accept-encoding"}
        if len(text) > _WORTH_ZIPPING and "gzip" in accept_encoding:
            return gzip.compress(text, 5), {**headers, "content-encoding": "gzip"}
        return text, headers


def may_scrape(authorization: str) -> bool | None:
    """Whether this header says the token; None where no token is asked for."""
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not token:
        return None
    scheme, _, said = authorization.partition(" ")
    return scheme.lower() == "bearer" and secrets.compare_digest(said.strip().encode(), token.encode())


def server(exposition: Exposition, host: str, port: int) -> ThreadingHTTPServer:
    """A server that listens there. Raises SettingsError."""
    try:
        return _server_class(host)((host, port), _handler(exposition))
    except OSError as error:
        told = f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --port"
        raise SettingsError(told) from None


def _server_class(host: str) -> type[ThreadingHTTPServer]:
    class Server(ThreadingHTTPServer):
        address_family = AF_INET6 if ":" in host else AF_INET
        daemon_threads = True

    return Server


def _handler(exposition: Exposition) -> Callable[..., BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        server_version = "recruiter"
        sys_version = ""
        timeout = 30

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/":
                self._answer(200, b"The metrics are at /metrics.\n", {"content-type": "text/plain"})
            elif path != "/metrics":
                self._answer(404, b"The metrics are at /metrics.\n", {"content-type": "text/plain"})
            elif may_scrape(self.headers.get("authorization", "")) is False:
                self._answer(401, b"Say the token.\n", {"www-authenticate": "Bearer", "content-type": "text/plain"})
            else:
                accept = (self.headers.get(name, "") for name in ("accept", "accept-encoding"))
                self._answer(200, *exposition.written(*accept))

        def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {**headers, "content-length": str(len(body)), "cache-control": "no-store"}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nobody wants to read of every scrape."""

    return Handler
