"""Some small worlds in the suite; `make simulate` runs ten thousand. And tests of the simulator itself."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from bson import ObjectId

from recruiter.domain.names import CANCELLED_LANE
from tests.simulator.hub import Event, Hub, Threads
from tests.simulator.ledger import RATE, Ledger, SimulatedRun
from tests.simulator.rules import Rules, Violation
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
    """The time, the process and its call: other parts of a line may contain random tokens, which decide nothing."""
    return " ".join(line.split()[:3])


@pytest.fixture
def server() -> Server:
    return Server(lambda: 0.0, EPOCH)


class TestWhatItFinds:
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
        with pytest.raises(Violation, match="waits, and has ended"):
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

    def test_a_cancelled_job_in_a_lane(self, server: Server, ledger: Ledger) -> None:
        del ledger
        server.insert("scheduled", [{"_id": 1, "task": "plain", "lane": CANCELLED_LANE, "cancel": {}}])
        with pytest.raises(Violation, match="cancelled, and waits in lane"):
            server.update("scheduled", {"_id": 1}, {"$set": {"lane": "g/plain"}})

    @pytest.mark.parametrize("field", ["checkpoints", "signals"])
    def test_a_checkpoint_or_a_signal_that_is_forgotten(self, server: Server, ledger: Ledger, field: str) -> None:
        server.insert("scheduled", [{"_id": 1, "task": "durable", field: [{"name": "go", "result": 1}]}])
        ledger.kept(started(1, ledger))
        with pytest.raises(Violation, match="has lost"):
            server.update("scheduled", {"_id": 1}, {"$set": {field: []}})

    def test_a_part_that_is_done_after_its_checkpoint(self, server: Server, ledger: Ledger) -> None:
        server.insert("scheduled", [{"_id": 1, "task": "durable", "checkpoints": [{"name": "pay"}]}])
        ledger.did(started(1, ledger), "pay")
        assert "does 'pay' again" in str(ledger.failed)

    def test_two_jobs_of_a_key(self, server: Server, ledger: Ledger) -> None:
        del ledger
        jobs: list[dict[str, Any]] = [
            {"_id": n, "task": "unique", "lane": "g/unique", "args": {"n": n, "key": "a", "call": n}} for n in (1, 2)
        ]
        server.insert("scheduled", jobs[:1])
        with pytest.raises(Violation, match="2 jobs of key unique/a"):
            server.insert("scheduled", jobs[1:])

    def test_effects_of_a_job_that_has_not_succeeded(self, server: Server, ledger: Ledger) -> None:
        del ledger
        with pytest.raises(Violation, match="effects 1 times; succeeded: False"):
            server.insert("effects", [{"_id": 1, "job": 1}])

    def test_a_signal_that_did_not_arrive(self, server: Server, ledger: Ledger) -> None:
        server.insert("archived", [{"_id": 1, "done": True, "why": "done"}])
        ledger.signals[1].append(7)
        with pytest.raises(Violation, match="has arrived 0 times"):
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


class TestWhatItFindsInFlows:
    FLOW = ObjectId()

    @pytest.fixture
    def rules(self, server: Server) -> Rules:
        rules = Rules(server)
        server.on_write = lambda changed: rules.check(list(changed))
        return rules

    def step(self, id: int, step: int, **fields: Any) -> dict[str, Any]:
        place = {"id": self.FLOW, "step": step, **fields.pop("flow", {})}
        return {"_id": id, "task": "step", "lane": "g/step", **fields, "flow": place}

    def ended(self, id: int, step: int, why: str, **fields: Any) -> dict[str, Any]:
        return self.step(id, step, done=why == "done", why=why, archived_at=EPOCH, **fields)

    def flow(self, state: str, **fields: Any) -> dict[str, Any]:
        return {"_id": self.FLOW, "name": "flow", "ended": {"state": state}, **fields}

    def test_a_step_that_waits_twice(self, server: Server, rules: Rules) -> None:
        del rules
        server.insert("scheduled", [self.step(1, 1)])
        with pytest.raises(Violation, match="step 1 waits 2 times"):
            server.insert("scheduled", [self.step(2, 1)])

    def test_a_step_that_has_succeeded_and_waits_again(self, server: Server, rules: Rules) -> None:
        del rules
        server.insert("archived", [self.ended(1, 1, "done")])
        with pytest.raises(Violation, match="has succeeded, and waits again"):
            server.insert("scheduled", [self.step(2, 1)])

    def test_a_step_of_a_paused_flow_in_a_lane(self, server: Server, rules: Rules) -> None:
        del rules
        server.insert("flows", [{"_id": self.FLOW, "paused": {}, "holds": 1}])
        with pytest.raises(Violation, match="is held, and waits in lane"):
            server.insert("scheduled", [self.step(1, 1, flow={"held": 1})])

    def test_a_step_that_starts_before_its_dependencies(self, server: Server, rules: Rules) -> None:
        waiting = self.step(2, 2, flow={"after": [1]})
        server.insert("scheduled", [self.step(1, 1), waiting])
        with pytest.raises(Violation, match="step 2 starts before step 1"):
            rules.may_start(waiting)

    def test_a_step_that_starts_before_what_was_added_before_it(self, server: Server, rules: Rules) -> None:
        waiting = self.step(2, 2, flow={"after": [1]})
        server.insert("scheduled", [self.step(1, 1, args={"adds": 3, "before": True}), waiting, self.step(3, 3)])
        with pytest.raises(Violation, match=r"step 2 does not wait for \{3\}"):
            rules.may_start(waiting)

    def test_a_job_that_is_removed_without_its_flow(self, server: Server, rules: Rules) -> None:
        server.insert("flows", [self.flow("succeeded")])
        server.insert("archived", [self.ended(1, 1, "done"), self.ended(2, 2, "done")])
        with pytest.raises(Violation, match="nowhere"):
            server.delete("archived", {"_id": 1})
        server.update("flows", {}, {"$set": {"forgotten": True}})
        server.delete("archived", {"_id": 2})
        assert rules.forgotten == {2}

    @pytest.mark.parametrize(
        ("state", "ends", "jobs", "told"),
        [
            ("succeeded", [], [("failed", {})], "has ended as succeeded, and it is failed"),
            ("failed", [], [("done", {})], "has ended as failed, and it is succeeded"),
            ("succeeded", ["success"], [("done", {})], "its end on success was made 0 times"),
            ("succeeded", [], [("done", {}), ("dependency-failed", {"after": [1]})], "was given up"),
            ("succeeded", [], [("done", {}), ("not-needed", {"after": [1]})], "was left out, and it was needed"),
        ],
    )
    def test_the_end_of_a_flow(
        self,
        server: Server,
        rules: Rules,
        state: str,
        ends: list[str],
        jobs: list[tuple[str, dict[str, Any]]],
        told: str,
    ) -> None:
        server.insert("flows", [self.flow(state, ends=[{"on": on} for on in ends])])
        server.insert("archived", [self.ended(n, n, why, flow=place) for n, (why, place) in enumerate(jobs, 1)])
        rules.steps[self.FLOW] = {*range(1, len(jobs) + 1)}
        with pytest.raises(Violation, match=told):
            rules.check_the_end(clocks_agree=True)

    def test_a_step_that_is_gone_and_a_marker_that_is_left(self, server: Server, rules: Rules) -> None:
        server.insert("flows", [self.flow("succeeded")])
        rules.steps[self.FLOW] = {1}
        with pytest.raises(Violation, match=r"has lost the steps \{1\}"):
            rules.check_the_end(clocks_agree=True)
        server.insert("flow_markers", [{"_id": 1}])
        with pytest.raises(Violation, match="1 markers are left"):
            rules.check_the_end(clocks_agree=True)


def started(id: int, ledger: Ledger) -> SimulatedRun:
    process: Any = None
    return SimulatedRun(id, "durable", {}, "w1", process, ledger, EPOCH, 0.0)


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

    def test_an_event_ends_a_sleep(self) -> None:
        hub, moments = Hub(0), list[float]()
        event = Event(hub)

        def wait() -> None:
            while hub.now < 9:
                event.clear()
                event.wait(4.0)
                moments.append(hub.now)

        hub.start(wait)
        hub.start(event.set, after=1.0)
        hub.run(20.0)
        assert moments == [1.0, 5.0, 9.0]

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
