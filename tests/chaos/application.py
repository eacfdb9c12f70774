"""The application of the chaos run: every run of every job leaves a line when it starts and one when it ends."""

from __future__ import annotations

import bisect
import os
import random
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from recruiter import Recruiter, RetryManyTimes, SignalTimeout, current_job
from tests.chaos.ledger import Ledger

EFFECTS = "effects"
"""The collection in which `counted` leaves its documents."""
ORDERS = "orders"
"""The collection in which producers leave a document in the transaction that enqueues an `ordered` job."""
SIGNAL, SIGNAL_WITHIN_SECONDS = "go", 20.0
"""The signal that `durable` waits for, and for how long: its producer may be killed before it sends it."""
DEBOUNCED_SECONDS, THROTTLED_SECONDS = 0.3, 0.5
MOST_LIMITED = 3
"""The number of jobs of `limited` that may run at the same time."""
RATE, RATE_SECONDS = 3, 1.0
"""The number of jobs of `paced` that may start in this time."""
UNCHANGED = "chaos"
"""The name of the flows that nobody changes."""
STEPS = 4
"""Steps of a flow: one, then two, then one that waits for both. Their numbers follow each other."""
SHARED = "shared"
"""The group whose tenants take turns."""
BURST, SMALL_TENANTS = 25, 3
"""A burst of jobs of `fair`, stored together: first those of a tenant with many, then one for each small tenant. Their
numbers follow each other."""
BURST_DUE_AFTER = timedelta(seconds=0.5)
_KEYS = 5
TICK = "chaos:tick"

recruiter = Recruiter(os.environ.get("RECRUITER_TARGET", "127.0.0.1:1"))
ledger = Ledger(Path(os.environ.get("CHAOS_LEDGER", "/nonexistent")), "runs")


def _run(n: int, seconds: float = 0.0) -> int:
    facts = {"job": str(current_job.id), "attempt": current_job.attempt, "pid": os.getpid()}
    ledger.write("start", task=current_job.task, worker=current_job.worker, **facts)
    if seconds:
        time.sleep(seconds)
    return n


def _ended(n: int) -> int:
    ledger.write("end", job=str(current_job.id), pid=os.getpid())
    return n


@recruiter.task
def plain(n: int) -> int:
    """Takes up to some milliseconds: faults must meet jobs that run."""
    return _ended(_run(n, n % 8 * 0.002))


@recruiter.task(retry=RetryManyTimes(100, 0.1))
def flaky(n: int) -> int:
    _run(n)
    if current_job.attempt <= n % 3:
        _ended(n)
        raise ConnectionError(f"attempt {current_job.attempt} of {n} fails on purpose")
    return _ended(n)


@recruiter.task(at_most_once=True)
def once(n: int) -> int:
    return _ended(_run(n, 0.005))


@recruiter.task
def limited(n: int) -> int:
    return _ended(_run(n, 0.02))


@recruiter.task
def slow(n: int) -> int:
    return _ended(_run(n, 0.2 + n % 1000 / 1000))


@recruiter.task
def slowest(n: int, seconds: float) -> int:
    """Stays while thousands of others come and go beside it."""
    return _ended(_run(n, seconds))


@recruiter.task
def paced(n: int) -> int:
    return _ended(_run(n))


@recruiter.task
def part(n: int, before: int = 0) -> int:
    """A step of a flow."""
    return _ended(_run(n))


@recruiter.task
def alone(n: int) -> int:
    """One of each key at a time, see `key_of`."""
    return _ended(_run(n, 0.01))


@recruiter.task(retry=RetryManyTimes(100, 0.1))
def counted(n: int) -> int:
    """Leaves a document in the transaction that ends it."""
    _run(n)
    with current_job.transaction() as session:
        effects = session.client[recruiter.target.database][EFFECTS]
        effects.update_one({"_id": n}, {"$inc": {"count": 1}}, upsert=True, session=session)
        current_job.set_result(n)
    return _ended(n)


@recruiter.task(retry=RetryManyTimes(100, 0.1))
def durable(n: int) -> int:
    """Charges once, sleeps, and waits for its producer. Each part is a run of its own."""
    _run(n)
    try:
        current_job.once("charge", _charge)
        current_job.sleep(0.05)
        try:
            current_job.wait_for(SIGNAL, timeout=SIGNAL_WITHIN_SECONDS)
        except SignalTimeout:
            ledger.write("timed out", job=str(current_job.id))
        return n
    finally:
        _ended(n)


def _charge() -> None:
    facts = {"job": str(current_job.id), "attempt": current_job.attempt, "pid": os.getpid()}
    ledger.write("charge", task=current_job.task, worker=current_job.worker, **facts)


@recruiter.task
def ordered(n: int) -> int:
    """Enqueued in a transaction of its producer."""
    return _ended(_run(n))


@recruiter.task
def latest(n: int) -> int:
    """Debounced: the last call of each key decides the number."""
    return _ended(_run(n))


@recruiter.task
def throttled(n: int) -> int:
    """One of each key in a period."""
    return _ended(_run(n))


@recruiter.task(group=SHARED)
def fair(n: int) -> int:
    """Its tenants take turns, see `tenant_of`."""
    return _ended(_run(n, 0.02))


@recruiter.task
def mended(n: int) -> int:
    """Half of them fail for good, until a user recovers them."""
    _ended(_run(n))
    if random.random() < 0.5:
        raise ValueError(f"{n} fails by chance")
    return n


@recruiter.task(retry=RetryManyTimes(1, 0.05))
def changed(name: str, fails: float, wait: float, results: list[Any], grows: bool = False) -> str:
    """A step of a flow that users change. It fails so often, and may add a step that its dependents wait for."""
    del results
    _run(0, wait)
    try:
        if grows:
            job, flow = changed.job(f"{name} grown", 0.0, 0.0, []), current_job.flow
            step = flow.add(job, name=f"{name} grown", before_dependents=True)
            ledger.write("grew", flow=str(flow.id), step=str(step.id))
        if random.random() < fails:
            raise ValueError(f"{name} fails by chance")
        return name
    finally:
        _ended(0)


@recruiter.every("1 second", urn=TICK, late="all")
def tick() -> None:
    _ended(_run(0))


_KINDS = (
    *((0, "slow"), (2, "once"), (22, "limited"), (24, "flaky"), (72, "part"), (72 + 2 * STEPS, "alone")),
    *((85, "paced"), (88, "counted"), (94, "durable"), (100, "ordered"), (106, "latest"), (112, "throttled")),
    *((115, "mended"), (125, "fair"), (125 + 2 * BURST, "plain")),
)
"""Of a thousand jobs: from which on they are of which task."""
KINDS = frozenset(task for _, task in _KINDS)
_FROM = [first for first, _ in _KINDS]
_ROUND = 1000


def task_of(n: int) -> str:
    """Which task job `n` is of: mostly plain ones, for the others take long and would keep the number small."""
    return _KINDS[bisect.bisect_right(_FROM, n % _ROUND) - 1][1]


def flow_of(n: int) -> int:
    """The first number of the flow that step `n` is of."""
    return n - n % STEPS


def waits_for(n: int) -> list[int]:
    """The steps that step `n` of a flow waits for."""
    first = flow_of(n)
    return [[], [first], [first], [first + 1, first + 2]][n - first]


def burst_of(n: int) -> int:
    """The first number of the burst that job `n` of `fair` is of."""
    return n - n % BURST


def tenant_of(n: int) -> str:
    small = n % BURST - (BURST - SMALL_TENANTS)
    return "large" if small < 0 else f"small {small}"


def to_be_cancelled(n: int) -> bool:
    return n % 2 == 1


def key_of(n: int) -> str:
    return str(n % _KEYS)
