"""Workables: jobs as classes. A workable exports what it needs, and is rebuilt from that in another process."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

from recruiter.domain.arguments import Signature
from recruiter.domain.names import check_name
from recruiter.errors import InvalidArguments, TaskExists

if TYPE_CHECKING:
    from recruiter.app import Recruiter
    from recruiter.builder import WorkableJob

WORKABLES: dict[str, type[Workable]] = {}
"""Every workable class that has been defined, by task name."""


class Workable:
    """Subclass it, keep your constructor's arguments in attributes of the same names, and write `execute`.

    If that does not fit, define `export` (a document of what to store) and `import_` (the way back).
    """

    task_name: ClassVar[str]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "task_name" not in cls.__dict__:
            cls.task_name = cls.__name__
        name = check_name("task", cls.task_name)
        known = WORKABLES.get(name)
        if known is not None and known.__qualname__ != cls.__qualname__:
            raise TaskExists(f"a workable {name!r} exists already; give {cls.__qualname__} another task_name")
        WORKABLES[name] = cls

    def export(self) -> Mapping[str, Any]:
        """What to store: the constructor's arguments, taken from the attributes of the same names."""
        constructor = type(self).__init__
        if constructor is object.__init__:
            return {}
        names = list(inspect.signature(constructor).parameters)[1:]
        try:
            values = {name: getattr(self, name) for name in names}
        except AttributeError as error:
            raise InvalidArguments(
                f"{type(self).__name__} keeps no attribute {error.name!r} for its constructor's argument of that name; "
                "keep it, or define export() and import_()"
            ) from None
        return Signature.of(constructor, skip_first=True).bind((), values)

    @classmethod
    def import_(cls, parameters: Mapping[str, Any]) -> Self:
        """The workable that `export` described."""
        if cls.__init__ is object.__init__:
            return cls()
        positional, named = Signature.of(cls.__init__, skip_first=True).unbind(parameters)
        return cls(*positional, **named)

    def as_job_of(self, recruiter: Recruiter) -> WorkableJob[Self]:
        """A job that will run one of this workable's methods."""
        return recruiter.job_of(self)
