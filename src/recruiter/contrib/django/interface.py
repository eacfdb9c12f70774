"""Django's own interface of tasks: `django.tasks`, or its backport `django_tasks` where Django is older than 6."""

from __future__ import annotations

import json
from importlib import import_module
from importlib.util import find_spec
from typing import Any

_PACKAGE = "django.tasks" if find_spec("django.tasks") is not None else "django_tasks"

_tasks, _base, _exceptions, _signals = (
    import_module(f"{_PACKAGE}{part}") for part in ("", ".base", ".exceptions", ".signals")
)

BaseTaskBackend: Any = import_module(f"{_PACKAGE}.backends.base").BaseTaskBackend
Task: Any = _base.Task
TaskContext: Any = _base.TaskContext
TaskError: Any = _base.TaskError
TaskResult: Any = _base.TaskResult
TaskResultStatus: Any = _base.TaskResultStatus
task: Any = _tasks.task
task_backends: Any = _tasks.task_backends

# The backport has them under the names that they had before they went into Django.
InvalidTask: Any = getattr(_exceptions, "InvalidTask", None) or _exceptions.InvalidTaskError
InvalidTaskBackend: Any = getattr(_exceptions, "InvalidTaskBackend", None) or _exceptions.InvalidTaskBackendError
TaskResultDoesNotExist: Any = _exceptions.TaskResultDoesNotExist

task_enqueued: Any = _signals.task_enqueued
task_started: Any = _signals.task_started
task_finished: Any = _signals.task_finished


def plain_json(value: Any) -> Any:
    """The value as JSON knows it, as Django requires of arguments and results: tuples are lists, and the members of a
    TextChoices are texts. Raises TypeError."""
    return json.loads(json.dumps(_base.normalize_json(value)))
