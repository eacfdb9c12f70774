"""Found by its name."""

from __future__ import annotations

import inspect
from typing import Any

from recruiter import RetryLater, RetryManyTimes
from recruiter.contrib.django.backend import task


@task
def feed(name: str, *, times: int = 1) -> str:
    return f"{name} was fed {times} times"


@task(queue_name="slow", priority=5)
async def wash(name: str) -> list[str]:
    return ["wash", name]


@task(takes_context=True)
def describe(context: Any, name: str) -> dict[str, Any]:
    result = context.task_result
    return {"attempt": context.attempt, "id": result.id, "status": result.status, "args": result.args, "name": name}


@task
def bite(name: str) -> None:
    raise PermissionError(f"{name} does not want to")


@task
def lose() -> object:
    return object()


@task
def sleep_on() -> None:
    raise RetryLater("1 hour")


@task(backend="after_commit")
def announce(name: str) -> str:
    return name


if "kwargs" in inspect.signature(task).parameters:  # not in Django 6.0

    @task(retry=RetryManyTimes(2, "1 minute"), only=[PermissionError], tags=["bad"], timeout="1m")
    def bite_again(name: str) -> None:
        raise PermissionError(f"{name} does not want to")
