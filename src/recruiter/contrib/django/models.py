"""Django's permissions for jobs: `recruiter.view_backgroundjob` and `recruiter.change_backgroundjob`."""

from __future__ import annotations

from django.db import models


class BackgroundJob(models.Model):  # type: ignore[misc]
    """Has no table and no fields: jobs are in MongoDB, and the web console shows them."""

    class Meta:
        managed = False
        default_permissions = ("view", "change")
        verbose_name = "job"
