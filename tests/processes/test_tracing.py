"""Tracing across processes: spans of a real worker's children, and trace ids in its log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace

from tests.applications import traced
from tests.conftest import Process, Starter, eventually
from tests.processes.conftest import Lead

APPLICATION = str(Path(traced.__file__))


@pytest.fixture
def shop(target: str) -> Iterator[None]:
    traced.recruiter.point_at(target)
    yield
    traced.recruiter.close()


def spans(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in folder.glob("spans-*.jsonl") for line in file.read_text().splitlines()]


def lines(process: Process) -> list[dict[str, Any]]:
    return [json.loads(line) for line in process.log.splitlines() if line.startswith("{")]


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize("concurrency", ["1", "4"])
def test_attempts_in_a_worker_are_in_the_trace_of_whoever_made_the_job(
    start: Starter, lead: Lead, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, concurrency: str
) -> None:
    """Given a job that is made inside a span of this process, when a worker runs it and the job it makes, then all
    their spans arrive, also those that had not been sent when the worker ends; and every log line of them says the
    trace."""
    monkeypatch.setenv(traced.FOLDER, str(tmp_path))
    lead()
    arguments = ("--bootstrap", APPLICATION, "--concurrency", concurrency, "--log-format", "json")
    worker = start("start", "worker", *arguments, **{traced.FOLDER: str(tmp_path)})
    with trace.get_tracer("test", tracer_provider=traced.provider).start_as_current_span("a request") as request:
        job = traced.charge.enqueue(7)
    trace_id = trace.format_trace_id(request.get_span_context().trace_id)
    assert job.result(timeout="60s") == trace_id
    eventually(lambda: traced.recruiter.jobs.count(state="succeeded").number == 2)
    assert worker.stop() == 0
    traced.provider.force_flush()

    found = spans(tmp_path)
    assert {span["context"]["trace_id"] for span in found} == {f"0x{trace_id}"}
    names = sorted(span["name"] for span in found)
    wanted = ["a request", "ask the bank", "ask the bank", "process charge", "process charge", "process receipt"]
    assert names == [*wanted, "send charge", "send receipt"]
    of = {span["name"]: span for span in found}
    assert of["process receipt"]["parent_id"] == of["send receipt"]["context"]["span_id"]

    logged = [line for line in lines(worker) if line.get("trace_id") == trace_id]
    assert {line.get("event", line.get("logger")) for line in logged} >= {
        *("job.failed", "job.ended", "traced", "recruiter.printed")
    }
    for line in logged:
        assert {"job", "task", "attempt", "worker"} <= line.keys(), line
    assert not [line for line in lines(worker) if line.get("event") == "instrument.failed"]


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize("concurrency", ["1", "4"])
def test_spans_of_ended_jobs_survive_the_crash_of_their_process(
    start: Starter, lead: Lead, tmp_path: Path, concurrency: str
) -> None:
    """Given a worker whose only child has ended a job, when the next job takes the child down, then the spans of the
    first job arrive, and the job that crashed has a span too."""
    lead()
    arguments = ("--bootstrap", APPLICATION, "--processes", "1", "--concurrency", concurrency)
    start("start", "worker", *arguments, **{traced.FOLDER: str(tmp_path)})
    job = traced.receipt.enqueue(7)
    assert job.result(timeout="60s") == 7
    traced.crash.enqueue()
    eventually(lambda: {"process receipt", "process crash"} <= {span["name"] for span in spans(tmp_path)}, 40.0)
    (crashed,) = (span for span in spans(tmp_path) if span["name"] == "process crash")
    assert crashed["status"]["status_code"] == "ERROR"
    assert crashed["attributes"]["recruiter.job.outcome"] == "failed"
    assert crashed["attributes"]["error.type"] == "crashed-too-many-times"
    assert crashed["start_time"] <= crashed["end_time"]
