"""The application that process tests of the ready-made workables run. SHELL_PROGRAMS says what it enables."""

from __future__ import annotations

import os

from recruiter.workables.outcomes import (
    AlwaysFail,
    AlwaysSucceed,
    ConsumeMemory,
    ExitAbruptly,
    FailsInConstructor,
    LazyBones,
)
from recruiter.workables.shell import ShellCommand

__all__ = ["AlwaysFail", "AlwaysSucceed", "ConsumeMemory", "ExitAbruptly", "FailsInConstructor", "LazyBones"]

if "SHELL_PROGRAMS" in os.environ:
    ShellCommand.enable(*os.environ["SHELL_PROGRAMS"].split())
