"""Loaded once by the fork server, so that every child starts with the application in memory.

This is the one module that acts on import and reads the environment: the fork server offers no other way in. Whatever
goes wrong here goes wrong again in the child, which reports it properly.
"""

from __future__ import annotations

import contextlib
import os
import signal
import warnings

import recruiter.processes.child.main  # noqa: F401
from recruiter.application import load_application
from recruiter.domain.arguments.typed import load_pydantic
from recruiter.processes.child import process_group

SUPERVISOR_VARIABLE = "RECRUITER_SUPERVISOR"
APPLICATION_VARIABLE = "RECRUITER_PRELOAD"

load_pydantic()  # once here, and not in every child
process_group.server_pid = os.getpid()
if SUPERVISOR_VARIABLE in os.environ:
    # A signal to the whole group (a terminal that closes, a service that stops) is for the supervisor to act on.
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    # By itself the fork server would wait for its children to end, and they would wait for it.
    process_group.die_with_parent(signal.SIGKILL, int(os.environ[SUPERVISOR_VARIABLE]))
    process_group.adopt_orphans()
    warnings.filterwarnings("ignore", "forkserver: waitpid returned unexpected pid")  # an orphan's
    with contextlib.suppress(BaseException):
        load_application(os.environ.get(APPLICATION_VARIABLE))
