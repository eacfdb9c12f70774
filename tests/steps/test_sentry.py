"""Sentry: errors with their job, attempts in the trace of whoever made the job, and monitors of repeatable jobs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from recruiter import Cron, Every, EveryMinutes, Recruiter, RetryManyTimes
from recruiter.contrib import sentry
from recruiter.contrib.sentry import Sentry
from recruiter.steps.lead import Leadership
from recruiter.steps.repeat import repeat


class Kept(Transport):
    """A transport that keeps what would be sent."""

    def __init__(self) -> None:
        super().__init__()
        self.items: list[tuple[str, Any]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        self.items += [(item.type or "", item.payload.json) for item in envelope.items]

    def of(self, type: str) -> list[Any]:
        return [payload for each, payload in self.items if each == type]


@pytest.fixture
def kept(recruiter: Recruiter, request: pytest.FixtureRequest) -> Iterator[Kept]:
    transport = Kept()
    recruiter.instrument(Sentry(**getattr(request, "param", {})))
    with sentry_sdk.isolation_scope():
        sentry_sdk.init(
            dsn="https://public@sentry.example/1",
            transport=transport,
            traces_sample_rate=1.0,
            default_integrations=False,
            auto_enabling_integrations=False,
        )
        yield transport
        sentry_sdk.get_client().close(timeout=0)
    sentry_sdk.get_global_scope().set_client(None)


class TestErrors:
    def test_a_job_that_fails_for_good_is_an_error_with_its_job(self, recruiter: Recruiter, kept: Kept) -> None:
        @recruiter.task(group="billing", retry=RetryManyTimes(1, "0s"))
        def charge(order: int, token: str) -> None:
            assert token == "s3cret"
            raise ConnectionError(f"order {order}: the bank does not answer")

        job = charge.job(7, "s3cret").owned_by("ada").tagged_as("eu").enqueue()
        recruiter.run_all(charge)

        (event,) = kept.of("event")  # of two attempts, the last
        (error,) = event["exception"]["values"]
        assert (error["type"], error["value"]) == ("ConnectionError", "order 7: the bank does not answer")
        assert error["stacktrace"]["frames"][-1]["function"] == "charge"
        assert (error["mechanism"]["type"], error["mechanism"]["handled"]) == ("recruiter", False)
        about = event["contexts"]["job"]
        assert about["id"] == str(job.id)
        assert (about["task"], about["group"], about["attempt"]) == ("charge", "billing", "2")
        assert (about["owner"], about["tags"]) == ("ada", "eu")
        assert "arguments" not in about
        assert event["tags"]["recruiter.task"] == "charge"
        assert event["user"] == {"username": "ada"}
        assert event["transaction"] == "charge"

    @pytest.mark.parametrize("kept", [{"retries": True, "arguments": True}], indirect=True)
    def test_retries_and_arguments_if_wanted(self, recruiter: Recruiter, kept: Kept) -> None:
        @recruiter.task(retry=RetryManyTimes(1, "0s"))
        def charge(order: int) -> None:
            raise ConnectionError(f"order {order}")

        charge.enqueue(7)
        recruiter.run_all(charge)
        told = [event["contexts"]["job"] for event in kept.of("event")]
        assert [(about["attempt"], about["arguments"]) for about in told] == [("1", {"order": 7}), ("2", {"order": 7})]

    def test_the_scope_of_one_job_is_not_seen_in_the_next(self, recruiter: Recruiter, kept: Kept) -> None:
        @recruiter.task
        def fail(name: str) -> None:
            sentry_sdk.set_tag("customer", name)
            sentry_sdk.add_breadcrumb(message=name)
            if name == "second":
                sentry_sdk.get_isolation_scope().remove_tag("customer")
            raise ValueError(name)

        for name in ("first", "second"):
            fail.enqueue(name)
        recruiter.run_all(fail)
        first, second = kept.of("event")
        assert first["tags"]["customer"] == "first"
        assert "customer" not in second["tags"]
        assert [crumb["message"] for crumb in second["breadcrumbs"]["values"]] == ["second"]


class TestTraces:
    def test_an_attempt_goes_on_with_the_trace_in_which_the_job_was_made(
        self, recruiter: Recruiter, kept: Kept
    ) -> None:
        @recruiter.task
        def add(a: int) -> int:
            return a

        with sentry_sdk.start_transaction(op="http.server", name="GET /") as request:
            job = add.enqueue(1)
        recruiter.run_all(add)

        first, second = kept.of("transaction")
        (publish,) = [span for span in first["spans"] if span["op"] == "queue.publish"]
        assert publish["data"]["messaging.message.id"] == str(job.id)
        trace = second["contexts"]["trace"]
        assert (trace["op"], second["transaction"]) == ("queue.process", "add")
        assert trace["trace_id"] == request.trace_id
        assert trace["parent_span_id"] == publish["span_id"]
        assert trace["status"] == "ok"
        assert trace["data"]["messaging.message.body.size"] > 0
        assert 0 <= trace["data"]["messaging.message.receive.latency"] < 60_000  # milliseconds


def run_due(recruiter: Recruiter, urn: str) -> None:
    """Makes the occurrence that is due next, as the leader would, and runs it."""
    store = recruiter.store
    store.schedulers.collection.update_one(
        {"_id": urn}, {"$set": {"handled": store.clock.now() - timedelta(days=3), "next_at": store.clock.now()}}
    )
    leadership = Leadership(store, store.clock, 5.0)
    assert leadership.attend()
    assert repeat(store, recruiter.schedules, leadership.term, leadership.holder, store.clock.now()).made == 1
    leadership.resign()


class TestMonitors:
    def test_each_run_of_a_repeatable_job_is_told_to_its_monitor(self, recruiter: Recruiter, kept: Kept) -> None:
        @recruiter.task(timeout="10 minutes")
        def report() -> None: ...

        report.job().repeat_with_policy(Cron("0 6 * * *", tz="Europe/Rome")).with_urn("Report:daily").when_late(
            "latest", "7 days"
        ).create()
        run_due(recruiter, "Report:daily")
        recruiter.run_all(report)

        began, ended = kept.of("check_in")
        assert (began["monitor_slug"], began["status"], ended["status"]) == ("report-daily", "in_progress", "ok")
        assert began["check_in_id"] == ended["check_in_id"]
        assert ended["duration"] >= 0
        config = began["monitor_config"]
        assert config["schedule"] == {"type": "crontab", "value": "0 6 * * *"}
        assert (config["timezone"], config["max_runtime"]) == ("Europe/Rome", 10)

    def test_a_run_that_is_tried_again_is_one_run(self, recruiter: Recruiter, kept: Kept) -> None:
        @recruiter.task(retry=RetryManyTimes(1, "0s"))
        def report() -> None:
            raise OSError("disk full")

        report.job().repeat_with_policy(Every("1 day")).with_urn("report").when_late("latest", "7 days").create()
        run_due(recruiter, "report")
        recruiter.run_all(report)
        told = kept.of("check_in")
        assert [each["status"] for each in told] == ["in_progress", "in_progress", "error"]
        assert len({each["check_in_id"] for each in told}) == 1
        assert told[0]["monitor_config"]["schedule"] == {"type": "interval", "value": 1, "unit": "day"}

    @pytest.mark.parametrize(
        ("policy", "told"),
        [
            (Cron("@daily"), {"type": "crontab", "value": "@daily"}),
            (Cron("30 0 6 * * *"), None),
            (EveryMinutes(15), {"type": "interval", "value": 15, "unit": "minute"}),
            (Every("90 minutes"), {"type": "interval", "value": 90, "unit": "minute"}),
            (Every("6 hours"), {"type": "interval", "value": 6, "unit": "hour"}),
            (Every("10 seconds"), None),
        ],
        ids=str,
    )
    def test_schedules_in_the_words_of_sentry(self, recruiter: Recruiter, policy: Any, told: Any) -> None:
        stored = recruiter.schedules.dump(policy)
        assert sentry._monitor_schedule(stored["class"], stored["parameters"]) == told
