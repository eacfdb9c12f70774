"""The users of Django in the web console: `dashboard(recruiters()["default"], access=signed_in, actions=True)`."""

from __future__ import annotations

from importlib import import_module

from django.conf import settings
from django.contrib.auth import get_user
from django.db import close_old_connections
from django.http import HttpRequest
from fastapi import Request

from recruiter.web import User

_PERMISSION = "recruiter.{}_backgroundjob"


def signed_in(request: Request) -> User | None:
    """The user of Django's session: an operator with the permission "Can change job", a viewer with "Can view job",
    otherwise None."""
    close_old_connections()
    try:
        sessions = import_module(settings.SESSION_ENGINE)
        django_request = HttpRequest()
        django_request.session = sessions.SessionStore(request.cookies.get(settings.SESSION_COOKIE_NAME))
        user = get_user(django_request)
        if user.has_perm(_PERMISSION.format("change")):
            return User(user.get_username(), "operator")
        return User(user.get_username(), "viewer") if user.has_perm(_PERMISSION.format("view")) else None
    finally:
        close_old_connections()
