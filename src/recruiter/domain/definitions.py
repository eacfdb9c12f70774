"""One name, one definition: a stored name means the same code in the producer, in the worker and after a reload.

Two definitions may want one name. That is fine only if the second is the first one, executed again: by
`importlib.reload`, as `__main__` and as a module, or in a notebook cell that is run again. Their qualified name and
file cannot decide: two functions behind one decorator, two closures and two classes of one factory share both. So each
definition is stored with the *execution* of a module body that made it. Two definitions of one execution are different.

    python shop.py          charge ─┐ one execution: refused        importlib.reload(shop)   charge again: accepted
                            refund ─┘                               import shop              charge again: accepted
"""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from weakref import WeakKeyDictionary

_MAIN = ("__main__", "__mp_main__")


@dataclass(frozen=True, slots=True, eq=False)
class _Execution:
    """One run of a module body, or of one statement where a person types them."""

    code: CodeType | None
    namespace: int
    file: str | None
    """None where a person types statements: in a notebook, in a shell."""


_executions: WeakKeyDictionary[Any, _Execution] = WeakKeyDictionary()


def note(definition: object) -> None:
    """Remembers which execution made this function or class. Call it while it is being defined."""
    try:
        if definition not in _executions:
            _executions[definition] = _current_execution()
    except TypeError:
        return  # an object that takes no weak references is only ever the same as itself


def same_definition(known: object, new: object) -> bool:
    """Whether the new definition is the known one, executed again. Both must have been noted."""
    if known is new:
        return True
    try:
        one, other = _executions.get(known), _executions.get(new)
    except TypeError:
        return False
    if one is None or other is None or _qualname(known) != _qualname(new):
        return False
    if one.file is None and other.file is None:
        # A definition that is typed again replaces the first, as in Python. A closure has no name to be replaced.
        return one.namespace == other.namespace and "<" not in _qualname(new)
    was_executed_again = one.code is not other.code or one.namespace != other.namespace
    return was_executed_again and one.file == other.file and _file(known) == _file(new)


def qualified_name(cls: type) -> str:
    """The stored name of a class: the same whether its file is run as a script or imported."""
    module = module_name(cls.__module__)
    return cls.__qualname__ if module == "builtins" else f"{module}.{cls.__qualname__}"


def module_name(name: str) -> str:
    """The name of this module in other processes: `shop` for `python shop.py`, `pkg.mod` for `python -m pkg.mod`."""
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    if name in _MAIN and spec is not None:
        return str(spec.name)
    file = getattr(module, "__file__", None)
    if file is None or "." in name or not (name in _MAIN or Path(file).stem == name):
        return name
    return _name_of_file(Path(file).absolute())


@cache
def _name_of_file(path: Path) -> str:
    """`pkg.mod` for a file that was started by its path inside of a package."""
    parts = [path.stem]
    folder = path.parent
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts)


def _current_execution() -> _Execution:
    """The module body, or the typed statement, that is being executed in this thread."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    if frame is None:
        return _Execution(None, 0, None)
    file = frame.f_code.co_filename
    is_typed = frame.f_globals.get("__file__") is None or file.startswith("<")
    return _Execution(frame.f_code, id(frame.f_globals), None if is_typed else str(Path(file).absolute()))


def _qualname(definition: object) -> str:
    return getattr(definition, "__qualname__", "<object>")


def _file(definition: Any) -> str | None:
    if isinstance(definition, type):
        return getattr(sys.modules.get(definition.__module__), "__file__", definition.__module__)
    try:
        return inspect.getsourcefile(definition)
    except TypeError:
        return repr(definition)
