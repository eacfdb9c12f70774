"""The Django project of DJANGO_SETTINGS_MODULE, for `--bootstrap recruiter.contrib.django.application`.

Loaded by the processes that `manage.py recruiter` starts. Importing this module sets Django up. It has one name for
each alias of TASKS: `--bootstrap recruiter.contrib.django.application:mail` is for the database of that alias.
"""

from __future__ import annotations

import django

django.setup()

from recruiter.contrib.django.backend import recruiters  # noqa: E402

globals().update(recruiters())
