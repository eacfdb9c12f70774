"""The jobs of simulated workers: user code, which the real executor runs. It takes virtual time, and writes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import replace
from datetime import timedelta
from typing import Any

from recruiter import current_job
from recruiter.attempt import running
from recruiter.domain.flow import FlowStep
from recruiter.domain.job import Job, JobId
from recruiter.domain.options import TaskOptions
from recruiter.errors import InvalidFlow, JobExists, SignalTimeout
from recruiter.registry import FunctionTask, Registry
from recruiter.store.in_session import in_own_transaction
from tests.simulator.ledger import SimulatedRun

RUN: ContextVar[SimulatedRun] = ContextVar("run")
REGISTRY = Registry()
SIGNAL = "go"
_PATIENCE, _NAP = timedelta(seconds=3), timedelta(seconds=0.4)


def task(function: Callable[..., Any]) -> Callable[..., Any]:
    REGISTRY.add(FunctionTask(function.__name__, function, TaskOptions()))
    return function


def work() -> None:
    """Takes a while, in which the process may die and the job may be cancelled."""
    run = RUN.get()
    run.hub.sleep(run.hub.random.choice((0.001, 0.05, 0.3, 1.5)))
    if run.ledger.child_dies():
        run.process.threads.die()
    if run.interruptible.error is not None:
        raise run.interruptible.error


@task
def plain(n: int) -> int:
    work()
    return n


for _name in ("once", "limited", "paced"):
    REGISTRY.add(FunctionTask(_name, plain, TaskOptions()))


@task
def flaky(n: int) -> int:
    work()
    if current_job.attempt <= n % 3:
        raise ConnectionError("on purpose")
    return n


@task
def keyed(n: int, key: str, call: int) -> int:
    del key, call
    work()
    return n


for _name in ("unique", "started", "debounced", "throttled"):
    REGISTRY.add(FunctionTask(_name, keyed, TaskOptions()))


@task
def durable(n: int, waits: int, patient: bool) -> dict[str, Any]:
    """Each part once; in between it sleeps and waits for signals."""
    received: list[Any] = []
    _once("before")
    work()
    current_job.sleep(_NAP)
    for number in range(waits):
        try:
            received.append(current_job.wait_for(SIGNAL, None if patient else _PATIENCE))
        except SignalTimeout:
            received.append(None)
        _once(f"after {number}")
    return {"n": n, "received": received}


def _once(name: str) -> None:
    current_job.once(name, _effect, name)
    run = RUN.get()
    run.ledger.kept(run)


def _effect(name: str) -> int:
    run = RUN.get()
    run.ledger.did(run, name)
    run.hub.sleep(run.hub.random.choice((0.001, 0.2)))
    return next(run.ledger.numbers)


@task
def counted(n: int) -> Any:
    """Its effects and its end are one transaction."""
    work()
    run = RUN.get()
    with current_job.transaction() as session:
        application = session.client.get_database("application")
        effect = {"_id": next(run.ledger.numbers), "job": run.job}
        application.get_collection("effects").insert_one(effect, session=session)
        run.hub.sleep(run.hub.random.choice((0.0, 0.1, 0.6)))
        balance = {"$inc": {"sum": 1}}  # of every second job: their transactions meet
        application.get_collection("balances").update_one({"_id": n % 2}, balance, upsert=True, session=session)
        current_job.set_result(n)


@task
def step(n: int, fails: bool, adds: int | None, before: bool) -> int:
    """A step of a flow. If it fails, it succeeds when it is recovered. It may add a step, even before its
    dependents."""
    work()
    if adds is not None:
        with suppress(InvalidFlow, JobExists):  # the flow was cancelled; or an earlier run has added it
            _add(adds, before=before)
    if fails and current_job.job.recovered_from is None:
        raise ValueError("on purpose")
    return n


def step_job(flow: Any, number: JobId, like: Job, after: tuple[JobId, ...] = ()) -> Job:
    """The job of a step that is added to a flow."""
    args = {"n": number, "fails": False, "adds": None, "before": False}
    place = FlowStep(flow, number, after)
    return replace(like, id=number, task="step", args=args, flow=place, blocked=True, retry_policy=None)


def _add(number: int, *, before: bool) -> None:
    run, job, attempt = RUN.get(), current_job.job, running.get()
    assert job.flow is not None
    assert attempt is not None
    flow, own, now = job.flow.flow, job.flow.step, run.process.clock.now()
    store, holder = run.process.store, attempt.runner.checkpoints(attempt).hold()
    known = store.flow_steps.known(flow, [number])
    new = Job(id=number, task="step", args={}, created_at=now, scheduled_at=now)
    jobs = [] if known else [step_job(flow, number, new)]
    if jobs or before:
        in_own_transaction(
            store,
            lambda here: here.add_steps(
                flow, jobs, list(known), own_ids=True, before=own if before else None, holder=holder
            ),
        )
        run.ledger.added(flow, number)
