"""An entry in Django's admin that opens the web console. It is there if a backend of TASKS has the option `console`."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect

from recruiter.contrib.django.models import BackgroundJob


class BackgroundJobAdmin(admin.ModelAdmin):  # type: ignore[misc]
    console = ""

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:  # noqa: ARG002
        if not self.has_view_permission(request):
            raise PermissionDenied
        return redirect(self.console)

    def has_add_permission(self, request: HttpRequest) -> bool:  # noqa: ARG002
        return False


for _backend in getattr(settings, "TASKS", {}).values():
    BackgroundJobAdmin.console = BackgroundJobAdmin.console or _backend.get("OPTIONS", {}).get("console", "")
if BackgroundJobAdmin.console:
    admin.site.register(BackgroundJob, BackgroundJobAdmin)
