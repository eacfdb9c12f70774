"""What this host has."""

from __future__ import annotations

import os

import psutil

from recruiter.domain.planning.needs import Needs


def measured_resources() -> str:
    """Its processors, as many as this process may use, and its memory; what else it has must be said."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return str(Needs.of(proc=processors, mem=psutil.virtual_memory().total))
