"""The place of a job in its flow, as it is written in the job's document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bson import ObjectId

from recruiter.domain.flow.step import FlowStep, On
from recruiter.domain.text import shown
from recruiter.errors import UnreadableDocument
from recruiter.store import fields as field


def flow_document(step: FlowStep) -> dict[str, Any]:
    """What is empty is left out."""
    document: dict[str, Any] = {"id": step.flow, "step": step.step}
    if step.after:
        document["after"] = list(step.after)
    if step.any:
        document["any"] = [each for each in step.after if each in step.any]
    if step.takes:
        document["takes"] = list(step.takes)
    if step.on is not None:
        document["on"] = step.on.value
    if step.added is not None:
        document["added"] = step.added
    if step.delay is not None:
        document["delay"] = step.delay
    return document


def flow_from(document: Mapping[str, Any]) -> FlowStep | None:
    """The parser; None of a job that is no step. Raises UnreadableDocument."""
    stored = field.mapping(document, "flow", None)
    if stored is None:
        return None
    id, on = stored.get("id"), field.text(stored, "on", None)
    if not isinstance(id, ObjectId) or on not in (None, *On):
        raise UnreadableDocument(f"flow is {shown(stored, 60)}; it must be the place of a step in its flow")
    return FlowStep(
        id,
        field.job_id("flow.step", stored.get("step")),
        tuple(field.array(stored, "after", field.job_id, ())),
        frozenset(field.array(stored, "any", field.job_id, ())),
        tuple(field.array(stored, "takes", field.job_id, ())),
        On(on) if on is not None else None,
        added if isinstance(added := stored.get("added"), ObjectId) else None,
        field.number(stored, "delay", None, least=0),
    )
