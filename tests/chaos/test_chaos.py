"""A short chaos run with a seed of the day, and the checker itself: it must find what it is there to find."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from bson import ObjectId

from recruiter import FlowState
from tests.chaos.checker import check
from tests.chaos.evidence import Evidence, FlowEnd, Run, UniqueSend
from tests.chaos.faults import Fault
from tests.chaos.recovery import recoveries
from tests.chaos.report import Facts, markdown
from tests.chaos.run import ChaosRun


@pytest.mark.timeout(240)
def test_nothing_is_lost_or_doubled_whatever_breaks(tmp_path: Path) -> None:
    # given a fleet on three nodes, and faults that nobody has chosen
    seed = date.today().toordinal()
    print(f"repeat these faults with: make chaos JOBS=1500 SECONDS=12 SEED={seed} PAUSE=0.6 DATABASE_PAUSE=5")
    # when processes and primaries are killed, frozen and restarted in the middle of the work
    evidence = ChaosRun(tmp_path, jobs=1500, seconds=12, seed=seed, pause=0.6, database_pause=5.0).run()
    # then everything acknowledged has ended once, and every extra run has its fault
    assert len(evidence.acknowledged) >= 1000
    assert len(evidence.faults) >= 5
    assert check(evidence) == []


WORKER, CHILD, ELSEWHERE = "host:100:abc", 101, 999
A_DATE = datetime(2026, 11, 17, tzinfo=UTC)
LOST = {"worker": WORKER, "ended_at": A_DATE, "crashed": True}


def a_run(**changes: Any) -> Run:
    return replace(Run("a", "plain", WORKER, CHILD, 1, start=10.0, end=10.1), **changes)


def an_end(**changes: Any) -> dict[str, Any]:
    return {"_id": "a", "task": "plain", "args": [1], "done": True, "result": 1, "attempts": 1, **changes}


def evidence(**changes: Any) -> Evidence:
    """One job that ran once and ended well."""
    whole = Evidence({1: "a"}, {1}, [a_run()], [], scheduled=[], archived=[an_end()], dead_after=4.0)
    return replace(whole, **changes)


def a_send(job: str, asked_at: float) -> UniqueSend:
    return UniqueSend("k", job, True, asked_at, asked_at + 0.1)


def a_step(number: int) -> dict[str, Any]:
    return an_end(_id=f"s{number}", task="part", args=[number], result=number)


def a_step_run(number: int, start: float) -> Run:
    return a_run(job=f"s{number}", task="part", start=start, end=start + 0.1)


A_FIRST_RUN = a_run(job="first", start=1.0, end=1.1)


def a_result(*, seen: float, faults: Sequence[Fault] = ()) -> dict[str, Any]:
    """Of the job that was acknowledged at 10, and how late it was there for its producer."""
    start = {"start": seen - 1, "end": seen - 0.9}
    runs = [A_FIRST_RUN, a_run(**start)]
    return {"acknowledged_at": {"a": 10.0}, "seen": {"a": seen}, "faults": [*faults], "runs": runs}


FLOW = ObjectId()
STEPS = [ObjectId() for _ in range(2)]


def a_burst(place_of_small: int) -> dict[str, Any]:
    """Bursts of 22 jobs of a large tenant and three jobs of small tenants, and the place of these among the starts."""
    jobs = [an_end(_id=f"f{n}", task="fair", args=[n], result=n) for n in range(300)]
    starts = {n: n // 25 * 100 + (n % 25 if n % 25 < 22 else place_of_small - 0.5) for n in range(300)}
    runs = [a_run(job=f"f{n}", task="fair", pid=n, start=1000.0 + at, end=1000.1 + at) for n, at in starts.items()]
    return {"archived": [*jobs], "runs": runs, "asked": set(range(300)), "acknowledged": {}}


def a_changed_flow(**changes: Any) -> dict[str, Any]:
    """A flow of two steps, one of which waits for the other, and the jobs at its end."""
    jobs = {
        "one": a_flow_job(STEPS[0]),
        "two": a_flow_job(STEPS[1], after=[STEPS[0]]),
        "end": a_flow_job(ObjectId(), on="end"),
        "success": a_flow_job(ObjectId(), on="success"),
    }
    jobs.update(changes.pop("jobs", {}))
    end = {"state": FlowState.SUCCEEDED, "steps": set(STEPS), **changes}
    archived = [job for job in jobs.values() if job is not None]
    return {"archived": [an_end(), *archived], "flows": {str(FLOW): FlowEnd(**end)}}


def a_flow_job(step: ObjectId, **place: Any) -> dict[str, Any]:
    """A job of a flow that users change. What is in `job` is not of its place."""
    job = place.pop("job", {})
    whole = {"_id": ObjectId(), "args": ["name"], "why": "done", "flow": {"id": FLOW, "step": step, **place}}
    return an_end(**{**whole, "task": "changed", **job})


def test_a_flawless_run_has_no_violations() -> None:
    assert check(evidence()) == []


@pytest.mark.parametrize(
    ("rule", "changes"),
    [
        pytest.param("nothing lost", {"archived": []}, id="a job that is nowhere"),
        pytest.param("nothing lost", {"archived": [], "scheduled": [an_end()]}, id="a job that never ended"),
        pytest.param("one record each", {"scheduled": [an_end()]}, id="a job in both collections"),
        pytest.param("one record each", {"archived": [an_end(), an_end(_id="b")]}, id="a number that became two jobs"),
        pytest.param("right results", {"archived": [an_end(result=2)]}, id="another job's result"),
        pytest.param("right results", {"archived": [an_end(done=False, why="malformed")]}, id="an outcome destroyed"),
        pytest.param("runs explained", {"runs": [a_run(), a_run(start=11.0)]}, id="a second run without a fault"),
        pytest.param(
            "runs explained",
            {"runs": [a_run(), a_run(start=11.0)], "faults": [Fault("child killed", 10.05, [ELSEWHERE], 10.05)]},
            id="a second run, and a fault elsewhere",
        ),
        pytest.param(
            "runs explained",
            {"runs": [a_run(), a_run(start=11.0)], "faults": [Fault("worker restarted", 10.05, [100], 10.05)]},
            id="a second run after its worker was asked to stop",
        ),
        pytest.param(
            "runs explained",
            {"runs": [a_run(), a_run(start=11.0)], "faults": [Fault("worker killed", 30.0, [100], 30.0)]},
            id="a second run long before its worker was killed",
        ),
        pytest.param(
            "runs explained",
            {"runs": [a_run(), a_run(start=11.0)], "faults": [Fault("primary killed", 20.0, [], 25.0)]},
            id="a second run long before MongoDB was away",
        ),
        pytest.param(
            "crashes explained",
            {"archived": [an_end(executions=[{"crashed": True, "worker": WORKER}])]},
            id="a crash that nobody caused",
        ),
        pytest.param(
            "at most once", {"runs": [a_run(task="once"), a_run(task="once", start=11.0)]}, id="once, started twice"
        ),
        pytest.param(
            "limit held", {"runs": [a_run(task="limited", job=f"{n}", pid=n) for n in range(4)]}, id="four of three"
        ),
        pytest.param(
            "limit held",
            {
                "runs": [a_run(task="limited", job=f"{n}", pid=n) for n in range(4)],
                "faults": [Fault("primary killed", 9.0, [], 12.0)],
            },
            id="four of three while MongoDB is away",
        ),
        pytest.param(
            "losses explained",
            {
                "archived": [an_end(task="once", at_most_once=True, done=False, why="lost", last_execution=LOST)],
                "runs": [],
                "faults": [Fault("worker restarted", 10.0, [100], 10.0)],
                "epoch": A_DATE.timestamp() - 10.0,
            },
            id="lost by a worker that was asked to stop",
        ),
        pytest.param(
            "right results",
            {"archived": [an_end(task="slow", args=[400], done=False, why="cancelled")]},
            id="cancelled by nobody, or instead of another",
        ),
        pytest.param(
            "rate held",
            {"runs": [a_run(task="paced", job=f"{n}", start=10 + n / 100) for n in range(200)]},
            id="a hundred starts a second of three",
        ),
        pytest.param(
            "one of a key",
            {"unique": [a_send("a", 1.0), a_send("b", 5.0)], "runs": [a_run(task="alone", start=7.0)]},
            id="a second of its key before the first ran",
        ),
        pytest.param("flows whole", {"archived": [a_step(n) for n in (8, 9, 10)]}, id="a flow without its last step"),
        pytest.param(
            "flows in order",
            {"archived": [a_step(n) for n in (8, 9, 10, 11)], "runs": [a_step_run(8, 10.0), a_step_run(9, 10.05)]},
            id="a step before the one that it waits for has ended",
        ),
        pytest.param(
            "flows in order",
            {"archived": [a_step(n) for n in (8, 9, 10, 11)], "runs": [a_step_run(9, 10.0), a_step_run(11, 12.0)]},
            id="a step although one that it waits for never ran",
        ),
        pytest.param("effects once", {"archived": [an_end(task="counted")], "effects": {1: 2}}, id="an effect twice"),
        pytest.param("effects once", {"archived": [an_end(task="counted")]}, id="an effect that is missing"),
        pytest.param(
            "effects once",
            {"archived": [an_end(task="counted", done=False)], "effects": {1: 1}},
            id="an effect of a job that failed",
        ),
        pytest.param("effects once", {"effects": {7: 1}}, id="an effect of no job"),
        pytest.param(
            "crashes explained",
            {
                "archived": [an_end(executions=[{"crashed": True, "worker": WORKER, "ended_at": A_DATE}])],
                "epoch": A_DATE.timestamp() - 100.0,
                "faults": [Fault("primary killed", 9.0, [], 12.0)],
            },
            id="a crash long after MongoDB was away",
        ),
        pytest.param("steps once", {"archived": [an_end(task="durable")]}, id="a job without its step"),
        pytest.param(
            "steps once",
            {"archived": [an_end(task="durable")], "charges": [a_run(), a_run(start=11.0)]},
            id="a step that was done twice without a fault",
        ),
        pytest.param(
            "signals received", {"signalled": {"a": 1.0}, "timed_out": {"a": 21.0}}, id="a signal that was not received"
        ),
        pytest.param("orders with jobs", {"orders": {7}}, id="a document without its job"),
        pytest.param("orders with jobs", {"archived": [an_end(task="ordered")]}, id="a job without its document"),
        pytest.param(
            "last call wins",
            {
                "archived": [an_end(task="latest")],
                "debounced": [replace(a_send("a", 1.0), number=1), replace(a_send("a", 2.0), number=2)],
            },
            id="a debounced job with the number of an earlier call",
        ),
        pytest.param("last call wins", {"debounced": [a_send("gone", 1.0)]}, id="a debounced job that is gone"),
        pytest.param(
            "periods held",
            {
                "runs": [a_run(task="throttled"), a_run(task="throttled", job="b", start=10.1)],
                "throttled": [a_send("a", 1.0), a_send("b", 2.0)],
            },
            id="two throttled jobs in one period",
        ),
        pytest.param("turns taken", a_burst(20), id="small tenants that wait for a large one"),
        pytest.param(
            "changed flows end right", a_changed_flow(state=FlowState.RUNNING), id="a changed flow that does not end"
        ),
        pytest.param(
            "changed flows end right",
            a_changed_flow(steps={*STEPS, ObjectId()}),
            id="a step that was added and is lost",
        ),
        pytest.param(
            "changed flows end right",
            a_changed_flow(jobs={"again": a_flow_job(STEPS[1])}),
            id="a step that succeeded twice",
        ),
        pytest.param(
            "changed flows end right",
            a_changed_flow(jobs={n: a_flow_job(ObjectId(), name="grown") for n in ("grown", "grown twice")}),
            id="a grown step that became two",
        ),
        pytest.param(
            "changed flows end right",
            a_changed_flow(jobs={"one": None}, steps=set()),
            id="a step that succeeded without the step that it waits for",
        ),
        pytest.param(
            "changed flows end right",
            a_changed_flow(jobs={"more": a_flow_job(ObjectId(), on="end")}),
            id="a job at the end of a flow that was made twice",
        ),
        pytest.param(
            "changed flows end right", a_changed_flow(jobs={"success": None}), id="a job at the end that was never made"
        ),
        pytest.param(
            "changed flows end right",
            a_changed_flow(jobs={"two": a_flow_job(STEPS[1], job={"done": False, "why": "cancelled"})}),
            id="a flow that succeeded although a step did not",
        ),
        pytest.param(
            "recovered once",
            {"archived": [an_end(task="mended", recovered_as="b")]},
            id="a job that was recovered as nothing",
        ),
        pytest.param(
            "recovered once",
            {
                "archived": [
                    an_end(task="mended", recovered_as="b"),
                    *(an_end(_id=id, task="mended", recovered_from="a") for id in "bc"),
                ]
            },
            id="a job that was recovered twice",
        ),
        pytest.param("results in time", a_result(seen=30.0), id="a result that came late without a fault"),
        pytest.param(
            "results in time",
            a_result(seen=45.0, faults=[Fault("worker killed", 12.0, [ELSEWHERE], held={"a"})]),
            id="a result that came long after its worker was killed",
        ),
        pytest.param(
            "results in time",
            {
                **a_result(seen=30.0, faults=[Fault("leader killed", 12.0, [ELSEWHERE])]),
                "acknowledged_at": {"a": 10.0, **{f"later {n}": 11.0 for n in range(50)}},
                "runs": [
                    A_FIRST_RUN,
                    a_run(start=29.0, end=29.1),
                    *(a_run(job=f"later {n}", start=13.0) for n in range(50)),
                ],
            },
            id="a job that was left behind while others ran",
        ),
        pytest.param("nothing left", {"roster": [{"_id": WORKER}]}, id="a worker left on the roster"),
        pytest.param("nothing left", {"orphans": ["12 sleep"]}, id="a process left behind"),
        pytest.param(
            "faults came",
            {"faults": [Fault("worker killed", 30.0 + n, [ELSEWHERE], 30.0 + n) for n in range(40)]},
            id="a run that found no child to kill",
        ),
        pytest.param(
            "faults came",
            {"faults": [Fault("child killed", 30.0 + n, [ELSEWHERE], 30.0 + n) for n in range(400)]},
            id="a run that killed something else instead",
        ),
        pytest.param(
            "work came", {"acknowledged": dict.fromkeys(range(3000), "a")}, id="a run without most kinds of work"
        ),
        pytest.param("no mistakes", {"mistakes": ["worker-0.log: a mistake"]}, id="a mistake in a log"),
    ],
)
def test_the_checker_finds(rule: str, changes: dict[str, Any]) -> None:
    assert rule in {violation.rule for violation in check(evidence(**changes))}


def test_a_second_run_after_a_fault_on_its_worker_is_explained() -> None:
    hit = Fault("worker killed", 10.05, [100], 10.05)
    assert check(evidence(runs=[a_run(end=None), a_run(start=15.0, worker="host:200:def")], faults=[hit])) == []


def test_what_is_allowed_is_not_a_violation() -> None:
    """A key that is free again, a flow in its order, an effect of a job that has ended well, a rate that is kept."""
    number_of = {f"s{number}": number for number in (8, 9, 10, 11)}
    jobs = [an_end(), an_end(_id="c", task="counted", args=[2], result=2), *map(a_step, number_of.values())]
    unique = [("u1", 3), ("u2", 4)]
    jobs += [an_end(_id=id, task="alone", args=[number], result=number) for id, number in unique]
    paced = [("p" + str(n), 100 + n) for n in range(100)]
    jobs += [an_end(_id=id, task="paced", args=[number], result=number) for id, number in paced]
    runs = [a_run(), a_run(job="c", task="counted"), a_run(job="u1", task="alone"), a_run(job="u2", task="alone")]
    runs += [a_step_run(8, 10.0), a_step_run(9, 10.2), a_step_run(10, 10.2), a_step_run(11, 10.4)]
    runs += [a_run(job=id, task="paced", start=20 + n / 3, end=60.0) for n, (id, _) in enumerate(paced)]
    found = check(
        evidence(
            runs=runs,
            archived=jobs,
            effects={2: 1},
            asked={1, 2, 3, 4, *number_of.values(), *(number for _, number in paced)},
            unique=[a_send("u1", 1.0), a_send("u2", 11.0)],
        )
    )
    assert found == []


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(a_burst(3), id="small tenants that have their turns"),
        pytest.param(a_changed_flow(), id="a flow with the outcome of its steps"),
        pytest.param(
            {
                "archived": [
                    an_end(task="mended", done=False, recovered_as="b", last_execution={"class": "ValueError"}),
                    an_end(_id="b", task="mended", recovered_from="a"),
                ]
            },
            id="a job that was recovered once",
        ),
        pytest.param(a_result(seen=18.0), id="a result in time"),
        pytest.param(
            a_result(seen=30.0, faults=[Fault("worker killed", 22.0, [ELSEWHERE], held={"a"})]),
            id="a result soon after its worker was killed",
        ),
        pytest.param(
            a_result(
                seen=32.0,
                faults=[
                    Fault("worker killed", 22.0, [ELSEWHERE], held={"a"}),
                    Fault("leader killed", 24.0, [ELSEWHERE]),
                ],
            ),
            id="a result late because the leader died after its worker",
        ),
        pytest.param(
            a_result(seen=30.0, faults=[Fault("leader killed", 12.0, [ELSEWHERE])]),
            id="a late result, and nobody overtook it",
        ),
    ],
)
def test_what_the_rules_of_users_and_time_allow(changes: dict[str, Any]) -> None:
    assert check(evidence(**changes)) == []


def test_a_missed_and_a_doubled_occurrence_are_found() -> None:
    ticks = [{"_id": f"chaos:tick@2026-11-17T03:00:0{second}Z", "urn": "chaos:tick"} for second in (1, 2, 4)]
    found = check(evidence(archived=[an_end(), *({**an_end(args=[]), **tick} for tick in ticks)]))
    assert [violation.rule for violation in found] == ["each occurrence once"]


class TestRecovery:
    def test_a_pause_is_put_down_to_the_heaviest_fault_that_acts(self) -> None:
        # given a job every tenth of a second, but for four seconds in which MongoDB was away; a child is killed in them
        moments = [n / 10 for n in range(100) if not 30 <= n < 70]
        faults = [Fault("primary killed", 3.0, [], 6.0), Fault("child killed", 4.0, [CHILD], 4.0)]
        faults.append(Fault("child killed", 8.55, [CHILD], 8.55))
        # when it is measured how soon work went on
        found = recoveries(evidence(runs=[a_run(job=f"{at}", start=at) for at in moments], faults=faults))
        # then the pause is the primary's, and of the two children only the one is measured that died alone
        assert found["primary killed"].pauses == [pytest.approx(4.0)]
        assert found["child killed"].pauses == [pytest.approx(0.1)]

    def test_an_interrupted_job_counts_from_its_fault_to_its_next_start(self) -> None:
        runs = [a_run(start=10.0, end=None), a_run(start=16.5, worker="host:200:def", pid=201)]
        found = recoveries(evidence(runs=runs, faults=[Fault("worker killed", 10.5, [100], 10.5)]))
        assert found["worker killed"].own_jobs == [6.0]


def test_the_report_has_the_share_before_the_last_fault_and_explains_late_results() -> None:
    # given a run of a job before the last fault and of one after it, whose result is late behind a dead leader
    faults = [Fault("leader killed", 12.0, [ELSEWHERE]), Fault("child killed", 20.0, [ELSEWHERE], is_paired=True)]
    whole = evidence(**a_result(seen=30.0, faults=faults))
    # when it is reported
    text = markdown(Facts(1, 60.0, "make chaos", "three nodes"), whole, check(whole), "picture.svg")
    # then the report contains the counts and the explanation
    for row in (
        "| … begun before the last fault (the others when it was quiet again) | 1, 50% |",
        "| process faults | 2 |",
        "| faults at the same moment as another | 1 |",
        "| late results | 1 |",
        "| … that nothing explains | 0 |",
        "| **violations** | **0** |",
        "| a | plain | 20.0 | the whole fleet was behind after: leader killed |",
    ):
        assert row in text.splitlines()
