"""The application that process tests of the ready-made workables run. SHELL_PROGRAMS says what it enables."""

from __future__ import annotations

import os

from recruiter.workables.abrupt import ExitAbruptly, FailsInConstructor
from recruiter.workables.lazy import LazyBones
from recruiter.workables.memory import ConsumeMemory
from recruiter.workables.outcomes import AlwaysFail, AlwaysSucceed
from recruiter.workables.shell import ShellCommand

__all__ = ["AlwaysFail", "AlwaysSucceed", "ConsumeMemory", "ExitAbruptly", "FailsInConstructor", "LazyBones"]

if "SHELL_PROGRAMS" in os.environ:
    ShellCommand.enable(*os.environ["SHELL_PROGRAMS"].split())
