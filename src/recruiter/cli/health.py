"""`recruiter health`: an answer for probes. Quick, and no application is loaded."""

from __future__ import annotations

import socket
from typing import Annotated

from cyclopts import Parameter

from recruiter.cli.options import TargetOptions, settings_from
from recruiter.cli.output import say
from recruiter.errors import StoreUnreachable
from recruiter.store.database import Store
from recruiter.store.target import Target
from recruiter.views.health import Role, health

_PATIENCE = 2.0
"""Seconds to wait for MongoDB: a probe that is late has failed."""


def health_(
    *,
    role: Annotated[list[Role] | None, Parameter(negative=())] = None,
    host: str | None = None,
    pid: int | None = None,
    live: bool = False,
    considered_dead_after: str | None = None,
    target: TargetOptions = TargetOptions(),
) -> int:
    """Checks that MongoDB accepts writes and processes of this host are alive. Exit code 0, 1, or 4 without MongoDB.

    Parameters
    ----------
    role
        Also check for a live process of this role; may be repeated.
    host
        The host of the processes (default: this host).
    pid
        Only the process with this id.
    live
        For liveness probes: exit code 0 also when MongoDB does not answer.
    considered_dead_after
        How long the process may be silent (default 15s).
    """
    settings = settings_from(target, _Said(host, considered_dead_after))
    store = Store(Target.parse(settings.target), patience=_PATIENCE)
    try:
        facts = store.check()
        here = settings.host or socket.gethostname()
        answers = [health(store, each, here, pid, settings.considered_dead_after) for each in role or ()]
    except StoreUnreachable as error:
        if not live:
            raise
        say(f"{error}. The state of the process is unknown, so it is taken to be alive", stderr=True)
        return 0
    finally:
        store.close()
    say(f"MongoDB {facts.version} at {facts.address} accepts writes")
    for answer in answers:
        say(answer.text, stderr=not answer.well)
    return 0 if all(answer.well for answer in answers) else 1


class _Said:
    def __init__(self, host: str | None, considered_dead_after: str | None) -> None:
        self.host = host
        self.considered_dead_after = considered_dead_after
