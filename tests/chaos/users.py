"""Users who start flows and change them while they run, and recover jobs that have failed.

python -m tests.chaos.users SEED
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from pymongo.errors import PyMongoError

from recruiter import Recruiter
from recruiter.errors import RecruiterError
from tests.changed_flows import ChangedFlow
from tests.chaos import application
from tests.chaos.ledger import Ledger

_FLOWS_AT_ONCE = 4
_WAITS_FOR_A_FLOW = 30.0
"""Seconds until a user starts the next flow although the last one has not ended."""
_UNREACHABLE = (RecruiterError, PyMongoError)
"""MongoDB is away, or the job or flow has changed meanwhile. The outcome of the call is unknown."""


class Users:
    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._stop = threading.Event()
        self._ledger = Ledger(Path(os.environ["CHAOS_LEDGER"]), "users")

    def run(self) -> None:
        signal.signal(signal.SIGTERM, lambda *_: self._stop.set())
        with suppress(*_UNREACHABLE):
            resume_all(application.recruiter)  # the predecessor may have been killed while it had paused some
        acts: list[Callable[[random.Random], None]] = [self._change_a_flow] * _FLOWS_AT_ONCE + [self._recover_jobs] * 2
        threads = [
            threading.Thread(target=self._again_and_again, args=(act, random.Random(f"{self._seed} {number}")))
            for number, act in enumerate(acts)
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):  # `join` would hold up the signal
            time.sleep(0.1)

    def _again_and_again(self, act: Callable[[random.Random], None], chance: random.Random) -> None:
        while not self._stop.wait(0.2):
            with suppress(*_UNREACHABLE):
                act(chance)

    def _change_a_flow(self, chance: random.Random) -> None:
        def make(name: str, fails: float, wait: float, results: list[Any]) -> Any:
            grows = " step " in name and chance.random() < 0.2
            return application.changed.job(name, fails, wait, results, grows)

        name = f"{os.getpid()} {time.monotonic_ns()}"
        flow = ChangedFlow(application.recruiter, name, chance, make, time.sleep)
        noted = self._note(flow, 0)
        for _ in range(chance.randint(0, 5)):
            self._stop.wait(chance.choice((0.0, 0.05, 0.3, 1.0)))
            with suppress(*_UNREACHABLE):
                self._ledger.write("changed", act=flow.change())
            noted = self._note(flow, noted)
        with suppress(*_UNREACHABLE):
            flow.handle.resume()  # an answer may have been lost
        deadline = time.monotonic() + _WAITS_FOR_A_FLOW
        while not self._stop.wait(0.5) and time.monotonic() < deadline:
            with suppress(*_UNREACHABLE):
                if flow.handle.report().state.ended:
                    break

    def _note(self, flow: ChangedFlow, before: int) -> int:
        """Notes the steps that were acknowledged since."""
        steps = [str(step.id) for step in flow.steps[before:]]
        if steps:
            self._ledger.write("steps", flow=str(flow.handle.id), steps=steps)
        return len(flow.steps)

    def _recover_jobs(self, _: random.Random) -> None:
        application.recruiter.jobs.recover(state="failed", task="mended", since="10m")


def resume_all(recruiter: Recruiter) -> None:
    """Resumes every paused flow."""
    for flow in recruiter.store.flows.collection.find({"paused": {"$ne": None}}, {"_id": 1}):
        recruiter.flows.find(flow["_id"]).resume()


if __name__ == "__main__":
    Users(int(sys.argv[1])).run()
