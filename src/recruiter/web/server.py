"""`recruiter web`: the console with its own server."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from recruiter.errors import SettingsError
from recruiter.web.access import (
    SECRET_HEADER,
    SECRET_VARIABLE,
    USERS_VARIABLE,
    Access,
    BasicAuth,
    LocalToken,
    ProxyHeader,
    is_loopback,
)

MAX_CONNECTIONS = 700  # Viewers hold up to 500; the rest is for pages. A process has 1,024 files on most machines
HEAD_TIMEOUT_SECONDS = 10.0  # Time to send the head of a request


def access_of(
    host: str,
    header: str | None = None,
    proxies: Collection[str] = (),
    operators: Collection[str] | None = None,
    socket_file: str | None = None,
) -> Access:
    """The access of `recruiter web`. Raises SettingsError for an address that is open to other machines."""
    if header is not None:
        access = ProxyHeader(header, proxies, operators=operators)
        if not access.has_secret and socket_file is None:
            raise SettingsError(
                f"--trust-header would believe every program on this machine. Set {SECRET_VARIABLE} to a secret that "
                f"the proxy sends in {SECRET_HEADER}, or let the proxy connect through a file: --socket PATH"
            )
        return access
    users = BasicAuth.from_environment(operators, proxies)
    if users is not None:
        return users
    if operators:
        raise SettingsError(f"--operator needs users who sign in: {USERS_VARIABLE}=name:password, or --trust-header")
    if socket_file is not None:
        raise SettingsError("--socket is for a proxy that signs users in; add --trust-header X-Forwarded-User")
    if not is_loopback(host):
        raise SettingsError(
            f"without sign-in, the console would be open to every user who can reach {host}. Set "
            f"{USERS_VARIABLE}=name:password, or put a proxy in front that signs people in (--trust-header "
            "X-Forwarded-User --trusted-proxy ADDRESS); or listen on 127.0.0.1"
        )
    return LocalToken()


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


def bound_file(path: str) -> socket.socket:
    """A socket file that only this user and group can open. Raises SettingsError."""
    opened = socket.socket(socket.AF_UNIX)
    try:
        if Path(path).is_socket():
            _remove_stale(path)
        mask = os.umask(0o117)
        try:
            opened.bind(path)
        finally:
            os.umask(mask)
        opened.listen(100)
    except OSError as error:
        opened.close()
        raise SettingsError(f"cannot listen on the socket file {path}: {error.strerror or error}") from None
    return opened


def _remove_stale(path: str) -> None:
    """Removes the file of a console that has ended; a console that listens there keeps it."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            Path(path).unlink()


def address_of(opened: socket.socket) -> str:
    """The URL for a browser."""
    host, port = opened.getsockname()[:2]
    if ip_address(host).is_unspecified:
        host = socket.gethostname()
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def link_of(address: str, root_path: str, access: Access) -> str:
    """The link to print, with the path, and with the token if access needs it."""
    place = f"{address.rstrip('/')}/{root_path.strip('/')}".rstrip("/") + "/"
    return access.link(place) if isinstance(access, LocalToken) else place


class _Server(uvicorn.Server):
    """Ends with exit code 0 when it is asked to; uvicorn's own would die of the signal. Streams never end by
    themselves: it ends them first, so that no request is cancelled."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        app = getattr(self.config.app, "wrapped", self.config.app)
        close_streams = getattr(getattr(app, "state", None), "close_streams", None)
        if close_streams is not None:
            close_streams()
        await super().shutdown(sockets)

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


class _BoundedProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """HTTP with a bound on connections, and on the time in which the head of a request must arrive."""

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._await_head()
        # A closing connection stays in the set for a moment: of a flood that arrives together, each closes another one.
        connections = [each for each in self.connections if not each.transport.is_closing()]
        if len(connections) > MAX_CONNECTIONS:
            waiting = (each for each in connections if each is not self and each.awaits_head)
            next(waiting, self).transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self.awaits_head:
            self._cancel_timer()
        elif self._head_timer is None:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timer()
        super().connection_lost(exc)

    @property
    def awaits_head(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _await_head(self) -> None:
        loop = asyncio.get_running_loop()
        self._head_timer = loop.call_later(HEAD_TIMEOUT_SECONDS, self._on_late_head)

    def _on_late_head(self) -> None:
        self._head_timer = None
        if self.awaits_head:
            self.transport.abort()

    def _cancel_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class _UnderPath:
    """The application under a path of a proxy, whether the proxy removes the path or keeps it.

    Under `/api`, `/live` and `/static` the proxy must remove it: these are paths of the console too.
    """

    def __init__(self, app: ASGIApp, root: str) -> None:
        self.wrapped = app
        self._root = root
        self._may_be_kept = root not in ("/api", "/live", "/static")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            is_kept = self._may_be_kept and scope["path"].startswith(f"{self._root}/")
            added = "" if is_kept else self._root
            raw = added.encode() + scope.get("raw_path", b"")
            scope = {**scope, "root_path": self._root, "path": f"{added}{scope['path']}", "raw_path": raw}
        await self.wrapped(scope, receive, send)


def _server(app: ASGIApp, root_path: str) -> uvicorn.Server:
    root = f"/{root_path.strip('/')}".rstrip("/")
    config = uvicorn.Config(
        _UnderPath(app, root) if root else app,
        http=_BoundedProtocol,
        # The client is the connected host; `ProxyHeader` decides whether to trust a proxy.
        proxy_headers=False,
        server_header=False,
        access_log=False,
        log_level="warning",
        lifespan="on",
        timeout_graceful_shutdown=5,
    )
    return _Server(config)


def serve(app: ASGIApp, opened: socket.socket, root_path: str = "") -> None:
    """Until Ctrl-C or SIGTERM."""
    _server(app, root_path).run(sockets=[opened])


@contextmanager
def served(
    app: ASGIApp, host: str = "127.0.0.1", port: int = 0, root_path: str = "", *, or_any_port: bool = False
) -> Iterator[str]:
    """While the block runs, from a thread; gives the address. With `or_any_port`, the port may be taken."""
    try:
        opened = bound(host, port)
    except SettingsError:
        if not or_any_port:
            raise
        opened = bound(host, 0)
    server = _server(app, root_path)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]}, name="recruiter web", daemon=True)
    thread.start()
    try:
        yield address_of(opened)
    finally:
        server.should_exit = True
        thread.join(timeout=10)
        opened.close()
