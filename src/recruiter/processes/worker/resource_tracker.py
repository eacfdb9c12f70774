"""Python's resource tracker removes the semaphores of a worker that was killed, and does not warn of them.

The warning says nothing that others do not say better, and would be a bare line in a log of JSON documents.
"""

from __future__ import annotations

import sys
from multiprocessing import resource_tracker

_QUIET = "ignore:resource_tracker:UserWarning"


def start_quietly() -> None:
    """To be called before the first child is started: the tracker inherits the warnings that are ignored now."""
    sys.warnoptions.append(_QUIET)
    try:
        resource_tracker.ensure_running()
    finally:
        sys.warnoptions.remove(_QUIET)
