"""A flow of everything that steps can do, for process tests. Each step counts in its own transaction, so a step that
succeeds twice, or whose effect is there without its success, shows in the counters."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

from recruiter import FlowHandle, Recruiter, RetryForever, RetryManyTimes, current_job
from recruiter.store.in_session import InSession

recruiter = Recruiter()
PARTS = 4
STEPS = {
    **dict.fromkeys(("book", "hotel/sum", *(f"hotel/part {number}" for number in range(1, PARTS + 1))), "succeeded"),
    **dict.fromkeys(("pay", "last", "sorry"), "succeeded"),
    **dict.fromkeys(("hotel/undo", "not needed"), "skipped"),
    "fails": "failed",
}
"""The state in which each step ends."""


def counters(session: Any = None) -> Any:
    client = session.client if session is not None else recruiter.store.client
    return client.get_database(recruiter.target.database).counters


def count(trip: str, name: str, result: Any = None) -> None:
    """Ends the job, and counts that."""
    time.sleep(random.uniform(0.0, 0.03))
    with current_job.transaction() as session:
        counters(session).update_one({"_id": f"{trip} {name}"}, {"$inc": {"n": 1}}, upsert=True, session=session)
        current_job.set_result(result)


task = recruiter.task(retry=RetryForever("50ms"), max_crashes=1000)


@task
def note(trip: str, name: str, number: int = 0) -> int:
    count(trip, name, number)
    return number


@task
def total(trip: str, name: str, numbers: list[int]) -> int:
    count(trip, name, sum(numbers))
    return sum(numbers)


@task
def book(trip: str) -> int:
    """Is replaced by a flow with a compensation."""
    hotel = recruiter.flow("hotel")
    parts = hotel.add_many(note, [(trip, f"part {number}", number) for number in range(1, PARTS + 1)], name="part")
    hotel.add(total.job(trip, "sum", [part.result for part in parts]), name="sum")
    hotel.add(note.job(trip, "undo"), after_failure=parts, name="undo")
    result: Any = current_job.flow.add(hotel, before_dependents=True).result
    count(trip, "book", result)
    return 0


def charge(trip: str) -> str:
    if random.random() < 0.5:
        raise ConnectionError("the bank is closed")
    counters().update_one({"_id": f"{trip} charged"}, {"$inc": {"n": 1}}, upsert=True)
    return f"receipt of {trip}"


@task
def pay(trip: str) -> str:
    receipt = current_job.once("charge", charge, trip, retry=RetryManyTimes(1000, "50ms"), timeout="20s")
    answer = current_job.wait_for_any("approved", "rejected")
    text = f"{receipt}, {answer.name}"
    count(trip, "pay", text)
    return text


@recruiter.task
def fails(trip: str) -> None:
    raise ValueError(trip)


@task
def basket(items: int) -> list[int]:
    taken = [current_job.wait_for("item") for _ in range(items)]
    count("basket", str(current_job.key), taken)
    return taken


@recruiter.task
def adds(folder: str) -> str:
    """Adds a step before the next one. Its first run stands still before it commits."""
    first = Path(folder) / "open"
    if not first.exists():
        add_steps = InSession.add_steps

        def stand_still(*args: Any, **options: Any) -> None:
            add_steps(*args, **options)
            first.write_text(str(os.getpid()))
            time.sleep(60)

        InSession.add_steps = stand_still  # type: ignore[method-assign]
    current_job.flow.add(note.job("adds", "added"), name="added", before_dependents=True)
    return "added"


def start(trip: str) -> FlowHandle:
    flow = recruiter.flow(trip)
    booked = flow.add(book.job(trip), name="book")
    paid = flow.add(pay.job(trip), name="pay")
    failed = flow.add(fails.job(trip), name="fails")
    flow.add(note.job(trip, "last", booked.result), after=[booked, paid], name="last")
    flow.add(note.job(trip, "sorry"), after_failure=failed, name="sorry")
    flow.add(note.job(trip, "not needed"), after_failure=[booked, paid], name="not needed")
    flow.on_failure(note.job(trip, "on failure"))
    flow.on_success(note.job(trip, "on success"))
    return flow.start()
