"""Results of steps as arguments of other steps: a placeholder stands in the arguments until the result is there.

    image = flow.add(fetch, url)
    flow.add(resize, image.result, 64)      {"image": {"__recruiter__": "result", "step": <id>}, "width": 64}

The leader copies the stored results to the job when it releases it; the process that runs the job puts them in place.
They are restored by the annotation of the parameter, like every argument.
"""

from __future__ import annotations

import collections.abc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, NoReturn, Union, cast, get_args, get_origin

from recruiter.domain.arguments.typed import RESULT_TAG, Mismatch, slot_of, spelled
from recruiter.domain.arguments.values import KEYS_THAT_CHANGE, MAX_DEPTH, TAG, type_name
from recruiter.domain.names import JobId
from recruiter.errors import InvalidFlow

_PLACE = "result"


class StepResult:
    """The result of a step, as an argument of another step of its flow."""

    __slots__ = ("flow", "name", "returns", "step", "sub_flow")

    def __init__(
        self, step: JobId, returns: Any = Any, flow: object = None, sub_flow: object = None, name: str | None = None
    ) -> None:
        self.step = step
        self.name = name
        """The name of the step or of its task, for messages."""
        self.returns = returns
        self.flow = flow
        self.sub_flow = sub_flow
        """The sub-flow whose result it is: who takes it waits for the whole sub-flow."""

    def stored(self) -> dict[str, Any]:
        """As the result of a step: its own result is the result of the other step."""
        return {TAG: _PLACE, "step": self.step}

    def __repr__(self) -> str:
        return f"the result of step {str(self.step) if self.name is None else self.name!r}"

    def __bool__(self) -> NoReturn:
        raise self._not_there_yet("an `if` or `and` around it")

    def __eq__(self, other: object) -> bool:
        raise self._not_there_yet("a comparison")

    __hash__ = object.__hash__

    def __getitem__(self, key: Any) -> NoReturn:
        raise self._not_there_yet("a loop over it, or an index")

    def __str__(self) -> NoReturn:
        raise self._not_there_yet("a text made of it")

    def __format__(self, format_spec: str) -> NoReturn:
        raise self._not_there_yet("a text made of it")

    def _not_there_yet(self, use: str) -> InvalidFlow:
        return InvalidFlow(
            f"{self!r} is there when another step runs, and {use} would not see it. Pass it to a step as an argument, "
            "and use it there"
        )


def delegated(stored: Any) -> JobId | list[JobId] | None:
    """The step whose result is the result of a step that returned `step.result`, or the steps whose results are, if it
    returned a list of them; None for every other result."""
    if isinstance(stored, list) and stored:
        steps = [delegated(item) for item in stored]
        return None if any(step is None or isinstance(step, list) for step in steps) else cast(list[JobId], steps)
    return stored["step"] if isinstance(stored, dict) and stored.get(TAG) == _PLACE and "step" in stored else None


class SubFlowResults(list[StepResult]):
    """The result of a sub-flow that has a list of results, which may be empty."""

    def __init__(self, results: Iterable[StepResult], sub_flow: object) -> None:
        super().__init__(results)
        self.sub_flow = sub_flow


class HasResult:
    """A step of a flow. It is no argument itself; its result is."""


class WithResults(dict[str, Any]):
    """The stored arguments of a job that takes results of steps. It can be stored only as a step of their flow."""


class Unfilled:
    """A stored argument in which results of steps are still missing."""

    step: JobId | None = None
    """The step, in the place of its result."""
    may_be_none = True
    """Whether the parameter takes None: the result of a step that did not succeed."""
    sub_flow: object = None


class _UnfilledDict(dict[str, Any], Unfilled):
    pass


class _UnfilledList(list[Any], Unfilled):
    pass


def contains_results(value: Any, kind: type | tuple[type, ...] = StepResult, depth: int = 0) -> bool:
    """Whether there is the result of a step in it, at any depth; or something of another kind."""
    if isinstance(value, kind) or (kind is StepResult and isinstance(value, SubFlowResults)):
        return True
    if depth > MAX_DEPTH:
        return False
    if isinstance(value, dict):
        return any(contains_results(item, kind, depth + 1) for item in value.values())
    return isinstance(value, list | tuple) and any(contains_results(item, kind, depth + 1) for item in value)


def stored(value: Any, annotation: Any) -> Any:
    """The stored form of a value with results of steps in it. All other parts are checked by the annotation. Raises
    Mismatch, including for a result whose type cannot fit."""
    if isinstance(value, StepResult):
        if not may_fit(value.returns, annotation):
            expected, returns = spelled(annotation), spelled(value.returns)
            raise Mismatch(f"expected {expected}, got the result of a step, which is {returns}")
        unfilled: Any = _UnfilledDict({TAG: _PLACE, "step": value.step})
        unfilled.step, unfilled.sub_flow = value.step, value.sub_flow
        unfilled.may_be_none = may_fit(None, annotation)
        return unfilled
    if not contains_results(value):
        return slot_of(annotation).store(value)
    if not may_fit(type(value) if isinstance(value, dict | tuple) else list, annotation):
        raise Mismatch(f"expected {spelled(annotation)}, got a {type_name(value)} of results")
    if isinstance(value, dict):
        return _stored_mapping(value, annotation)
    annotation = _plain(annotation)
    if isinstance(value, tuple) and get_origin(annotation) is not tuple and annotation is not Any:
        raise Mismatch(f"expected {spelled(annotation)}, got a tuple of results; pass a list")
    item = _item_of(annotation, (list, tuple, collections.abc.Sequence, collections.abc.Iterable))
    inner = get_args(annotation) if get_origin(annotation) is tuple else ()
    items = inner if len(inner) == len(value) and Ellipsis not in inner else [item] * len(value)
    elements = _UnfilledList(stored(element, each) for element, each in zip(value, items, strict=True))
    elements.sub_flow = value.sub_flow if isinstance(value, SubFlowResults) else None
    return elements


def _stored_mapping(value: dict[Any, Any], annotation: Any) -> _UnfilledDict:
    if not all(isinstance(key, str) for key in value) or not KEYS_THAT_CHANGE.isdisjoint(value):
        raise Mismatch("a dict with results of steps in it needs texts as keys")
    item = _item_of(annotation, (dict, collections.abc.Mapping), place=1)
    return _UnfilledDict({key: stored(element, item) for key, element in value.items()})


def _item_of(annotation: Any, origins: tuple[Any, ...], place: int = 0) -> Any:
    """The annotation of the items of a container: type argument number `place`. Any without one."""
    annotation = _plain(annotation)
    if get_origin(annotation) in _UNIONS:
        fitting = [member for member in get_args(annotation) if (get_origin(member) or member) in origins]
        return _item_of(fitting[0], origins, place) if len(fitting) == 1 else Any
    inner = get_args(annotation)
    if get_origin(annotation) not in origins or len(inner) <= place:
        return Any
    return inner[place]


_UNIONS = (Union, UnionType)
_NUMBERS = {float: (int,), complex: (int, float)}


def may_fit(returns: Any, annotation: Any) -> bool:
    """Whether a value of one type may fit another type. Only a certain mismatch is refused."""
    returns, annotation = _plain(returns), _plain(annotation)
    if returns is Any or annotation is Any:
        return True
    if get_origin(returns) in _UNIONS:
        return any(may_fit(member, annotation) for member in get_args(returns))
    if get_origin(annotation) in _UNIONS:
        return any(may_fit(returns, member) for member in get_args(annotation))
    one, other = get_origin(returns) or returns, get_origin(annotation) or annotation
    if not isinstance(one, type) or not isinstance(other, type):
        return True
    try:
        return issubclass(one, other) or issubclass(other, one) or one in _NUMBERS.get(other, ())
    except TypeError:
        return True


def _plain(annotation: Any) -> Any:
    if get_origin(annotation) is Annotated:
        return _plain(get_args(annotation)[0])
    return NoneType if annotation is None else annotation


def unfilled_in(value: Any) -> Iterator[Unfilled]:
    """The places for results among arguments that have just been stored."""
    if isinstance(value, Unfilled):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from unfilled_in(item)


def filled(args: Any, results: Sequence[Mapping[str, Any]]) -> Any:
    """The arguments with the results in their places. A step without a result, or that did not succeed, gives None."""
    values = {result["step"]: as_argument(result.get("value")) for result in results}
    return _replaced(args, values.get)


def as_argument(stored: Any) -> Any:
    """A result of another type than its task declares has a mark, which an argument does not need."""
    return stored.get("value") if isinstance(stored, dict) and stored.get(TAG) == RESULT_TAG else stored


def _replaced(value: Any, replacement: Callable[[JobId], Any]) -> Any:
    if isinstance(value, dict):
        if value.get(TAG) == _PLACE and "step" in value:
            return replacement(value["step"])
        return {key: _replaced(item, replacement) for key, item in value.items()}
    return [_replaced(item, replacement) for item in value] if isinstance(value, list) else value
