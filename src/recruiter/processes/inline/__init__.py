"""Jobs in the calling process: run, run_all, watch and flush. Imported when a caller runs its first job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recruiter.first_use import imports_on_first_use

if TYPE_CHECKING:
    from recruiter.processes.inline.flush import Flush
    from recruiter.processes.inline.runner import InlineApplication
    from recruiter.processes.inline.worker import Inline

__all__ = ["Flush", "Inline", "InlineApplication"]

_PLACES = {
    "Flush": "recruiter.processes.inline.flush",
    "Inline": "recruiter.processes.inline.worker",
    "InlineApplication": "recruiter.processes.inline.runner",
}

__getattr__ = imports_on_first_use(__name__, _PLACES)
