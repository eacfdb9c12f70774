"""`recruiter web` and `recruiter metrics`: the commands that serve HTTP."""

from __future__ import annotations

import importlib
import importlib.util
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Parameter
from rich.text import Text

from recruiter.app import Recruiter
from recruiter.cli import options as given
from recruiter.cli.output import console, say, write
from recruiter.errors import SettingsError, StoreUnreachable
from recruiter.first_use import installing
from recruiter.store.connection import Target

PORT = 8420

Several = Annotated[list[str] | None, Parameter(negative=())]


@Parameter(name="*")
@dataclass(frozen=True)
class ConsoleOptions:
    host: str = "127.0.0.1"
    "The address to listen on; an address that other machines can reach needs users who sign in."
    port: given.Port = PORT
    "The port to listen on; 0 for any free port."
    actions: given.Flag = False
    """Allow users to cancel, recover and remove jobs, to pause, to set limits and to run schedules. Each action is
    recorded."""
    trust_header: str | None = None
    """The header in which a proxy sends the name of the user it has signed in: X-Forwarded-User. Needs
    RECRUITER_WEB_PROXY_SECRET, which the proxy sends in X-Recruiter-Secret, or --socket."""
    trusted_proxy: Several = None
    "The address or network of the proxy; may be repeated (default: any address, with the secret)."
    socket: str | None = None
    "Listen on this socket file instead of a port, for a proxy on this machine."
    allowed_host: Several = None
    """A host name under which the console is served; may be repeated (default: any name). Requests for other names are
    refused."""
    operator: Several = None
    "A user who may act, with --actions; may be repeated (default: every user). Other users may only look."
    redact: given.Pattern = None
    """A regular expression: arguments whose names match it are hidden too, in addition to passwords, tokens and the
    like."""
    redact_only: given.Pattern = None
    "The same, but instead of passwords, tokens and the like. An empty text hides nothing."
    root_path: str = ""
    "The path under which a proxy serves the console: /jobs. The proxy may remove it or keep it."


def web(
    *, own: ConsoleOptions = ConsoleOptions(), common: given.ApplicationOptions = given.ApplicationOptions()
) -> None:
    """`recruiter web`."""
    server, package = _imported("recruiter.web.server", "web"), _imported("recruiter.web", "web")
    access = server.access_of(own.host, own.trust_header, own.trusted_proxy or [], own.operator, own.socket)
    with given.application_recruiter(common) as recruiter:
        recruiter.patience = given.PATIENCE_SECONDS
        recruiter.store.check()
        app = package.dashboard(
            recruiter,
            access=access,
            actions=own.actions,
            redact=own.redact,
            redact_only=own.redact_only,
            hosts=own.allowed_host or (),
        )
        opened = server.bound(own.host, own.port) if own.socket is None else server.bound_file(own.socket)
        read_only = "" if own.actions else ", read-only (--actions allows actions)"
        place = own.socket or server.link_of(server.address_of(opened), own.root_path, access)
        write(console(stderr=True), Text.assemble("web console at ", (place, "bold"), read_only), soft_wrap=True)
        server.serve(app, opened, own.root_path)


@contextmanager
def dev_console(target: Target) -> Iterator[str | None]:
    """Serves the console from a thread of this process, with actions; yields its address, or None if the extra is not
    installed. For development: it listens on this machine only."""
    if any(importlib.util.find_spec(name) is None for name in ("fastapi", "jinja2", "uvicorn", "multipart")):
        yield None
        return
    server, package = _imported("recruiter.web.server", "web"), _imported("recruiter.web", "web")
    access = server.access_of("127.0.0.1")
    with Recruiter(target.uri, prefix=target.prefix) as recruiter:
        app = package.dashboard(recruiter, access=access, actions=True)
        with server.served(app, port=PORT, or_any_port=True) as address:
            yield server.link_of(address, "", access)


def _imported(module: str, extra: str) -> Any:
    """Imports a module when it is used: its extra may not be installed, and other commands need not wait for it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("recruiter"):
            raise
        raise SettingsError(f"this needs the extra {extra!r}: {installing(extra)}") from None


def metrics(
    *,
    host: str = "127.0.0.1",
    port: given.Port = 9420,
    once: given.Flag = False,
    target: given.TargetOptions = given.TargetOptions(),
) -> int:
    """`recruiter metrics`.

    Args:
        host: The address to listen on; 0.0.0.0 for a scraper on another host.
        port: The port to listen on; 0 for any free port.
        once: Print the metrics once, and exit: with 4 if MongoDB cannot be read.
    """
    exposition = _imported("recruiter.metrics", "metrics")
    with given.recruiter_on(target) as recruiter:
        exposed = exposition.Exposition(recruiter)
        if once:
            recruiter.store.check()
            sys.stdout.write(exposed.written()[0].decode())
            return 0
        try:
            recruiter.store.check()
        except StoreUnreachable as error:  # any other error is permanent and ends the command
            say(f"{error}. recruiter_up is 0 until it answers", stderr=True)
        _serve(exposition.server(exposed, host, port))
    return 0


def _serve(server: Any) -> None:
    """Serves metrics until Ctrl-C or SIGTERM."""
    asked = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: asked.set())
    host, port = server.server_address[:2]
    say(f"metrics at http://{f'[{host}]' if ':' in host else host}:{port}/metrics", stderr=True)
    thread = threading.Thread(target=server.serve_forever, name="recruiter metrics", daemon=True)
    thread.start()
    asked.wait()
    server.shutdown()
    server.server_close()
