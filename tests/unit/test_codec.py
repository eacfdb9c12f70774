"""Records to documents and back; raw batches; and what is believed of a document that somebody else wrote."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import bson
import pytest
from bson import Int64, ObjectId
from bson.datetime_ms import DatetimeMS
from hypothesis import given
from hypothesis import strategies as st

from recruiter.domain.flow import FlowStep
from recruiter.domain.job import EXECUTIONS_KEPT, Execution
from recruiter.domain.names import BLOCKED_LANE
from recruiter.domain.state import State
from recruiter.errors import InvalidJob, JobTooLarge
from recruiter.store import codec, outcomes
from recruiter.store.codec import (
    LARGEST_JOB,
    adopted_fields,
    archived_document,
    archived_from,
    decode,
    decode_foreign,
    encode,
    encode_job,
    execution_document,
    id_of,
    is_blocked,
    job_document,
    job_from,
    remember,
    split_batch,
    step_of,
)
from recruiter.store.fields import is_job_id
from recruiter.store.job_fields import MOST_INDEXED, flow_document, flow_from
from tests.samples import NOW, a_job, done

IDS = [ObjectId("5f0000000000000000000005"), "text", "", 5, -1, Int64(2**40), UUID(int=7)]
FULL = a_job(
    method="ping",
    group="mail",
    priority=-2.5,
    tags=("a", "b"),
    urn="u",
    owner="ada",
    at_most_once=True,
    attempts=3,
    retry_policy={"class": "RetryManyTimes", "parameters": {"n": 3, "seconds": 60}},
    scheduled_at=NOW + timedelta(days=1),
)


class TestJobs:
    @pytest.mark.parametrize("job", [a_job(), FULL, a_job(args=[1, "x", None])], ids=["plain", "full", "list"])
    def test_there_and_back(self, job: Any) -> None:
        assert job_from(decode(bytes(encode_job(job).raw))) == job

    @pytest.mark.parametrize("id", IDS, ids=repr)
    def test_every_kind_of_id(self, id: Any) -> None:
        assert job_from(decode(bytes(encode_job(a_job(id)).raw))).id == id

    def test_what_is_default_is_left_out(self) -> None:
        fields = {"_id", "task", "args", "group", "lane", "priority", "created_at", "scheduled_at", "attempts"}
        assert set(job_document(a_job())) == fields
        assert job_document(FULL)["lane"] == "mail/add"

    def test_dates_come_back_aware(self) -> None:
        assert job_from(decode(bytes(encode_job(a_job()).raw))).created_at.tzinfo is not None

    def test_too_large(self) -> None:
        with pytest.raises(JobTooLarge, match=r"job of task 'add' has .* bytes; at most 15,728,640"):
            encode_job(a_job(args={"x": "x" * LARGEST_JOB}))


class TestExecutions:
    def test_the_first_is_the_last_execution(self) -> None:
        fields = remember({"attempts": 0}, Execution(NOW, NOW, "w1"))

        assert fields == {"last_execution": {"started_at": NOW, "ended_at": NOW, "worker": "w1"}, "attempts": 1}

    def test_from_the_second_on_all_are_kept_up_to_a_bound(self) -> None:
        document: dict[str, Any] = {**job_document(a_job())}
        for number in range(EXECUTIONS_KEPT + 5):
            document |= remember(document, Execution(NOW, NOW, f"w{number}", exception="E", message="m", trace="t"))

        executions = job_from(document).executions
        assert [execution.worker for execution in executions] == [f"w{n}" for n in range(5, EXECUTIONS_KEPT + 5)]
        assert document["attempts"] == EXECUTIONS_KEPT + 5
        assert document["last_execution"] == execution_document(executions[-1])

    def test_a_crash_is_counted(self) -> None:
        fields = remember({"attempts": 1, "crashes": 1}, Execution(NOW, NOW, "w", crashed=True, message="gone"))

        assert (fields["crashes"], fields["last_execution"]["crashed"]) == (2, True)
        assert "crashes" not in remember({"attempts": 1}, Execution(NOW, NOW, "w"))

    @pytest.mark.parametrize(
        "execution",
        [
            Execution(NOW, NOW, "w"),
            Execution(NOW, NOW, "w", exception="ValueError", message="m", trace="t"),
            Execution(None, NOW, "w", crashed=True, message="gone"),
        ],
    )
    def test_there_and_back(self, execution: Execution) -> None:
        document = job_document(a_job()) | remember({"attempts": 0}, execution)

        assert job_from(decode(encode(document))).executions == (execution,)


class TestArchive:
    def test_there_and_back(self) -> None:
        ended = archived_from(decode(done(FULL, result={"x": [1]})))

        assert (ended.done, ended.why, ended.state, ended.result) == (True, "done", State.SUCCEEDED, {"x": [1]})
        assert (ended.id, ended.tags, ended.attempts) == (FULL.id, ("a", "b"), 4)
        assert ended.last_execution == Execution(NOW, NOW, "w1")

    @pytest.mark.parametrize(
        ("why", "state"),
        [("cancelled", State.CANCELLED), ("lost", State.LOST), ("tried-too-many-times", State.FAILED)],
    )
    def test_its_state(self, why: str, state: State) -> None:
        document = archived_document(job_document(a_job()), why, NOW, {"reason": "so"})

        ended = archived_from(document)
        assert (ended.state, ended.reason, ended.archived_at) == (state, "so", NOW)

    def test_what_is_for_planning_stays_behind(self) -> None:
        document = archived_document(job_document(a_job()) | {"started_by": "w1"}, "done", NOW, {})

        assert {"lane", "started_by"}.isdisjoint(document)

    def test_a_malformed_document_can_be_shown(self) -> None:
        aside = {"_id": 1, "done": False, "why": "malformed", "reason": "r", "archived_at": NOW, "original": {"x": 1}}

        assert (archived_from(aside).id, archived_from(aside).reason) == (1, "r")

    def test_a_result_that_does_not_fit_is_dropped_and_said(self) -> None:
        raw = outcomes.succeeded(job_document(a_job()), Execution(NOW, NOW, "w"), NOW, "x" * LARGEST_JOB)

        ended = archived_from(decode(raw))
        assert (ended.done, ended.result) == (True, None)
        assert "was not kept" in (ended.reason or "")


class TestRaw:
    @given(
        st.lists(
            st.dictionaries(st.sampled_from("abc"), st.integers(-(2**62), 2**62) | st.text(max_size=20)), max_size=6
        )
    )
    def test_a_batch_is_split_where_its_documents_end(self, documents: list[dict[str, Any]]) -> None:
        raws = [bson.encode(document) for document in documents]

        assert list(split_batch(b"".join(raws))) == raws

    @pytest.mark.parametrize("id", IDS, ids=repr)
    def test_the_id_of_raw_bytes(self, id: Any) -> None:
        assert id_of(encode({"_id": id, "task": "add", "args": {"_id": 1}})) == id

    @pytest.mark.parametrize("id", IDS, ids=repr)
    def test_the_kinds_of_ids(self, id: Any) -> None:
        assert is_job_id(id)

    @pytest.mark.parametrize("value", [None, True, 1.5, b"x", [1], {"a": 1}, NOW], ids=repr)
    def test_what_is_no_id(self, value: Any) -> None:
        assert not is_job_id(value)

    def test_a_foreign_document_that_can_be_read(self) -> None:
        assert decode_foreign(encode({"_id": 1, "x": NOW})) == {"_id": 1, "x": NOW}

    def test_one_with_text_that_is_none(self) -> None:
        raw = encode({"_id": 1, "x": "broken!"}).replace(b"broken!", b"br\xff\xfeen!")

        with pytest.raises(InvalidJob, match="cannot be read"):
            decode_foreign(raw)


class TestAdoption:
    def test_a_minimal_document(self) -> None:
        fields = adopted_fields({"_id": 1, "task": "add"}, NOW)

        expected = job_document(a_job(1, args={}))
        assert fields == {key: value for key, value in expected.items() if key not in ("_id", "task")}

    def test_what_it_says_wins(self) -> None:
        said = {"group": "mail", "priority": 3, "attempts": 2, "args": [1], "scheduled_at": NOW - timedelta(days=9)}

        fields = adopted_fields({"_id": 1, "task": "add", **said}, NOW)

        assert {key: fields[key] for key in said} == said
        assert fields["lane"] == "mail/add"

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"_id": 1.5}, "_id is float; it must be an ObjectId, a short text, an integer or a UUID"),
            ({"task": None}, "task must be one text, not NoneType"),
            ({"task": "a b"}, "task 'a b' is not a name"),
            ({"group": ["a"]}, "group must be one text, not list"),
            ({"args": "x"}, "args is str; it must be a document or an array"),
            ({"scheduled_at": "now"}, "scheduled_at is str; it must be datetime"),
            ({"scheduled_at": DatetimeMS(2**60)}, "scheduled_at is DatetimeMS"),
            ({"priority": "1"}, "priority is str; it must be int or float"),
            ({"priority": False}, "priority is bool"),
            ({"attempts": True}, "attempts is bool"),
            ({"tags": [1]}, "tags must all be text"),
            ({"retry_policy": []}, "retry_policy is list; it must be dict"),
        ],
        ids=str,
    )
    def test_what_is_wrong_is_said(self, change: dict[str, Any], reason: str) -> None:
        with pytest.raises(InvalidJob, match=reason):
            adopted_fields({"_id": 1, "task": "add", **change}, NOW)

    def test_no_task(self) -> None:
        with pytest.raises(InvalidJob, match="task is missing"):
            adopted_fields({"_id": 1, "args": {}}, NOW)


def test_new_ids_are_new() -> None:
    assert len({codec.new_id() for _ in range(100)}) == 100


def test_dates_outside_pythons_years_can_be_read() -> None:
    found = decode(bson.encode({"at": DatetimeMS(2**60), "then": datetime(2030, 1, 1, tzinfo=UTC)}))

    assert isinstance(found["at"], DatetimeMS)
    assert found["then"] == datetime(2030, 1, 1, tzinfo=UTC)


class TestStepsThatEnd:
    FLOW, STEP, OTHER = ObjectId(), ObjectId(), ObjectId()

    @pytest.mark.parametrize("id", IDS)
    @pytest.mark.parametrize(
        ("flow", "place"),
        [
            (None, None),
            ({"id": FLOW, "step": STEP}, (FLOW, STEP)),
            ({"id": FLOW, "step": STEP, "after": [OTHER]}, (FLOW, STEP)),
            ({"id": FLOW, "step": STEP, "after": [OTHER], "held": 3, "results": []}, (FLOW, STEP)),
            ({"id": FLOW, "step": STEP, "delay": 1.0}, (FLOW, STEP)),
            ({"step": STEP, "id": FLOW}, (FLOW, STEP)),
            ({"id": FLOW, "step": "own"}, (FLOW, "own")),
            ({"id": FLOW, "step": STEP, "on": "end"}, None),
            ({"id": 1, "step": STEP}, None),
        ],
    )
    def test_the_step_is_found_wherever_it_stands(self, id: Any, flow: Any, place: Any) -> None:
        document = {**job_document(a_job(id)), **({} if flow is None else {"flow": flow})}
        second = {"_id": id, **({} if flow is None else {"flow": flow}), **document}

        for form in (document, second):
            assert step_of(encode(form)) == step_of(form) == place


PLACE = {"id": ObjectId(), "step": ObjectId(), "after": [ObjectId()]}
STEP: dict[str, Any] = {
    "_id": ObjectId(),
    "flow": PLACE,
    "task": "t",
    "args": {"number": 1},
    "group": "g",
    "lane": BLOCKED_LANE,
    "priority": 0,
    "created_at": NOW,
    "scheduled_at": NOW,
    "attempts": 0,
}
LOOKALIKE = {name: STEP[name] for name in ("lane", "priority", "created_at", "scheduled_at")}
"""What looks like one, as an argument."""
DOCUMENTS: dict[str, dict[str, Any]] = {
    "as we write it": STEP,
    "with a lookalike": {**STEP, "args": LOOKALIKE},
    "with an argument of each type": {**STEP, "args": {"a": 1.5, "b": "x", "c": None, "d": [LOOKALIKE], "e": b"x"}},
    "with arguments that are called like its fields": {**STEP, "args": {"takes": [1], "results": [2], "held": 3}},
    "with a priority that is no small number": {**STEP, "priority": 2**40},
    "with an id of its own": {**STEP, "_id": "mine"},
    "with options": {"urn": "u", "tags": ["x"], **STEP, "key": "k", "retry_policy": {"type": "p", **LOOKALIKE}},
    "in another order": dict(reversed(STEP.items())),
    "without a time": {name: value for name, value in STEP.items() if name != "scheduled_at"},
}


class TestBlockedSteps:
    @pytest.mark.parametrize("document", DOCUMENTS.values(), ids=DOCUMENTS)
    def test_only_one_that_is_blocked(self, document: dict[str, Any]) -> None:
        assert is_blocked(encode(document))
        assert not is_blocked(encode({**document, "lane": "g/t"}))


@pytest.mark.parametrize("count", [1, MOST_INDEXED, MOST_INDEXED + 1])
def test_what_a_step_waits_for(count: int) -> None:
    """Given a step that waits for very many, then only the id of its flow stands where the index looks."""
    place = FlowStep(ObjectId(), ObjectId(), tuple(ObjectId() for _ in range(count)))

    document = flow_document(place)

    assert document["after"] == ([place.flow] if count > MOST_INDEXED else list(place.after))
    assert flow_from({"flow": document}) == place
