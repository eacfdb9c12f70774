"""`recruiter health`: an answer for probes and shells. No application is loaded."""

from __future__ import annotations

import socket
from contextlib import closing
from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from recruiter.cli.entry import ask_port
from recruiter.cli.options import HealthOptions, TargetOptions, settings_from, target_for
from recruiter.cli.output import say
from recruiter.errors import InvalidTarget, StoreError
from recruiter.settings import Settings
from recruiter.store.database import Store
from recruiter.views.health import Role, health


@dataclass(frozen=True)
class _Observed:
    host: str | None
    considered_dead_after: str | None


def health_(
    *,
    role: Annotated[list[Role] | None, Parameter(negative=())] = None,
    host: str | None = None,
    pid: int | None = None,
    live: bool = False,
    considered_dead_after: str | None = None,
    probes: HealthOptions = HealthOptions(),
    target: TargetOptions = TargetOptions(),
) -> int:
    """`recruiter health`.

    Args:
        role: Also check for a live process of this role; may be repeated.
        host: The host of the processes (default: this host).
        pid: Only the process with this id.
        live: For liveness probes: exit code 0 even if MongoDB does not answer, or cannot be used.
        considered_dead_after: How long a recruiter or a cleaner may be silent (default 15s). A worker declares its own
            time.
    """
    settings = settings_from(target, probes, _Observed(host, considered_dead_after))
    if settings.health_port is not None and not role:
        return ask_port(settings.health_host, settings.health_port, live)
    return _ask_mongodb(settings, role or [], pid, live)


def _ask_mongodb(settings: Settings, roles: list[Role], pid: int | None, live: bool) -> int:
    here = settings.host or socket.gethostname()
    try:
        with closing(Store(target_for(settings), patience=2.0)) as store:
            facts = store.check()
            answers = [health(store, role, here, pid, settings.considered_dead_after) for role in roles]
    except StoreError as error:
        if not live or isinstance(error, InvalidTarget):
            raise
        say(f"{error}. The state of the process is unknown, so it is taken to be alive", stderr=True)
        return 0
    say(f"MongoDB {facts.version} at {facts.address} accepts writes")
    for answer in answers:
        say(answer.text, stderr=not answer.well)
    return 0 if all(answer.well for answer in answers) else 1
