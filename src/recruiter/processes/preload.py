"""Loaded once by the fork server, so that every child starts with the application in memory.

This is the one module that acts on import and reads the environment: the fork server offers no other way in. Whatever
goes wrong here goes wrong again in the child, which reports it properly.
"""

from __future__ import annotations

import contextlib
import os
import signal

import recruiter.processes.child  # noqa: F401
from recruiter.application import load_application
from recruiter.processes.parent import die_with_parent

# By itself the fork server would wait for its children to end, and they would wait for it.
die_with_parent(signal.SIGKILL)
with contextlib.suppress(BaseException):
    load_application(os.environ.get("RECRUITER_PRELOAD"))
