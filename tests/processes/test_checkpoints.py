"""Steps that survive: jobs are killed between their steps, and wait for signals without a slot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from recruiter.store.database import Store
from tests.applications import effects
from tests.conftest import Starter
from tests.processes.conftest import Lead

EFFECTS = effects.__file__


@pytest.fixture(autouse=True)
def application(target: str, store: Store) -> Iterator[None]:
    del store  # prepared
    effects.recruiter.point_at(target)
    yield
    effects.recruiter.close()


def test_each_finished_step_is_done_once_however_often_the_job_is_killed(
    lead: Lead, start: Starter, store: Store, tmp_path: Path
) -> None:
    # given jobs of three steps whose process is killed after each step with a good chance
    lead()
    start("start", "worker", "--bootstrap", EFFECTS, "--processes", "2").says("joined the roster")
    names = [f"order-{number}" for number in range(12)]

    sent = effects.three_steps.enqueue_many([(str(tmp_path), name) for name in names])

    # then each ends with the results of all steps, and each step was done once
    for name, job in zip(names, sent, strict=True):
        assert job.result(timeout=90) == f"charge:{name} pack:{name} ship:{name}"
        assert (tmp_path / name).read_text().split() == ["charge", "pack", "ship"]
    crashes = sum(document.get("crashes", 0) for document in store.archived.collection.find({}))
    assert crashes > 5, "nothing was shown"
