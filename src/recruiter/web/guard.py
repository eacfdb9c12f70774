"""The guard in front of the console: it runs before routing and before a body is read. It bounds bodies, refuses
requests that another site triggers, and sets the headers that keep other sites out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from fastapi import HTTPException, Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from recruiter.web.access import host_of
from recruiter.web.formats import whole

MAX_BODY_BYTES = 64 * 1024
BODY_TIMEOUT_SECONDS = 30.0
_DISCARD_SECONDS = 1.0
_SAFE = ("GET", "HEAD", "OPTIONS")

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


@dataclass(frozen=True)
class Guard:
    """Wraps the console: bounds bodies, refuses requests that another site triggers, and sets protective headers."""

    app: ASGIApp
    refusal: Callable[[Request, Exception], Response]
    hosts: frozenset[str] = frozenset()  # Host names under which the console is served; empty for any

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope.update(mounted_place(scope))
        headers = Headers(scope=scope)
        length = whole(headers.get("content-length", "0"))
        is_small = length is not None and length <= MAX_BODY_BYTES
        body = _Body(receive, has_body="transfer-encoding" in headers or headers.get("content-length", "0") != "0")

        async def safe_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                sent = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    sent[name] = value
                if "cache-control" not in sent:
                    sent["cache-control"] = "no-store"
                if is_small and "content-length" in headers:
                    await body.discard()  # a connection that is closed with unread data loses the answer
                if not body.is_complete:  # so that the server does not read the rest
                    sent["connection"] = "close"
            await send(message)

        refusal = self._refused(scope["method"], headers) if is_small else too_large()
        if refusal is None:
            await self.app(scope, body.receive, safe_send)
        else:
            await self.refusal(Request(scope), refusal)(scope, receive, safe_send)

    def _refused(self, method: str, headers: Headers) -> HTTPException | None:
        if self.hosts and host_of(headers.get("host", "")).lower() not in self.hosts:
            return HTTPException(421, "The console is not served under this host name (--allowed-host).")
        if method not in _SAFE and not is_own(headers, self.hosts):
            return HTTPException(403, "This request comes from another site, so nothing was done.")
        return None


def too_large() -> HTTPException:
    most = f"{MAX_BODY_BYTES // 1024} KiB"
    return HTTPException(413, f"The body of a request has at most {most}. Use a filter for many jobs.")


class _Body:
    """The body of a request, bounded in size and time."""

    def __init__(self, receive: Receive, has_body: bool) -> None:
        self._receive = receive
        self._bytes = 0
        self._until: float | None = None
        self.is_complete = not has_body

    async def discard(self) -> None:
        """Reads the rest, as far as it arrives soon."""
        with suppress(HTTPException, TimeoutError):
            async with asyncio.timeout(_DISCARD_SECONDS):
                while not self.is_complete:
                    await self.receive()

    async def receive(self) -> Message:
        if self.is_complete:
            return await self._receive()  # waits for the end of the connection
        loop = asyncio.get_running_loop()
        self._until = self._until or loop.time() + BODY_TIMEOUT_SECONDS
        try:
            async with asyncio.timeout_at(self._until):
                message = await self._receive()
        except TimeoutError:
            raise HTTPException(408, "The body of the request did not arrive in time.") from None
        self._bytes += len(message.get("body", b""))
        if self._bytes > MAX_BODY_BYTES:
            raise too_large()
        self.is_complete = not message.get("more_body", False)
        return message


def mounted_place(scope: Scope) -> dict[str, str]:
    """The path of a request and the path of the mount, as Starlette's router expects them.

    Litestar removes the path of the mount from `path` without adding it to `root_path`, and appends a slash. The
    raw path is unchanged.
    """
    root = scope.get("root_path", "").rstrip("/")
    page = scope["path"].rstrip("/")
    if page == root or page.startswith(f"{root}/"):
        page = page.removeprefix(root)
    sent = unquote(scope.get("raw_path", b"").partition(b"?")[0].decode("latin-1")).rstrip("/")
    if page != sent.removeprefix(root) and sent.endswith(page):
        # One slash at the start: a browser takes two as the name of another host.
        root = f"/{sent.removesuffix(page).strip('/')}".rstrip("/")
    return {"root_path": root, "path": f"{root}{page or '/'}"}


def is_own(headers: Headers, hosts: Collection[str] = ()) -> bool:
    """Whether a request that changes something comes from the console's own page, or from no page at all. Browsers send
    where a request comes from, and no page can change it; scripts on a command line send nothing. A proxy may rewrite
    Host, so the origin is compared only if the browser does not say `same-origin` itself."""
    site = headers.get("sec-fetch-site")
    if site == "same-origin":
        return True
    if site not in (None, "none"):
        return False
    origin = headers.get("origin")
    if origin is None:
        return True
    try:
        place = urlsplit(origin).netloc.lower()
    except ValueError:
        return False
    return bool(place) and (
        place in (headers.get("host", "").lower(), headers.get("x-forwarded-host", "").lower())
        or host_of(place) in hosts
    )
