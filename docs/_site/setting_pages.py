"""The list of settings: each with its help text, its option and its environment variable."""

from __future__ import annotations

import inspect
from typing import Any

from signatures import shown
from source import class_source

from recruiter.cli import options
from recruiter.settings import Settings


def settings() -> str:
    helps = _helps()
    return "\n\n".join(
        f"`{name}`\n: {helps.get(name) or field.description} {_default(field.default, helps.get(name, ''))}"
        f"{_option(name) if name in helps else ''}`RECRUITER_{name.upper()}`."
        for name, field in Settings.model_fields.items()
    )


def _option(name: str) -> str:
    return f"`--{name.replace('_', '-')}`, "


def _helps() -> dict[str, str]:
    """The help texts of the options, by name; all of them if processes describe an option differently."""
    told: dict[str, list[str]] = {}
    classes: list[Any] = [cls for _, cls in inspect.getmembers(options, inspect.isclass)]
    for cls in classes:
        for name, text in class_source(cls).attributes.items():
            if cls.__module__ == options.__name__ and text not in told.setdefault(name, []):
                told[name].append(text)
    return {name: " ".join(texts) for name, texts in told.items()}


def _default(default: Any, told: str) -> str:
    return "" if default in (None, "") or "default" in told else f"Default {shown(default)}. "
