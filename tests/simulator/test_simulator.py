"""Some small worlds in the suite; `make simulate` runs ten thousand. And what the simulator itself promises."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.simulator.hub import Hub, Threads
from tests.simulator.ledger import RATE, Ledger, Violation
from tests.simulator.server import Server
from tests.simulator.world import EPOCH

ROOT = Path(__file__).parents[2]
SEEDS = 60


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    command = [sys.executable, "-m", "tests.simulator", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_nothing_is_lost_doubled_or_held_twice_in_any_world() -> None:
    first = date.today().toordinal() * 1000
    done = simulate("--first", str(first), "--seeds", str(SEEDS))
    assert done.returncode == 0, f"repeat one with: python -m tests.simulator --seed N\n{done.stdout}{done.stderr}"


def test_a_seed_replays_exactly() -> None:
    one, other = (simulate("--seed", "7") for _ in range(2))
    assert len(one.stdout.splitlines()) > 50
    assert [_without_names(line) for line in one.stdout.splitlines()] == [
        _without_names(line) for line in other.stdout.splitlines()
    ]


def _without_names(line: str) -> str:
    """The moment, the process and what it asked for: pids and tokens differ, and decide nothing."""
    return " ".join(line.split()[:3])


class TestWhatItFinds:
    @pytest.fixture
    def server(self) -> Server:
        return Server(lambda: 0.0, EPOCH)

    @pytest.fixture
    def ledger(self, server: Server) -> Ledger:
        ledger = Ledger(Hub(0), server, lambda: 0.0)
        server.on_write = lambda changed: ledger.check(list(changed))
        return ledger

    def test_a_job_that_is_nowhere(self, server: Server, ledger: Ledger) -> None:
        del ledger
        server.insert("scheduled", [{"_id": 1, "task": "plain"}])
        with pytest.raises(Violation, match="nowhere"):
            server.delete("scheduled", {"_id": 1})

    def test_a_job_in_both_collections(self, server: Server, ledger: Ledger) -> None:
        del ledger
        server.insert("scheduled", [{"_id": 1, "task": "plain"}])
        with pytest.raises(Violation, match="waits and has ended"):
            server.insert("archived", [{"_id": 1}])

    @pytest.mark.parametrize(
        ("jobs", "lists", "told"),
        [
            ({1: "plain"}, [[1], [1]], "held by 2 workers"),
            ({1: "limited", 2: "limited"}, [[1], [2]], "2 limited jobs"),
        ],
    )
    def test_holds(
        self, server: Server, ledger: Ledger, jobs: dict[int, str], lists: list[list[int]], told: str
    ) -> None:
        del ledger
        server.insert("scheduled", [{"_id": id, "task": task} for id, task in jobs.items()])
        entries: list[dict[str, Any]] = [{"_id": f"w{n}", "assigned": held} for n, held in enumerate(lists)]
        server.insert("roster", entries[:1])
        with pytest.raises(Violation, match=told):
            server.insert("roster", entries[1:])

    def test_more_than_a_rate_allows(self, server: Server, ledger: Ledger) -> None:
        del ledger
        jobs = list(range(1, RATE.count + 2))
        server.insert("scheduled", [{"_id": id, "task": "paced"} for id in jobs])
        server.insert("roster", [{"_id": "w1", "assigned": jobs[:-1]}])
        with pytest.raises(Violation, match="3 jobs were given, 2 may be"):
            server.insert("roster", [{"_id": "w2", "assigned": jobs[-1:]}])

    def test_an_attempt_that_is_forgotten(self, server: Server, ledger: Ledger) -> None:
        del ledger
        server.insert("scheduled", [{"_id": 1, "task": "plain", "attempts": 2}])
        with pytest.raises(Violation, match="had 2 attempts, and has 1"):
            server.update("scheduled", {"_id": 1}, {"$set": {"attempts": 1}})

    def test_a_job_that_was_recovered_twice(self, server: Server, ledger: Ledger) -> None:
        recovered = [{"_id": id, "task": "plain", "recovered_from": 1, "done": True} for id in (2, 3)]
        server.insert("archived", recovered)
        with pytest.raises(Violation, match="job 1 was recovered 2 times"):
            ledger.check_the_end("none")

    def test_an_acknowledged_job_that_never_ends(self, server: Server, ledger: Ledger) -> None:
        server.insert("scheduled", [{"_id": 1, "task": "plain"}])
        ledger.acknowledged[1] = 0.0
        with pytest.raises(Violation, match="never ended"):
            ledger.check_the_end("none")

    def test_a_job_that_is_not_counted(self, server: Server, ledger: Ledger) -> None:
        server.insert("archived", [{"_id": 1, "done": True}])
        with pytest.raises(Violation, match="0 are counted"):
            ledger.check_the_end("none")


class TestTime:
    def test_it_passes_only_where_somebody_waits(self) -> None:
        hub, moments = Hub(0), list[float]()

        def wait(seconds: float) -> None:
            hub.sleep(seconds)
            moments.append(hub.now)

        for seconds in (3.0, 1.0, 2.0):
            hub.start(partial(wait, seconds))
        hub.run(10.0)
        assert moments == [1.0, 2.0, 3.0]

    def test_a_frozen_process_goes_on_later_and_a_dead_one_never(self) -> None:
        hub, seen = Hub(0), list[tuple[str, float]]()
        frozen, dead = Threads(hub), Threads(hub)

        def live(name: str) -> None:
            while hub.now < 5:
                hub.sleep(1.0)
                seen.append((name, hub.now))

        frozen.start(lambda: live("frozen"))
        dead.start(lambda: live("dead"))
        hub.run(1.5)
        frozen.freeze(2.0)
        dead.die()
        hub.run(10.0)
        assert [at for name, at in seen if name == "dead"] == [1.0]
        assert [at for name, at in seen if name == "frozen"][:2] == [1.0, 3.5]
