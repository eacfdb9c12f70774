"""What the log says of an error: the lines of code, and no arguments of a job."""

from __future__ import annotations

from pymongo.errors import BulkWriteError

from recruiter.store.errors import trace_of, translate


def refused() -> None:
    document = {"task": "pay", "args": {"card": "4111 1111"}}
    details = {"writeErrors": [{"index": 0, "code": 2, "errmsg": "no good", "op": document}]}
    try:
        raise BulkWriteError(details)
    except BulkWriteError as error:
        raise translate(error) from error


def test_the_trace_of_a_refused_write_has_no_arguments_in_it() -> None:
    try:
        refused()
    except Exception as error:
        trace = trace_of(error)

    assert "4111" not in trace
    assert "in refused" in trace
    assert "BulkWriteError" in trace
    assert trace.endswith("MongoDB refused the command: no good")


def test_a_very_long_message_is_cut() -> None:
    assert len(trace_of(ValueError("x" * 100_000))) < 500
