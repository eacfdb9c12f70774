"""What a job says of itself: ordered, bounded, and never back within a stage."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recruiter.domain.progress import (
    LINES_KEPT,
    LOG_BYTES,
    MAX_NAME_CHARACTERS,
    STATUS_KEPT,
    LogLine,
    Progress,
    Recorder,
    StatusEntry,
)
from recruiter.domain.state import State
from recruiter.store.codec import decode, encode, job_document, job_from, progress_fields
from recruiter.store.job_fields import progress_from
from tests.samples import NOW, a_job

LATER = NOW + timedelta(minutes=1)


def recorder(before: Progress | None = None) -> Recorder:
    return Recorder(before or Progress())


class TestStatus:
    @pytest.mark.parametrize(
        ("value", "kept"), [(0.5, 0.5), (1, 1.0), (1.0000001, 1.0), (43, 1.0), (-1, 0.0), (float("nan"), 0.0)]
    )
    def test_progress_is_between_0_and_1(self, value: float, kept: float) -> None:
        record = recorder()
        record.progress(value, NOW)

        assert record.all().reached == kept

    @given(st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.floats(-1, 2)), max_size=30))
    def test_it_never_goes_back_within_a_stage(self, said: list[tuple[str, float | None]]) -> None:
        record, seen = recorder(), Progress()
        for stage, progress in said:
            record.stage(stage, progress, NOW)
            now = record.all()
            assert all(0.0 <= entry.progress <= 1.0 for entry in now.status)
            if now.stage == seen.stage:
                assert now.reached >= seen.reached
            assert len(now.status) - len(seen.status) == (now.stage != seen.stage)
            assert now.status[:-1] == seen.status[: len(now.status) - 1]
            seen = now

    def test_the_newest_are_kept_and_it_is_counted_how_many_are_gone(self) -> None:
        record = recorder()
        for number in range(STATUS_KEPT + 7):
            record.stage(f"stage {number}", None, NOW)

        progress = record.all()
        assert [entry.stage for entry in progress.status] == [f"stage {n}" for n in range(7, STATUS_KEPT + 7)]
        assert progress.status_cut == 7
        ended = progress.concluded(State.SUCCEEDED, LATER)
        assert (len(ended.status), ended.status_cut) == (STATUS_KEPT, 8)

    def test_a_name_that_is_too_long_or_cannot_be_stored(self) -> None:
        record = recorder()
        record.stage("x" * 1000 + "\udcff", None, NOW)
        record.stage("a\0b\udcff", None, NOW)

        first, second = (entry.stage or "" for entry in record.all().status)
        assert first == "x" * MAX_NAME_CHARACTERS + " … 801 characters cut"
        assert second == "a\\0b?"
        assert decode(encode(progress_fields(record.all())))["stage"] == "a\\0b?"


class TestLog:
    @pytest.mark.parametrize("at_once", [False, True])
    def test_the_newest_lines_are_kept(self, at_once: bool) -> None:
        record = recorder()
        lines = [str(number) for number in range(LINES_KEPT + 20)]
        for text in ["\n".join(lines)] if at_once else lines:
            record.log(text, NOW)

        progress = record.all()
        assert [line.text for line in progress.log] == lines[20:]
        assert progress.log_cut == 20

    def test_the_log_keeps_a_bounded_number_of_bytes(self) -> None:
        record = recorder()
        for _ in range(300):
            record.log("ä" * 1000, NOW)

        progress = record.all()
        assert sum(len(line.text.encode()) for line in progress.log) <= LOG_BYTES
        assert len(progress.log) + progress.log_cut == 300
        assert len(progress.log) == LOG_BYTES // 2000


class TestStored:
    @pytest.mark.parametrize("nonsense", [None, 5, -1.5, "text", {}, {"a": 1}, [], [None], [5, "x"], [{}], [[1]], NOW])
    def test_what_somebody_writes_by_hand_breaks_nothing(self, nonsense: Any) -> None:
        names = ("status", "log", "progress", "stage", "status_cut", "log_cut", "locked_by", "locked_at")
        document = job_document(a_job("id")) | dict.fromkeys(names, nonsense)

        job = job_from(decode(encode(document)))

        assert (job.status, job.log) == ((), ())
        assert 0.0 <= job.progress <= 1.0
        assert job.status_cut >= 0

    def test_damaged_entries_of_status_and_log_are_skipped(self) -> None:
        good = {"state": "running", "stage": "a", "progress": 0.5, "error": None, "date": NOW}
        bad = [{**good, "date": "today"}, {**good, "state": 5}, {"stage": "a"}]
        odd = {**good, "progress": "half", "stage": 7, "error": []}
        document = {"status": [*bad, odd, good], "log": [{"at": NOW}, {"at": NOW, "text": "x"}, {"text": "y", "at": 5}]}

        progress = progress_from(document)

        assert progress.status == (
            StatusEntry("running", None, 0.0, None, NOW),
            StatusEntry("running", "a", 0.5, None, NOW),
        )
        assert progress.log == (LogLine(NOW, "x"),)
