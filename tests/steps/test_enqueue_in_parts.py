"""Many jobs are encoded part by part while MongoDB stores them: each answer belongs to its call, whatever fails."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from recruiter import Recruiter
from recruiter.errors import InvalidJob, StoreUnreachable
from recruiter.results import JobHandle
from recruiter.steps.enqueue import LARGEST_BATCH
from recruiter.store.codec import LARGEST_JOB
from recruiter.store.collections.scheduled import Scheduled

COUNT = 2 * LARGEST_BATCH + 500


def stored(recruiter: Recruiter) -> dict[Any, Any]:
    return {job["_id"]: job["args"]["number"] for job in recruiter.store.scheduled.collection.find()}


def test_each_answer_is_that_of_its_call(recruiter: Recruiter) -> None:
    """Given calls of which some cannot be stored, in the first part, at its end and in the last one, then each of the
    others has its handle, in its place."""

    @recruiter.task
    def note(number: Any) -> None:
        del number

    too_large = "x" * LARGEST_JOB
    wrong = {3: object(), LARGEST_BATCH - 1: too_large, LARGEST_BATCH: object(), COUNT - 1: too_large}
    calls = [(wrong.get(number, number),) for number in range(COUNT)]

    answers = note.enqueue_many(calls, errors="return")

    assert {place for place, answer in enumerate(answers) if isinstance(answer, InvalidJob)} == set(wrong)
    told = {answer.id: place for place, answer in enumerate(answers) if isinstance(answer, JobHandle)}
    assert told == stored(recruiter)


def test_a_part_without_an_answer_is_told_of(recruiter: Recruiter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given that MongoDB does not answer for the second part, then its jobs may be stored and the rest is not."""

    @recruiter.task
    def note(number: int) -> None:
        del number

    insert, parts = Scheduled.insert, []

    def silent(self: Scheduled, documents: Any) -> dict[int, str]:
        parts.append(len(documents))
        if len(parts) == 2:
            raise StoreUnreachable("no answer")
        return insert(self, documents)

    monkeypatch.setattr(Scheduled, "insert", silent)

    answers = note.enqueue_many([(number,) for number in range(COUNT)], errors="return")

    assert parts == [LARGEST_BATCH, LARGEST_BATCH]
    assert sorted(stored(recruiter).values()) == list(range(LARGEST_BATCH))
    behind = 2 * LARGEST_BATCH
    assert all(isinstance(answer, JobHandle) for answer in answers[:LARGEST_BATCH])
    assert all("not known whether" in str(answer) for answer in answers[LARGEST_BATCH:behind])
    assert all("is not stored" in str(answer) for answer in answers[behind:])


def test_a_mistake_of_the_caller_stores_nothing(recruiter: Recruiter) -> None:
    """Given a call in the last part that breaks when it is read, then nothing of the first parts is stored."""

    class Broken(dict[str, Any]):
        def keys(self) -> Any:
            raise LookupError("broken")

        __iter__ = keys

    @recruiter.task
    def note(number: int) -> None:
        del number

    calls: list[Any] = [(number,) for number in range(COUNT)]

    with pytest.raises(LookupError):
        note.enqueue_many([*calls, Broken(number=1)])

    assert stored(recruiter) == {}


def test_jobs_are_stored_at_the_end_of_the_interpreter(recruiter: Recruiter, target: str) -> None:
    """Given a program that enqueues when it ends, where Python starts no more threads, then all is stored."""
    program = f"""
import atexit
from recruiter import Recruiter
recruiter = Recruiter({target!r})
@recruiter.task
def note(number):
    pass
atexit.register(lambda: note.enqueue_many([(number,) for number in range({COUNT})]))
"""

    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)

    assert (ended.returncode, ended.stderr) == (0, "")
    assert len(stored(recruiter)) == COUNT
