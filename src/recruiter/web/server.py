"""`recruiter web`: the console with its own server."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address

import uvicorn
from starlette.types import ASGIApp

from recruiter.errors import SettingsError
from recruiter.web.access import USERS_VARIABLE, Access, BasicAuth, Loopback, ProxyHeader, is_loopback


def access_of(host: str, header: str | None, proxies: list[str]) -> Access:
    """Who may read. Raises SettingsError for an address that other machines can reach without users."""
    if header is not None:
        return ProxyHeader(header, proxies) if proxies else ProxyHeader(header)
    users = BasicAuth.from_environment()
    if users is not None:
        return users
    if not is_loopback(host):
        raise SettingsError(
            f"the console would be open to everybody who can reach {host}, with nobody asked to sign in. Set "
            f"{USERS_VARIABLE}=name:password, or put a proxy in front that signs people in (--trust-header "
            "X-Forwarded-User --trusted-proxy ADDRESS); or listen on 127.0.0.1"
        )
    return Loopback()


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens there. Raises SettingsError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind((host, port))
        opened.listen(100)
    except OSError as error:
        opened.close()
        raise SettingsError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --port"
        ) from None
    return opened


def address_of(opened: socket.socket) -> str:
    """The URL for a browser."""
    host, port = opened.getsockname()[:2]
    if ip_address(host).is_unspecified:
        host = socket.gethostname()
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


class _Server(uvicorn.Server):
    """Ends with exit code 0 when it is asked to; uvicorn's own would die of the signal."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {each: signal.signal(each, self.handle_exit) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)


def _server(app: ASGIApp, root_path: str) -> uvicorn.Server:
    config = uvicorn.Config(
        app,
        root_path=root_path.rstrip("/"),
        # The client is the connected host; `ProxyHeader` decides whether to trust a proxy.
        proxy_headers=False,
        server_header=False,
        access_log=False,
        log_level="warning",
        lifespan="on",
        # Streams never end by themselves.
        timeout_graceful_shutdown=1,
    )
    return _Server(config)


def serve(app: ASGIApp, opened: socket.socket, root_path: str = "") -> None:
    """Until Ctrl-C or SIGTERM."""
    _server(app, root_path).run(sockets=[opened])


@contextmanager
def served_at(app: ASGIApp, port: int) -> Iterator[str]:
    """The same on this port of this machine, or on any other if it is taken."""
    try:
        bound("127.0.0.1", port).close()
    except SettingsError:
        port = 0
    with served(app, port=port) as address:
        yield address


@contextmanager
def served(app: ASGIApp, host: str = "127.0.0.1", port: int = 0, root_path: str = "") -> Iterator[str]:
    """While the block runs, from a thread; gives the address."""
    opened = bound(host, port)
    server = _server(app, root_path)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]}, name="recruiter web", daemon=True)
    thread.start()
    try:
        yield address_of(opened)
    finally:
        server.should_exit = True
        thread.join(timeout=10)
        opened.close()
