"""Access: which users may read, which may act, and the name under which a user acts.

LocalToken      this machine only, with the token in the link that `recruiter web` prints
BasicAuth       names and passwords, from the environment or given
ProxyHeader     a proxy has signed the user in and sends the name in a header
a dependency    the application's own: any callable that FastAPI's `Depends` takes
Closed          a console without any of these refuses every request
"""

from __future__ import annotations

import base64
import binascii
import logging
import os
import secrets
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Any, Literal
from urllib.parse import quote, unquote, urlencode

from fastapi import HTTPException, Request

from recruiter.domain.text import one_line
from recruiter.errors import SettingsError

USERS_VARIABLE = "RECRUITER_WEB_USERS"  # `ada:secret,bob:other`: users and passwords
TOKEN_VARIABLE = "RECRUITER_WEB_TOKEN"  # A token to use instead of a new one at each start
SECRET_VARIABLE = "RECRUITER_WEB_PROXY_SECRET"  # The secret that the proxy sends in `SECRET_HEADER`
SECRET_HEADER = "x-recruiter-secret"
MIN_TOKEN_CHARACTERS = 16

MAX_WRONG_PASSWORDS = 10  # Per name, and per address, within `WRONG_PASSWORDS_WINDOW_SECONDS`
WRONG_PASSWORDS_WINDOW_SECONDS = 60.0
MAX_REMEMBERED_KEYS = 10_000

_FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")
_LOCAL_USER = "a local user"
_log = logging.getLogger("recruiter.web")

Role = Literal["viewer", "operator"]


@dataclass(frozen=True, slots=True)
class User:
    """A user with access: the name that is recorded with actions, and the role.

    A viewer reads. An operator also acts, if the console allows actions.
    """

    name: str
    role: Role = "operator"

    def __post_init__(self) -> None:
        if self.role not in ("viewer", "operator"):
            raise SettingsError(f"a user of the console is a viewer or an operator, not {self.role!r}")

    @property
    def can_act(self) -> bool:
        """Whether the user may change something."""
        return self.role == "operator"


def user_of(who: object) -> User:
    """The user in the value that an access dependency returned. Raises HTTPException if there is none."""
    if isinstance(who, User):
        return who
    if who is None or who is False or who == "":
        raise HTTPException(401, "You are not signed in.")
    if isinstance(who, str):
        return User(who)
    for attribute in ("username", "name", "email", "id"):
        value = who.get(attribute) if isinstance(who, Mapping) else getattr(who, attribute, None)
        if isinstance(value, str | int) and not isinstance(value, bool):
            return User(str(value))
    return User("somebody" if who is True else str(who))


class Closed:
    """The access of a console that was given none: it refuses every request."""

    security: Mapping[str, Any] = {}

    async def __call__(self) -> User:
        raise HTTPException(
            403,
            "This console has no access rule, so it refuses every request. Pass access=… to dashboard(), or set "
            f'{USERS_VARIABLE}=name:password ("The web console" in the docs).',
        )


class LocalToken:
    """Allows only direct requests from this machine that have the token.

    The link with the token sets a cookie, which no other site can use. Scripts send the token as a bearer token. A
    forwarded request is refused, and so is a request of a web page whose host name was made to point here (DNS
    rebinding).
    """

    security: Mapping[str, Any] = {"token": {"type": "http", "scheme": "bearer"}}

    def __init__(self, token: str | None = None) -> None:
        self.token = token or os.environ.get(TOKEN_VARIABLE, "").strip() or secrets.token_urlsafe(24)
        if len(self.token) < MIN_TOKEN_CHARACTERS:
            raise SettingsError(f"{TOKEN_VARIABLE} needs at least {MIN_TOKEN_CHARACTERS} characters")

    def link(self, address: str) -> str:
        """The address of the console with the token."""
        return f"{address}?{urlencode({'token': self.token})}"

    async def __call__(self, request: Request) -> User:
        client = client_of(request) or ""
        is_forwarded = any(name in request.headers for name in _FORWARDED)
        if is_forwarded or not is_loopback(client) or not is_loopback(host_of(request.headers.get("host", ""))):
            _log.warning("refused a request from %s that is not a direct request of this machine", client or "nowhere")
            raise HTTPException(
                403,
                "Without sign-in, the console answers only direct requests from this machine. Set "
                f'{USERS_VARIABLE}=name:password, or use a proxy with sign-in ("The web console" in the docs).',
            )
        if self._is_right(request.query_params.get("token")):
            raise HTTPException(303, headers=self._signed_in(request))
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        cookie = request.cookies.get(_cookie_name(request), "")
        if self._is_right(unquote(cookie)) or (scheme.lower() == "bearer" and self._is_right(bearer.strip())):
            return User(_LOCAL_USER)
        raise HTTPException(
            401,
            "Open the link that the command printed: it contains the token of this console. If this browser has opened "
            "it before, load this page again.",
            {"www-authenticate": "Bearer"},
        )

    def _is_right(self, token: str | None) -> bool:
        return token is not None and secrets.compare_digest(token.encode(), self.token.encode())

    def _signed_in(self, request: Request) -> dict[str, str]:
        """The token moves from the address to a cookie, so that it is in no history and no copied link."""
        path = f"{request.scope.get('root_path', '')}/"
        cookie = f"{_cookie_name(request)}={quote(self.token)}; Path={quote(path)}; HttpOnly; SameSite=Strict"
        others = [(key, value) for key, value in request.query_params.multi_items() if key != "token"]
        query = f"?{urlencode(others)}" if others else ""
        return {"location": quote(request.scope["path"]) + query, "set-cookie": cookie}


def _cookie_name(request: Request) -> str:
    """Cookies do not know ports. With the port in its name, consoles on one machine keep apart."""
    return f"recruiter_token_{request.url.port or 80}"


class BasicAuth:
    """Names and passwords. Put TLS in front: passwords are sent unencrypted.

    Only `operators` may act; None stands for all users. `proxies` are addresses or networks of proxies: behind them,
    the last address in X-Forwarded-For is the address of the user. After ten wrong passwords within a minute for one
    name, or from one address, the answer is 429.
    """

    security: Mapping[str, Any] = {"basic": {"type": "http", "scheme": "basic"}}

    def __init__(
        self, users: Mapping[str, str], operators: Collection[str] | None = None, proxies: Iterable[str] = ()
    ) -> None:
        if not users or not all(name and password for name, password in users.items()):
            raise SettingsError(f"{USERS_VARIABLE} needs a name and a password for each user: NAME:WORD,NAME:WORD")
        for name in operators or ():
            if name not in users:
                raise SettingsError(f"the operator {name!r} is no user; users: {', '.join(users)}")
        self._users = dict(users)
        self._operators = operators
        self._proxies = _networks(proxies)
        self._wrong = _Attempts()
        self._places: dict[tuple[str, str], None] = {}
        """Names with the addresses from which they have signed in: guesses from elsewhere do not lock them out."""

    @classmethod
    def from_environment(
        cls, operators: Collection[str] | None = None, proxies: Iterable[str] = ()
    ) -> BasicAuth | None:
        """Of RECRUITER_WEB_USERS; None when it is not set. Raises SettingsError when it makes no sense."""
        text = os.environ.get(USERS_VARIABLE, "").strip()
        if not text:
            return None
        pairs = [part.strip().partition(":") for part in text.split(",") if part.strip()]
        return cls({name: password for name, _, password in pairs}, operators, proxies)

    async def __call__(self, request: Request) -> User:
        challenge = {"www-authenticate": 'Basic realm="Recruiter", charset="UTF-8"'}
        name, password = _credentials(request.headers.get("authorization", ""))
        if not name and not password:
            raise HTTPException(401, "Sign in.", challenge)
        address = self._address_of(request)
        keys = [f"from {address}"] if (name, address) in self._places else [f"for {name}", f"from {address}"]
        wait = self._wrong.wait(keys)
        if wait > 0:
            raise HTTPException(
                429, f"Too many wrong passwords. Try again in {wait:.0f} s.", {"retry-after": f"{wait:.0f}"}
            )
        known = self._users.get(name)
        # Always compares, so that the time it takes reveals nothing.
        is_right = secrets.compare_digest(
            password.encode(), (known if known is not None else secrets.token_hex()).encode()
        )
        if known is None or not is_right:
            who = one_line(name) if known is not None else "an unknown user"  # a password may be in the wrong field
            _log.warning("refused the password of %s from %s", who, address)
            if self._wrong.add([f"for {name}", f"from {address}"]):
                _log.warning("too many wrong passwords of %s from %s: refusing more for a while", who, address)
            raise HTTPException(401, "Sign in.", challenge)
        self._places[name, address] = None
        while len(self._places) > MAX_REMEMBERED_KEYS:
            self._places.pop(next(iter(self._places)))
        return _with_role(name, self._operators)

    def _address_of(self, request: Request) -> str:
        client = client_of(request) or ""
        forwarded = ",".join(request.headers.getlist("x-forwarded-for")).rpartition(",")[2].strip()
        return forwarded if forwarded and _is_in(client, self._proxies) else client


class _Attempts:
    """Failures by key, within a window of time."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._failures: dict[str, deque[float]] = {}

    def wait(self, keys: Iterable[str]) -> float:
        """Seconds until the next attempt is allowed; at least 1, or 0 for now."""
        ends = [
            failures[0] + WRONG_PASSWORDS_WINDOW_SECONDS
            for failures in map(self._failures.get, keys)
            if failures is not None and len(failures) == MAX_WRONG_PASSWORDS
        ]
        wait = max(ends, default=0.0) - self._monotonic()
        return max(1.0, wait) if wait > 0 else 0.0

    def add(self, keys: Iterable[str]) -> bool:
        """Counts a failure for each key; returns whether one of them is now at its bound."""
        now, is_full = self._monotonic(), False
        for key in keys:
            failures = self._failures.setdefault(key, deque(maxlen=MAX_WRONG_PASSWORDS))
            failures.append(now)
            is_full |= len(failures) == MAX_WRONG_PASSWORDS and now - failures[0] < WRONG_PASSWORDS_WINDOW_SECONDS
        while len(self._failures) > MAX_REMEMBERED_KEYS:
            self._failures.pop(next(iter(self._failures)))
        return is_full


class ProxyHeader:
    """The user that a proxy has signed in, from a header.

    The proxy proves itself by a secret in the header `X-Recruiter-Secret`: `secret`, or RECRUITER_WEB_PROXY_SECRET.
    Without a secret, it must connect through a socket file. With a secret, `trusted` bounds the addresses of the proxy.
    Only `operators` may act; None stands for all users.
    """

    def __init__(
        self,
        header: str,
        trusted: Iterable[str] = (),
        *,
        secret: str | None = None,
        operators: Collection[str] | None = None,
    ) -> None:
        self._header = header
        self._trusted = _networks(trusted)
        self._secret = secret or os.environ.get(SECRET_VARIABLE, "").strip()
        if self._secret and len(self._secret) < MIN_TOKEN_CHARACTERS:
            raise SettingsError(f"the secret of the proxy needs at least {MIN_TOKEN_CHARACTERS} characters")
        self._operators = operators
        self.security = {"proxy": {"type": "apiKey", "in": "header", "name": header}}

    @property
    def has_secret(self) -> bool:
        """Whether the proxy must prove itself by a shared secret."""
        return bool(self._secret)

    async def __call__(self, request: Request) -> User:
        if request.client is not None or self._secret:
            self._check_proxy(request)
        names = request.headers.getlist(self._header)
        if len(names) != 1 or not names[0].strip():
            raise HTTPException(401, f"The proxy sent no name in {self._header}.")
        return _with_role(_as_utf8(names[0].strip()), self._operators)

    def _check_proxy(self, request: Request) -> None:
        client = client_of(request) or "a socket file"
        sent = request.headers.get(SECRET_HEADER, "")
        if not self._secret or not secrets.compare_digest(sent.encode("latin-1", "replace"), self._secret.encode()):
            _log.warning("refused a request from %s without the secret of the proxy", client)
            raise HTTPException(
                403,
                f"Only the proxy that signs users in may connect. It sends {SECRET_VARIABLE} in the header "
                f"{SECRET_HEADER}, or connects through a socket file (--socket).",
            )
        if self._trusted and request.client is not None and not _is_in(client, self._trusted):
            _log.warning("refused a request from %s, which is not the address of the proxy", client)
            raise HTTPException(403, f"Only the proxy that signs users in may connect, not {client}.")


def client_of(request: Request) -> str | None:
    """The address of the other end of the connection; None for a socket file."""
    return None if request.client is None else request.client.host


Access = Closed | LocalToken | BasicAuth | ProxyHeader | Callable[..., Any]


def _with_role(name: str, operators: Collection[str] | None) -> User:
    return User(name, "operator" if operators is None or name in operators else "viewer")


def _as_utf8(header: str) -> str:
    """Servers decode headers as Latin-1, and proxies send UTF-8."""
    try:
        return header.encode("latin-1").decode("utf-8")
    except UnicodeError:
        return header


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


def _networks(addresses: Iterable[str]) -> list[Any]:
    try:
        return [ip_network(each, strict=False) for each in addresses]
    except ValueError as error:
        raise SettingsError(f"a trusted proxy is an address or a network, such as 10.0.0.0/8: {error}") from None


def _is_in(host: str, networks: Iterable[Any]) -> bool:
    address = _address(host)
    return address is not None and any(address in network for network in networks if network.version == address.version)


def host_of(header: str) -> str:
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
