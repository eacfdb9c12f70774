"""`recruiter shell`: a Python shell with the application loaded."""

from __future__ import annotations

import code
import importlib
import sys
import traceback
from collections.abc import Mapping
from typing import Any

from recruiter.app import Recruiter
from recruiter.application import Application, load_application
from recruiter.cli import options as given
from recruiter.cli.options import settings_from


def shell(
    file: str | None = None,
    /,
    *,
    execute: str | None = None,
    common: given.ApplicationOptions = given.ApplicationOptions(),
) -> int:
    """A Python shell with the names of the application and `recruiter`, connected to the MongoDB that you name.

    Parameters
    ----------
    file
        Your application: FILE.py or MODULE; add :NAME if it has several Recruiters.
    execute
        Run this statement and end.
    """
    settings = settings_from(common)
    application = load_application(file or settings.bootstrap)
    if "target" in settings.model_fields_set:
        application.point_at(settings.target)
    recruiter = _recruiter(application, settings.target)
    names = _names(application, recruiter)
    if execute is not None:
        return _run(execute, names)
    if sys.stdin.isatty():
        _complete(names)
    code.interact(banner=_banner(application, recruiter), local=names, exitmsg="")
    return 0


def _recruiter(application: Application, target: str) -> Recruiter:
    owners = [owner for owner in application.owners if isinstance(owner, Recruiter)]
    return owners[0] if owners else Recruiter(target)


def _names(application: Application, recruiter: Recruiter) -> dict[str, Any]:
    """The public names of the application, as if they had been typed here."""
    own = vars(application.module) if application.module is not None else {}
    public = {name: value for name, value in own.items() if not name.startswith("_")}
    return {"__name__": "__console__", "recruiter": recruiter, **public}


def _banner(application: Application, recruiter: Recruiter) -> str:
    tasks = ", ".join(sorted(application.registry.own_names)) or "none"
    return f"Recruiter on {recruiter.target}. Tasks: {tasks}. `recruiter` is the application; Ctrl-D ends."


def _run(statement: str, names: dict[str, Any]) -> int:
    """Like a line that is typed: the value of an expression is printed. Exit code 1 if it raises."""
    try:
        exec(compile(f"{statement}\n", "<execute>", "single"), names)
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def _complete(names: Mapping[str, Any]) -> None:
    """Completes names with the Tab key, where Python was built with readline."""
    try:
        readline = importlib.import_module("readline")
    except ImportError:
        return
    rlcompleter = importlib.import_module("rlcompleter")
    readline.set_completer(rlcompleter.Completer(dict(names)).complete)
    readline.parse_and_bind("tab: complete")
