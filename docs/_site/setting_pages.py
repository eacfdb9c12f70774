"""The table of settings: every one with its option, its variable and its default, and what the help says of it."""

from __future__ import annotations

import inspect
from typing import Any

from signatures import shown
from source import class_source

from recruiter.cli import options
from recruiter.settings import Settings


def settings() -> str:
    helps = _helps()
    rows = [
        f"| `{name}` | `--{name.replace('_', '-')}` | `RECRUITER_{name.upper()}` | {_default(field.default)} | "
        f"{helps.get(name, '')} |"
        for name, field in Settings.model_fields.items()
    ]
    return "\n".join(["| in `recruiter.toml` | option | variable | default | |", "|---|---|---|---|---|", *rows])


def _helps() -> dict[str, str]:
    """What the options say, by name; where two processes mean different things by one, both."""
    told: dict[str, list[str]] = {}
    classes: list[Any] = [cls for _, cls in inspect.getmembers(options, inspect.isclass)]
    for cls in classes:
        for name, text in class_source(cls).attributes.items():
            if cls.__module__ == options.__name__ and text not in told.setdefault(name, []):
                told[name].append(text)
    return {name: " ".join(texts) for name, texts in told.items()}


def _default(default: Any) -> str:
    return "" if default in (None, "") else f"`{shown(default)}`"
