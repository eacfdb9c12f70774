"""What is shown of a job: redacted, harmless, to scale, with libraries folded."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from bson import ObjectId
from hypothesis import given
from hypothesis import strategies as st

from recruiter import Recruiter, current_job
from recruiter.domain.job import ArchivedJob, Execution, Job
from recruiter.domain.statistics import Depth
from recruiter.web import drawings, formats, serializers
from recruiter.web.drawings import hour_marks, sparkline
from recruiter.web.redaction import HIDDEN, Redaction
from recruiter.web.schemas import Amount, FlowRow, FlowStepRow, JobList, Part
from recruiter.web.sentences import of_flow, of_jobs
from tests.web.conftest import Consoles

NOW = datetime(2026, 11, 17, 3, 0, tzinfo=UTC)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary() | st.datetimes(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


class TestRedaction:
    @pytest.mark.parametrize(
        "key", ["password", "PASSWD", "user_password", "token", "accessToken", "api_key", "apikey", "Authorization"]
    )
    def test_hides_what_looks_like_a_secret(self, key: str) -> None:
        hidden = {"user": "ada", key: {"even": ["deep"]}}
        assert Redaction().plain({"a": [hidden]}) == {"a": [{"user": "ada", key: HIDDEN}]}

    @pytest.mark.parametrize("key", ["passenger", "user", "order", "key", "author", "tokyo"])
    def test_shows_what_does_not(self, key: str) -> None:
        assert Redaction().plain({key: 1}) == {key: 1}

    @given(VALUES)
    def test_whatever_a_job_has_can_be_said_in_json_and_in_a_line(self, value: Any) -> None:
        redaction = Redaction()
        json.dumps(redaction.plain(value))
        assert len(redaction.line(value)) <= 161

    def test_ids_bytes_and_dates_are_told(self) -> None:
        id = ObjectId()
        told = Redaction().plain({"id": id, "raw": b"12345", "at": NOW})
        assert told == {"id": str(id), "raw": "5 bytes", "at": "2026-11-17T03:00:00Z"}

    def test_arguments_in_a_line_read_like_a_call(self) -> None:
        args = {"to": "ada@b.c", "order": 7, "vip": True, "none": None, "tags": ["a", 1], "token": "x"}
        line = Redaction().line(args)
        assert line == f'to="ada@b.c", order=7, vip=true, none=null, tags=["a", 1], token={HIDDEN}'


class TestFigures:
    def test_counts_and_sizes(self) -> None:
        values = (0, 7, 9_999, 12_400, 340_000, 1_200_000, 0.25)
        assert [formats.count(value) for value in values] == ["0", "7", "9,999", "12.4k", "340k", "1.2M", "0.25"]
        assert (formats.size(25_877_000_000), formats.size(512 * 2**20)) == ("24.1 GiB", "512 MiB")

    def test_a_bound_is_told_as_one(self) -> None:
        assert formats.amount(Amount(10_000, exact=False)) == "10.0k+"

    def test_times_in_a_sentence_are_found(self) -> None:
        parts = formats.parts_of("paused by ada since 2026-11-17 03:00:00 UTC (down), not 2026-99-99 03:00:00 UTC")
        assert parts == ["paused by ada since ", NOW, " (down), not 2026-99-99 03:00:00 UTC"]

    def test_a_job_in_a_sentence_is_found(self) -> None:
        parts = formats.parts_of("held by job 6afc49f92e2ef8085d3e1d7f, not by job 7")
        assert parts == ["held by ", formats.JobRef("6afc49f92e2ef8085d3e1d7f"), ", not by job 7"]

    def test_the_command_at_the_end_of_an_advice_is_found(self) -> None:
        assert formats.todo("Let them start: recruiter group resume mail") == (
            "Let them start:",
            "recruiter group resume mail",
        )
        assert formats.todo("Upgrade to 6.0.27 or newer") == ("Upgrade to 6.0.27 or newer", "")

    def test_control_characters_and_those_that_turn_writing_round_are_spelled_out(self) -> None:
        assert formats.harmless("a\x1b[31m\u202eb\x00\n\tc") == "a\\x1b[31m\\u202eb\\x00\n\tc"


def a_job(**more: Any) -> Job:
    return Job("x", "send", {}, NOW, more.pop("scheduled_at", NOW), **more)


def ended(why: str, *executions: Execution, **more: Any) -> ArchivedJob:
    end = executions[-1].ended_at if executions else NOW + timedelta(seconds=5)
    return ArchivedJob(
        "x", "send", {}, NOW, NOW, executions=executions, attempts=len(executions), done=why == "done", why=why,
        archived_at=end or NOW, **more,
    )  # fmt: skip


def attempt(start: float, end: float, error: str | None = None) -> Execution:
    return Execution(NOW + timedelta(seconds=start), NOW + timedelta(seconds=end), "w", exception=error)


class TestTimeline:
    def test_a_job_that_was_retried(self) -> None:
        job = ended("done", attempt(1, 3, "OSError"), attempt(33, 34))
        parts = drawings.life_of(job, NOW + timedelta(hours=1))
        assert [(part.kind, (part.until - part.since).total_seconds()) for part in parts] == [
            ("waiting", 1),
            ("failed", 2),
            ("waiting", 30),
            ("succeeded", 1),
        ]
        assert [part.attempt for part in parts] == [None, 1, None, 2]

    def test_a_job_that_runs_goes_on_to_now(self) -> None:
        job = a_job(locked_by="w", locked_at=NOW + timedelta(seconds=1))
        parts = drawings.life_of(job, NOW + timedelta(seconds=9))
        assert [(part.kind, part.label) for part in parts] == [("waiting", "waits"), ("running", "attempt 1 runs")]
        assert parts[-1].until == NOW + timedelta(seconds=9)

    def test_a_postponed_job_reaches_into_the_future(self) -> None:
        (part,) = drawings.life_of(a_job(scheduled_at=NOW + timedelta(hours=1)), NOW)
        assert (part.kind, part.until) == ("postponed", NOW + timedelta(hours=1))

    def test_a_job_that_was_cancelled_before_it_ran(self) -> None:
        parts = drawings.life_of(ended("cancelled"), NOW + timedelta(hours=1))
        assert [part.label for part in parts] == ["waits, then cancelled"]

    @given(st.lists(st.floats(0, 1e6), min_size=1, max_size=30))
    def test_is_drawn_to_scale_and_nothing_is_too_narrow_to_see(self, lengths: list[float]) -> None:
        moments = [NOW]
        for length in lengths:
            moments.append(moments[-1] + timedelta(seconds=length))
        parts = [Part("waiting", since, until, "waits") for since, until in pairwise(moments)]
        bars = drawings.bars(parts)
        assert all(bar.width >= 3.9 for bar in bars)
        assert bars[-1].x + bars[-1].width <= 1001


class TestLines:
    STEPS = tuple(NOW + timedelta(minutes=number) for number in range(5))

    def depth(self, minute: int, due: int) -> Depth:
        return Depth(NOW + timedelta(minutes=minute), due, 0, 4)

    def test_each_step_has_what_was_seen_last(self) -> None:
        trend = serializers.trend([self.depth(1, 7), self.depth(3, 9)], self.STEPS, timedelta(minutes=1))
        assert [each and each.due for each in trend] == [None, 7, 7, 9, 9]

    def test_what_was_seen_long_ago_is_a_gap(self) -> None:
        trend = serializers.trend([self.depth(-30, 7)], self.STEPS, timedelta(minutes=1))
        assert trend == [None] * 5

    def test_a_gap_is_drawn_as_a_gap_and_a_lone_value_as_a_point(self) -> None:
        assert sparkline([1, 2, None, 3], width=30, height=24) == "M0.0,15.7L10.0,8.3M30.0,1.0h.1"
        assert sparkline([None, None]) == sparkline([5]) == ""

    def test_arrivals_are_what_left_and_what_has_gathered(self) -> None:
        assert serializers.arrivals(out=60.0, jobs=150, then=100, minutes=5.0) == 70.0
        assert serializers.arrivals(out=0.0, jobs=0, then=50, minutes=5.0) == 0.0

    def test_the_hours_of_a_ribbon_are_those_of_its_zone(self) -> None:
        """At 03:00 UTC it is 04:00 in Rome, in winter."""
        assert [name for _, name in hour_marks(NOW)] == ["06:00", "12:00", "18:00", "00:00"]
        rome = hour_marks(NOW, "Europe/Rome")
        assert rome[0] == (8.33, "06:00")
        assert hour_marks(NOW, "Nowhere/Land") == hour_marks(NOW)


def a_row(state: str, **more: Any) -> dict[str, Any]:
    return {"task": "send", "state": state, "error": None, "started_at": None, "ended_at": None, **more}


class TestWhatAListHasInCommon:
    def told(self, *rows: dict[str, Any], filter: str = "state failed", further: bool = False) -> str:
        return of_jobs(JobList(NOW, list(rows), None, 0), filter, further=further).text

    def test_the_error_that_most_of_it_failed_with(self) -> None:
        rows = [a_row("failed", error=error) for error in ("OSError", "KeyError", "OSError")]
        assert self.told(*rows) == "Jobs: state failed. Of the 3 on this page, 2 failed with OSError."

    def test_its_states(self) -> None:
        told = self.told(a_row("running"), a_row("waiting"), a_row("waiting"), filter="", further=True)
        assert told.endswith("ended ones, further on. Of the 3 on this page, 1 running, 2 waiting.")

    def test_since_when_the_first_is_due_or_the_longest_runs(self) -> None:
        assert "due since 2026-11-17 03:00:00 UTC" in self.told(a_row("waiting", scheduled_at=NOW))
        runs = [a_row("running", started_at=NOW + timedelta(hours=1)), a_row("running", started_at=NOW)]
        assert "has run since 2026-11-17 03:00:00 UTC" in self.told(*runs)
        assert "ended at 2026-11-17 03:00:00 UTC" in self.told(a_row("succeeded", ended_at=NOW))

    def test_there_is_nothing(self) -> None:
        assert self.told() == "No jobs: state failed."
        assert self.told(filter="", further=True) == "No more jobs."


class TestWhatAFlowWaitsFor:
    def told(self, *steps: tuple[str, str, str | None], ended: bool = False) -> str:
        rows = [FlowStepRow("s", "j", task, state, [], [], None, error, None, None) for task, state, error in steps]
        end = NOW if ended else None
        flow = FlowRow("f", "spring", None, "failed" if ended else "running", 9, 0.5, {"blocked": 9}, None, NOW, end)
        return of_flow(flow, rows).text

    def test_what_runs(self) -> None:
        told = self.told(("print", "running", None), ("mail", "running", None), ("mail", "blocked", None))
        assert told == "9 steps: 9 blocked. It waits for mail, print."

    def test_what_failed(self) -> None:
        told = self.told(("mail", "skipped", "dependency-failed"), ("print", "failed", "OSError"), ended=True)
        assert told == "9 steps: 9 blocked. print failed with OSError."


class TestTraces:
    TRACE = """Traceback (most recent call last):
  File "/app/.venv/lib/python3.11/site-packages/requests/api.py", line 59, in get
    return session.request(method=method, url=url, **kwargs)
  File "/usr/lib/python3.11/socket.py", line 5, in connect
    raise err
  File "/app/shop/mail.py", line 12, in send
    connection.send(message)
ConnectionError: no answer
"""

    def test_frames_of_libraries_are_folded_and_nothing_is_lost(self) -> None:
        pieces = formats.pieces(self.TRACE)
        assert [piece.frames for piece in pieces] == [0, 2, 0]
        assert "shop/mail.py" in pieces[-1].text
        assert "\n".join(piece.text for piece in pieces) == self.TRACE.rstrip("\n")

    @given(st.text())
    def test_whatever_is_written_there_is_shown(self, text: str) -> None:
        joined = "\n".join(piece.text for piece in formats.pieces(text))
        assert joined == text.removesuffix("\n")


def test_a_job_that_waits_for_a_signal_has_no_date(console: Consoles, recruiter: Recruiter) -> None:
    @recruiter.task
    def approved() -> None:
        current_job.wait_for("approved")

    job = approved.enqueue()
    recruiter.run(approved)
    client = console()

    page, listed = client.get("job", params={"id": str(job.id)}), client.get("jobs")

    for answer in (page, listed):
        assert answer.status_code == 200
        assert "when its signal comes" in answer.text
        assert "9999" not in answer.text
