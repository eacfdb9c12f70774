"""Filters: what can be said, what is refused and in which words, and that nothing in them is ever obeyed."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
from bson import ObjectId
from bson.regex import Regex
from hypothesis import given
from hypothesis import strategies as st

from recruiter import JobFilter, State
from recruiter.domain.duration import EARLIEST, resolved, to_moment
from recruiter.domain.search.conditions import STATES
from recruiter.domain.search.filter import ENDED, FILTER_WORDS, NOT_ENDED, Conditions, filter_from_words
from recruiter.errors import InvalidFilter
from recruiter.store.search import matching

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)


class TestWords:
    def test_a_word_takes_one_value_or_several(self) -> None:
        assert JobFilter(task="send").task == ("send",)
        assert JobFilter(task=["send", "resize", "send"]).task == ("send", "resize")
        assert JobFilter(state=State.FAILED) == JobFilter(state="failed") == JobFilter(state={"failed"})
        assert JobFilter(recovered_from="x").recovered_from == ("x",)
        assert JobFilter(recovered_from=[ObjectId(b"1" * 12), 5, UUID(int=1)]).recovered_from[1] == 5

    def test_a_filter_is_told_in_words(self) -> None:
        filter = JobFilter(
            state=["lost", "failed"], task="send", args={"id": (1, 2)}, since="2h", slow="10s", attempts=3
        )

        assert (
            str(filter)
            == "state failed or lost, task send, id=1 or 2, since 2h ago, slower than 10s, at least 3 attempts"
        )
        assert str(JobFilter()) == "all jobs"


class TestMoments:
    @pytest.mark.parametrize(
        ("value", "moment"),
        [
            (NOW, NOW),
            (NOW.astimezone(timezone(timedelta(hours=2))), NOW),
            ("2030-01-01T12:00Z", NOW),
            ("2030-01-01T14:00+02:00", NOW),
            ("2030-01-01 12:00", NOW),
            ("2030-01-01", NOW - timedelta(hours=12)),
            ("2h", NOW - timedelta(hours=2)),
            ("30 minutes ago", NOW - timedelta(minutes=30)),
            (90, NOW - timedelta(seconds=90)),
            (timedelta(days=1), NOW - timedelta(days=1)),
            (timedelta.max, EARLIEST),
        ],
        ids=str,
    )
    def test_a_date_or_how_long_ago(self, value: Any, moment: datetime) -> None:
        assert resolved(to_moment("since", value), NOW) == moment


class TestQueries:
    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just(Regex(".*")),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
            max_leaves=5,
        ),
        st.text(max_size=10),
    )
    def test_a_value_is_only_ever_compared(self, value: Any, path: str) -> None:
        """Whatever is accepted becomes `$eq` of a path below `args`."""
        try:
            filter = JobFilter(args={path: value})
        except InvalidFilter:
            return

        ((_, *conditions),) = (each["$and"] for each in matching.residual(matching.of_ended(filter, NOW)))

        for condition in conditions:
            for alternative in condition["$or"]:
                ((name, comparison),) = alternative.items()
                assert name.startswith("args.")
                assert "$" not in name.replace(".$", "$")[:6]
                assert not any(part.startswith("$") for part in name.split("."))
                assert list(comparison) == ["$eq"]


class TestStates:
    def test_each_state_selects_its_collections(self) -> None:
        assert JobFilter().wants(ENDED)
        assert not JobFilter(state="waiting").wants(ENDED)
        assert not JobFilter(why="done").wants(NOT_ENDED)
        assert JobFilter(state="failed").wants_why("a word of my own policy")
        assert not JobFilter(state="failed").wants_why("cancelled")
        assert {state for state in STATES if JobFilter(state=state).wants(NOT_ENDED)} == NOT_ENDED

    def test_each_act_has_its_states(self) -> None:
        assert JobFilter(task="x").to_remove().state == ENDED
        assert JobFilter(state="lost").to_remove().state == {"lost"}
        assert JobFilter(task="x").to_cancel().state == NOT_ENDED
        assert JobFilter(state="queued").to_cancel().state == {"queued"}

    @pytest.mark.parametrize("words", [{"state": "succeeded"}, {"state": ["failed", "succeeded"]}, {"why": "done"}])
    def test_jobs_that_succeeded_are_recovered_only_again(self, words: dict[str, Any]) -> None:
        with pytest.raises(InvalidFilter, match="second time"):
            JobFilter(**words).to_recover()
        assert JobFilter(**words).to_recover(again=True).wants_why("done")


def test_fingerprints_tell_filters_apart() -> None:
    filters = [
        {},
        *({"state": state} for state in STATES),
        {"task": "x"},
        {"group": "x"},
        {"args": {"x": 1}},
        {"since": 5},
    ]

    assert len({JobFilter(**words).fingerprint for words in filters}) == len(filters)  # type: ignore[arg-type]
    assert JobFilter(state=["lost", "failed"]).fingerprint == JobFilter(state=["failed", "lost"]).fingerprint


class TestWrittenAsText:
    """Commands and URLs write every condition as text."""

    def test_every_condition_can_be_written(self) -> None:
        conditions = {each.name for each in fields(JobFilter)}
        assert {word if word != "arg" else "args" for word in FILTER_WORDS} == conditions - {"ids"}
        assert set(Conditions.__annotations__) == conditions

    def test_it_means_the_same_as_in_python(self) -> None:
        words = {
            "state": ["failed"],
            "task": ["a", "b"],
            "arg": ["customer.id=42"],
            "since": ["1h", "2h"],
            "attempts": ["3"],
            "recovered": ["true"],
            "why": [],
        }

        filter = filter_from_words(words)

        assert filter == JobFilter(
            state="failed", task=["a", "b"], args={"customer.id": (42, "42")}, since="2h", attempts=3, recovered=True
        )

    @pytest.mark.parametrize(("words", "told"), [({"attempts": ["many"]}, "attempts is 'many'"), ({"x": ["1"]}, "'x'")])
    def test_what_makes_no_sense_is_refused(self, words: dict[str, list[str]], told: str) -> None:
        with pytest.raises(InvalidFilter, match=told):
            filter_from_words(words)


@pytest.mark.parametrize("text", ["ObjectId('6afc22a57867cebf4db5d1b1')", 'ObjectId("6afc22a57867cebf4db5d1b1")'])
def test_an_id_as_python_shows_it_is_understood(text: str) -> None:
    assert ObjectId("6afc22a57867cebf4db5d1b1") in JobFilter(ids=text).ids
