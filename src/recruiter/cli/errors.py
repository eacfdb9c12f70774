"""What an error looks like to a person, and to a script."""

from __future__ import annotations

from recruiter.cli.output import say
from recruiter.domain.text import mask
from recruiter.errors import ApplicationError, InvalidFilter, RecruiterError, SettingsError, StoreError


def complain(error: RecruiterError) -> None:
    """On standard error, without secrets."""
    say(mask(f"recruiter: {error}"), stderr=True)


def exit_code(error: RecruiterError) -> int:
    match error:
        case SettingsError() | InvalidFilter():
            return 2
        case ApplicationError():
            return 3
        case StoreError():
            return 4
        case _:
            return 1
