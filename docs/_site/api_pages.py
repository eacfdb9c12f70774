"""The pages of the API: every public name with its signature and its docstring."""

from __future__ import annotations

import builtins
import inspect
import re
from enum import Enum
from typing import Any

from public import FOR_BUILDERS, Member, Public, alias, classes_in, descriptions, fields, members, public_names
from signatures import shown, signature
from source import class_source

from recruiter import errors
from recruiter.first_use import cached_property

FOLDER = "reference/api"

_PAGES = {
    "policies": ("Policies", "Retry policies and schedule policies."),
    "values": ("Values", "Frozen data that calls take and return."),
    "words": ("Words", "Enumerations. Each value is a string, and documents store it in this form."),
    "exceptions": (
        "Exceptions",
        "Exceptions that `recruiter` exports. [Errors](../errors.md) lists every remedy.",
    ),
    "functions": ("Functions", "Functions outside of classes."),
    "aliases": ("Types", "Type aliases for your annotations."),
}
"""A class has its own page. All names of another kind share one page."""

_CODE = re.compile(r"(`[^`]*`|\[[^\]]*\]\([^)]*\)|^(?: {4}|```).*$)", re.MULTILINE)
_CLASS_NAME = re.compile(r"\b((?:[A-Z][a-z]+){2,})\b")
_RAISES = re.compile(r"\bRaises ([^.;:]+)")
_FEW = 10
"""Number of fields up to which a value is shown as a constructor call."""


class Api:
    def __init__(self) -> None:
        everything = public_names()
        self.names = {
            name: public
            for name, public in everything.items()
            if public.module or public.kind != "classes" or members(public.cls or object)
        }
        self._classes = [public.cls for public in self.names.values() if public.cls is not None]

    def pages(self) -> dict[str, str]:
        """The pages, by their path in the site."""
        pages = {
            f"{FOLDER}/{name}.md": self._class_page(public)
            for name, public in self.names.items()
            if public.kind == "classes"
        }
        for kind, (title, intro) in _PAGES.items():
            told = [self._entry(public) for public in self.names.values() if public.kind == kind]
            if told:
                pages[f"{FOLDER}/{kind}.md"] = "\n\n".join([f"# {title}", intro, *told])
        return pages

    def complaints(self) -> list[str]:
        """Missing docstrings, and docstrings that name unknown errors."""
        found = []
        for public in self.names.values():
            told = {public.name: self._told(public)} if public.module else {}
            if public.cls is not None and (public.module or public.kind == "classes"):
                told |= {f"{public.name}.{member.name}": member.told for member in self._members(public)}
            found += [f"{name} has no docstring" for name, text in told.items() if not text]
            raised = [(name, error) for name, text in told.items() for error in _errors(text)]
            found += [f"{name}: its docstring names the unknown error {error}" for name, error in raised]
        return found

    def index(self) -> str:
        """The table of all public names."""
        rows = [
            f"| [`{name}`]({self._link(public).removeprefix('reference/')}) | {self._linked(_first(told), 'api/')} |"
            for name, public in self.names.items()
            if public.module and (told := self._told(public))
        ]
        return "\n".join(["| name | |", "|---|---|", *rows])

    def _link(self, public: Public) -> str:
        own = public.kind == "classes"
        return f"{FOLDER}/{public.name}.md" if own else f"{FOLDER}/{public.kind}.md#{_anchor(public.name)}"

    def _class_page(self, public: Public) -> str:
        cls = public.cls
        assert cls is not None
        made = self._constructor(cls, public.name) if public.value is cls and public.module else ""
        told = [f"# {public.name}", _imported(public), made, self._linked(self._told(public)), self._bases(cls)]
        return "\n\n".join(filter(None, [*told, *self._sections(public)]))

    def _bases(self, cls: type) -> str:
        bases = [base.__name__ for base in cls.__mro__[1:] if base in self._classes]
        return f"It has all members of [{bases[0]}]({bases[0]}.md), and:" if bases else ""

    def _sections(self, public: Public) -> list[str]:
        offered = self._members(public)
        if not any(member.section for member in offered):
            return [self._member(member, level=2) for member in offered]
        told, last = [], None
        for member in offered:
            if member.section != last:
                title = member.section or "attributes"
                told.append(f"## {title[0].upper()}{title[1:]}")
            if member.section == FOR_BUILDERS != last:
                told.append("For the builder, the processes and tests. You need them only to extend Recruiter.")
            last = member.section
            told.append(self._member(member, level=3))
        return told

    def _constructor(self, cls: type, name: str) -> str:
        """The constructor call, or the first line of a subclass; empty if users never write either."""
        if "__init_subclass__" in vars(cls):
            words = signature(cls.__init_subclass__, "")
            return _block(f"class Yours({name}, {words.removeprefix('(').lstrip()}: ...")
        owner = next(owner for owner in cls.__mro__ if "__init__" in vars(owner))
        if not owner.__module__.startswith("recruiter"):
            return ""
        takes = list(inspect.signature(cls).parameters.values())
        needs = [needed for each in takes for needed in classes_in(str(each.annotation), owner)]
        private = any(each.name.startswith("_") for each in takes) or any(cls not in self._classes for cls in needs)
        return "" if private else _block(signature(cls, name))

    def _members(self, public: Public) -> list[Member]:
        assert public.cls is not None
        return members(public.cls, [cls for cls in self._classes if cls is not public.cls])

    def _member(self, member: Member, level: int = 3) -> str:
        heading = f"{'#' * level} {member.name}"
        written = _block(_member_signature(member)) if member.value is not None else ""
        awaited = f"For asyncio: `await {member.async_name}(…)`." if member.async_name else ""
        return "\n\n".join(filter(None, [heading, written, self._linked(member.told), awaited]))

    def _entry(self, public: Public) -> str:
        """The section of a name on a shared page."""
        parts = [f"## {public.name}", _imported(public)]
        cls = public.cls
        if public.kind == "aliases":
            parts.append(_block(alias(public)[0]))
        elif cls is None:
            parts.append(_block(signature(public.value, public.name)))
        elif public.kind != "words" and len(fields(cls)) <= _FEW:
            parts.append(self._constructor(cls, public.name))
        parts.append(self._linked(self._told(public)))
        if cls is not None:
            parts += [_words(cls) if public.kind == "words" else self._fields(cls)]
            parts += [self._member(each) for each in self._members(public) if each.told]
        return "\n\n".join(filter(None, parts))

    def _fields(self, cls: type) -> str:
        told = {name: doc for owner in reversed(cls.__mro__) for name, doc in class_source(owner).attributes.items()}
        told |= descriptions(cls)
        inherited = {name for base in cls.__mro__[1:] if base in self._classes for name, _, _ in fields(base)}
        own = [(name, annotation, default) for name, annotation, default in fields(cls) if name not in inherited]
        explained = any(name in told for name, _, _ in own)
        rows = [
            f"| `{name}` | {_typed(annotation)}{_equals(default)} |"
            + (f" {self._linked(_one_line(told.get(name, '')))} |" if explained else "")
            for name, annotation, default in own
        ]
        base = next((base.__name__ for base in cls.__mro__[1:] if base in self._classes and inherited), None)
        more = f"\n\nIt also has the fields of [{base}](#{_anchor(base)})." if base else ""
        header = ["| field | type | |", "|---|---|---|"] if explained else ["| field | type |", "|---|---|"]
        return "\n".join([*header, *rows]) + more if rows else ""

    def _told(self, public: Public) -> str:
        if public.kind == "aliases":
            return alias(public)[1]
        own: str = (vars(public.cls).get("__doc__") if public.cls else public.value.__doc__) or ""
        by_python = own.startswith(f"{public.name}(")  # the generated docstring of a dataclass
        return "" if by_python else inspect.cleandoc(own)

    def _linked(self, text: str, prefix: str = "") -> str:
        """Adds links from class names to their descriptions."""
        parts = _CODE.split(text)
        for place, part in enumerate(parts):
            if place % 2 == 0:
                parts[place] = _CLASS_NAME.sub(lambda match: self._link_to(match[1], prefix) or match[1], part)
            elif part.startswith("`"):
                parts[place] = self._link_to(part.strip("`"), prefix) or part
        return "".join(parts)

    def _link_to(self, name: str, prefix: str) -> str | None:
        if name in self.names:
            return f"[`{name}`]({prefix}{self._link(self.names[name]).removeprefix(FOLDER + '/')})"
        if inspect.isclass(getattr(errors, name, None)):
            return f"[`{name}`]({'' if prefix else '../'}errors.md)"
        return None


def _errors(text: str) -> list[str]:
    """Unknown names after "Raises"."""
    named = [name for sentence in _RAISES.findall(text) for name in _CLASS_NAME.findall(sentence)]
    return [name for name in named if not hasattr(errors, name) and not hasattr(builtins, name)]


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w-]", "", heading.lower())


def _imported(public: Public) -> str:
    return f"`from {public.module} import {public.name}`" if public.module else ""


def _member_signature(member: Member) -> str:
    value = member.value
    if isinstance(value, property | cached_property):
        getter: Any = value.fget if isinstance(value, property) else value.func
        returns = inspect.signature(getter).return_annotation
        return member.name if returns is inspect.Signature.empty else f"{member.name}: {returns}"
    call = value.__func__ if isinstance(value, classmethod | staticmethod) else value
    return signature(call, member.name)


def _words(cls: type) -> str:
    told = class_source(cls).attributes
    assert issubclass(cls, Enum)
    rows = [f"| `{cls.__name__}.{word.name}` | `{word.value}` | {_one_line(told.get(word.name, ''))} |" for word in cls]
    return "\n".join(["| name | stored | |", "|---|---|---|", *rows])


def _block(text: str) -> str:
    return f"```python\n{text}\n```"


def _typed(annotation: str) -> str:
    return f"`{annotation}`".replace("|", "\\|") if annotation else ""


def _equals(default: Any) -> str:
    return "" if default is ... else f" = `{shown(default)}`"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _first(text: str) -> str:
    """The first sentence."""
    return re.split(r"(?<=[.!?])\s", _one_line(text.split("\n\n")[0]), maxsplit=1)[0]
