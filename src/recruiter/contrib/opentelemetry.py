"""Tracing with OpenTelemetry: a span where jobs are made, and one for each attempt, in one trace.

    recruiter.instrument(OpenTelemetry())

Needs the extra `otel`, which is OpenTelemetry's API. Your application chooses and configures the SDK and the exporter,
in the process that enqueues jobs and, because workers load the application too, in the process that runs them.

    GET /order                            SERVER      your web framework's
    └── send charge                       PRODUCER    while the job is stored
        ├── process charge   attempt 1    CONSUMER    in a worker, whenever that is
        └── process charge   attempt 2    CONSUMER
            └── send receipt              PRODUCER    a job that this one makes

The span of an attempt links to the span that created the job, to the attempt that the job repeats (`recover`), and to
the attempts of the steps that it waited for. The job carries the context of its producer in `trace_context`, written by
the global propagator (`traceparent`, and `baggage` if there is any). Attributes are named by the semantic conventions
for messaging.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any

from recruiter.first_use import missing_extra

try:
    from opentelemetry import context, propagate, trace
    from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, Tracer, TracerProvider
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ModuleNotFoundError as error:
    raise missing_extra("otel", error) from None

import recruiter
from recruiter.domain.job import Job
from recruiter.domain.retry.decision import exception_names
from recruiter.domain.state import State
from recruiter.errors import RecruiterError
from recruiter.instruments import AttemptEnd, AttemptStart, Follower, Instrument, ProcessDeath, SendStart
from recruiter.store.connection import answered_within

__all__ = ["OpenTelemetry"]

MAX_LINKED_STEPS = 20
"""A step that waits for more steps links to the first of them."""
_PARENT = TraceContextTextMapPropagator()
_producer: ContextVar[Span | None] = ContextVar("recruiter_producer_span", default=None)


class OpenTelemetry(Instrument):
    """Traces jobs: `recruiter.instrument(OpenTelemetry())`. Without a `tracer_provider` the global one is used, as it
    is set when a span begins."""

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        self._provider = tracer_provider

    @property
    def _tracer(self) -> Tracer:
        return trace.get_tracer("recruiter", recruiter.__version__, self._provider)

    @contextmanager
    def producing(self, start: SendStart) -> Iterator[None]:
        attributes = _attributes("send", start.recruiter, start.group)
        attributes["recruiter.flow.name" if start.is_flow else "recruiter.job.task"] = start.name
        if start.is_flow or start.count != 1:
            attributes["messaging.batch.message_count"] = start.count
        name = f"send {start.name}"
        with self._tracer.start_as_current_span(name, kind=SpanKind.PRODUCER, attributes=attributes) as span:
            token = _producer.set(span if start.count == 1 and not start.is_flow else None)
            try:
                yield
            finally:
                _producer.reset(token)

    def stamp(self, job: Job, carrier: dict[str, str]) -> None:
        span = _producer.get()
        if span is not None:
            span.set_attribute("messaging.message.id", str(job.id))
        propagate.inject(carrier)

    @contextmanager
    def attempt(self, start: AttemptStart) -> Iterator[Follower]:
        span, made_in = self._span(start.job, start.number, start.worker, start.recruiter)
        token = context.attach(trace.set_span_in_context(span, made_in))
        try:
            yield _SpanFollower(span)
        finally:
            context.detach(token)
            span.end()

    def process_died(self, death: ProcessDeath) -> None:
        """Reports the span of the last attempt, which died with its process."""
        job, last = death.job, death.job.last_execution
        begun_at = job.archived_at if last is None or last.started_at is None else last.started_at
        span, _ = self._span(job, job.attempts, job.worker or "", death.recruiter, begun_at)
        span.set_attribute("recruiter.job.outcome", job.state.value)
        if job.state is not State.CANCELLED:
            name = job.error or job.why
            span.set_attribute("error.type", name)
            span.set_status(Status(StatusCode.ERROR, job.message or name))
        span.end(_nanoseconds(job.archived_at))

    def _span(
        self, job: Job, number: int, worker: str, recruiter: Any, begun_at: datetime | None = None
    ) -> tuple[Span, context.Context]:
        """The span of an attempt, and the context in which its job was made."""
        attributes = {
            **_attributes("process", recruiter, job.group),
            "recruiter.job.task": job.task,
            "messaging.message.id": str(job.id),
            "recruiter.job.attempt": number,
            "recruiter.worker": worker,
        }
        made_in = propagate.extract(dict(job.trace_context or {}))
        links = [Link(found) for found in _linked(job, recruiter, made_in)]
        start_time = None if begun_at is None else _nanoseconds(begun_at)
        name = f"process {job.task}"
        span = self._tracer.start_span(name, made_in, SpanKind.CONSUMER, attributes, links, start_time)
        return span, made_in

    def flush(self) -> None:
        provider = self._provider or trace.get_tracer_provider()
        flush = getattr(provider, "force_flush", None)  # the SDK's has it; the API's does not
        if flush is not None:
            flush(2_000)  # milliseconds


class _SpanFollower(Follower):
    def __init__(self, span: Span) -> None:
        self._span = span
        found = span.get_span_context()
        if found.is_valid:
            self.trace_id = trace.format_trace_id(found.trace_id)
            carrier: dict[str, str] = {}
            _PARENT.inject(carrier, trace.set_span_in_context(span))
            self.span = carrier.get("traceparent")

    def ended(self, end: AttemptEnd) -> None:
        span, error = self._span, end.error
        span.set_attribute("recruiter.job.outcome", end.outcome)
        if end.next_at is not None:
            span.set_attribute("recruiter.job.next_attempt_at", end.next_at.isoformat())
        if error is not None and end.outcome in ("failed", "retried"):
            name = exception_names(type(error))[0]
            span.set_attribute("error.type", name)
            span.record_exception(error)
            span.set_status(Status(StatusCode.ERROR, name))


def _attributes(operation: str, recruiter: Any, group: str | None) -> dict[str, str | int]:
    """The attributes that samplers see, because they are there when the span begins."""
    attributes: dict[str, str | int] = {
        "messaging.system": "recruiter",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
    }
    if group is not None:
        attributes["messaging.destination.name"] = group
    if recruiter is not None:
        host, port = recruiter.target.address
        attributes["server.address"] = host
        if port is not None:
            attributes["server.port"] = port
    return attributes


def _linked(job: Job, recruiter: Any, made_in: context.Context) -> Iterator[SpanContext]:
    """The span in which the job was made; the last attempts of the job that it repeats, and of the steps that it waited
    for."""
    creation = trace.get_current_span(made_in).get_span_context()
    if creation.is_valid:
        yield creation
    before = [] if job.recovered_from is None else [job.recovered_from]
    if job.flow is not None:
        before += job.flow.after[:MAX_LINKED_STEPS]
    if not before or recruiter is None:
        return
    try:
        with answered_within(2.0):
            found = recruiter.store.archived.get_many(before)
    except RecruiterError:
        return  # a trace without these links is better than none
    for id in before:
        last = found[id].last_execution if id in found else None
        if last is not None and last.span is not None:
            ended = trace.get_current_span(_PARENT.extract({"traceparent": last.span})).get_span_context()
            if ended.is_valid:
                yield ended


def _nanoseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000_000) * 1_000
