"""The application of tests about Sentry: each process appends what it would send to a file of its own."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from recruiter import Recruiter, RetryManyTimes, current_job
from recruiter.contrib.sentry import Sentry

FOLDER = "REPORTED_FOLDER"


class FileTransport(Transport):
    """A line of JSON for each item of an envelope."""

    def capture_envelope(self, envelope: Envelope) -> None:
        folder = os.environ.get(FOLDER)
        if folder is not None:
            with (Path(folder) / f"sentry-{os.getpid()}.jsonl").open("a") as file:
                file.writelines(json.dumps([item.type, item.payload.json]) + "\n" for item in envelope.items)


sentry_sdk.init(
    dsn="https://public@sentry.example/1",
    transport=FileTransport,
    traces_sample_rate=1.0,
    default_integrations=False,
    auto_enabling_integrations=False,
)
recruiter = Recruiter()
recruiter.instrument(Sentry())


@recruiter.task(max_crashes=1)
def crash() -> None:
    os.abort()


@recruiter.task(timeout="0.2s")
def overrun() -> None:
    """Does not end when it is told that its time is over."""
    while True:
        try:
            time.sleep(0.05)
        except Exception:
            continue


@recruiter.task(at_most_once=True)
def transfer(started: str) -> None:
    Path(started).touch()
    time.sleep(600)


@recruiter.task(retry=RetryManyTimes(2, "0s"))
def flaky() -> str:
    if current_job.attempt == 1:
        raise ConnectionError("the bank does not answer")
    return "done"


@recruiter.task
def broken() -> None:
    raise ValueError("no such order")
