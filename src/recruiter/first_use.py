"""`cached_property` without a lock.

The one of functools has, before Python 3.12, one lock for all instances of a class. A process that forks while some
thread holds it leaves its child with a lock that nobody will ever release.
"""

from __future__ import annotations

from collections.abc import Callable
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
