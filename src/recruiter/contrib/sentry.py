"""Errors, traces and schedules in Sentry.

    sentry_sdk.init(dsn=…, traces_sample_rate=0.1)
    recruiter.instrument(Sentry())

Needs the extra `sentry`. A job that fails for good is an error there, with the job as context. So is a job whose
process crashed, was killed, or fell silent with its worker. Attempts are transactions that continue the trace in which
the job was created. Each repeatable job is a monitor (Crons) that receives the begin and the end of each run, so Sentry
alerts when a run is missing.
"""

from __future__ import annotations

import hashlib
import re
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

from recruiter.first_use import missing_extra

try:
    import sentry_sdk
    from sentry_sdk.crons import capture_checkin
    from sentry_sdk.tracing import Transaction
    from sentry_sdk.utils import event_from_exception
except ModuleNotFoundError as error:
    raise missing_extra("sentry", error) from None

from recruiter.domain.job import Job
from recruiter.domain.state import State
from recruiter.errors import RecruiterError
from recruiter.instruments import AttemptEnd, AttemptStart, Follower, Instrument, ProcessDeath, SendStart
from recruiter.store.codec import encode
from recruiter.store.connection import answered_within

if TYPE_CHECKING:
    from sentry_sdk._types import Event, MonitorConfig

__all__ = ["Sentry"]

_ORIGIN = "auto.queue.recruiter"
_MONITORS = uuid.UUID("5f6a4c1e-6d1b-4f5e-9a67-0c1a2b3d4e5f")
_MAX_SLUG_CHARACTERS = 50
_STATUS = {"succeeded": "ok", "failed": "internal_error", "retried": "internal_error", "cancelled": "cancelled"}


class Sentry(Instrument):
    """Reports to Sentry: `recruiter.instrument(Sentry())`, after `sentry_sdk.init`.

    With `retries`, it also reports failures after which the job is tried again. With `arguments`, errors show the
    arguments of the job. Without `monitors`, repeatable jobs are not reported as monitors.
    """

    def __init__(self, *, retries: bool = False, arguments: bool = False, monitors: bool = True) -> None:
        self._retries = retries
        self._arguments = arguments
        self._monitors = monitors
        self._configured: dict[str, MonitorConfig | None] = {}

    def producing(self, start: SendStart) -> AbstractContextManager[Any]:
        return sentry_sdk.start_span(op="queue.publish", name=start.name, origin=_ORIGIN)

    def stamp(self, job: Job, carrier: dict[str, str]) -> None:
        span = sentry_sdk.get_current_span()
        if span is not None and span.op == "queue.publish":
            span.set_data("messaging.message.id", str(job.id))
            span.set_data("messaging.destination.name", job.group)
        parent, baggage = sentry_sdk.get_traceparent(), sentry_sdk.get_baggage()
        if parent is not None:
            carrier["sentry-trace"] = parent
        if baggage is not None:  # the baggage of another instrument stays
            carrier["baggage"] = ",".join(filter(None, (carrier.get("baggage"), baggage)))

    @contextmanager
    def attempt(self, start: AttemptStart) -> Iterator[Follower]:
        job = start.job
        with self._scope(job, start.number, start.worker):
            made_in = dict(job.trace_context or {})
            continued = sentry_sdk.continue_trace(made_in, "queue.process", job.task, "task", _ORIGIN)
            with sentry_sdk.start_transaction(continued) as transaction:
                transaction.set_data("messaging.message.id", str(job.id))
                transaction.set_data("messaging.destination.name", job.group)
                transaction.set_data("messaging.message.retry.count", start.number - 1)
                transaction.set_data("messaging.message.body.size", len(encode({"args": job.args})))
                latency = (datetime.now(UTC) - job.due_since).total_seconds()
                transaction.set_data("messaging.message.receive.latency", max(0.0, latency) * 1000)
                check_in = self._check_in(job, start.recruiter)
                yield _SentryFollower(cast(Transaction, transaction), self._retries, check_in)

    def process_died(self, death: ProcessDeath) -> None:
        job = death.job
        with self._scope(job, job.attempts, job.worker or "") as scope:
            sentry_sdk.continue_trace(dict(job.trace_context or {}))
            if job.state in (State.FAILED, State.LOST):
                module, _, kind = (job.error or "JobCrashed").rpartition(".")
                message = ": ".join(filter(None, (job.reason, job.message))) or job.why
                # Its message names a process or a worker, and would make each death a separate issue.
                scope.fingerprint = ["recruiter", job.task, job.why, kind]
                scope.set_tag("recruiter.why", job.why)
                mechanism = {"type": "recruiter", "handled": False}
                error = {"module": module or None, "type": kind, "value": message, "mechanism": mechanism}
                event: Event = {"level": "error", "timestamp": job.archived_at, "exception": {"values": [error]}}
                sentry_sdk.capture_event(event)
            check_in = self._check_in(job, death.recruiter)
            if check_in is not None:
                check_in.conclude("error", job.execution_time or 0.0)

    @contextmanager
    def _scope(self, job: Job, attempt: int, worker: str) -> Iterator[sentry_sdk.Scope]:
        """The scope of one attempt; nothing of it reaches the next one."""
        with sentry_sdk.isolation_scope() as scope:
            scope.clear_breadcrumbs()
            scope.set_tag("recruiter.task", job.task)
            scope.set_tag("recruiter.group", job.group)
            scope.set_context("job", self._context(job, attempt, worker))
            if job.owner is not None:
                scope.set_user({"username": job.owner})
            yield scope

    def _context(self, job: Job, attempt: int, worker: str) -> dict[str, Any]:
        facts = {"id": str(job.id), "task": job.task, "group": job.group, "urn": job.urn, "owner": job.owner}
        facts |= {"attempt": str(attempt), "worker": worker, "tags": ", ".join(job.tags) or None}
        if self._arguments:
            facts["arguments"] = job.args  # type: ignore[assignment]
        return {name: value for name, value in facts.items() if value is not None}

    def _check_in(self, job: Job, recruiter: Any) -> _CheckIn | None:
        """The monitor of an occurrence of a repeatable job; other jobs have none."""
        if not self._monitors or job.urn is None or not str(job.id).startswith(f"{job.urn}@"):
            return None
        if job.urn not in self._configured:
            self._configured[job.urn] = _monitor(recruiter, job)
        return _CheckIn(job, self._configured[job.urn])

    def flush(self) -> None:
        sentry_sdk.flush(2.0)


class _SentryFollower(Follower):
    def __init__(self, transaction: Transaction, retries: bool, check_in: _CheckIn | None) -> None:
        self._transaction = transaction
        self._retries = retries
        self._check_in = check_in
        self.trace_id = transaction.trace_id
        if check_in is not None:
            check_in.begin()

    def ended(self, end: AttemptEnd) -> None:
        if end.outcome in _STATUS:
            self._transaction.set_status(_STATUS[end.outcome])
        if end.error is not None and (end.outcome == "failed" or (end.outcome == "retried" and self._retries)):
            _capture(end.error)
        if self._check_in is not None and end.outcome in ("succeeded", "failed", "cancelled"):
            self._check_in.conclude("ok" if end.outcome == "succeeded" else "error")


def _capture(error: BaseException) -> None:
    """As the integrations of the SDK do: no code of the application has handled this exception."""
    options = sentry_sdk.get_client().options
    event, hint = event_from_exception(
        cast("Any", error), client_options=options, mechanism={"type": "recruiter", "handled": False}
    )
    sentry_sdk.capture_event(event, hint=hint)


class _CheckIn:
    """One run of a monitor. All attempts of a job are one run: its id is made of the job's."""

    def __init__(self, job: Job, config: MonitorConfig | None) -> None:
        self._slug = slug(job.urn or job.task)
        self._id = uuid.uuid5(_MONITORS, str(job.id)).hex
        self._config = config
        self._began = time.monotonic()

    def begin(self) -> None:
        capture_checkin(self._slug, self._id, "in_progress", monitor_config=self._config)

    def conclude(self, status: str, seconds: float | None = None) -> None:
        """With the seconds that it took, if they are not the seconds since this object was made."""
        took = time.monotonic() - self._began if seconds is None else seconds
        capture_checkin(self._slug, self._id, status, took, self._config)


def slug(urn: str) -> str:
    """The name of its monitor: Sentry takes small letters, digits, `-` and `_`, at most 50 of them. A shortened
    name ends with a hash, so that no two are the same."""
    plain = re.sub(r"[^a-z0-9_]+", "-", urn.lower()).strip("-") or "job"
    if len(plain) <= _MAX_SLUG_CHARACTERS:
        return plain
    return f"{plain[: _MAX_SLUG_CHARACTERS - 9]}-{hashlib.sha256(urn.encode()).hexdigest()[:8]}"


def _monitor(recruiter: Any, job: Job) -> MonitorConfig | None:
    """The schedule in Sentry's terms, so that it notices missing runs; None if Sentry cannot express it."""
    try:
        with answered_within(2.0):
            schedule = recruiter.scheduler(job.urn).find().schedule
    except (RecruiterError, AttributeError):
        return None
    parameters = schedule.get("parameters")
    found = _monitor_schedule(str(schedule.get("class")), parameters if isinstance(parameters, Mapping) else {})
    if found is None:
        return None
    config: dict[str, Any] = {"schedule": found, "timezone": parameters.get("tz") or "UTC"}
    if job.timeout is not None:
        config["max_runtime"] = max(1, round(job.timeout / 60))
    return cast("MonitorConfig", config)


def _monitor_schedule(policy: str, parameters: Mapping[str, Any]) -> dict[str, Any] | None:
    """The schedule of a stored policy: a cron expression, or an interval in whole minutes, hours or days."""
    expression = parameters.get("expression")
    if policy == "Cron" and isinstance(expression, str):
        fields = expression.split()
        if len(fields) == 5 or expression.startswith("@"):
            return {"type": "crontab", "value": expression}
        return None  # with seconds, which Sentry does not know
    minutes = parameters.get("n") if policy == "EveryMinutes" else None
    interval = parameters.get("interval") if policy == "Every" else None
    if isinstance(interval, int | float) and interval % 60 == 0:
        minutes = interval // 60
    if not isinstance(minutes, int | float) or minutes < 1:
        return None
    for unit, of in (("day", 1440), ("hour", 60), ("minute", 1)):
        if minutes % of == 0:
            return {"type": "interval", "value": int(minutes // of), "unit": unit}
    return None
