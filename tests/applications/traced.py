"""The application of tests about tracing: each process writes its spans into a file of its own."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from recruiter import Recruiter, RetryManyTimes, current_job
from recruiter.contrib.opentelemetry import OpenTelemetry

FOLDER = "TRACED_FOLDER"


class FileExporter(SpanExporter):
    """A line of JSON for each span."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        folder = os.environ.get(FOLDER)
        if folder is not None:
            with (Path(folder) / f"spans-{os.getpid()}.jsonl").open("a") as file:
                file.writelines(span.to_json(indent=None) + "\n" for span in spans)
        return SpanExportResult.SUCCESS


recruiter = Recruiter()
provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(FileExporter()))
recruiter.instrument(OpenTelemetry(provider))


@recruiter.task(retry=RetryManyTimes(2, "0s"))
def charge(order: int) -> str:
    logging.getLogger("traced").info("charging order %s", order)
    with trace.get_tracer("shop", tracer_provider=provider).start_as_current_span("ask the bank"):
        if current_job.attempt == 1:
            raise ConnectionError("the bank does not answer")
    receipt.enqueue(order)
    return current_job.trace_id or ""


@recruiter.task(group="mail")
async def receipt(order: int) -> int:
    print(f"a receipt for {order}")
    return order


@recruiter.task(max_crashes=1)
def crash() -> None:
    os.abort()
