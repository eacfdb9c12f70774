"""pydantic, imported when a value needs it: most are plain, and importing pydantic takes a third as long as pymongo.

A program that has defined a model has imported pydantic, so asking whether a class is one imports nothing.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    from pydantic import BaseModel, RootModel, TypeAdapter, ValidationError


def load() -> None:
    """Imports it now; for a process from which others are forked."""
    import_module("pydantic")


def is_model(cls: type) -> TypeGuard[type[BaseModel]]:
    """Whether this class is a pydantic model."""
    known = sys.modules.get("pydantic.main")
    return known is not None and issubclass(cls, known.BaseModel)


def is_root_model(cls: type) -> TypeGuard[type[RootModel[Any]]]:
    """Whether it is a model that is one value and not a document of several."""
    # Importing RootModel would define a model, and then pydantic looks for plugins among all installed packages.
    known = sys.modules.get("pydantic.root_model")
    return known is not None and issubclass(cls, known.RootModel)


def is_validation_error(error: Exception) -> TypeGuard[ValidationError]:
    """Whether pydantic says with it what is wrong with a value."""
    return isinstance(error, import_module("pydantic").ValidationError)


def adapter_of(annotation: Any) -> TypeAdapter[Any]:
    """What checks and rebuilds values of this type."""
    pydantic = import_module("pydantic")
    adapter: TypeAdapter[Any]
    try:
        adapter = pydantic.TypeAdapter(annotation, config=pydantic.ConfigDict(arbitrary_types_allowed=True))
    except pydantic.PydanticUserError:  # a dataclass or model, which has a configuration of its own
        adapter = pydantic.TypeAdapter(annotation)
    return adapter
