"""Tracing with OpenTelemetry: a span where jobs are made, and one for each attempt, in one trace.

    recruiter.instrument(OpenTelemetry())

Needs the extra `otel`, which is OpenTelemetry's API. Your application chooses and configures the SDK and the exporter,
in the process that makes jobs and, because workers load the application too, in the one that runs them.

    GET /order                            SERVER      your web framework's
    └── send charge                       PRODUCER    while the job is stored
        ├── process charge   attempt 1    CONSUMER    in a worker, whenever that is
        └── process charge   attempt 2    CONSUMER
            └── send receipt              PRODUCER    a job that this one makes

The job carries the context of its producer in `trace_context`, written by the global propagator (`traceparent`, and
`baggage` if there is any). Attributes are named by the semantic conventions for messaging.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

from recruiter.first_use import missing_extra

try:
    from opentelemetry import context, propagate, trace
    from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, TracerProvider
except ModuleNotFoundError as error:
    raise missing_extra("otel", error) from None

import recruiter
from recruiter.domain.job import Job
from recruiter.domain.retry.decision import exception_names
from recruiter.instruments import AttemptEnd, AttemptStart, Follower, Instrument

__all__ = ["OpenTelemetry"]

_FLUSHED_WITHIN = 2_000
_producer: ContextVar[Span | None] = ContextVar("recruiter_producer_span", default=None)


class OpenTelemetry(Instrument):
    """Traces jobs: `recruiter.instrument(OpenTelemetry())`. Without a `tracer_provider` the global one is used, as it
    is set when a span begins."""

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        self._provider = tracer_provider

    @property
    def _tracer(self) -> Tracer:
        return trace.get_tracer("recruiter", recruiter.__version__, self._provider)

    def producing(self, task: str, count: int) -> AbstractContextManager[Any]:
        return self._producing(task, count)

    @contextmanager
    def _producing(self, task: str, count: int) -> Iterator[None]:
        attributes: dict[str, str | int] = {**_attributes("send", task)}
        if count != 1:
            attributes["messaging.batch.message_count"] = count
        with self._tracer.start_as_current_span(f"send {task}", kind=SpanKind.PRODUCER, attributes=attributes) as span:
            token = _producer.set(span if count == 1 else None)
            try:
                yield
            finally:
                _producer.reset(token)

    def stamp(self, job: Job, carrier: dict[str, str]) -> None:
        span = _producer.get()
        if span is not None:
            span.set_attribute("messaging.message.id", str(job.id))
            span.set_attribute("messaging.destination.name", job.group)
        propagate.inject(carrier)

    def attempt(self, start: AttemptStart) -> AbstractContextManager[Follower]:
        return self._attempt(start)

    @contextmanager
    def _attempt(self, start: AttemptStart) -> Iterator[Follower]:
        job = start.job
        attributes: dict[str, str | int] = {
            **_attributes("process", job.task),
            "messaging.message.id": str(job.id),
            "messaging.destination.name": job.group,
            "recruiter.job.attempt": start.number,
            "recruiter.worker": start.worker,
        }
        made_in = propagate.extract(dict(job.trace_context or {}))
        name = f"process {job.task}"
        span = self._tracer.start_span(name, made_in, SpanKind.CONSUMER, attributes)
        token = context.attach(trace.set_span_in_context(span, made_in))
        try:
            yield _SpanFollower(span)
        finally:
            context.detach(token)
            span.end()

    def flush(self) -> None:
        provider = self._provider or trace.get_tracer_provider()
        flush = getattr(provider, "force_flush", None)  # the SDK's has it; the API's does not
        if flush is not None:
            flush(_FLUSHED_WITHIN)


class _SpanFollower(Follower):
    def __init__(self, span: Span) -> None:
        self._span = span
        found = span.get_span_context()
        self.trace_id = trace.format_trace_id(found.trace_id) if found.is_valid else None

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


def _attributes(operation: str, task: str) -> dict[str, str]:
    return {
        "messaging.system": "recruiter",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "recruiter.job.task": task,
    }
