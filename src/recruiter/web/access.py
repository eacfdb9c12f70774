"""Access: which users may read, and the name under which a user acts.

    loopback        no sign-in; only direct requests from this machine
    BasicAuth       names and passwords, from the environment or given
    ProxyHeader     a proxy has signed the user in and sends the name in a header
    a dependency    the application's own: any callable that FastAPI's `Depends` takes

In all cases, a request that changes something must come from the console's own pages (or from no page), no other site
may frame the console, and only its own scripts run.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_address, ip_network
from typing import Any
from urllib.parse import unquote, urlsplit

from fastapi import HTTPException, Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from recruiter.domain.text import SECRET_NAMES, mask
from recruiter.errors import SettingsError

USERS_VARIABLE = "RECRUITER_WEB_USERS"
"""`ada:secret,bob:other`: users and passwords."""

_FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")
_SAFE = ("GET", "HEAD", "OPTIONS")
_AFTER_A_WRONG_PASSWORD = 0.5
"""Seconds: guessing passwords takes time."""

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


class Loopback:
    """Allows only direct requests from this machine: no forwarded requests, and no requests of web pages whose host
    name was made to point here (DNS rebinding)."""

    async def __call__(self, request: Request) -> str:
        client = request.client.host if request.client is not None else ""
        passed_on = any(name in request.headers for name in _FORWARDED)
        if passed_on or not is_loopback(client) or not is_loopback(_host_of(request.headers.get("host", ""))):
            raise HTTPException(
                403,
                "Users do not sign in here, so only this machine may look. Set "
                f'{USERS_VARIABLE}=name:password, or give the console access=… ("The web console" in the docs).',
            )
        return "a local user"


class BasicAuth:
    """Names and passwords. Put TLS in front: they travel readable."""

    def __init__(self, users: Mapping[str, str]) -> None:
        if not users or not all(name and password for name, password in users.items()):
            raise SettingsError(f"{USERS_VARIABLE} needs a name and a password for each user: NAME:WORD,NAME:WORD")
        self._users = dict(users)

    @classmethod
    def from_environment(cls) -> BasicAuth | None:
        """Of RECRUITER_WEB_USERS; None when it is not set. Raises SettingsError when it makes no sense."""
        text = os.environ.get(USERS_VARIABLE, "").strip()
        if not text:
            return None
        pairs = [part.strip().partition(":") for part in text.split(",") if part.strip()]
        return cls({name: password for name, _, password in pairs})

    async def __call__(self, request: Request) -> str:
        name, password = _credentials(request.headers.get("authorization", ""))
        known = self._users.get(name)
        # Always compares, so that the time it takes reveals nothing.
        right = secrets.compare_digest(
            password.encode(), (known if known is not None else secrets.token_hex()).encode()
        )
        if known is None or not right:
            if name or password:
                await asyncio.sleep(_AFTER_A_WRONG_PASSWORD)
            raise HTTPException(401, "Sign in.", {"www-authenticate": 'Basic realm="Recruiter", charset="UTF-8"'})
        return name


class ProxyHeader:
    """The user that a proxy has signed in, from a header. Only the trusted proxy is believed."""

    def __init__(self, header: str, trusted: Iterable[str] = ("127.0.0.0/8", "::1/128")) -> None:
        self._header = header
        try:
            self._trusted = [ip_network(each, strict=False) for each in trusted]
        except ValueError as error:
            raise SettingsError(f"a trusted proxy is an address or a network, such as 10.0.0.0/8: {error}") from None

    async def __call__(self, request: Request) -> str:
        client = _address(request.client.host if request.client is not None else "")
        if client is None or not any(
            client in network for network in self._trusted if network.version == client.version
        ):
            raise HTTPException(403, f"Only the proxy that signs users in may connect, not {client}.")
        named = request.headers.getlist(self._header)
        if len(named) != 1 or not named[0].strip():
            raise HTTPException(401, f"The proxy sent no name in {self._header}.")
        return named[0].strip()


Access = Loopback | BasicAuth | ProxyHeader | Callable[..., Any]


def name_of(who: object) -> str:
    """The name in the value that the application's dependency returned. Raises HTTPException if it is no user."""
    if who is None or who is False or who == "":
        raise HTTPException(401, "You are not signed in.")
    if isinstance(who, str):
        return who
    for attribute in ("username", "name", "email", "id"):
        value = who.get(attribute) if isinstance(who, Mapping) else getattr(who, attribute, None)
        if isinstance(value, str | int) and not isinstance(value, bool):
            return str(value)
    return "somebody" if who is True else str(who)


@dataclass(frozen=True)
class Guard:
    """Wraps the console: refuses what another site makes a browser send, and sets the headers that keep it safe."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope.update(mounted_place(scope))

        async def safe_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                if "cache-control" not in headers:
                    headers["cache-control"] = "no-store"
            await send(message)

        headers = Headers(scope=scope)
        if scope["method"] not in _SAFE and not is_own(headers):
            told = "This request comes from another site, so nothing was done.\n"
            await PlainTextResponse(told, 403)(scope, receive, safe_send)
            return
        await self.app(scope, receive, safe_send)


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


def is_own(headers: Headers) -> bool:
    """Whether a request that changes something comes from the console's own page, or from no page at all. Browsers send
    the origin, and no page can change it; scripts on a command line send none."""
    site = headers.get("sec-fetch-site")
    if site is not None and site not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    if origin is None:
        return True
    try:
        place = urlsplit(origin).netloc
    except ValueError:
        return False
    return bool(place) and place.lower() in (
        headers.get("host", "").lower(),
        headers.get("x-forwarded-host", "").lower(),
    )


def is_loopback(host: str) -> bool:
    """An address of this machine, or its name."""
    if host.lower().rstrip(".") == "localhost":
        return True
    address = _address(host)
    return address is not None and address.is_loopback


def _address(host: str) -> Any:
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _host_of(header: str) -> str:
    """Without the port."""
    return header.rpartition("]")[0] + "]" if header.startswith("[") else header.partition(":")[0]


def _credentials(header: str) -> tuple[str, str]:
    scheme, _, value = header.partition(" ")
    if scheme.lower() != "basic":
        return "", ""
    try:
        name, _, password = base64.b64decode(value, validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        return "", ""
    return name, password


# -- redaction -----------------------------------------------------------------------------------------------------


DEFAULT_SECRETS = SECRET_NAMES
HIDDEN = "••••••"
"""Shown instead of a secret."""

_LONGEST_LINE = 160
_DEEPEST = 60


class Redaction:
    """Makes stored values JSON-compatible, with secrets hidden.

    Only keys decide: a password that is a positional argument, or part of a message or of a log, is shown.
    """

    def __init__(self, pattern: str = DEFAULT_SECRETS) -> None:
        self._pattern = re.compile(pattern, re.IGNORECASE) if pattern else None

    def hides(self, key: str) -> bool:
        """Whether the value of this key, or of a key in this path, is a secret."""
        return self._pattern is not None and self._pattern.search(key) is not None

    def plain(self, value: Any, depth: int = 0) -> Any:
        if isinstance(value, str):
            return mask(value)
        if value is None or isinstance(value, bool | int | float):
            return value
        if depth > _DEEPEST:
            return "…"
        if isinstance(value, Mapping):
            return {
                str(key): HIDDEN if self.hides(str(key)) else self.plain(inner, depth + 1)
                for key, inner in value.items()
            }
        if hasattr(value, "_asdict"):
            return self.plain(value._asdict(), depth)
        if isinstance(value, list | tuple | set | frozenset):
            return [self.plain(inner, depth + 1) for inner in value]
        if isinstance(value, datetime):
            return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
        return f"{len(value):,} bytes" if isinstance(value, bytes) else str(value)

    def line(self, args: Any) -> str:
        """Arguments in one line, like a call: `to="ada@b.c", order=7`."""
        plain = self.plain(args)
        if isinstance(plain, dict):
            parts = [f"{key}={_short(value)}" for key, value in list(plain.items())[:20]]
        elif isinstance(plain, list):
            parts = [_short(value) for value in plain[:20]]
        else:
            parts = [] if plain is None else [_short(plain)]
        text = ", ".join(parts)
        return text if len(text) <= _LONGEST_LINE else f"{text[:_LONGEST_LINE]}…"


def _short(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value[:_LONGEST_LINE]}"' if value != HIDDEN else HIDDEN
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_short(inner)}" for key, inner in list(value.items())[:8]) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_short(inner) for inner in value[:8]) + (", …]" if len(value) > 8 else "]")
    return str(value).lower() if isinstance(value, bool) else "null" if value is None else str(value)
