"""The web console and its JSON API: `app.mount("/jobs", dashboard(recruiter))`. Needs the extra `web`."""

from __future__ import annotations

from recruiter.app import Recruiter
from recruiter.first_use import missing_extra

try:
    from fastapi import FastAPI

    from recruiter.web.access import DEFAULT_SECRETS, Access, BasicAuth, Loopback, ProxyHeader
    from recruiter.web.console import Console
except ModuleNotFoundError as error:
    raise missing_extra("web", error) from None

__all__ = ["BasicAuth", "ProxyHeader", "dashboard"]


def dashboard(
    recruiter: Recruiter,
    *,
    access: Access | None = None,
    actions: bool = False,
    redact: str = DEFAULT_SECRETS,
    title: str | None = None,
) -> FastAPI:
    """The web console and its JSON API, for any ASGI application: `app.mount("/jobs", dashboard(recruiter))`.

    `access` says who may look: `BasicAuth({"ada": "secret"})`, `ProxyHeader("X-Forwarded-User")`, or a dependency of
    your own that returns who it is, and raises or returns None for nobody. Without it, the names and passwords in
    RECRUITER_WEB_USERS; without these, only this machine itself may look. Without `actions=True` it is read-only.
    `redact` is a regular expression: values whose key it finds are not shown.
    """
    chosen = access or BasicAuth.from_environment() or Loopback()
    return Console(recruiter, chosen, actions, redact, title).app()
