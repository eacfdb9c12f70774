"""A transaction of the application that has written a job, and stays open: other jobs go on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pymongo import MongoClient

from recruiter import Recruiter
from tests.conftest import Starter, eventually

Written = Callable[[str], str]

JOBS = """
    import time
    from pathlib import Path
    from recruiter import Recruiter

    recruiter = Recruiter()

    @recruiter.task
    def waits_for_file(path: str) -> str:
        Path(path + ".began").touch()
        while not Path(path).exists():
            time.sleep(0.01)
        return path
"""
WITHIN = 8.0


def test_a_job_that_an_open_transaction_has_signalled_holds_up_no_other(
    application: Written, start: Starter, target: str, recruiter: Recruiter, tmp_path: Path
) -> None:
    """Given two running jobs, and a transaction that has signalled one and stays open, when both have ended, then the
    other one is settled, a new one too, and the first one when the transaction has ended."""
    start("start", "recruiter")
    start("start", "worker", "--bootstrap", application(JOBS), "--processes", "2")
    one, other = (tmp_path / "one", tmp_path / "other")
    locked, free = (recruiter.job("waits_for_file", [str(path)]).enqueue() for path in (one, other))
    eventually(lambda: all(path.with_suffix(".began").exists() for path in (one, other)))
    client: MongoClient[dict[str, Any]]
    with MongoClient(target) as client, client.start_session() as session, session.start_transaction():
        recruiter.signal(locked.id, "approved", session=session)

        one.touch()
        other.touch()

        assert free.result(WITHIN) == str(other)
        assert recruiter.job("waits_for_file", [str(other)]).enqueue().result(WITHIN) == str(other)

    assert locked.result(WITHIN) == str(one)
