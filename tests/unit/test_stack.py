"""The stack of a running job: places in code, of every thread and every task."""

from __future__ import annotations

import asyncio
import threading

import pytest

from recruiter.processes.child.stack import stack_text
from recruiter.store.roster_fields import stack_asked_from


def test_a_stack_names_the_calls_of_threads_and_of_waiting_tasks_but_no_values() -> None:
    asked, answered = threading.Event(), threading.Event()
    found: list[str] = []

    async def waits_for_the_bank(secret: str) -> None:
        await asyncio.to_thread(answered.wait)

    async def main() -> None:
        task = asyncio.create_task(waits_for_the_bank("hunter2"), name="payment")
        loop = asyncio.get_running_loop()

        def look() -> None:
            asked.wait()
            found.append(stack_text(loop))
            answered.set()

        threading.Thread(target=look).start()
        loop.call_later(0.05, asked.set)
        await task

    asyncio.run(main())

    assert "task payment" in found[0]
    assert "in waits_for_the_bank" in found[0]
    assert "thread MainThread" in found[0]
    assert "hunter2" not in found[0]


@pytest.mark.parametrize("asked", [None, 7, [], {}, {"id": 7, "job": 1}, {"id": "a", "job": {"$gt": ""}}])
def test_a_question_that_is_none_is_left_alone(asked: object) -> None:
    assert stack_asked_from({"stack_asked": asked}) is None


def test_a_question_names_its_job() -> None:
    assert stack_asked_from({"stack_asked": {"id": "a", "job": 7, "more": 1}}) == {"id": "a", "job": 7}
