"""An application whose code raises wherever it can: what the acceptance test of explanations runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from recruiter import Decision, Event, Failure, Recruiter, RetryPolicy, Workable

recruiter = Recruiter()


@recruiter.task
def add(a: int, b: int) -> int:
    return a + b


@recruiter.listen
def broken_listener(event: Event) -> None:
    """Hears of every job of this application."""
    raise OSError(f"the listener cannot bear to hear of {event.name}")


class Part(Workable):
    """Does what it is told in the part of its life that it is told."""

    def __init__(self, where: str = "", how: str = "raise") -> None:
        self.where = where
        self.how = how
        self._act("constructor")

    def execute(self) -> str:
        self._act("method")
        return "well"

    async def execute_async(self) -> str:
        self._act("method")
        return "well"

    def after_success(self, result: Any) -> None:
        self._act("after_success")

    def after_failure(self, error: BaseException) -> None:
        self._act("after_failure")

    def after_last_failure(self, error: BaseException) -> None:
        self._act("after_last_failure")

    def finalize(self, error: BaseException | None) -> None:
        self._act("finalize")

    def on_event(self, event: Event) -> None:
        self._act("listener")

    def tagged_as(self) -> Iterable[str]:
        self._act("tags")
        return ()

    def _act(self, part: str) -> None:
        if part in self.where.split():
            if self.how == "exit":
                sys.exit(f"left in {part}")
            raise LookupError(f"lost in {part}")


class Exported(Workable):
    """Cannot be exported, or not be imported, or comes back as something else."""

    def __init__(self, what: str) -> None:
        self.what = what

    def export(self) -> Mapping[str, Any]:
        if self.what == "export":
            raise LookupError("lost in export")
        if self.what == "export of nonsense":
            return {"a": [object()]}
        return {"what": self.what}

    @classmethod
    def import_(cls, parameters: Mapping[str, Any]) -> Self:
        if parameters["what"] == "import":
            raise LookupError("lost in import")
        if parameters["what"] == "import that exits":
            sys.exit("left in import")
        if parameters["what"] == "import of nonsense":
            return "not a workable"  # type: ignore[return-value]
        return cls(parameters["what"])

    def execute(self) -> str:
        return self.what


@recruiter.task
def fail() -> None:
    raise LookupError("lost in method")


@recruiter.task
def result(what: str) -> Any:
    """Returns what cannot be stored."""
    answers: dict[str, Callable[[], Any]] = {
        "an object": lambda: {"a": [1, object()]},
        "too much": lambda: "x" * (16 * 1024 * 1024),
        "itself": _itself,
    }
    return answers[what]()


def _itself() -> list[Any]:
    endless: list[Any] = []
    endless.append(endless)
    return endless


@dataclass(frozen=True)
class Strange(RetryPolicy):
    """A policy that does not know what to do."""

    what: str

    def decide(self, failure: Failure) -> Decision | None:
        if self.what == "decide":
            raise LookupError("lost in decide")
        if self.what == "exit":
            sys.exit("left in decide")
        return "tomorrow"  # type: ignore[return-value]

    def export(self) -> dict[str, Any]:
        if self.what == "export":
            raise LookupError("lost in the policy's export")
        return {"what": self.what}

    @classmethod
    def import_(cls, parameters: Mapping[str, Any]) -> Self:
        if parameters["what"] == "import":
            raise LookupError("lost in the policy's import")
        return cls(parameters["what"])


recruiter.policies.register(Strange)
