"""Random flows, with real processes that are killed and frozen: every flow ends with the outcome of its steps.

    python benchmarks/random_flows.py [--flows N] [--seed S] [--at-once N] [--trouble-every SECONDS]

Two recruiters, two workers and a cleaner run. Again and again, a process is killed and replaced, or frozen
for seconds. Meanwhile users start flows of steps that fail by chance, and pause, cancel, retry, recover and add to
them (`tests/changed_flows.py`). The cleaner forgets a flow ten seconds after its end, and some flows are added to,
retried or recovered at exactly that time. In the end each flow is checked:

- no step is lost, waits forever or succeeds twice; a step that waited for a failure failed; a step that succeeded came
  after its dependencies
- the flow has the state that follows from its steps
- `on_end` and the step of its outcome were created once, and no other step more than once

A seed repeats the choices, not the timing. Starts a private MongoDB. Prints the number of actions and every error.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from recruiter import FlowNotFound, ResultTimeout
from recruiter.embedded import EmbeddedServer
from recruiter.store.database import Store

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(HERE.parent))

from flows import Fleet  # noqa: E402

from tests.applications import flows  # noqa: E402
from tests.changed_flows import ChangedFlow, wrong_ends  # noqa: E402

SETTINGS = {
    "RECRUITER_CONSIDERED_DEAD_AFTER": "3s",
    "RECRUITER_LEASE_TIME": "1s",
    "RECRUITER_HEARTBEAT": "0.2s",
    "RECRUITER_CLEAN_AFTER": "10s",
    "RECRUITER_WAIT_AT_LEAST": "0.3s",
    "RECRUITER_WAIT_AT_MOST": "1s",
}
KEPT_SECONDS = 10.0
LONGEST_FLOW_SECONDS = 300.0
SIGNS = ("a bug in Recruiter", "cannot be processed")
"""Messages that no process should log."""
MEMBERS = ("recruiter", "recruiter 2", "worker", "worker 2", "cleaner")


class Forgotten(Exception):
    """The cleaner was faster."""


class Person:
    """Starts one flow, changes it, and checks how it has ended."""

    def __init__(self, store: Store, folder: str, number: int, seed: int) -> None:
        self.store = store
        self.rng = random.Random(f"{seed} {number}")
        self.done: Counter[str] = Counter()

        def make(name: str, fails: float, wait: float, results: list[Any]) -> Any:
            return flows.try_luck.job(folder, name, fails, wait, results)

        self.flow = ChangedFlow(flows.recruiter, f"flow {number}", self.rng, make, time.sleep)
        self.handle = self.flow.handle

    def live(self) -> Counter[str]:
        with suppress(Forgotten):
            for _ in range(self.rng.randint(0, 5)):
                time.sleep(self.rng.choice((0.0, 0.05, 0.3, 1.0)))
                self.change(ended=False)
            self.check()
            if self.rng.random() < 0.15:  # while the cleaner forgets it
                time.sleep(KEPT_SECONDS - self.rng.random())
                for _ in range(10):
                    self.change(ended=True)
                    time.sleep(0.2)
                self.done["at the moment of cleaning"] += 1
                self.check()
        return self.done

    def change(self, *, ended: bool) -> None:
        try:
            self.done[self.flow.change(ended=ended)] += 1
        except FlowNotFound as error:
            self.is_gone()
            raise Forgotten from error

    # -- how it has ended ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raises AssertionError; Forgotten when the cleaner has removed it before it was checked."""
        try:
            self.handle.wait(LONGEST_FLOW_SECONDS)
            self.wait_for_the_ends()
            query = {"flow.id": self.handle.id}
            ended = list(self.store.archived.collection.find(query))
            stored = self.store.flows.get(self.handle.id)
        except FlowNotFound:
            stored = None
        except ResultTimeout:
            raise AssertionError(f"it has not ended: {self.facts()}") from None
        if stored is None:  # forgotten while it was read, or before
            self.is_gone()
            raise Forgotten
        added = [step.id for step in self.flow.steps]
        wrong = list(wrong_ends(ended, stored.state, cancelled=stored.cancel is not None, added=added))
        assert not wrong, "; ".join(wrong)
        self.done["checked"] += 1

    def facts(self) -> str:
        """The stored flow, its markers and its waiting steps: for debugging."""
        flow = self.store.flows.collection.find_one({"_id": self.handle.id}, {"ends": 0})
        markers = list(self.store.flows.markers.find({"flow": self.handle.id}))
        waiting = list(self.store.scheduled.collection.find({"flow.id": self.handle.id}, {"lane": 1, "flow": 1}))
        return f"{self.handle.report()}\nflow {flow}\nmarkers {markers}\nwaiting {waiting}"

    def wait_for_the_ends(self) -> None:
        until = time.monotonic() + LONGEST_FLOW_SECONDS
        while self.store.scheduled.collection.find_one({"flow.id": self.handle.id}, {"_id": 1}) is not None:
            assert time.monotonic() < until, "a step at the end of the flow does not run"
            time.sleep(0.05)

    def is_gone(self) -> None:
        waiting = self.store.scheduled.collection.count_documents({"flow.id": self.handle.id})
        assert waiting == 0, f"{waiting} steps wait in a flow that is forgotten"
        self.done["forgotten"] += 1


class Trouble(threading.Thread):
    """Kills or freezes one process after the other."""

    def __init__(self, fleet: Fleet, seed: int, every: float) -> None:
        super().__init__(daemon=True)
        self._fleet = fleet
        self._every = every
        self._rng = random.Random(f"trouble {seed}")
        self._over = threading.Event()
        self.made: Counter[str] = Counter()

    def run(self) -> None:
        while not self._over.wait(self._rng.uniform(0.4 * self._every, 1.6 * self._every)):
            name = self._rng.choice(MEMBERS)
            what = self._rng.choice(("killed", "frozen"))
            if what == "killed":
                self._fleet.kill(name)
            else:
                process = self._fleet.members[name]
                process.send_signal(signal.SIGSTOP)
                self._over.wait(self._rng.uniform(0.5, 5.0))
                process.send_signal(signal.SIGCONT)
            self.made[f"{name.partition(' ')[0]} {what}"] += 1

    def stop(self) -> None:
        self._over.set()
        self.join()


def run(count: int, seed: int, at_once: int, trouble_every: float) -> int:
    wrong: list[str] = []
    happened: Counter[str] = Counter()
    began = time.monotonic()
    with EmbeddedServer() as server, tempfile.TemporaryDirectory() as folder:
        target = server.uri.replace("/?", "/flows?")
        flows.recruiter.point_at(target)
        store = flows.recruiter.store
        store.prepare()
        log = Path(folder) / "log"
        fleet = Fleet(target, flows.__file__, log, **SETTINGS)
        trouble = Trouble(fleet, seed, trouble_every)

        def one(number: int) -> None:
            try:
                happened.update(Person(store, folder, number, seed).live())
            except Exception as error:
                wrong.append(f"flow {number}: {type(error).__name__}: {error}")
                print(wrong[-1], flush=True)
            happened["flows"] += 1
            if happened["flows"] % 50 == 0:
                print(f"  {happened['flows']} flows after {time.monotonic() - began:.0f} s", flush=True)

        try:
            for name in MEMBERS:
                fleet.start(name)
            trouble.start()
            with ThreadPoolExecutor(at_once) as people:
                list(people.map(one, range(count)))
        finally:
            trouble.stop()
            fleet.stop()
        left = store.scheduled.collection.count_documents({})
        runs = len(flows.lines(folder))
        bugs = [line for line in log.read_text().splitlines() if any(sign in line for sign in SIGNS)]
        flows.recruiter.close()
    for line in bugs[:10]:
        print(f"  log: {line}")
    if bugs:
        wrong.append(f"{len(bugs)} lines in the log that should not be there")
    if left:
        wrong.append(f"{left} jobs wait, although every flow has ended")
    told = ", ".join(f"{number:,} {what}" for what, number in sorted(happened.items()))
    print(f"seed {seed}: {told}; {runs:,} runs of steps in {time.monotonic() - began:.0f} s")
    print("  " + ", ".join(f"{number} × {what}" for what, number in sorted(trouble.made.items())))
    print(f"  {len(wrong)} wrong" if wrong else "  every flow has the outcome of its steps")
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flows", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--trouble-every", type=float, default=2.5, help="average seconds between kills and freezes")
    given = parser.parse_args()
    return run(given.flows, given.seed, given.at_once, given.trouble_every)


if __name__ == "__main__":
    sys.exit(main())
