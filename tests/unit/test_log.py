"""Log lines, for people and for machines: who, where, when, how bad, and what happened."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from bson import ObjectId

from recruiter.domain.duration import UNTIL_SIGNAL
from recruiter.events import Event
from recruiter.log import LogOptions, configure, log_events
from recruiter.processes.fleet import how_it_ended
from recruiter.settings import LogFormat, LogLevel


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("recruiter")
    before = root.handlers[:], root.level, ours.level
    make = logging.getLogRecordFactory()
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])
    logging.setLogRecordFactory(make)


Lines = Callable[..., list[str]]


@pytest.fixture
def lines() -> Lines:
    """What is written for these events."""

    def lines(
        *events: Event, level: LogLevel = "info", format: LogFormat = "text", stream: io.StringIO | None = None
    ) -> list[str]:
        stream = stream or io.StringIO()
        logging.getLogger().handlers.clear()  # those of pytest would count as the application's own
        configure(LogOptions(level, format, "worker"), stream)
        write = log_events("worker")
        for event in events:
            write(event)
        return stream.getvalue().splitlines()

    return lines


RETIRED = Event("worker.retired", {"worker": "w1", "released": 3, "ran": [7]})


class TestText:
    def test_time_host_pid_program_level_and_a_sentence(self, lines: Lines) -> None:
        (line,) = lines(RETIRED)

        found = re.fullmatch(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) (\S+)\[(\d+)\] (\w+) +(\w+) +(.*)", line)
        assert found is not None
        assert found[2] == socket.gethostname()
        assert int(found[3]) == os.getpid()
        assert (found[4], found[5]) == ("worker", "WARNING")
        assert (
            found[6] == "worker w1 was silent and was retired; 3 jobs released; jobs that ran at its last heartbeat: 7"
        )

    def test_when_a_job_runs_again(self, lines: Lines) -> None:
        at = {"job": 1, "next": datetime(2026, 11, 17, 3, 15, tzinfo=UTC), "reason": "it sleeps for 3d"}

        later, signal = lines(
            Event("job.snoozed", at), Event("job.snoozed", {**at, "next": UNTIL_SIGNAL, "reason": "it waits"})
        )

        assert later.endswith("job 1 runs again at 03:15:00: it sleeps for 3d")
        assert signal.endswith("job 1 runs again when its signal comes: it waits")

    def test_below_the_level_nothing_is_written(self, lines: Lines) -> None:
        ended = Event("job.ended", {"job": 1, "task": "add", "seconds": 0.0123})

        assert lines(ended, level="info") == []
        assert lines(ended, level="debug")[0].endswith("add done in 0.012s")
        assert lines(RETIRED, level="error") == []


class TestColour:
    def test_only_on_a_terminal(self, lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("NO_COLOR", raising=False)

        (coloured,) = lines(RETIRED, stream=Terminal())
        (plain,) = lines(RETIRED, stream=io.StringIO())

        assert coloured.startswith("\x1b[33m")
        assert coloured.endswith("\x1b[0m")
        assert "\x1b" not in plain


class TestJson:
    def decoded(self, line: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(line)
        return found

    def test_the_trace_of_a_failure(self, lines: Lines) -> None:
        stream = io.StringIO()
        assert lines(format="json", stream=stream) == []
        try:
            raise ZeroDivisionError("oh")
        except ZeroDivisionError:
            logging.getLogger("recruiter").exception("it broke")

        assert "ZeroDivisionError: oh" in self.decoded(stream.getvalue())["trace"]


def test_other_libraries_are_heard_when_they_warn(lines: Lines) -> None:
    stream = io.StringIO()
    assert lines(stream=stream) == []
    logging.getLogger("pymongo").info("chatter")
    logging.getLogger("pymongo").warning("trouble")

    assert "chatter" not in stream.getvalue()
    assert "trouble" in stream.getvalue()


SECRETS = {
    "password": "hunter2",
    "api_key": b"hunter2",
    "session_token": "hunter2",
    "customer": {"id": 42, "Client-Secret": ["hunter2"], "logins": [{"pin": 1, "passwd": 4711}]},
    "tokens": 512,
    "secret": None,
}


def test_secrets_are_masked_by_their_names_at_every_depth(lines: Lines) -> None:
    """Those that a job gives with `extra=`, and those in the fields of an event."""
    (event,) = lines(Event("moon.rose", SECRETS), format="json")
    stream = io.StringIO()
    configure(LogOptions(format="json"), stream)
    logging.getLogger("shop").warning("sending", extra=SECRETS)

    for line in (event, stream.getvalue()):
        assert "hunter2" not in line
        assert "4711" not in line
        told = json.loads(line)
        assert (told["password"], told["api_key"], told["session_token"]) == ("***", "***", "***")
        assert told["customer"] == {"id": 42, "Client-Secret": "***", "logins": [{"pin": "***", "passwd": "***"}]}
        assert (told["tokens"], told["secret"]) == (512, None)


def test_secrets_are_masked_in_lines_of_text(lines: Lines) -> None:
    (line,) = lines(Event("moon.rose", SECRETS))

    assert "hunter2" not in line


@pytest.mark.parametrize(
    ("event", "told"),
    [
        (
            Event("worker.retired", {"worker": "w1", "released": 0, "ran": (ObjectId("6afc22a57867cebf4db5d1b1"),)}),
            "worker w1 was silent and was retired; 0 jobs released; "
            "jobs that ran at its last heartbeat: 6afc22a57867cebf4db5d1b1",
        ),
        (
            Event("worker.retired", {"worker": "w1", "released": 2, "ran": ()}),
            "worker w1 was silent and was retired; 2 jobs released; jobs that ran at its last heartbeat: none",
        ),
        (
            Event("job.failed", {"job": 7, "task": "send", "error": "E: x", "next": datetime(2030, 1, 1, tzinfo=UTC)}),
            "job 7: send failed: E: x; next attempt at 00:00:00",
        ),
        (
            Event("job.cancelled", {"job": 7, "task": "send", "by": "ada", "reason": "a mistake"}),
            "job 7: send cancelled by ada: a mistake",
        ),
        (
            Event("fleet.member_ended", {"member": "worker", "member_pid": 5, "how": how_it_ended(-9)}),
            "the worker (pid 5) was killed from outside by SIGKILL (out of memory?). The other processes are stopped; "
            "start everything again",
        ),
    ],
)
def test_each_event_has_its_message(event: Event, told: str, lines: Lines) -> None:
    (line,) = lines(event)

    assert line.endswith(told)


def test_a_program_that_configures_no_logging_gets_the_message() -> None:
    program = "from recruiter import Recruiter; Recruiter('127.0.0.1:1')._tell_silence('job 7 is not stored yet')"

    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    (line,) = ran.stderr.splitlines()
    assert line.startswith("MongoDB at mongodb://127.0.0.1:1 has not answered for a second")
