"""The id of a job."""

from __future__ import annotations

from uuid import UUID

from bson import ObjectId

JobId = ObjectId | str | int | UUID
"""The id of a job: made by Recruiter (ObjectId) or given by the producer."""
