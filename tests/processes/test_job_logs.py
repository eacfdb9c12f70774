"""What jobs log and print is in the worker's log, in its format, with the job, its task, attempt and worker."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from recruiter.store.database import Store
from tests.acceptance.docs.pages import page
from tests.applications import logging_jobs
from tests.conftest import Process, Starter, eventually
from tests.processes.conftest import Lead

APPLICATION = "tests/applications/logging_jobs.py"


@pytest.fixture(autouse=True)
def jobs(target: str, store: Store, lead: Lead) -> Iterator[None]:
    logging_jobs.recruiter.point_at(target)
    lead()
    yield
    logging_jobs.recruiter.close()


def worker(start: Starter, *more: str, bootstrap: str = APPLICATION, **environment: str) -> Process:
    settings = {"RECRUITER_LOG_LEVEL": "info", "RECRUITER_LOG_FORMAT": "json", **environment}
    return start("start", "worker", "--bootstrap", bootstrap, *more, **settings)


def documents(process: Process) -> list[dict[str, Any]]:
    """Every line of the log; each must be a document."""
    return [json.loads(line) for line in process.log.splitlines()]


def lines_of(process: Process, job: Any) -> list[dict[str, Any]]:
    return [line for line in documents(process) if line.get("job") == str(job) and "event" not in line]


class TestJson:
    def test_logging_warnings_and_prints_carry_the_job(self, start: Starter) -> None:
        # given a worker that logs JSON
        process = worker(start)

        # when a job logs, warns and prints
        job = logging_jobs.says.enqueue("hello")
        job.result(timeout=60)

        # then each is a line of its own, with the job's context
        eventually(lambda: len(lines_of(process, job.id)) == 6)
        lines = lines_of(process, job.id)
        told = {line["message"].splitlines()[0].rpartition(": ")[2]: line for line in lines}
        assert {"info hello", "warning hello", "printed hello", "complained hello", "no line break hello"} <= {*told}
        assert any("careful hello" in line["message"] for line in lines)
        assert {(line["task"], line["attempt"]) for line in lines} == {("says", 1)}
        (name,) = {line["worker"] for line in lines}
        assert f"worker {name} joined" in process.log
        assert told["info hello"]["level"] == "info"
        assert told["info hello"]["logger"] == "shop.mail"
        assert told["info hello"]["customer"] == 42
        assert told["printed hello"]["level"] == "info"
        assert told["complained hello"]["level"] == "warning"

    @pytest.mark.parametrize("task", ["says_slowly", "says_in_threads"])
    def test_jobs_that_run_at_once_are_told_apart(self, start: Starter, task: str) -> None:
        process = worker(start, "--concurrency", "8")

        jobs = {number: getattr(logging_jobs, task).enqueue(number) for number in range(8)}
        for job in jobs.values():
            job.result(timeout=60)

        for number, job in jobs.items():
            steps = [line["message"] for line in lines_of(process, job.id) if "step" in line["message"]]
            assert len(steps) == 5
            assert all(step.endswith(f"of {number}") for step in steps)
            printed = [line["message"] for line in lines_of(process, job.id) if "printed" in line["message"]]
            assert set(printed) <= {f"printed by {number} and on"}

    def test_every_event_about_a_job_names_it_its_task_attempt_worker_and_trace(self, start: Starter) -> None:
        """Given jobs that were made in a trace, when they succeed, fail and crash, then every line about them says so,
        also those that only the supervisor can write."""
        process = worker(start, RECRUITER_LOG_LEVEL="debug")
        trace_id = "0af7651916cd43dd8448eb211c80319c"
        traced = {"trace_context": {"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"}}
        scheduled = logging_jobs.recruiter.store.scheduled.collection
        for task, args in (("says", {"text": "hello"}), ("fails", {}), ("crashes", {})):
            scheduled.insert_one({"_id": task, "task": task, "args": args, "max_crashes": 1, **traced})

        wanted = {("says", "job.ended"), ("fails", "job.failure.last"), ("crashes", "job.crashed")}
        eventually(lambda: wanted <= {(line.get("job"), line.get("event")) for line in documents(process)})
        about = [line for line in documents(process) if line.get("job") in ("says", "fails", "crashes")]
        for line in about:
            assert line["task"] == line["job"]
            assert (line["attempt"], line["trace_id"]) == (1, trace_id), line
            assert ":" in line["worker"]


class TestText:
    def test_lines_name_the_job_and_cannot_be_forged(self, start: Starter) -> None:
        process = worker(start, RECRUITER_LOG_FORMAT="text")

        job = logging_jobs.says.enqueue("hello")
        job.result(timeout=60)
        logging_jobs.fails.enqueue()

        process.says("failed for good")
        process.says("ValueError: no good")
        assert f"INFO    job {job.id}, says, attempt 1: info hello" in process.log
        assert f"INFO    job {job.id}, says, attempt 1: printed hello" in process.log
        assert not any(line.startswith("2026-01-01 00:00:00.000") for line in process.log.splitlines())


class TestTheApplicationsOwn:
    def test_handlers_of_the_application_stay_and_can_name_the_job(self, start: Starter, tmp_path: Path) -> None:
        # given an application that configures logging when it is loaded
        application = tmp_path / "shop.py"
        application.write_text(
            "import logging\n"
            "from recruiter import Recruiter\n"
            "logging.basicConfig(level='INFO', format='MINE %(recruiter_job)s %(recruiter_task)s %(message)s')\n"
            "recruiter = Recruiter()\n"
            "@recruiter.task\n"
            "def says(text):\n"
            "    logging.info('said %s', text)\n"
            "    print('printed as it is')\n"
        )
        process = worker(start, bootstrap=str(application))

        # when a job of its logs
        job = logging_jobs.says.enqueue("hello")
        job.result(timeout=60)

        # then it is written as the application wants it
        process.says(f"MINE {job.id} says said hello")

    def test_a_file_configures_every_process(self, start: Starter, tmp_path: Path) -> None:
        config = tmp_path / "log.toml"
        config.write_text(
            "[formatters.mine]\nformat = 'MINE %(levelname)s %(recruiter_task)s %(message)s'\n"
            "[handlers.err]\nclass = 'logging.StreamHandler'\nformatter = 'mine'\n"
            "[root]\nlevel = 'INFO'\nhandlers = ['err']\n"
        )
        process = worker(start, "--log-config", str(config))

        logging_jobs.says.enqueue("hello").result(timeout=60)

        process.says("MINE INFO None worker started on")
        process.says("MINE INFO says info hello")


class TestFloods:
    def test_a_job_that_logs_much_costs_the_supervisor_nothing(self, start: Starter) -> None:
        # given a worker at rest
        process = worker(start, "--processes", "2")
        logging_jobs.who.enqueue().result(timeout=60)
        supervisor = psutil.Process(process.pid)
        before = supervisor.memory_info().rss

        # when a job writes 20 MB, and another one runs meanwhile
        flood = logging_jobs.floods.enqueue(10_000, 2_000)
        began = time.monotonic()
        logging_jobs.who.enqueue().result(timeout=60)
        answered = time.monotonic() - began
        flood.result(timeout=60)

        # then all of it is in the log, and the supervisor is as large as before
        assert process.log_file.stat().st_size > 20_000_000
        assert supervisor.memory_info().rss - before < 20_000_000
        assert answered < 10

    def test_a_line_without_end_is_cut(self, start: Starter) -> None:
        process = worker(start)

        job = logging_jobs.floods_one_line.enqueue(100_000)
        job.result(timeout=60)

        eventually(lambda: sum(len(line["message"]) for line in lines_of(process, job.id)) >= 100_000)
        lines = lines_of(process, job.id)
        assert max(len(line["message"]) for line in lines) <= 8_000


@pytest.mark.parametrize("role", ["worker", "recruiter", "cleaner"])
def test_a_start_that_fails_is_a_document_too(start: Starter, tmp_path: Path, role: str) -> None:
    application = tmp_path / "broken.py"
    application.write_text("raise ValueError('no good')\n")

    process = start("start", role, "--bootstrap", str(application), RECRUITER_LOG_FORMAT="json")

    assert process.wait() == 3
    (line,) = documents(process)
    assert (line["event"], line["level"], line["program"]) == ("process.failed", "error", role)
    assert "ValueError: no good" in line["message"]


class TestStructlog:
    def test_the_recipe_of_the_documentation_in_a_worker(self, start: Starter, tmp_path: Path) -> None:
        """Given an application with the recipe of docs/how-to/logging.md, when a job logs with structlog, then its line
        has the job, and each of its keys is a field."""
        (recipe,) = (block.text for block in page("how-to/logging.md").blocks if "structlog.configure" in block.text)
        application = tmp_path / "shop.py"
        application.write_text(f"from recruiter import Recruiter\n\nrecruiter = Recruiter()\n\n{recipe}")
        process = worker(start, bootstrap=str(application))

        job = logging_jobs.recruiter.job("pack", {"order": 7}).enqueue()
        eventually(lambda: lines_of(process, job.id))
        (line,) = lines_of(process, job.id)
        assert (line["message"], line["order"], line["weight"]) == ("packed", 7, 1.2)
        assert (line["logger"], line["level"]) == ("shop.warehouse", "warning")
        assert (line["task"], line["attempt"]) == ("pack", 1)
        assert line["worker"]
