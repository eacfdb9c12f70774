"""A process that enqueues and waits forks: its children do the same, over connections of their own."""

from __future__ import annotations

from pathlib import Path

from recruiter import Recruiter
from tests.conftest import Starter

PRODUCER = str(Path(__file__).parent.parent / "applications" / "forking.py")
CHILDREN = 4


def test_children_of_a_busy_producer_enqueue_and_see_results(start: Starter, recruiter: Recruiter) -> None:
    """Given a producer whose threads enqueue and wait all the time, when it forks, then every child enqueues, runs a
    job, and sees a result that its parent asked for before; and the parent goes on."""
    producer = start(str(CHILDREN), script=PRODUCER)

    producer.says(f"all ended {[0] * CHILDREN}", within=90)

    for number in range(CHILDREN):
        assert f"child {number} stored add" in producer.log
        assert f"child {number} sees 42" in producer.log
        assert recruiter.find(f"child {number}").args == {"a": number, "b": 2}
