"""The host of simulated processes: the services of the operating system that the product uses, made virtual.

Time, threads, events, process ids and random numbers. The modules of the product get them in place of the real ones,
for one world at a time.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

from bson import ObjectId

from recruiter.processes import loop, progress, recruiter
from recruiter.processes.worker import core, fetcher, heartbeat, held_jobs, process, registration, settler
from recruiter.steps import execute, lead, release
from recruiter.store import codec, job_transaction, runs, sessions
from recruiter.store.collections import due_jobs
from tests.simulator.hub import Condition, Event, Hub, Thread, Threads

_TIMED = (sessions, loop, core, fetcher, held_jobs, settler, execute, job_transaction)
_MAX_LANES_PER_QUERY = due_jobs.MAX_LANES_PER_QUERY
_ASK_EVERY_SECONDS, _IDLE_PAUSE_SECONDS = 0.4, 0.8
"""There are no change streams here, and processes ask instead. Real ones ask far more often, which costs many calls and
shows nothing."""


class _NoHooks:
    """No application listens to changes of the leader: hooks need a real thread."""

    def __init__(self, *_: object) -> None: ...

    def became_master(self) -> None: ...

    def stept_back(self) -> None: ...

    def close(self) -> None: ...


def make_virtual(hub: Hub, seed: int, *, many_lanes: bool) -> None:
    """From now on everything in this process happens in this world."""
    random.seed(seed)
    runs._noted.clear()
    time = SimpleNamespace(monotonic=hub.monotonic, sleep=hub.sleep)
    os = SimpleNamespace(getpid=_pid)
    secrets = SimpleNamespace(token_hex=lambda size: hub.random.randbytes(size).hex())

    def new_id() -> ObjectId:
        return ObjectId(hub.random.randbytes(12))

    replaced: Mapping[Any, Mapping[str, Any]] = {
        loop: {
            "os": os,
            "secrets": secrets,
            "threading": SimpleNamespace(Event=partial(Event, hub), Thread=Thread),
        },
        progress: {"threading": SimpleNamespace(Condition=partial(Condition, hub), Lock=threading.Lock)},
        registration: {"secrets": secrets, "os": os},
        lead: {"secrets": secrets, "os": os},
        heartbeat: {"os": os},
        runs: {"os": os},
        process: {"gc": SimpleNamespace(freeze=_nothing), "sys": SimpleNamespace(setswitchinterval=_nothing)},
        recruiter: {"Hooks": _NoHooks, "_DEAF_PAUSE_SECONDS": _IDLE_PAUSE_SECONDS},
        fetcher: {"_ASK_EVERY_SECONDS": _ASK_EVERY_SECONDS, "_ASK_WHILE_BUSY_EVERY_SECONDS": _ASK_EVERY_SECONDS},
        codec: {"new_id": new_id},
        release: {"new_id": new_id},
        # With many lanes, each query asks for one lane.
        due_jobs: {"MAX_LANES_PER_QUERY": 1 if many_lanes else _MAX_LANES_PER_QUERY},
    }
    for module in _TIMED:
        setattr(module, "time", time)  # noqa: B010
    for module, names in replaced.items():
        for name, value in names.items():
            setattr(module, name, value)


def _pid() -> int:
    threads = Threads.current()
    return 0 if threads is None else threads.pid


def _nothing(*_: object) -> None: ...
