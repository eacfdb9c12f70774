"""Django: the backend, and the example project with its own tests, with its own command and a real worker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.acceptance.docs.pages import page
from tests.conftest import Starter

pytestmark = pytest.mark.skipif(
    find_spec("django") is None or not (find_spec("django.tasks") or find_spec("django_tasks")),
    reason="no Django with tasks: pip install 'Django>=6', or django-tasks for an older one",
)

HERE = Path(__file__).parent
ORDERS = HERE.parents[1] / "examples" / "django_orders"


def run(target: str, tmp_path: Path, *arguments: str | Path, **environment: str) -> str:
    """Runs a program that uses Django to its end; returns what it printed."""
    settings = {name: value for name, value in os.environ.items() if not name.startswith("RECRUITER_")}
    settings |= {"PETS_TARGET": target, "RECRUITER_TARGET": target, "RECRUITER_TEST_TARGET": target, **environment}
    settings |= {"ORDERS_DATABASE": str(tmp_path / "orders.sqlite3")}
    ended = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning", *map(str, arguments)],
        env=settings,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


def test_the_backend_does_what_django_says_of_backends(target: str, tmp_path: Path) -> None:
    # by Django's own runner
    said = run(target, tmp_path, HERE / "django_site" / "manage_pets.py", "test", "pets")

    assert "\nOK" in said


def test_the_example_project_passes_its_checks_and_tests(target: str, tmp_path: Path) -> None:
    said = run(target, tmp_path, ORDERS / "manage.py", "test", "orders")

    assert "System check identified no issues" in said
    assert "\nOK" in said


def test_an_order_comes_in_a_worker_sends_the_receipt_and_it_is_read(
    target: str, tmp_path: Path, start: Starter
) -> None:
    # given the example project, and the processes that its own command starts
    database = str(tmp_path / "orders.sqlite3")
    fleet = start("recruiter", "start", "all", script=str(ORDERS / "manage.py"), ORDERS_DATABASE=database)
    fleet.says("joined the roster")

    # when its database is made, and an order is posted with Django's test client
    where = {"DJANGO_SETTINGS_MODULE": "project.settings", "PYTHONPATH": str(ORDERS)}
    answer = json.loads(run(target, tmp_path, HERE / "django_client.py", **where))

    # then a child of the worker, another process, has read the order and sent the receipt
    assert answer == {"status": "SUCCESSFUL", "receipt": "Receipt for one cat: 7 euros"}
    assert fleet.stop() == 0


def test_the_shell_has_the_names_of_the_modules_with_tasks(target: str, tmp_path: Path) -> None:
    said = run(target, tmp_path, ORDERS / "manage.py", "recruiter", "shell", "--execute", "send_receipt.name, Order")

    assert said == "('send_receipt', <class 'orders.models.Order'>)\n"


_LOGIN = """
from django.conf import settings

settings.configure(
    SECRET_KEY="x",
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    DATABASES={{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": {database!r}}}}},
    INSTALLED_APPS=[
        "django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes", "django.contrib.messages",
        "django.contrib.sessions", "recruiter.contrib.django",
    ],
    MIDDLEWARE=[
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
    ],
    TEMPLATES=[{{
        "BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True,
        "OPTIONS": {{"context_processors": [
            "django.template.context_processors.request", "django.contrib.auth.context_processors.auth",
            "django.contrib.messages.context_processors.messages",
        ]}},
    }}],
    TASKS={{
        "default": {{
            "BACKEND": "recruiter.contrib.django.RecruiterBackend",
            "OPTIONS": {{"target": {target!r}, "console": "/jobs/"}},
        }},
    }},
)
{block}
from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.test import Client
from django.urls import path
from starlette.testclient import TestClient

urlpatterns = [path("admin/", admin.site.urls)]
call_command("check", "--fail-level", "WARNING")
call_command("migrate", verbosity=0)
browser = TestClient(application)
print(browser.get("/jobs/").status_code, browser.get("/elsewhere").status_code)
for name, permission in (("ada", "change_backgroundjob"), ("bob", "view_backgroundjob"), ("eve", None)):
    user = User.objects.create_user(name, is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename=permission))
    client = Client()
    client.force_login(user)
    cookie = {{"cookie": "sessionid=" + client.cookies["sessionid"].value}}
    page = browser.get("/jobs/", headers=cookie)
    action = browser.post("/jobs/api/actions", headers=cookie, json={{"verb": "block-starts"}})
    entry = client.get("/admin/recruiter/backgroundjob/")
    shown = "/admin/recruiter/backgroundjob/" in client.get("/admin/").text
    print(page.status_code, name in page.text, action.status_code, entry.status_code, entry.get("location"), shown)
"""


def test_the_console_is_behind_the_login_and_the_permissions_of_django_as_its_page_shows(
    target: str, tmp_path: Path
) -> None:
    (block,) = (block for block in page("how-to/web-console.md").blocks if "django.setup()" in block.text)
    program = tmp_path / "login.py"
    program.write_text(_LOGIN.format(database=str(tmp_path / "db"), target=target, block=block.text))

    said = run(target, tmp_path, program)

    assert said.splitlines()[1:5] == [
        "401 404",
        "200 True 200 302 /jobs/ True",
        "200 True 403 302 /jobs/ True",
        "401 False 401 403 None False",
    ]
