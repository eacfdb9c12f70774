"""Repeated jobs with real processes: every second has its job, whoever is killed."""

from __future__ import annotations

import itertools
import signal
from datetime import datetime, timedelta
from pathlib import Path

from recruiter.store.database import Store
from tests.conftest import Starter, eventually

APPLICATION = str(Path(__file__).parents[1] / "applications" / "repeating.py")


def occurrences(store: Store, urn: str) -> list[datetime]:
    """The moments of its occurrences that have ended, in order."""
    return sorted(document["scheduled_at"] for document in store.archived.collection.find({"urn": urn}))


def test_every_second_has_one_job_though_leaders_are_killed(start: Starter, store: Store) -> None:
    # given two recruiters, of which one leads, and a worker
    options = ("--bootstrap", APPLICATION, "--lease-time", "1s")
    recruiters = [start("start", "recruiter", *options) for _ in range(2)]
    start("start", "worker", "--bootstrap", APPLICATION)
    eventually(lambda: len(occurrences(store, "tick")) >= 2)

    # when the one that leads is killed, and then the other, which a third one follows
    for _ in range(2):
        lease = store.leases.read()
        assert lease is not None
        (leader,) = [each for each in recruiters if each.pid == lease.pid]
        leader.signal(signal.SIGKILL)
        recruiters.append(start("start", "recruiter", *options))
        count = len(occurrences(store, "tick"))
        eventually(lambda count=count: len(occurrences(store, "tick")) >= count + 3)  # type: ignore[misc]

    # then no second is missing, and none has two
    moments = occurrences(store, "tick")
    assert [later - earlier for earlier, later in itertools.pairwise(moments)] == [timedelta(seconds=1)] * (
        len(moments) - 1
    )
