"""Jobs with effects in the application's own collections: in the job's own transaction, and without."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

from recruiter import Recruiter, RetryForever, current_job

recruiter = Recruiter()


def counters(session: Any = None) -> Any:
    client = session.client if session is not None else recruiter.store.client
    return client.get_database(recruiter.target.database).counters


@recruiter.task(retry=RetryForever("1s"), max_crashes=1000)
def count(name: str, seconds: float = 0.0) -> None:
    """Adds one, in its own transaction."""
    with current_job.transaction() as session:
        counters(session).update_one({"_id": name}, {"$inc": {"n": 1}}, upsert=True, session=session)
        time.sleep(seconds * random.random())


@recruiter.task(retry=RetryForever("1s"), max_crashes=1000)
def hold_open(name: str, folder: str) -> str:
    """Keeps its transaction open until a file is there."""
    with current_job.transaction() as session:
        counters(session).update_one({"_id": name}, {"$inc": {"n": 1}}, upsert=True, session=session)
        (Path(folder) / f"open-{os.getpid()}").touch()
        while not (Path(folder) / "go").exists():
            time.sleep(0.01)
        current_job.set_result("committed")
    return ""


@recruiter.task(retry=RetryForever("0s"), max_crashes=1000)
def die_after_commit(name: str) -> None:
    with current_job.transaction() as session:
        counters(session).update_one({"_id": name}, {"$inc": {"n": 1}}, upsert=True, session=session)
    os._exit(9)


@recruiter.task
def approved(name: str) -> str:
    by = current_job.wait_for("approved", timeout="1 hour")
    return f"{name} by {by}"
