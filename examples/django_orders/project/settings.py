"""Orders are in SQLite, jobs in MongoDB: a job is stored when the order that it is about is committed."""

import os
from importlib.util import find_spec

SECRET_KEY = "only for this example"
DEBUG = True
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "project.urls"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["orders", "recruiter.contrib.django"]
if find_spec("django.tasks") is None:  # before Django 6: pip install django-tasks
    INSTALLED_APPS.append("django_tasks")
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("ORDERS_DATABASE", "orders.sqlite3"),
    }
}
TASKS = {
    "default": {
        "BACKEND": "recruiter.contrib.django.RecruiterBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {
            "target": os.environ.get("RECRUITER_TARGET", "mongodb://localhost:27017/orders"),
            "on_commit": True,
        },
    }
}
