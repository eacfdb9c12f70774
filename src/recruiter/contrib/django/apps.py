"""`recruiter.contrib.django` in INSTALLED_APPS."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules


class RecruiterConfig(AppConfig):  # type: ignore[misc]
    """Imports the `tasks.py` of every installed application, so that workers and results know all tasks."""

    name = "recruiter.contrib.django"
    label = "recruiter"
    verbose_name = "Recruiter"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        autodiscover_modules("tasks")
