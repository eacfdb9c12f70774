"""Records to documents and back; raw batches; and what is believed of a document that somebody else wrote."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import bson
import pytest
from bson import ObjectId
from bson.datetime_ms import DatetimeMS
from hypothesis import given
from hypothesis import strategies as st

from recruiter.domain.flow import FlowStep
from recruiter.store.codec import (
    decode,
    job_document,
    split_batch,
    step_of,
)
from recruiter.store.job_fields import MOST_INDEXED, flow_document, flow_from
from tests.samples import a_job


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
