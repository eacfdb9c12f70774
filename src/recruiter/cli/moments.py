"""Moments as people write them: a date, or how long ago."""

from __future__ import annotations

from datetime import UTC, datetime

from recruiter.domain.duration import to_timedelta
from recruiter.errors import InvalidDuration, SettingsError


def moment(text: str, now: datetime) -> datetime:
    """A date with its time zone (UTC if it says none), or a duration before now. Raises SettingsError."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        pass
    else:
        return at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    try:
        return now - to_timedelta(text)
    except (InvalidDuration, OverflowError):
        raise SettingsError(
            f"{text!r} is neither a date nor a duration; write 2030-12-01T22:18:00Z, or 2h for two hours ago"
        ) from None
