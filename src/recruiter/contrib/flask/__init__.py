"""Recruiter in Flask: an extension with `init_app`, jobs that run in the application's context, and `flask recruiter`.

docs/how-to/flask.md has an application.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any

from recruiter.first_use import missing_extra

try:
    import click
    from flask import Flask, current_app, has_app_context
    from flask.cli import ScriptInfo
except ModuleNotFoundError as error:
    raise missing_extra("flask", error) from None

from recruiter.app import Recruiter
from recruiter.cli.main import run
from recruiter.domain.duration import DurationLike
from recruiter.errors import ApplicationError
from recruiter.producer import WEB_PATIENCE_SECONDS
from recruiter.registry import FunctionTask, Registry
from recruiter.store.database import TargetLike

__all__ = ["FlaskRecruiter"]

_APPLICATION = "recruiter.contrib.flask.application"


class FlaskRecruiter(Recruiter):
    """A Recruiter for a Flask application. Its functions run as jobs inside `app.app_context()`.

    `app.config["RECRUITER_TARGET"]` is the address of MongoDB. Without it, `target` and the settings apply, as for any
    Recruiter. Other extensions find it as `app.extensions["recruiter"]`. In the web process, calls raise
    StoreUnreachable when MongoDB has not answered for `server_timeout`, by default five seconds.
    """

    def __init__(
        self,
        app: Flask | None = None,
        target: TargetLike | None = None,
        *,
        prefix: str | None = None,
        server_timeout: DurationLike | None = None,
    ) -> None:
        super().__init__(target, prefix=prefix, server_timeout=server_timeout)
        self.default_patience = WEB_PATIENCE_SECONDS
        self.registry = _InContext(self)
        self._app: Flask | None = None
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Belongs to this application from now on. Adds the command `flask recruiter`."""
        self._app = app
        app.extensions["recruiter"] = self
        target = app.config.get("RECRUITER_TARGET")
        if target is not None:
            self.point_at(target)
        app.cli.add_command(_command)

    @property
    def app(self) -> Flask:
        """The application that jobs run in. Raises ApplicationError before `init_app`."""
        if self._app is None:
            raise ApplicationError(
                f"this FlaskRecruiter has no application: call init_app(app), and let workers load it "
                f"with `flask recruiter start worker`, or --bootstrap {_APPLICATION}"
            )
        return self._app


class _InContext(Registry):
    """Tasks whose functions run in the application's context. A plain call is unchanged."""

    def __init__(self, recruiter: FlaskRecruiter) -> None:
        super().__init__()
        self._recruiter = recruiter

    def add(self, task: FunctionTask) -> None:
        super().add(replace(task, function=self._wrapped(task.function)))

    def _wrapped(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(function):

            @wraps(function)
            async def run_async(*args: Any, **kwargs: Any) -> Any:
                with self._recruiter.app.app_context():
                    return await function(*args, **kwargs)

            return run_async

        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with self._recruiter.app.app_context():
                return function(*args, **kwargs)

        return run


@click.command(
    "recruiter",
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    help="Runs `recruiter` with this application loaded, on its MongoDB: flask recruiter start worker.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def _command(context: click.Context, arguments: Sequence[str]) -> None:
    info = context.ensure_object(ScriptInfo)
    if info.app_import_path:
        os.environ["FLASK_APP"] = str(info.app_import_path)
    app = current_app if has_app_context() else info.load_app()
    os.environ.setdefault("RECRUITER_BOOTSTRAP", _APPLICATION)
    # The environment, not an argument: every user can read the arguments of a process.
    target = app.extensions["recruiter"].target
    os.environ.setdefault("RECRUITER_TARGET", target.uri)
    os.environ.setdefault("RECRUITER_PREFIX", target.prefix)
    run(arguments)
