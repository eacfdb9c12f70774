"""Recruiter in Django: a backend for Django's tasks, `manage.py recruiter`, and discovery of `tasks.py`.

    INSTALLED_APPS = [..., "recruiter.contrib.django"]
    TASKS = {
        "default": {
            "BACKEND": "recruiter.contrib.django.RecruiterBackend",
            "OPTIONS": {"target": "mongodb://localhost:27017/shop"},
        }
    }

`django.tasks` comes with Django 6. For Django 4.2 to 5.2 there is its backport, the package `django-tasks`.
"""

from recruiter.contrib.django.backend import RecruiterBackend, RecruiterTask

__all__ = ["RecruiterBackend", "RecruiterTask"]
