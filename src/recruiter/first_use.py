"""Objects and modules that are made or imported on first use; and what to install if one is missing.

`cached_property` has no lock. Before Python 3.12 functools.cached_property has one lock for all instances of a class.
If a process forks while a thread holds it, the lock stays locked in the child forever.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Generic, Self, TypeVar, overload

T = TypeVar("T")


class cached_property(Generic[T]):
    """Made on first use and kept on the instance. Threads that make it at the same time all get the first one."""

    def __init__(self, func: Callable[[Any], T]) -> None:
        self.func = func
        self.__doc__ = func.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> Self | T:
        if instance is None:
            return self
        made: T = instance.__dict__.setdefault(self._name, self.func(instance))
        return made


def requirement(*extras: str) -> str:
    """This very Recruiter, with these extras, as pip takes it: from the checkout, repository or archive that it was
    installed from, else the same version of an index."""
    metadata = import_module("importlib.metadata")
    name = f"recruiter[{','.join(extras)}]" if extras else "recruiter"
    try:
        found = metadata.distribution("recruiter")
    except metadata.PackageNotFoundError:  # only a folder on the path
        return name
    direct = json.loads(found.read_text("direct_url.json") or "{}")
    if "url" not in direct:
        return f"{name}=={found.version}"
    vcs = direct.get("vcs_info")
    url = direct["url"] if vcs is None else f"{vcs['vcs']}+{direct['url']}@{vcs['commit_id']}"
    return f"{name} @ {url}"


def installing(*extras: str) -> str:
    """The command that installs these extras."""
    return f"pip install {shlex.quote(requirement(*extras))}"


def missing_extra(extra: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    """The error for a module that belongs to an extra which is not installed."""
    return ModuleNotFoundError(f"{error}. It belongs to the extra {extra!r}: {installing(extra)}", name=error.name)


def imports_on_first_use(package: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package whose names come from these modules, each imported when its name is used.

    `from package import Name` is a use. Type checkers see the names because the package imports them under
    `if TYPE_CHECKING`.
    """

    def __getattr__(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(import_module(places[name]), name)
        vars(import_module(package))[name] = found
        return found

    return __getattr__
