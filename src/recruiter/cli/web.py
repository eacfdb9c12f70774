"""`recruiter web`: the web console."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from cyclopts import Parameter
from rich.text import Text

from recruiter.app import Recruiter
from recruiter.cli import options as given
from recruiter.cli.options import PATIENCE, application_recruiter
from recruiter.cli.output import console, write
from recruiter.errors import SettingsError

PORT = 8420
_MISSING = 'the web console needs one more package: pip install "recruiter[web]"'

Several = Annotated[list[str] | None, Parameter(negative=())]


def web(
    *,
    host: str = "127.0.0.1",
    port: int = PORT,
    actions: Annotated[bool, Parameter(negative=())] = False,
    trust_header: str | None = None,
    trusted_proxy: Several = None,
    redact: str | None = None,
    root_path: str = "",
    common: given.ApplicationOptions = given.ApplicationOptions(),
) -> None:
    """The web console: overview, jobs, workers, groups and limits, schedules and problems, live; and a JSON API.

    It listens on this machine only and is read-only. RECRUITER_WEB_USERS=ada:secret,bob:other sets the users.

    Parameters
    ----------
    host
        The address to listen on; any address but this machine's needs users who sign in.
    port
        The port to listen on; 0 for any free port.
    actions
        Allow users to cancel, recover and remove jobs, to pause, to limit and to run. Each action is recorded.
    trust_header
        The header in which a proxy in front says whom it has signed in: X-Forwarded-User.
    trusted_proxy
        The address or network of that proxy; may be repeated (default: this machine).
    redact
        A regular expression: arguments whose name it finds are not shown (default: passwords, tokens and the like).
    root_path
        The path under which a proxy in front serves it: /jobs.
    """
    server, package = _modules()
    access = server.access_of(host, trust_header, trusted_proxy or [])
    with application_recruiter(common) as recruiter:
        recruiter.patience = PATIENCE
        recruiter.store.check()
        wanted: dict[str, Any] = {} if redact is None else {"redact": redact}
        app = package.dashboard(recruiter, access=access, actions=actions, **wanted)
        opened = server.bound(host, port)
        told = "" if actions else ", read-only (--actions lets it act)"
        place = f"{server.address_of(opened).rstrip('/')}{root_path.rstrip('/')}/"
        write(console(stderr=True), Text.assemble("web console at ", (place, "bold"), told), soft_wrap=True)
        server.serve(app, opened, root_path)


@contextmanager
def beside(target: str) -> Iterator[str | None]:
    """The console from a thread of this process, on this database, allowed to act; gives its address, or None where the
    extra is not installed. For development: it listens on this machine only."""
    if not is_installed():
        yield None
        return
    server, package = _modules()
    with Recruiter(target) as recruiter, server.served_at(package.dashboard(recruiter, actions=True), PORT) as address:
        yield address


def _modules() -> tuple[Any, Any]:
    """Imported here, because the extra may not be installed, and because other commands need not wait for it."""
    try:
        return importlib.import_module("recruiter.web.server"), importlib.import_module("recruiter.web")
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("recruiter"):
            raise
        raise SettingsError(_MISSING) from None


def is_installed() -> bool:
    """Whether the extra is there."""
    return all(importlib.util.find_spec(name) is not None for name in ("fastapi", "jinja2", "uvicorn", "multipart"))
