"""Three backends on one MongoDB, and SQLite in memory."""

import os
from importlib.util import find_spec
from typing import Any

SECRET_KEY = "only for these tests"
USE_TZ = True
INSTALLED_APPS = ["pets", "recruiter.contrib.django", *([] if find_spec("django.tasks") else ["django_tasks"])]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}


def backend(**options: Any) -> dict[str, Any]:
    options = {"target": os.environ["PETS_TARGET"], **options}
    return {"BACKEND": "recruiter.contrib.django.RecruiterBackend", "QUEUES": ["default", "slow"], "OPTIONS": options}


TASKS = {"default": backend(), "after_commit": backend(on_commit=True)}
