"""Jobs as documents: each field has its row in the table, and a document that somebody else wrote is read with care."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import bson
import pytest
from bson import ObjectId
from bson.datetime_ms import DatetimeMS
from hypothesis import given
from hypothesis import strategies as st

from recruiter.domain.flow import FlowStep
from recruiter.domain.job import ArchivedJob, Checkpoint, Execution
from recruiter.domain.planning.needs import Needs
from recruiter.domain.state import Why
from recruiter.store import outcomes
from recruiter.store.codec import (
    anew,
    archived_document,
    archived_from,
    attempt_fields,
    decode,
    job_document,
    job_from,
    split_batch,
    step_of,
)
from recruiter.store.job_fields import JOB_FIELDS, MOST_INDEXED, Use, flow_document, flow_from, names
from tests.samples import NOW, a_job

ROWS = {each.name: each for each in JOB_FIELDS}
OPTIONS: dict[str, Any] = {
    "method": "ping",
    "tags": ("a",),
    "urn": "u",
    "owner": "ada",
    "at_most_once": True,
    "timeout": 5.0,
    "max_crashes": 2,
    "expires_in": 9.0,
    "expires_at": NOW,
    "keep_failed": 1.0,
    "needs": Needs.of(proc=1, mem="1GiB", gpu=2),
    "limited_by": "customer:1",
    "worker_deaths": 1,
    "debounced": True,
    "checkpoints": (Checkpoint("charge", NOW, {"id": 1}), Checkpoint("sleep 1", NOW, problem="none")),
    "retry_policy": {"class": "RetryForever"},
    "recovered_from": "other",
    "origin": "first",
    "scheduled_at": NOW + timedelta(days=1),
}


def test_every_attribute_of_a_job_has_a_row_and_every_row_is_there_once() -> None:
    assert {each.attribute for each in JOB_FIELDS} - {None} == {field.name for field in fields(ArchivedJob)}
    assert len(ROWS) == len(JOB_FIELDS)


@pytest.mark.parametrize("option", OPTIONS)
def test_each_option_comes_back_as_it_was(option: str) -> None:
    job = replace(a_job(), **{option: OPTIONS[option]})

    document = job_document(job)

    assert job_from(document) == job
    assert document.keys() <= ROWS.keys()


def test_what_attempts_and_the_end_write_is_in_the_table() -> None:
    document = job_document(replace(a_job(), **OPTIONS))
    crash = Execution(NOW, NOW, "w", True, "E", "m", "t", ("n",))

    written = [
        attempt_fields(document | {"last_execution": {}}, crash),
        dict(outcomes.snoozed(document, NOW, NOW, "later").fields),
        archived_document(document, Why.LOST, NOW, {"reason": "r", "result": 1, **attempt_fields(document, crash)}),
        decode(outcomes.unreadable("id", b"", NOW, "cannot be read").document),
    ]

    assert set().union(*written) <= ROWS.keys()


def test_the_archive_has_nothing_that_is_for_waiting_jobs_only() -> None:
    document = job_document(a_job()) | dict.fromkeys(names(Use.WAITING), "x")

    assert set(names(Use.WAITING)).isdisjoint(archived_document(document, Why.DONE, NOW, {}))


def test_a_recovered_job_of_an_earlier_release_has_the_key_that_its_document_knows() -> None:
    """Earlier releases wrote `recovered_from` and no `origin`."""
    old = {**job_document(a_job()), "_id": "second", "recovered_from": "first"}
    assert job_from(old).key == "first"

    ended = archived_from(archived_document(old, "lost", NOW, {}))
    third = anew(ended, NOW, NOW)

    assert (third.recovered_from, third.key) == ("second", "first")
    assert job_from(job_document(third)).key == "first"
    assert "origin" not in job_document(a_job())


class TestRaw:
    @given(
        st.lists(
            st.dictionaries(st.sampled_from("abc"), st.integers(-(2**62), 2**62) | st.text(max_size=20)), max_size=6
        )
    )
    def test_a_batch_is_split_where_its_documents_end(self, documents: list[dict[str, Any]]) -> None:
        raws = [bson.encode(document) for document in documents]

        assert list(split_batch(b"".join(raws))) == raws


def test_dates_outside_pythons_years_can_be_read() -> None:
    found = decode(bson.encode({"at": DatetimeMS(2**60), "then": datetime(2030, 1, 1, tzinfo=UTC)}))

    assert isinstance(found["at"], DatetimeMS)
    assert found["then"] == datetime(2030, 1, 1, tzinfo=UTC)


class TestStepsThatEnd:
    FLOW, STEP, OTHER = ObjectId(), ObjectId(), ObjectId()

    @pytest.mark.parametrize(
        ("flow", "place"),
        [
            (None, None),
            ({"id": FLOW, "step": STEP}, (FLOW, STEP)),
            ({"id": FLOW, "step": STEP, "after": [OTHER], "held": 3, "results": []}, (FLOW, STEP)),
            ({"step": STEP, "id": FLOW}, (FLOW, STEP)),
            ({"id": FLOW, "step": "own"}, (FLOW, "own")),
            ({"id": FLOW, "step": STEP, "on": "end"}, None),
            ({"id": 1, "step": STEP}, None),
        ],
    )
    def test_the_step_is_read_from_the_document(self, flow: Any, place: Any) -> None:
        assert step_of({**job_document(a_job()), "flow": flow}) == place


@pytest.mark.parametrize("count", [1, MOST_INDEXED, MOST_INDEXED + 1])
def test_what_a_step_waits_for(count: int) -> None:
    """Given a step that waits for very many, then only the id of its flow stands where the index looks."""
    place = FlowStep(ObjectId(), ObjectId(), tuple(ObjectId() for _ in range(count)))

    document = flow_document(place)

    assert document["after"] == ([place.flow] if count > MOST_INDEXED else list(place.after))
    assert flow_from({"flow": document}) == place
