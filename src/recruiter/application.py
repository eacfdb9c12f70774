"""The application: the user's file or module, loaded, with the tasks and hooks that it defines."""

from __future__ import annotations

import importlib
import importlib.util
import queue
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from recruiter.domain.policy_registry import PolicyRegistry, SchedulePolicyRegistry
from recruiter.domain.text import said_by
from recruiter.errors import ApplicationError, InvalidName, TaskExists
from recruiter.events import Events
from recruiter.registry import BECAME_MASTER, STEPT_BACK, Registry, RegistryOwner
from recruiter.workable import WORKABLES

HOOKS = (BECAME_MASTER, STEPT_BACK)


@dataclass(frozen=True)
class Application:
    """The tasks, policies, hooks and Recruiters of the user's code."""

    registry: Registry = field(default_factory=Registry)
    policies: PolicyRegistry = field(default_factory=PolicyRegistry)
    schedules: SchedulePolicyRegistry = field(default_factory=SchedulePolicyRegistry)
    owners: tuple[RegistryOwner, ...] = ()
    hooks: dict[str, Callable[[Any], None]] = field(default_factory=dict)
    module: ModuleType | None = None

    @property
    def target(self) -> Any:
        """The `Target` of the application's own jobs; None if it has no Recruiter."""
        return self.owners[0].target if self.owners else None

    def owner_of(self, task: str) -> RegistryOwner | None:
        """The Recruiter that has this task, or else the first one."""
        having = (owner for owner in self.owners if owner.registry.has(task))
        return next(having, self.owners[0] if self.owners else None)

    def point_at(self, target: Any) -> None:
        for owner in self.owners:
            owner.point_at(target)


def load_application(bootstrap: str | None) -> Application:
    """Loads `FILE[:ATTR]` or `MODULE[:ATTR]`. Raises ApplicationError, with the user's own error inside.

    ATTR is the name of the Recruiter that is meant, where there are several on different databases.
    """
    if bootstrap is None:
        return Application()
    place, _, attribute = bootstrap.partition(":") if not Path(bootstrap).exists() else (bootstrap, "", "")
    module = _load(place)
    if attribute:
        chosen = getattr(module, attribute, None)
        if not isinstance(chosen, RegistryOwner):
            raise ApplicationError(f"{place} has no Recruiter called {attribute!r}")
        owners: tuple[RegistryOwner, ...] = (chosen,)
    else:
        owners = _owners_in(module, place)
    policies, schedules = PolicyRegistry(), SchedulePolicyRegistry()
    try:
        registry = Registry.merged(owner.registry for owner in owners)
        for owner in owners:
            owner.default_patience = None  # a Recruiter process may wait longer than a web request
            policies.merge(owner.policies)
            schedules.merge(owner.schedules)
    except (TaskExists, InvalidName) as error:
        raise ApplicationError(f"{place}: {error}") from None
    hooks = {name: getattr(module, name) for name in HOOKS if callable(getattr(module, name, None))}
    workables = [*WORKABLES.values()]
    has_own = any(not workable.__module__.startswith("recruiter.") for workable in workables)
    has_workables = has_own or any(value in workables for value in vars(module).values() if isinstance(value, type))
    if not owners and not hooks and not has_workables:
        raise ApplicationError(
            f"{place} has no Recruiter, so none of its tasks would be known; "
            "write `recruiter = Recruiter()` there, or import the module that does"
        )
    return Application(registry, policies, schedules, owners, hooks, module)


def account(error: BaseException) -> str:
    """The error of an application that cannot be loaded: the cause first, then its place in the user's code."""
    if not isinstance(error, ApplicationError):
        return "".join(traceback.format_exception(error)).rstrip()
    cause = error.__cause__
    if cause is None:
        return str(error)
    frames = traceback.extract_tb(cause.__traceback__)
    theirs = [frame for frame in frames if frame.filename != __file__ and not frame.filename.startswith("<frozen ")]
    return "\n".join([str(error), *"".join(traceback.format_list(theirs)).splitlines()])


def _owners_in(module: ModuleType, place: str) -> tuple[RegistryOwner, ...]:
    """The Recruiters of this application. All Recruiters on one database and prefix are one application. If there are
    several databases, a Recruiter without tasks only sends jobs and does not count."""
    found = sorted(RegistryOwner.alive, key=lambda owner: owner.number)
    if len({owner.target for owner in found}) > 1:
        found = [owner for owner in found if owner.has_own_names] or found
    if len({owner.target for owner in found}) > 1:
        names = {id(value): name for name, value in vars(module).items()}
        described = ", ".join(f"{names.get(id(owner), 'one elsewhere')} on {owner.target.described}" for owner in found)
        raise ApplicationError(
            f"{place} has {len(found)} Recruiters on different databases ({described}); "
            f"name the one for this process: --bootstrap {place}:NAME"
        )
    return tuple(found)


def _load(place: str) -> ModuleType:
    """Imports the file or the module of the application. Raises ApplicationError, even for exit() in its code."""
    try:
        if place.endswith(".py"):
            return _load_file(Path(place))
        if "" not in sys.path and str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        return importlib.import_module(place)
    except ApplicationError:
        raise
    except BaseException as error:
        raise ApplicationError(f"cannot load the application {place!r}: {type(error).__name__}: {error}") from error


def _load_file(path: Path) -> ModuleType:
    """Like `python FILE`, but not as __main__: code under `if __name__ == "__main__"` does not run."""
    path = path.resolve()
    if not path.is_file():
        raise ApplicationError(f"there is no file {str(path)!r} to load the application from")
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    loaded = sys.modules.get(path.stem)
    if loaded is not None and getattr(loaded, "__file__", None) == str(path):
        return loaded
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        if sys.modules.get(path.stem) is module:
            del sys.modules[path.stem]
        raise
    return module


# -- hooks ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hook:
    """A function that is called on a change of the leader, with a name for the log."""

    name: str
    call: Callable[[], object]


class Hooks:
    """The functions that the application registers for a change of the leader.

    They are called in order, on a separate thread, because a slow hook must not cost the lease. An exception in a hook
    becomes an event, and the other hooks are still called.
    """

    def __init__(self, events: Events, became_master: Sequence[Hook] = (), stept_back: Sequence[Hook] = ()) -> None:
        self._events = events
        self._became_master = became_master
        self._stept_back = stept_back
        self._calls: queue.Queue[Hook | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name="hooks", daemon=True)
        self._thread.start()

    def became_master(self) -> None:
        for hook in self._became_master:
            self._calls.put(hook)

    def stept_back(self) -> None:
        for hook in self._stept_back:
            self._calls.put(hook)

    def close(self) -> None:
        self._calls.put(None)
        self._thread.join(timeout=5.0)

    def _run(self) -> None:
        while (hook := self._calls.get()) is not None:
            try:
                hook.call()
            except BaseException as error:  # exit() too: it would end this thread silently
                self._events.emit("hook.failed", hook=hook.name, error=said_by(error, repr))
