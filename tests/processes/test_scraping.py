"""`recruiter metrics` beside a fleet at work: what is scraped is what counting says."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from recruiter.store.database import Store
from tests.applications import jobs
from tests.cli_here import here
from tests.conftest import Process, Starter, eventually

APPLICATION = str(Path(jobs.__file__))

Scraped = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(address: str) -> Scraped:
    answer = httpx.get(address, trust_env=False, verify=False, timeout=20)
    assert answer.status_code == 200
    families = text_string_to_metric_families(answer.text)
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def of(scraped: Scraped, name: str, **labels: str) -> float | None:
    return scraped.get((name, frozenset(labels.items())))


def address_of(process: Process) -> str:
    process.says("metrics at ")
    (address,) = re.findall(r"http://[^/]+/metrics", process.log)
    return str(address)


def test_a_scrape_during_a_run_agrees_with_a_count(start: Starter, store: Store, tmp_path: Path) -> None:
    """Given a fleet with two slots, jobs that succeed, fail and are tried again, and one that runs until it is let go,
    when it is scraped meanwhile and afterwards, then every number is that of counting the documents."""
    start("start", "recruiter")
    start("start", "worker", "--bootstrap", APPLICATION, "--processes", "2")
    metrics = start("metrics", "--port", "0")
    gate, address = tmp_path / "gate", address_of(metrics)
    held = jobs.wait_for_file.enqueue(str(gate))
    jobs.add.enqueue_many([(number, 1) for number in range(40)])
    for number in range(5):
        jobs.fail.enqueue(f"no good {number}")
    (tmp_path / "retried").mkdir()
    jobs.fail_until.enqueue(str(tmp_path / "retried"), 2)
    jobs.nap.job(0.0).in_group("elsewhere").schedule_in("1 hour").enqueue()

    archived, kind = store.archived.collection, {"group": "generic"}
    eventually(lambda: archived.count_documents({}) == 46)
    meanwhile = until(address, lambda scraped: _settled(scraped, 40))
    assert of(meanwhile, "recruiter_up") == 1
    assert of(meanwhile, "recruiter_jobs", **kind, task="wait_for_file", state="running") == 1
    assert of(meanwhile, "recruiter_jobs", group="elsewhere", task="nap", state="postponed") == 1
    assert (of(meanwhile, "recruiter_slots"), of(meanwhile, "recruiter_slots_used")) == (2, 1)
    assert of(meanwhile, "recruiter_workers", state="works") == 1
    assert (of(meanwhile, "recruiter_leader_present"), of(meanwhile, "recruiter_leader_term")) == (1, 1)
    assert of(meanwhile, "recruiter_oldest_due_job_age_seconds", group="generic") == 0
    for task, outcome in (("add", "succeeded"), ("fail", "failed"), ("fail_until", "succeeded")):
        counted = archived.count_documents({"task": task, "done": outcome == "succeeded"})
        assert of(meanwhile, "recruiter_jobs_ended_total", **kind, task=task, outcome=outcome) == counted > 0
        assert of(meanwhile, "recruiter_job_duration_seconds_count", **kind, task=task) == counted
    assert of(meanwhile, "recruiter_job_retries_total", **kind, task="fail_until") == 2
    assert of(meanwhile, "recruiter_job_starts_total", **kind, task="fail_until") == 3
    took = sum(job["execution_time"] for job in archived.find({"task": "add"}))
    assert of(meanwhile, "recruiter_job_duration_seconds_sum", **kind, task="add") == pytest.approx(took)

    gate.touch()
    held.result(timeout="60s")
    afterwards = until(address, _ended)
    assert of(afterwards, "recruiter_job_starts_total", **kind, task="wait_for_file") == 1
    assert of(afterwards, "recruiter_slots_used") == 0
    assert (of(afterwards, "recruiter_assignment_round_seconds_count") or 0) > 0
    assert metrics.stop() == 0


def until(address: str, fact: Callable[[Scraped], bool]) -> Scraped:
    """The first scrape of which it is true."""

    def found() -> list[Scraped]:
        scraped = scrape(address)
        return [scraped] if fact(scraped) else []

    return eventually(found, every=1.0)[0]


def _settled(scraped: Scraped, added: int) -> bool:
    """Whether the scrape is of a moment at which all of it had been settled: an answer is kept for some seconds."""
    kind = {"group": "generic", "task": "add", "outcome": "succeeded"}
    running = of(scraped, "recruiter_jobs", group="generic", task="wait_for_file", state="running")
    settled = of(scraped, "recruiter_jobs_ended_total", **kind) == added
    retried = of(scraped, "recruiter_jobs_ended_total", **{**kind, "task": "fail_until"}) == 1
    failed = of(scraped, "recruiter_jobs_ended_total", group="generic", task="fail", outcome="failed") == 5
    return bool(settled and running and retried and failed)


def _ended(scraped: Scraped) -> bool:
    ended = of(scraped, "recruiter_jobs_ended_total", group="generic", task="wait_for_file", outcome="succeeded")
    return ended == 1


def test_a_scraper_must_say_the_token_if_there_is_one(start: Starter) -> None:
    address = address_of(start("metrics", "--port", "0", RECRUITER_METRICS_TOKEN="s3cret"))
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic s3cret"}):
        assert httpx.get(address, headers=headers, trust_env=False, verify=False).status_code == 401
    told = httpx.get(address, headers={"authorization": "Bearer s3cret"}, trust_env=False, verify=False)
    assert "recruiter_up 1.0" in told.text


def test_metrics_once_prints_all_metrics(target: str, store: Store) -> None:
    code, said = here(target, "metrics", "--once")
    assert code == 0
    assert "# TYPE recruiter_jobs_ended counter" in said or "# TYPE recruiter_jobs_ended_total counter" in said
    assert "recruiter_up 1.0" in said


def test_a_port_that_is_taken_is_told(start: Starter, target: str) -> None:
    address = address_of(start("metrics", "--port", "0"))
    port = address.rpartition(":")[2].partition("/")[0]
    code, said = here(target, "metrics", "--port", port)
    assert code == 2
    assert f"cannot listen on 127.0.0.1:{port}" in said
