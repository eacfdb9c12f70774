"""Jobs by their ids in a filter; an id may be given as text, whatever it is in MongoDB."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from bson import ObjectId

from recruiter import JobFilter, JobId, Recruiter
from recruiter.errors import InvalidFilter
from recruiter.store.database import Store
from tests.commands import Recorder, recorded

IDS: list[JobId] = [ObjectId("65a1b2c3d4e5f60718293a4b"), UUID(int=7), 42, "order:1"]


def note(text: str) -> str:
    return text


@pytest.fixture
def waiting(recruiter: Recruiter) -> None:
    task = recruiter.task(note)
    for id in [*IDS, "other"]:
        task.job("x").with_id(id).enqueue()


@pytest.fixture
def ended(recruiter: Recruiter, waiting: None) -> None:
    assert len(recruiter.flush_jobs_synchronously()) == 5


@pytest.mark.usefixtures("ended")
@pytest.mark.parametrize("given", [list, lambda ids: list(map(str, ids))], ids=["as they are", "as text"])
def test_a_filter_by_ids_finds_ended_jobs_too(recruiter: Recruiter, given: Any) -> None:
    assert {job.id for job in recruiter.jobs.list(ids=given(IDS))} == set(IDS)
    assert recruiter.jobs.count(ids=given(IDS), state="failed").number == 0
    assert recruiter.jobs.recover(ids=given(IDS)[:2], state="succeeded", again=True) == 2
    assert {job.recovered_from for job in recruiter.jobs.list(recovered_from=given(IDS))} == set(IDS[:2])
    assert recruiter.jobs.remove(ids=given(IDS)) == 4
    assert [job.id for job in recruiter.jobs.list(state="succeeded")] == ["other"]


@pytest.mark.usefixtures("waiting")
def test_no_other_job_is_looked_at(target: str, store: Store) -> None:
    """The index of ids finds them, however many jobs there are."""
    assert store.database.name in target
    recorder = Recorder()
    with Recruiter(target) as recruiter:
        recruiter.__dict__["store"] = recorded(target, recorder)
        with recorder.only_these():
            recruiter.jobs.list(ids=IDS, state="queued")

    assert {find.get("hint") for find in recorder.named("find") if find["find"] == "recruiter.scheduled"} == {"_id_"}


@pytest.mark.parametrize("ids", [2**63, "", "x" * 1001, "\ud800", True, b"x", [], [None]], ids=repr)
def test_an_impossible_id_in_a_filter_is_refused(ids: Any) -> None:
    with pytest.raises(InvalidFilter, match="ids"):
        JobFilter(ids=ids)
