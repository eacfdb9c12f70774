"""The web console and its JSON API: `app.mount("/jobs", dashboard(recruiter, access=…))`. Needs the extra `web`."""

from __future__ import annotations

from collections.abc import Collection

from recruiter.app import Recruiter
from recruiter.first_use import missing_extra

try:
    from fastapi import FastAPI

    from recruiter.web.access import Access, BasicAuth, Closed, ProxyHeader, User
    from recruiter.web.console import Console
    from recruiter.web.redaction import Redaction
except ModuleNotFoundError as error:
    raise missing_extra("web", error) from None

__all__ = ["BasicAuth", "ProxyHeader", "User", "dashboard"]


def dashboard(
    recruiter: Recruiter,
    *,
    access: Access | None = None,
    actions: bool = False,
    redact: str | None = None,
    redact_only: str | None = None,
    title: str | None = None,
    hosts: Collection[str] = (),
) -> FastAPI:
    """The web console and its JSON API, for any ASGI application: `app.mount("/jobs", dashboard(recruiter, access=…))`.

    `access` decides who may look: `BasicAuth({"ada": "secret"})`, `ProxyHeader("X-Forwarded-User")`, or your own
    dependency. A dependency returns the user: a name, an object with a name, or `User("ada", "viewer")`. It raises or
    returns None for a stranger. Without `access`, RECRUITER_WEB_USERS sets the users. If it is not set, the console
    refuses every request.

    Without `actions=True` the console is read-only. With it, operators may act, and viewers may not.

    `redact` is a regular expression: values of arguments whose name it matches are hidden, in addition to passwords,
    tokens and the like. `redact_only` replaces that list. `hosts` are the host names under which the console is served;
    requests for another name are refused.
    """
    chosen = access or BasicAuth.from_environment() or Closed()
    return Console(recruiter, chosen, actions, Redaction(redact, redact_only), title, hosts).app()
