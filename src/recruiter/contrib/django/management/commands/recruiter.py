"""`manage.py recruiter …`: every command of Recruiter with this project loaded, on the MongoDB of its TASKS."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from recruiter.cli.main import run
from recruiter.contrib.django.backend import recruiters

_APPLICATION = "recruiter.contrib.django.application"


class Command(BaseCommand):  # type: ignore[misc]
    help = "Runs `recruiter` with this project loaded: manage.py recruiter start worker."
    requires_system_checks: Sequence[str] = []

    def run_from_argv(self, argv: Sequence[str]) -> None:
        """Every argument is Recruiter's own, `--help` too."""
        _run(argv[2:])

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("arguments", nargs=argparse.REMAINDER)

    def handle(self, *_args: Any, **options: Any) -> None:
        """For `call_command("recruiter", "job", "list")`."""
        try:
            _run(options["arguments"])
        except SystemExit as end:
            if end.code:
                raise CommandError(f"recruiter ended with code {end.code}", returncode=end.code) from None


def _run(arguments: Sequence[str]) -> None:
    """Runs `recruiter` with the application of this project loaded, on its MongoDB if its backends use only one."""
    targets = {each.target for each in recruiters().values()}
    if len(targets) == 1:
        # The environment, not an argument: every user can read the arguments of a process.
        target = targets.pop()
        os.environ.setdefault("RECRUITER_TARGET", target.uri)
        os.environ.setdefault("RECRUITER_PREFIX", target.prefix)
    os.environ.setdefault("RECRUITER_BOOTSTRAP", _APPLICATION)
    # The processes that are started import the settings from where manage.py is, as this one does.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (sys.path[0], os.environ.get("PYTHONPATH"))))
    connections.close_all()
    run(arguments)
